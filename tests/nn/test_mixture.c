/* The operators of a mixture of experts against a plain double-precision layer: outputs, the load-balancing loss, and
 * all gradients against central differences; with the experts cut over devices in several ways. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "nn/nn.h"

enum { B = 2, T = 5, N = B * T, C = 4, F = 3, E = 7, K = 2 };

/* What the layer computes from; in double for the reference, and laid out alike so that one index serves both. */
enum {
    ROWS = 0,
    LOGITS = ROWS + N * C,
    GATE_UP = LOGITS + N * E,
    DOWN = GATE_UP + E * 2 * F * C,
    INPUTS = DOWN + E * F * C,
};

#define BALANCE_SCALE 0.3f

static float inputs[INPUTS], d_out[N * C];
static uint32_t choices[N * K]; /* the differences are taken with the choices held */

static void reference_probabilities(double *probabilities, const double *logits)
{
    double sum = 0;
    for (size_t e = 0; e < E; e++)
        sum += exp(logits[e]);
    for (size_t e = 0; e < E; e++)
        probabilities[e] = exp(logits[e]) / sum;
}

static void add_expert(double *out, const double *row, const double *gate_up, const double *down, double weight)
{
    for (size_t f = 0; f < F; f++) {
        double gate = 0, up = 0;
        for (size_t c = 0; c < C; c++) {
            gate += row[c] * gate_up[f * C + c];
            up += row[c] * gate_up[(F + f) * C + c];
        }
        for (size_t c = 0; c < C; c++)
            out[c] += weight * gate / (1 + exp(-gate)) * up * down[f * C + c];
    }
}

/* The layer's output, and the load-balancing loss. */
static double reference(double *out, const double *in)
{
    double balance = 0, fractions[B][E] = {{0}}, means[B][E] = {{0}};
    memset(out, 0, N * C * sizeof *out);
    for (size_t n = 0; n < N; n++) {
        double probabilities[E], sum = 0;
        reference_probabilities(probabilities, in + LOGITS + n * E);
        for (size_t j = 0; j < K; j++)
            sum += probabilities[choices[n * K + j]];
        for (size_t j = 0; j < K; j++) {
            uint32_t e = choices[n * K + j];
            fractions[n / T][e] += 1.0 / (T * K);
            add_expert(out + n * C, in + ROWS + n * C, in + GATE_UP + (size_t)e * 2 * F * C,
                       in + DOWN + (size_t)e * F * C, probabilities[e] / sum);
        }
        for (size_t e = 0; e < E; e++)
            means[n / T][e] += probabilities[e] / T;
    }
    for (size_t b = 0; b < B; b++)
        for (size_t e = 0; e < E; e++)
            balance += E * fractions[b][e] * means[b][e];
    return balance;
}

static double reference_loss(const double *in)
{
    double out[N * C], loss = BALANCE_SCALE * reference(out, in);
    for (size_t i = 0; i < N * C; i++)
        loss += d_out[i] * out[i];
    return loss;
}

static void assert_close(const char *what, const float *got, const double *expected, size_t count)
{
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(expected[i]));
    assert_true(largest > 0);
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)got[i] - expected[i]) <= 2e-5 * largest))
            fail_msg("%s[%zu]: got %.9g, expected %.9g (largest %.3g)", what, i, (double)got[i], expected[i], largest);
}

/* What one device computes of the layer: the experts whose owner it is. */
typedef struct device_part {
    float out[N * C], d_rows[N * C], d_weights[N * K], d_gate_up[E * 2 * F * C], d_down[E * F * C];
} device_part;

static void run_part(device_part *part, const float *weights, const uint32_t *experts, size_t U)
{
    static float in[N * K * C], hidden[N * K * 2 * F], activated[N * K * F], d_activated[N * K * F], scratch[N * K * C];
    float gate_up[E * 2 * F * C], down[E * F * C];
    uint32_t held[E], choice[N * K];
    size_t first[E + 1];
    for (size_t e = 0; e < E; e++)
        held[e] = EK_NO_ROW;
    for (size_t u = 0; u < U; u++) {
        held[experts[u]] = (uint32_t)u;
        memcpy(gate_up + u * 2 * F * C, inputs + GATE_UP + (size_t)experts[u] * 2 * F * C, sizeof(float[2 * F * C]));
        memcpy(down + u * F * C, inputs + DOWN + (size_t)experts[u] * F * C, sizeof(float[F * C]));
    }
    memset(part, 0, sizeof *part);
    memset(part->d_weights, 0xff, sizeof part->d_weights); /* NaN: these must be overwritten */
    ek_routes routes = {.U = U, .k = K, .first = first, .choice = choice};
    ek_routes_find(&routes, choices, held, N);
    ek_experts_forward(part->out, in, hidden, activated, scratch, inputs + ROWS, weights, gate_up, down, &routes, C, F);
    ek_experts_backward(part->d_rows, part->d_weights, part->d_gate_up, part->d_down, hidden, activated, d_activated,
                        scratch, d_out, in, weights, gate_up, down, &routes, N, C, F);
}

