/* Cross-entropy over a vocabulary whose columns may be spread over several holders. */
#include "nn/nn.h"
#include "nn/simd.h"

EK_CLONES void ek_cross_entropy_max(float *max, const float *logits, size_t N, size_t V)
{
    for (size_t n = 0; n < N; n++)
        max[n] = ek_max(logits + n * V, V);
}

EK_CLONES void ek_cross_entropy_sums(float *sums, float *logits, const float *max, const uint32_t *targets,
                                     const uint32_t *row_of, size_t N, size_t V)
{
    for (size_t n = 0; n < N; n++) {
        float *row = logits + n * V;
        uint32_t target = row_of[targets[n]];
        sums[N + n] = target == EK_NO_ROW ? 0.0f : row[target] - max[n];
        for (size_t v = 0; v < V; v++)
            row[v] = ek_exp(row[v] - max[n]);
        sums[n] = ek_sum(row, V);
    }
}

double ek_cross_entropy_loss(const float *sums, size_t N)
{
    double loss = 0.0;
    for (size_t n = 0; n < N; n++)
        loss += log((double)sums[n]) - (double)sums[N + n];
    return loss;
}

EK_CLONES void ek_cross_entropy_backward(float *logits, const float *sums, const uint32_t *targets,
                                         const uint32_t *row_of, float scale, size_t N, size_t V)
{
    for (size_t n = 0; n < N; n++) {
        float *row = logits + n * V;
        float factor = scale / sums[n];
        for (size_t v = 0; v < V; v++)
            row[v] *= factor;
        uint32_t target = row_of[targets[n]];
        if (target != EK_NO_ROW)
            row[target] -= scale;
    }
}
