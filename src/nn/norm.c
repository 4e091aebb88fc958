/* Root-mean-square normalisation (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019), joined with the
 * residual addition before it to read and write the residual stream once. */
#include "nn/nn.h"
#include "nn/simd.h"

EK_CLONES void ek_rmsnorm_forward(float *out, float *inverse_rms, float *in, const float *residual, const float *branch,
                                  const float *weight, float epsilon, size_t N, size_t C)
{
    for (size_t n = 0; n < N; n++) {
        float *restrict x = in + n * C;
        if (branch)
            for (size_t c = 0; c < C; c++)
                x[c] = residual[n * C + c] + branch[n * C + c];
        float factor = 1.0f / sqrtf(ek_dot(x, x, C) / (float)C + epsilon);
        inverse_rms[n] = factor;
        float *restrict y = out + n * C;
        for (size_t c = 0; c < C; c++)
            y[c] = x[c] * factor * weight[c];
    }
}

EK_CLONES void ek_rmsnorm_backward(float *d_in, float *d_weight, const float *d_out, const float *in,
                                   const float *inverse_rms, const float *weight, size_t N, size_t C)
{
    for (size_t n = 0; n < N; n++) {
        const float *x = in + n * C;
        const float *dy = d_out + n * C;
        float *restrict dx = d_in + n * C;
        float factor = inverse_rms[n];
        ek_vector lanes = {0};
        size_t c = 0;
        for (; c + EK_VECTOR_FLOATS <= C; c += EK_VECTOR_FLOATS)
            lanes += *(const ek_vector *)(dy + c) * *(const ek_vector *)(weight + c) * *(const ek_vector *)(x + c);
        float dot = ek_vector_sum(&lanes);
        for (; c < C; c++)
            dot += dy[c] * weight[c] * x[c];
        float shrink = dot * factor * factor / (float)C;
        for (c = 0; c < C; c++) {
            dx[c] += factor * (dy[c] * weight[c] - x[c] * shrink);
            d_weight[c] += dy[c] * x[c] * factor;
        }
    }
}
