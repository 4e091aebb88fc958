/* Linear maps without bias, for weights stored by output and by input. */
#include "nn/gemm.h"
#include "nn/nn.h"

void ek_nn_use_one_thread(void)
{
    openblas_set_num_threads(1);
}

uint64_t ek_linear_forward(float *out, const float *in, const float *weight, size_t N, size_t I, size_t O)
{
    return ek_gemm(out, O, 1.0f, (ek_matrix){in, I, false}, (ek_matrix){weight, I, true}, 0.0f, N, O, I);
}

uint64_t ek_linear_backward(float *d_in, float *d_weight, const float *d_out, const float *in, const float *weight,
                            size_t N, size_t I, size_t O)
{
    uint64_t flops = ek_gemm(d_in, I, 1.0f, (ek_matrix){d_out, O, false}, (ek_matrix){weight, I, false}, 0.0f, N, I, O);
    return flops + ek_gemm(d_weight, I, 1.0f, (ek_matrix){d_out, O, true}, (ek_matrix){in, I, false}, 1.0f, O, I, N);
}

uint64_t ek_linear_by_input_forward(float *out, const float *in, const float *weight, size_t N, size_t I, size_t O)
{
    return ek_gemm(out, O, 1.0f, (ek_matrix){in, I, false}, (ek_matrix){weight, O, false}, 0.0f, N, O, I);
}

uint64_t ek_linear_by_input_backward(float *d_in, float *d_weight, const float *d_out, const float *in,
                                     const float *weight, size_t N, size_t I, size_t O)
{
    uint64_t flops = ek_gemm(d_in, I, 1.0f, (ek_matrix){d_out, O, false}, (ek_matrix){weight, O, true}, 0.0f, N, I, O);
    return flops + ek_gemm(d_weight, O, 1.0f, (ek_matrix){in, I, true}, (ek_matrix){d_out, O, false}, 1.0f, I, O, N);
}
