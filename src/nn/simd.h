/* What the elementwise kernels share: one source compiled for several instruction sets, reductions in a fixed order,
 * and an exponential that compilers vectorise.
 *
 * Every target and every alignment gives the same bits: nothing is contracted, sums are taken over 16 lanes and then
 * in a fixed tree, whatever the width of the machine's registers. */
#ifndef EK_NN_SIMD_H
#define EK_NN_SIMD_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/clones.h"

#define EK_INLINE static inline __attribute__((always_inline))

/* The lanes of a sum. Aligned to 4 bytes: it is read from anywhere. */
#define EK_VECTOR_FLOATS 16
typedef float ek_vector __attribute__((vector_size(64), aligned(4), may_alias));

EK_INLINE float ek_vector_sum(const ek_vector *lanes)
{
    float sums[EK_VECTOR_FLOATS];
    memcpy(sums, lanes, sizeof sums);
    for (size_t half = EK_VECTOR_FLOATS / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            sums[i] += sums[i + half];
    return sums[0];
}

EK_INLINE float ek_sum(const float *x, size_t count)
{
    ek_vector lanes = {0};
    size_t i = 0;
    for (; i + EK_VECTOR_FLOATS <= count; i += EK_VECTOR_FLOATS)
        lanes += *(const ek_vector *)(x + i);
    float sum = ek_vector_sum(&lanes);
    for (; i < count; i++)
        sum += x[i];
    return sum;
}

EK_INLINE float ek_dot(const float *x, const float *y, size_t count)
{
    ek_vector lanes = {0};
    size_t i = 0;
    for (; i + EK_VECTOR_FLOATS <= count; i += EK_VECTOR_FLOATS)
        lanes += *(const ek_vector *)(x + i) * *(const ek_vector *)(y + i);
    float sum = ek_vector_sum(&lanes);
    for (; i < count; i++)
        sum += x[i] * y[i];
    return sum;
}

/* count >= 1 */
EK_INLINE float ek_max(const float *x, size_t count)
{
    float lanes[EK_VECTOR_FLOATS];
    for (size_t j = 0; j < EK_VECTOR_FLOATS; j++)
        lanes[j] = x[0];
    size_t i = 0;
    for (; i + EK_VECTOR_FLOATS <= count; i += EK_VECTOR_FLOATS)
        for (size_t j = 0; j < EK_VECTOR_FLOATS; j++)
            lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    for (; i < count; i++)
        lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
    float max = lanes[0];
    for (size_t j = 1; j < EK_VECTOR_FLOATS; j++)
        max = lanes[j] > max ? lanes[j] : max;
    return max;
}

/* e^x to 1 ulp (tests/nn/test_exp.c); 0 where the result is below the normal numbers. x = n ln 2 + r, |r| <= ln 2 / 2;
 * adding 1.5 * 2^23 rounds to a whole number and leaves n in the low bits. */
EK_INLINE float ek_exp(float x)
{
    const float round = 0x1.8p23f;
    float shifted = x * 0x1.715476p0f + round;
    float n = shifted - round;
    float r = x - n * 0x1.62e4p-1f; /* exact: few bits in the factor */
    r = r - n * 0x1.7f7d1cp-20f;
    float p = 0x1.6a244ep-10f;
    p = p * r + 0x1.1239d4p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * (r * r) + r + 1.0f;
    uint32_t n_bits, p_bits;
    memcpy(&n_bits, &shifted, sizeof n_bits);
    memcpy(&p_bits, &p, sizeof p_bits);
    p_bits += n_bits << 23;
    memcpy(&p, &p_bits, sizeof p);
    p = x < -87.33654f ? 0.0f : p;
    return x > 88.72283f ? INFINITY : p;
}

EK_INLINE float ek_sigmoid(float x)
{
    return 1.0f / (1.0f + ek_exp(-x));
}

#endif
