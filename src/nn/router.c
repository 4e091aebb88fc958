/* The router of a mixture of experts: who goes where, with what weight, and how even that is. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "nn/nn.h"
#include "nn/simd.h"

/* E is small: sums of a row are taken in double, one after the other. */
void ek_router_softmax(float *probabilities, size_t N, size_t E)
{
    for (size_t n = 0; n < N; n++) {
        float *row = probabilities + n * E;
        float max = row[0];
        for (size_t e = 1; e < E; e++)
            max = row[e] > max ? row[e] : max;
        double sum = 0.0;
        for (size_t e = 0; e < E; e++)
            sum += row[e] = expf(row[e] - max);
        for (size_t e = 0; e < E; e++)
            row[e] = (float)(row[e] / sum);
    }
}

static bool is_chosen(const uint32_t *choices, size_t count, uint32_t expert)
{
    for (size_t j = 0; j < count; j++)
        if (choices[j] == expert)
            return true;
    return false;
}

/* The most probable expert that is not among the first `count` choices. Where no number is a number, in a run that
 * diverges, it still is an expert. */
static uint32_t choose_next(const float *probabilities, const uint32_t *choices, size_t count, size_t E)
{
    uint32_t next = EK_NO_ROW;
    for (uint32_t e = 0; e < E; e++)
        if ((next == EK_NO_ROW || probabilities[e] > probabilities[next]) && !is_chosen(choices, count, e))
            next = e;
    return next;
}

void ek_router_choose(uint32_t *choices, const float *probabilities, size_t N, size_t E, size_t k)
{
    for (size_t n = 0; n < N; n++)
        for (size_t j = 0; j < k; j++)
            choices[n * k + j] = choose_next(probabilities + n * E, choices + n * k, j, E);
}

static double chosen_sum(const float *probabilities, const uint32_t *choices, size_t k)
{
    double sum = 0.0;
    for (size_t j = 0; j < k; j++)
        sum += probabilities[choices[j]];
    return sum;
}

void ek_router_weights(float *weights, const float *probabilities, const uint32_t *choices, size_t N, size_t E,
                       size_t k)
{
    for (size_t n = 0; n < N; n++) {
        const float *row = probabilities + n * E;
        double sum = chosen_sum(row, choices + n * k, k);
        for (size_t j = 0; j < k; j++)
            weights[n * k + j] = (float)(row[choices[n * k + j]] / sum);
    }
}

double ek_router_balance(float *fractions, const float *probabilities, const uint32_t *choices, size_t B, size_t T,
                         size_t E, size_t k)
{
    memset(fractions, 0, B * E * sizeof *fractions);
    double balance = 0.0;
    for (size_t b = 0; b < B; b++) {
        for (size_t i = 0; i < T * k; i++)
            fractions[b * E + choices[b * T * k + i]] += 1.0f;
        for (size_t e = 0; e < E; e++) {
            double sum = 0.0;
            fractions[b * E + e] /= (float)(T * k);
            for (size_t t = 0; t < T; t++)
                sum += probabilities[(b * T + t) * E + e];
            balance += (double)E * fractions[b * E + e] * sum / (double)T;
        }
    }
    return balance;
}

/* By a probability p of the weights w = p / sum over the chosen: (d_w - sum of w d_w) / sum for the chosen, 0 for the
 * others. Then through the softmax. */
static void token_backward(float *d_logits, const float *d_weights, const float *probabilities, const float *weights,
                           const uint32_t *choices, const float *fractions, float balance_scale, size_t E, size_t k)
{
    double mean = 0.0, sum = chosen_sum(probabilities, choices, k), through = 0.0;
    for (size_t j = 0; j < k; j++)
        mean += (double)weights[j] * d_weights[j];
    for (size_t e = 0; e < E; e++)
        d_logits[e] = balance_scale * fractions[e];
    for (size_t j = 0; j < k; j++)
        d_logits[choices[j]] += (float)((d_weights[j] - mean) / sum);
    for (size_t e = 0; e < E; e++)
        through += (double)probabilities[e] * d_logits[e];
    for (size_t e = 0; e < E; e++)
        d_logits[e] = (float)(probabilities[e] * (d_logits[e] - through));
}

void ek_router_backward(float *d_logits, const float *d_weights, const float *probabilities, const float *weights,
                        const uint32_t *choices, const float *fractions, float balance_scale, size_t B, size_t T,
                        size_t E, size_t k)
{
    float scale = balance_scale * (float)E / (float)T;
    for (size_t n = 0; n < B * T; n++)
        token_backward(d_logits + n * E, d_weights + n * k, probabilities + n * E, weights + n * k, choices + n * k,
                       fractions + n / T * E, scale, E, k);
}
