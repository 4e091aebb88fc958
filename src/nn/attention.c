/* Grouped-query causal attention in blocks of query rows: a block meets the keys up to its last row and no others, so
 * the masked half is neither computed nor stored; only the corner beyond the diagonal of the last square is.
 *
 * The probabilities of block i, rows i*ROWS …, are a matrix (rows, keys) with keys = the block's end, one block after
 * the other. */
#include "nn/gemm.h"
#include "nn/nn.h"
#include "nn/simd.h"

#define ROWS 64 /* of a block: large enough for the matrix product, small enough to waste little on the diagonal */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t last_block(size_t T)
{
    return (T - 1) / ROWS * ROWS;
}

/* Where the block that begins at row `first` lies within the probabilities of its head. */
static size_t block_offset(size_t first)
{
    return first * (first + ROWS) / 2;
}

size_t ek_attention_probabilities(size_t T)
{
    return block_offset(last_block(T)) + (T - last_block(T)) * T;
}

size_t ek_attention_scratch(size_t T)
{
    return smaller(T, ROWS) * T;
}

/* scores (rows,keys) of query rows first … become probabilities: row i sees the keys up to first + i. */
EK_CLONES static void softmax_block(float *scores, size_t first, size_t rows, size_t keys)
{
    for (size_t i = 0; i < rows; i++) {
        float *row = scores + i * keys;
        size_t visible = first + i + 1;
        float max = ek_max(row, visible);
        for (size_t j = 0; j < visible; j++)
            row[j] = ek_exp(row[j] - max);
        float factor = 1.0f / ek_sum(row, visible);
        for (size_t j = 0; j < visible; j++)
            row[j] *= factor;
        for (size_t j = visible; j < keys; j++)
            row[j] = 0.0f;
    }
}

/* d_p (rows,keys) becomes the gradient by the scores before scaling: p * (d_p - out . d_out) per row. */
EK_CLONES static void softmax_block_backward(float *d_p, const float *p, const float *out, const float *d_out,
                                             size_t out_stride, size_t rows, size_t keys, size_t D)
{
    for (size_t i = 0; i < rows; i++) {
        float dot = ek_dot(out + i * out_stride, d_out + i * out_stride, D);
        float *restrict d_row = d_p + i * keys;
        const float *restrict row = p + i * keys;
        for (size_t j = 0; j < keys; j++)
            d_row[j] = row[j] * (d_row[j] - dot);
    }
}

void ek_attention_forward(float *out, float *probabilities, const float *qkv, size_t B, size_t T, size_t G, size_t R,
                          size_t D)
{
    size_t in_stride = G * (R + 2) * D, out_stride = G * R * D;
    float scale = 1.0f / sqrtf((float)D);
    for (size_t b = 0; b < B; b++)
        for (size_t head = 0; head < G * R; head++) {
            const float *unit = qkv + b * T * in_stride + head / R * (R + 2) * D;
            const float *query = unit + head % R * D, *key = unit + R * D, *value = key + D;
            float *head_out = out + b * T * out_stride + head * D;
            float *head_p = probabilities + (b * G * R + head) * ek_attention_probabilities(T);
            for (size_t first = 0; first < T; first += ROWS) {
                size_t keys = smaller(first + ROWS, T), rows = keys - first;
                float *p = head_p + block_offset(first);
                ek_gemm(p, keys, scale, (ek_matrix){query + first * in_stride, in_stride, false},
                        (ek_matrix){key, in_stride, true}, 0.0f, rows, keys, D);
                softmax_block(p, first, rows, keys);
                ek_gemm(head_out + first * out_stride, out_stride, 1.0f, (ek_matrix){p, keys, false},
                        (ek_matrix){value, in_stride, false}, 0.0f, rows, D, keys);
            }
        }
}

void ek_attention_backward(float *d_qkv, const float *d_out, const float *out, const float *probabilities,
                           const float *qkv, float *scratch, size_t B, size_t T, size_t G, size_t R, size_t D)
{
    size_t in_stride = G * (R + 2) * D, out_stride = G * R * D;
    float scale = 1.0f / sqrtf((float)D);
    for (size_t b = 0; b < B; b++)
        for (size_t head = 0; head < G * R; head++) {
            size_t unit_offset = b * T * in_stride + head / R * (R + 2) * D;
            const float *unit = qkv + unit_offset;
            const float *query = unit + head % R * D, *key = unit + R * D, *value = key + D;
            float *d_unit = d_qkv + unit_offset;
            float *d_query = d_unit + head % R * D, *d_key = d_unit + R * D, *d_value = d_key + D;
            size_t head_offset = b * T * out_stride + head * D;
            const float *head_p = probabilities + (b * G * R + head) * ek_attention_probabilities(T);
            for (size_t first = last_block(T);; first -= ROWS) {
                size_t keys = smaller(first + ROWS, T), rows = keys - first;
                const float *p = head_p + block_offset(first);
                const float *block_out = out + head_offset + first * out_stride;
                ek_matrix d_block_out = {d_out + head_offset + first * out_stride, out_stride, false};

                /* The first block of the first head meets every key: it sets d_key and d_value, the others add. */
                float beta = head % R == 0 && keys == T ? 0.0f : 1.0f;
                ek_gemm(d_value, in_stride, 1.0f, (ek_matrix){p, keys, true}, d_block_out, beta, keys, D, rows);
                ek_gemm(scratch, keys, 1.0f, d_block_out, (ek_matrix){value, in_stride, true}, 0.0f, rows, keys, D);
                softmax_block_backward(scratch, p, block_out, d_block_out.data, out_stride, rows, keys, D);
                ek_gemm(d_query + first * in_stride, in_stride, scale, (ek_matrix){scratch, keys, false},
                        (ek_matrix){key, in_stride, false}, 0.0f, rows, D, keys);
                ek_gemm(d_key, in_stride, scale, (ek_matrix){scratch, keys, true},
                        (ek_matrix){query + first * in_stride, in_stride, false}, beta, keys, D, rows);
                if (first == 0)
                    break;
            }
        }
}
