/* Rows of the embedding table, where some may be held elsewhere. */
#include "nn/nn.h"

#include <string.h>

void ek_embedding_forward(float *out, const float *weight, const uint32_t *tokens, const uint32_t *row_of, size_t N,
                          size_t C)
{
    for (size_t n = 0; n < N; n++) {
        uint32_t row = row_of[tokens[n]];
        if (row == EK_NO_ROW)
            memset(out + n * C, 0, C * sizeof *out);
        else
            memcpy(out + n * C, weight + row * C, C * sizeof *out);
    }
}

void ek_embedding_backward(float *d_weight, const float *d_out, const uint32_t *tokens, const uint32_t *row_of,
                           size_t N, size_t C)
{
    for (size_t n = 0; n < N; n++) {
        uint32_t row = row_of[tokens[n]];
        if (row == EK_NO_ROW)
            continue;
        for (size_t c = 0; c < C; c++)
            d_weight[row * C + c] += d_out[n * C + c];
    }
}
