/* The experts of a mixture that one device holds: rows are gathered by expert, so that each expert is a few matrix
 * products, and what they give is added up where it belongs. */
#include <assert.h>
#include <string.h>

#include "nn/gemm.h"
#include "nn/nn.h"
#include "nn/simd.h"

void ek_routes_find(ek_routes *routes, const uint32_t *choices, const uint32_t *held, size_t N)
{
    size_t U = routes->U, count = N * routes->k;
    memset(routes->first, 0, (U + 1) * sizeof *routes->first);
    for (size_t i = 0; i < count; i++)
        if (held[choices[i]] != EK_NO_ROW)
            routes->first[held[choices[i]] + 1]++;
    for (size_t u = 0; u < U; u++)
        routes->first[u + 1] += routes->first[u];
    for (size_t i = 0; i < count; i++)
        if (held[choices[i]] != EK_NO_ROW)
            routes->choice[routes->first[held[choices[i]]]++] = (uint32_t)i;
    for (size_t u = U; u > 0; u--) /* each now stands where the next begins */
        routes->first[u] = routes->first[u - 1];
    routes->first[0] = 0;
}

static void gather(float *out, const float *rows, const ek_routes *routes, size_t C)
{
    for (size_t i = 0; i < routes->first[routes->U]; i++)
        memcpy(out + i * C, rows + routes->choice[i] / routes->k * C, C * sizeof *out);
}

/* Adds `scale` times what each route gave to its row; scale is by choice, NULL for 1. */
EK_CLONES static void add_back(float *rows, const float *results, const float *scales, const ek_routes *routes,
                               size_t C)
{
    for (size_t i = 0; i < routes->first[routes->U]; i++) {
        float *restrict row = rows + routes->choice[i] / routes->k * C;
        const float *restrict result = results + i * C;
        float scale = scales ? scales[routes->choice[i]] : 1.0f;
        for (size_t c = 0; c < C; c++)
            row[c] += scale * result[c];
    }
}

uint64_t ek_experts_forward(float *out, float *in, float *hidden, float *activated, float *scratch, const float *rows,
                            const float *weights, const float *gate_up, const float *down, const ek_routes *routes,
                            size_t C, size_t F)
{
    uint64_t flops = 0;
    gather(in, rows, routes, C);
    for (size_t u = 0; u < routes->U; u++) {
        size_t first = routes->first[u], count = routes->first[u + 1] - first;
        if (!count)
            continue;
        flops += ek_linear_forward(hidden + first * 2 * F, in + first * C, gate_up + u * 2 * F * C, count, C, 2 * F);
        ek_swiglu_forward(activated + first * F, hidden + first * 2 * F, count, F, F);
        flops += ek_linear_by_input_forward(scratch + first * C, activated + first * F, down + u * F * C, count, F, C);
    }
    add_back(out, scratch, weights, routes, C);
    return flops;
}

/* The gradient by a choice's weight is the product of d_out with what its expert gave, or, which saves keeping that, of
 * d_out down^T with what the expert's last product took in. After it, activated and d_activated are scaled by the
 * weight. */
EK_CLONES static void weigh(float *d_weights, float *activated, float *d_activated, const float *weights,
                            const ek_routes *routes, size_t F)
{
    for (size_t i = 0; i < routes->first[routes->U]; i++) {
        float *restrict kept = activated + i * F, *restrict gradient = d_activated + i * F;
        float weight = weights[routes->choice[i]];
        d_weights[routes->choice[i]] = ek_dot(kept, gradient, F);
        for (size_t f = 0; f < F; f++) {
            kept[f] *= weight;
            gradient[f] *= weight;
        }
    }
}

uint64_t ek_experts_backward(float *d_rows, float *d_weights, float *d_gate_up, float *d_down, float *hidden,
                             float *activated, float *d_activated, float *scratch, const float *d_out, const float *in,
                             const float *weights, const float *gate_up, const float *down, const ek_routes *routes,
                             size_t N, size_t C, size_t F)
{
    size_t U = routes->U;
    uint64_t flops = 0;
    gather(scratch, d_out, routes, C);
    for (size_t u = 0; u < U; u++) {
        size_t first = routes->first[u], count = routes->first[u + 1] - first;
        if (count)
            flops += ek_gemm(d_activated + first * F, F, 1.0f, (ek_matrix){scratch + first * C, C, false},
                             (ek_matrix){down + u * F * C, C, true}, 0.0f, count, F, C);
    }
    memset(d_weights, 0, N * routes->k * sizeof *d_weights);
    weigh(d_weights, activated, d_activated, weights, routes, F);
    for (size_t u = 0; u < U; u++) {
        size_t first = routes->first[u], count = routes->first[u + 1] - first;
        if (!count)
            continue;
        flops += ek_gemm(d_down + u * F * C, C, 1.0f, (ek_matrix){activated + first * F, F, true},
                         (ek_matrix){scratch + first * C, C, false}, 1.0f, F, C, count);
        ek_swiglu_backward(hidden + first * 2 * F, d_activated + first * F, count, F, F);
        flops += ek_linear_backward(scratch + first * C, d_gate_up + u * 2 * F * C, hidden + first * 2 * F,
                                    in + first * C, gate_up + u * 2 * F * C, count, C, 2 * F);
    }
    add_back(d_rows, scratch, NULL, routes, C);
    return flops;
}
