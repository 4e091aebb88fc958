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

/* Where one query head of one sequence lies: offsets of its first row, and floats from row to row. */
typedef struct head_place {
    size_t query, key, value, in_stride; /* in qkv and d_qkv */
    size_t out, out_stride;              /* in out and d_out */
    size_t probabilities;
} head_place;

static head_place place_head(size_t b, size_t head, size_t T, size_t G, size_t R, size_t D)
{
    head_place place = {.in_stride = G * (R + 2) * D, .out_stride = G * R * D};
    size_t unit = b * T * place.in_stride + head / R * (R + 2) * D;
    place.query = unit + head % R * D;
    place.key = unit + R * D;
    place.value = place.key + D;
    place.out = b * T * place.out_stride + head * D;
    place.probabilities = (b * G * R + head) * ek_attention_probabilities(T);
    return place;
}

static uint64_t head_forward(float *out, float *probabilities, const float *qkv, head_place place, size_t T, size_t D)
{
    ek_matrix key_t = {qkv + place.key, place.in_stride, true};
    ek_matrix value = {qkv + place.value, place.in_stride, false};
    uint64_t flops = 0;
    for (size_t first = 0; first < T; first += ROWS) {
        size_t keys = smaller(first + ROWS, T), rows = keys - first;
        float *p = probabilities + place.probabilities + block_offset(first);
        ek_matrix query = {qkv + place.query + first * place.in_stride, place.in_stride, false};
        flops += ek_gemm(p, keys, 1.0f / sqrtf((float)D), query, key_t, 0.0f, rows, keys, D);
        softmax_block(p, first, rows, keys);
        flops += ek_gemm(out + place.out + first * place.out_stride, place.out_stride, 1.0f,
                         (ek_matrix){p, keys, false}, value, 0.0f, rows, D, keys);
    }
    return flops;
}

/* Sets the head's part of d_qkv; d_key and d_value are added to where `add`, because another head set them. */
static uint64_t head_backward(float *d_qkv, const float *d_out, const float *out, const float *probabilities,
                              const float *qkv, float *d_p, head_place place, bool add, size_t T, size_t D)
{
    size_t in_stride = place.in_stride, out_stride = place.out_stride;
    float scale = 1.0f / sqrtf((float)D);
    uint64_t flops = 0;
    ek_matrix key = {qkv + place.key, in_stride, false}, value_t = {qkv + place.value, in_stride, true};
    for (size_t end = T; end > 0; end = (end - 1) / ROWS * ROWS) { /* the last block first: it meets every key */
        size_t keys = end, first = (end - 1) / ROWS * ROWS, rows = keys - first;
        float beta = add || end < T ? 1.0f : 0.0f;
        const float *p = probabilities + place.probabilities + block_offset(first);
        size_t row_out = place.out + first * out_stride, row_query = place.query + first * in_stride;
        ek_matrix d_rows = {d_out + row_out, out_stride, false}, query = {qkv + row_query, in_stride, false};
        flops += ek_gemm(d_qkv + place.value, in_stride, 1.0f, (ek_matrix){p, keys, true}, d_rows, beta, keys, D, rows);
        flops += ek_gemm(d_p, keys, 1.0f, d_rows, value_t, 0.0f, rows, keys, D);
        softmax_block_backward(d_p, p, out + row_out, d_out + row_out, out_stride, rows, keys, D);
        flops += ek_gemm(d_qkv + row_query, in_stride, scale, (ek_matrix){d_p, keys, false}, key, 0.0f, rows, D, keys);
        flops += ek_gemm(d_qkv + place.key, in_stride, scale, (ek_matrix){d_p, keys, true}, query, beta, keys, D, rows);
    }
    return flops;
}

uint64_t ek_attention_forward(float *out, float *probabilities, const float *qkv, size_t B, size_t T, size_t G,
                              size_t R, size_t D)
{
    uint64_t flops = 0;
    for (size_t b = 0; b < B; b++)
        for (size_t head = 0; head < G * R; head++)
            flops += head_forward(out, probabilities, qkv, place_head(b, head, T, G, R, D), T, D);
    return flops;
}

uint64_t ek_attention_backward(float *d_qkv, const float *d_out, const float *out, const float *probabilities,
                               const float *qkv, float *scratch, size_t B, size_t T, size_t G, size_t R, size_t D)
{
    uint64_t flops = 0;
    for (size_t b = 0; b < B; b++)
        for (size_t head = 0; head < G * R; head++)
            flops += head_backward(d_qkv, d_out, out, probabilities, qkv, scratch, place_head(b, head, T, G, R, D),
                                   head % R > 0, T, D);
    return flops;
}
