/* Rotary position embedding (Su et al., "RoFormer", 2021), in the half-split form of Hugging Face's Llama. */
#include "nn/nn.h"
#include "nn/simd.h"

void ek_rope_table(float *table, float theta, size_t T, size_t D)
{
    size_t half = D / 2;
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < half; i++) {
            double angle = (double)t * pow((double)theta, -2.0 * (double)i / (double)D);
            table[t * D + i] = (float)cos(angle);
            table[t * D + half + i] = (float)sin(angle);
        }
}

/* One head turned by the angles of one row of the table, or back (direction -1). */
EK_INLINE void turn(float *restrict head, const float *restrict row, float direction, size_t D)
{
    size_t half = D / 2;
    for (size_t i = 0; i < half; i++) {
        float cosine = row[i], sine = direction * row[half + i];
        float first = head[i], second = head[half + i];
        head[i] = first * cosine - second * sine;
        head[half + i] = second * cosine + first * sine;
    }
}

EK_INLINE void turn_all(float *qkv, const float *table, float direction, size_t B, size_t T, size_t G, size_t R,
                        size_t D)
{
    for (size_t n = 0; n < B * T; n++)
        for (size_t g = 0; g < G; g++)
            for (size_t r = 0; r < R + 1; r++) /* the query heads and the key head */
                turn(qkv + ((n * G + g) * (R + 2) + r) * D, table + n % T * D, direction, D);
}

EK_CLONES void ek_rope_forward(float *qkv, const float *table, size_t B, size_t T, size_t G, size_t R, size_t D)
{
    turn_all(qkv, table, 1.0f, B, T, G, R, D);
}

EK_CLONES void ek_rope_backward(float *d_qkv, const float *table, size_t B, size_t T, size_t G, size_t R, size_t D)
{
    turn_all(d_qkv, table, -1.0f, B, T, G, R, D);
}