/* owner[e] holds expert e; a device's experts lie in descending order, so that places and numbers differ. */
static void check_layer(const uint32_t owner[E], uint32_t devices)
{
    float probabilities[N * E], weights[N * K], fractions[B * E], gradient[INPUTS] = {0}, out[N * C] = {0};
    float d_weights[N * K] = {0};
    memcpy(probabilities, inputs + LOGITS, sizeof probabilities);
    ek_router_softmax(probabilities, N, E);
    ek_router_choose(choices, probabilities, N, E, K);
    ek_router_weights(weights, probabilities, choices, N, E, K);
    float balance = (float)ek_router_balance(fractions, probabilities, choices, B, T, E, K);
    for (uint32_t device = 0; device < devices; device++) {
        static device_part part;
        uint32_t experts[E];
        size_t U = 0;
        for (uint32_t e = E; e-- > 0;)
            if (owner[e] == device)
                experts[U++] = e;
        run_part(&part, weights, experts, U);
        for (size_t i = 0; i < N * C; i++) {
            out[i] += part.out[i];
            gradient[ROWS + i] += part.d_rows[i];
        }
        for (size_t i = 0; i < N * K; i++)
            d_weights[i] += part.d_weights[i];
        for (size_t u = 0; u < U; u++) {
            memcpy(gradient + GATE_UP + (size_t)experts[u] * 2 * F * C, part.d_gate_up + u * 2 * F * C,
                   sizeof(float[2 * F * C]));
            memcpy(gradient + DOWN + (size_t)experts[u] * F * C, part.d_down + u * F * C, sizeof(float[F * C]));
        }
    }
    ek_router_backward(gradient + LOGITS, d_weights, probabilities, weights, choices, fractions, BALANCE_SCALE, B, T, E,
                       K);

    double in[INPUTS], expected[INPUTS], expected_out[N * C], expected_balance;
    for (size_t i = 0; i < INPUTS; i++)
        in[i] = inputs[i];
    expected_balance = reference(expected_out, in);
    assert_close("balance", &balance, &expected_balance, 1);
    assert_close("out", out, expected_out, N * C);
    for (size_t i = 0; i < INPUTS; i++) {
        double value = in[i], step = 1e-5, sides[2];
        for (int side = 0; side < 2; side++) {
            in[i] = value + (side ? step : -step);
            sides[side] = reference_loss(in);
        }
        in[i] = value;
        expected[i] = (sides[1] - sides[0]) / (2 * step);
    }
    assert_close("d_rows", gradient + ROWS, expected + ROWS, N * C);
    assert_close("d_logits", gradient + LOGITS, expected + LOGITS, N * E);
    assert_close("d_gate_up", gradient + GATE_UP, expected + GATE_UP, E * 2 * F * C);
    assert_close("d_down", gradient + DOWN, expected + DOWN, E * F * C);
}

static void fill(void)
{
    for (size_t i = 0; i < INPUTS; i++)
        inputs[i] = (float)ek_random_normal(1, 0, i);
    for (size_t i = 0; i < N * C; i++)
        d_out[i] = (float)ek_random_normal(2, 0, i);
    for (size_t n = 0; n < N; n++) /* nobody goes to expert 3 */
        inputs[LOGITS + n * E + 3] = -20;
}

static void test_layer(void **state)
{
    (void)state;
    fill();
    check_layer((uint32_t[E]){0}, 1);
    check_layer((uint32_t[E]){0, 1, 0, 2, 1, 1, 0}, 3); /* device 2 gets no row at all */
    check_layer((uint32_t[E]){3, 1, 0, 2, 4, 5, 6}, 7);
}

static void test_choices(void **state)
{
    (void)state;
    uint32_t chosen[3];
    const float equal[4] = {0.25f, 0.25f, 0.25f, 0.25f}, uneven[4] = {0.1f, 0.3f, 0.2f, 0.4f};
    ek_router_choose(chosen, equal, 1, 4, 3);
    assert_true(chosen[0] == 0 && chosen[1] == 1 && chosen[2] == 2); /* ties: the lower expert */
    ek_router_choose(chosen, uneven, 1, 4, 3);
    assert_true(chosen[0] == 3 && chosen[1] == 1 && chosen[2] == 2);
}

/* Even choices and equal probabilities have a load-balancing loss of 1 for each sequence, one expert for all has E. */
static void test_balance(void **state)
{
    (void)state;
    float probabilities[4 * 2] = {0.5f, 0.5f, 0.5f, 0.5f, 1, 0, 1, 0}, fractions[4];
    const uint32_t even[4] = {0, 1, 0, 0};
    assert_true(fabs(ek_router_balance(fractions, probabilities, even, 1, 2, 2, 1) - 1) < 1e-6);
    assert_true(fabs(ek_router_balance(fractions, probabilities, even, 2, 2, 2, 1) - 3) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_balance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
