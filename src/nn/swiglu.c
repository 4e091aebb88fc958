/* The gated activation of the FFN (Shazeer, "GLU Variants Improve Transformer", 2020). */
#include "nn/nn.h"
#include "nn/simd.h"

EK_CLONES void ek_swiglu_forward(float *out, const float *gate_up, size_t N, size_t F, size_t f)
{
    for (size_t block = 0; block < N * (F / f); block++) {
        const float *gate = gate_up + block * 2 * f;
        const float *up = gate + f;
        float *restrict y = out + block * f;
        for (size_t i = 0; i < f; i++)
            y[i] = gate[i] * ek_sigmoid(gate[i]) * up[i];
    }
}

EK_CLONES void ek_swiglu_backward(float *gate_up, const float *d_out, size_t N, size_t F, size_t f)
{
    for (size_t block = 0; block < N * (F / f); block++) {
        float *restrict gate = gate_up + block * 2 * f;
        float *restrict up = gate + f;
        const float *restrict dy = d_out + block * f;
        for (size_t i = 0; i < f; i++) {
            float sigmoid = ek_sigmoid(gate[i]);
            float silu = gate[i] * sigmoid;
            float d_silu = sigmoid + silu * (1.0f - sigmoid);
            gate[i] = dy[i] * up[i] * d_silu;
            up[i] = dy[i] * silu;
        }
    }
}
