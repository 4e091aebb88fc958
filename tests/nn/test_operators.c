/* Every operator against a plain double-precision reference: its output, and its gradients against the reference's
 * central differences. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "nn/nn.h"

/* All sizes that any operator has; each uses some. */
typedef struct shape {
    size_t B, T, N, C, G, R, D, F, f, V, I, O;
    double epsilon, theta;
    const uint32_t *tokens, *row_of;
} shape;

/* out from in: all inputs of an operator one after the other, weights last. */
typedef void (*reference_operator)(double *out, const double *in, const shape *s);

static float *random_floats(uint64_t key, size_t count, double mean, double deviation)
{
    float *values = malloc(count * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(mean + deviation * ek_random_normal(key, 0, i));
    return values;
}

static double *doubles(const float *first, size_t first_count, const float *second, size_t second_count)
{
    double *values = malloc((first_count + second_count) * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < first_count; i++)
        values[i] = (double)first[i];
    for (size_t i = 0; i < second_count; i++)
        values[first_count + i] = (double)second[i];
    return values;
}

/* Every element within `tolerance` of the largest expected one. */
static void assert_close(const char *what, const float *got, const double *expected, size_t count, double tolerance)
{
    double largest = 0.0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(expected[i]));
    assert_true(largest > 0.0);
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)got[i] - expected[i]) <= tolerance * largest))
            fail_msg("%s[%zu]: got %.9g, expected %.9g (largest %.3g)", what, i, (double)got[i], expected[i], largest);
}

/* The gradient by in (count) of the sum of d_out * out (out_count). */
static double *difference_gradient(reference_operator reference, const shape *s, double *in, size_t count,
                                   const float *d_out, size_t out_count)
{
    double *gradient = malloc(count * sizeof *gradient), *out = malloc(out_count * sizeof *out);
    assert_non_null(gradient);
    assert_non_null(out);
    const double step = 1e-5;
    for (size_t i = 0; i < count; i++) {
        double value = in[i], sums[2] = {0.0, 0.0};
        for (int side = 0; side < 2; side++) {
            in[i] = value + (side ? step : -step);
            reference(out, in, s);
            for (size_t j = 0; j < out_count; j++)
                sums[side] += (double)d_out[j] * out[j];
        }
        in[i] = value;
        gradient[i] = (sums[1] - sums[0]) / (2.0 * step);
    }
    free(out);
    return gradient;
}

/* Compares out and the gradients by the first and the second part of `in` (the second may be empty). */
static void check_operator(reference_operator reference, const shape *s, double *in, size_t first_count,
                           size_t second_count, const float *out, const float *d_out, size_t out_count,
                           const float *d_first, const float *d_second)
{
    double *expected = malloc(out_count * sizeof *expected);
    assert_non_null(expected);
    reference(expected, in, s);
    assert_close("out", out, expected, out_count, 2e-6);
    double *gradient = difference_gradient(reference, s, in, first_count + second_count, d_out, out_count);
    assert_close("d_in", d_first, gradient, first_count, 1e-5);
    if (second_count > 0)
        assert_close("d_weight", d_second, gradient + first_count, second_count, 1e-5);
    free(gradient);
    free(expected);
    free(in);
}

static void linear_reference(double *out, const double *in, const shape *s)
{
    const double *weight = in + s->N * s->I;
    for (size_t n = 0; n < s->N; n++)
        for (size_t o = 0; o < s->O; o++) {
            out[n * s->O + o] = 0.0;
            for (size_t i = 0; i < s->I; i++)
                out[n * s->O + o] += in[n * s->I + i] * weight[o * s->I + i];
        }
}

static void linear_by_input_reference(double *out, const double *in, const shape *s)
{
    const double *weight = in + s->N * s->I;
    for (size_t n = 0; n < s->N; n++)
        for (size_t o = 0; o < s->O; o++) {
            out[n * s->O + o] = 0.0;
            for (size_t i = 0; i < s->I; i++)
                out[n * s->O + o] += in[n * s->I + i] * weight[i * s->O + o];
        }
}

typedef uint64_t (*linear_forward)(float *out, const float *in, const float *weight, size_t N, size_t I, size_t O);
typedef uint64_t (*linear_backward)(float *d_in, float *d_weight, const float *d_out, const float *in,
                                    const float *weight, size_t N, size_t I, size_t O);

static void check_linear(reference_operator reference, linear_forward forward, linear_backward backward)
{
    shape s = {.N = 5, .I = 7, .O = 3};
    float *in = random_floats(1, s.N * s.I, 0, 1), *weight = random_floats(2, s.I * s.O, 0, 1);
    float *d_out = random_floats(3, s.N * s.O, 0, 1), *out = random_floats(4, s.N * s.O, 0, 1);
    float *d_in = random_floats(5, s.N * s.I, 0, 1), *d_weight = calloc(s.I * s.O, sizeof *d_weight);
    assert_int_equal(forward(out, in, weight, s.N, s.I, s.O), 2 * s.N * s.I * s.O);
    assert_int_equal(backward(d_in, d_weight, d_out, in, weight, s.N, s.I, s.O), 4 * s.N * s.I * s.O);
    check_operator(reference, &s, doubles(in, s.N * s.I, weight, s.I * s.O), s.N * s.I, s.I * s.O, out, d_out,
                   s.N * s.O, d_in, d_weight);

    float before = d_weight[4]; /* a second backward adds */
    backward(d_in, d_weight, d_out, in, weight, s.N, s.I, s.O);
    assert_true(fabsf(d_weight[4] - 2.0f * before) <= 1e-5f * fabsf(before));
    float *all[] = {in, weight, d_out, out, d_in, d_weight};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void linear(void **state)
{
    (void)state;
    check_linear(linear_reference, ek_linear_forward, ek_linear_backward);
}

static void linear_by_input(void **state)
{
    (void)state;
    check_linear(linear_by_input_reference, ek_linear_by_input_forward, ek_linear_by_input_backward);
}

static void rmsnorm_reference(double *out, const double *in, const shape *s)
{
    const double *weight = in + s->N * s->C;
    for (size_t n = 0; n < s->N; n++) {
        const double *x = in + n * s->C;
        double square = 0.0;
        for (size_t c = 0; c < s->C; c++)
            square += x[c] * x[c];
        for (size_t c = 0; c < s->C; c++)
            out[n * s->C + c] = x[c] / sqrt(square / (double)s->C + s->epsilon) * weight[c];
    }
}

static void check_rmsnorm(size_t C)
{
    shape s = {.N = 3, .C = C, .epsilon = 0.125};
    size_t count = s.N * C;
    float *residual = random_floats(1, count, 0, 1), *branch = random_floats(2, count, 0, 1);
    float *weight = random_floats(3, C, 1, 0.5), *d_out = random_floats(4, count, 0, 1);
    float *in = calloc(count, sizeof *in), *out = calloc(count, sizeof *out), *inverse_rms = calloc(s.N, sizeof *out);
    float *d_in = calloc(count, sizeof *d_in), *d_weight = calloc(C, sizeof *d_weight);
    ek_rmsnorm_forward(out, inverse_rms, in, residual, branch, weight, (float)s.epsilon, s.N, C);
    for (size_t i = 0; i < count; i++)
        assert_true(in[i] == residual[i] + branch[i]);
    ek_rmsnorm_backward(d_in, d_weight, d_out, in, inverse_rms, weight, s.N, C);
    check_operator(rmsnorm_reference, &s, doubles(in, count, weight, C), count, C, out, d_out, count, d_in, d_weight);

    float *again = calloc(count, sizeof *again); /* without a branch: the same from `in` */
    ek_rmsnorm_forward(again, inverse_rms, in, NULL, NULL, weight, (float)s.epsilon, s.N, C);
    assert_memory_equal(again, out, count * sizeof *out);
    float before = d_in[C + 1]; /* a second backward adds */
    ek_rmsnorm_backward(d_in, d_weight, d_out, in, inverse_rms, weight, s.N, C);
    assert_true(d_in[C + 1] == 2.0f * before);
    float *all[] = {residual, branch, weight, d_out, in, out, inverse_rms, d_in, d_weight, again};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void rmsnorm(void **state)
{
    (void)state;
    check_rmsnorm(5);
    check_rmsnorm(48);
    check_rmsnorm(70);
}

static void rope_reference(double *out, const double *in, const shape *s)
{
    size_t half = s->D / 2;
    for (size_t n = 0; n < s->B * s->T; n++)
        for (size_t head = 0; head < s->G * (s->R + 2); head++) {
            const double *x = in + (n * s->G * (s->R + 2) + head) * s->D;
            double *y = out + (x - in);
            bool value = head % (s->R + 2) == s->R + 1;
            for (size_t i = 0; i < half; i++) {
                double angle = value ? 0.0 : (double)(n % s->T) * pow(s->theta, -2.0 * (double)i / (double)s->D);
                y[i] = x[i] * cos(angle) - x[half + i] * sin(angle);
                y[half + i] = x[half + i] * cos(angle) + x[i] * sin(angle);
            }
        }
}

static void rope(void **state)
{
    (void)state;
    shape s = {.B = 2, .T = 3, .G = 2, .R = 2, .D = 6, .theta = 100.0};
    size_t count = s.B * s.T * s.G * (s.R + 2) * s.D;
    float *in = random_floats(1, count, 0, 1), *d_out = random_floats(2, count, 0, 1);
    float *table = calloc(s.T * s.D, sizeof *table), *out = malloc(count * sizeof *out);
    float *d_in = malloc(count * sizeof *d_in);
    memcpy(out, in, count * sizeof *out);
    memcpy(d_in, d_out, count * sizeof *d_in);
    ek_rope_table(table, (float)s.theta, s.T, s.D);
    ek_rope_forward(out, table, s.B, s.T, s.G, s.R, s.D);
    ek_rope_backward(d_in, table, s.B, s.T, s.G, s.R, s.D);
    check_operator(rope_reference, &s, doubles(in, count, NULL, 0), count, 0, out, d_out, count, d_in, NULL);
    float *all[] = {in, d_out, table, out, d_in};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void attention_row(double *out, const double *query, const double *key, const double *value, size_t t,
                          size_t stride, size_t D)
{
    double sum = 0.0;
    memset(out, 0, D * sizeof *out);
    for (size_t k = 0; k <= t; k++) {
        double score = 0.0;
        for (size_t d = 0; d < D; d++)
            score += query[d] * key[k * stride + d];
        double weight = exp(score / sqrt((double)D));
        sum += weight;
        for (size_t d = 0; d < D; d++)
            out[d] += weight * value[k * stride + d];
    }
    for (size_t d = 0; d < D; d++)
        out[d] /= sum;
}

static void attention_reference(double *out, const double *in, const shape *s)
{
    size_t stride = s->G * (s->R + 2) * s->D;
    for (size_t b = 0; b < s->B; b++)
        for (size_t t = 0; t < s->T; t++)
            for (size_t head = 0; head < s->G * s->R; head++) {
                const double *unit = in + b * s->T * stride + head / s->R * (s->R + 2) * s->D;
                const double *key = unit + s->R * s->D;
                attention_row(out + ((b * s->T + t) * s->G * s->R + head) * s->D,
                              unit + t * stride + head % s->R * s->D, key, key + s->D, t, stride, s->D);
            }
}

static void check_attention(shape s)
{
    size_t count = s.B * s.T * s.G * (s.R + 2) * s.D, out_count = s.B * s.T * s.G * s.R * s.D;
    float *qkv = random_floats(1, count, 0, 1), *d_out = random_floats(2, out_count, 0, 1);
    float *out = calloc(out_count, sizeof *out);
    float *probabilities = malloc(s.B * s.G * s.R * ek_attention_probabilities(s.T) * sizeof *probabilities);
    float *scratch = malloc(ek_attention_scratch(s.T) * sizeof *scratch);
    float *d_qkv = random_floats(3, count, 0, 1); /* backward must overwrite it */
    ek_attention_forward(out, probabilities, qkv, s.B, s.T, s.G, s.R, s.D);
    ek_attention_backward(d_qkv, d_out, out, probabilities, qkv, scratch, s.B, s.T, s.G, s.R, s.D);
    check_operator(attention_reference, &s, doubles(qkv, count, NULL, 0), count, 0, out, d_out, out_count, d_qkv, NULL);
    float *all[] = {qkv, d_out, out, probabilities, scratch, d_qkv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void attention(void **state)
{
    (void)state;
    check_attention((shape){.B = 2, .T = 5, .G = 2, .R = 3, .D = 4});
    check_attention((shape){.B = 1, .T = 1, .G = 1, .R = 1, .D = 2});
    check_attention((shape){.B = 1, .T = 64, .G = 1, .R = 1, .D = 2});
    check_attention((shape){.B = 1, .T = 135, .G = 1, .R = 2, .D = 2});
}

static void swiglu_reference(double *out, const double *in, const shape *s)
{
    for (size_t i = 0; i < s->N * s->F; i++) {
        size_t gate = i / s->f * 2 * s->f + i % s->f;
        out[i] = in[gate] / (1.0 + exp(-in[gate])) * in[gate + s->f];
    }
}

static void check_swiglu(size_t F, size_t f)
{
    shape s = {.N = 3, .F = F, .f = f};
    size_t count = s.N * F;
    float *gate_up = random_floats(1, 2 * count, 0, 3), *d_out = random_floats(2, count, 0, 1);
    float *out = calloc(count, sizeof *out);
    double *in = doubles(gate_up, 2 * count, NULL, 0);
    ek_swiglu_forward(out, gate_up, s.N, F, f);
    ek_swiglu_backward(gate_up, d_out, s.N, F, f);
    check_operator(swiglu_reference, &s, in, 2 * count, 0, out, d_out, count, gate_up, NULL);
    free(gate_up);
    free(d_out);
    free(out);
}

static void swiglu(void **state)
{
    (void)state;
    check_swiglu(40, 20);
    check_swiglu(5, 1);
}

/* Tokens 0 … 5, of which rows for 4, 1 and 3 are held. */
static const uint32_t row_of[6] = {EK_NO_ROW, 1, EK_NO_ROW, 2, 0, EK_NO_ROW};
static const uint32_t tokens[5] = {3, 0, 4, 3, 1};

static void embedding_reference(double *out, const double *weight, const shape *s)
{
    for (size_t n = 0; n < s->N; n++)
        for (size_t c = 0; c < s->C; c++)
            out[n * s->C + c] = row_of[tokens[n]] == EK_NO_ROW ? 0.0 : weight[row_of[tokens[n]] * s->C + c];
}

static void embedding(void **state)
{
    (void)state;
    shape s = {.N = 5, .C = 3, .V = 3};
    float *weight = random_floats(1, s.V * s.C, 0, 1), *d_out = random_floats(2, s.N * s.C, 0, 1);
    float *out = random_floats(3, s.N * s.C, 0, 1), *d_weight = calloc(s.V * s.C, sizeof *d_weight);
    ek_embedding_forward(out, weight, tokens, row_of, s.N, s.C);
    ek_embedding_backward(d_weight, d_out, tokens, row_of, s.N, s.C);
    check_operator(embedding_reference, &s, doubles(weight, s.V * s.C, NULL, 0), s.V * s.C, 0, out, d_out, s.N * s.C,
                   d_weight, NULL);
    float *all[] = {weight, d_out, out, d_weight};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void cross_entropy_reference(double *out, const double *logits, const shape *s)
{
    *out = 0.0;
    for (size_t n = 0; n < s->N; n++) {
        double sum = 0.0;
        for (size_t v = 0; v < s->V; v++)
            sum += exp(logits[n * s->V + v]);
        *out += log(sum) - logits[n * s->V + s->row_of[s->tokens[n]]];
    }
}

/* The loss of logits cut into two parts of columns, as two ranks would hold them, must be that of the whole. */
static void cross_entropy(void **state)
{
    (void)state;
    enum { N = 3, V = 23, CUT = 9 };
    static const uint32_t targets[N] = {8, 9, 22};
    uint32_t rows[3][V]; /* of the whole, the first and the second part */
    for (uint32_t v = 0; v < V; v++) {
        rows[0][v] = v;
        rows[1][v] = v < CUT ? v : EK_NO_ROW;
        rows[2][v] = v < CUT ? EK_NO_ROW : v - CUT;
    }
    float *logits = random_floats(1, (size_t)N * V, 50, 3), parts[2][N * V], max[2][N], sums[2][2 * N];
    const size_t first[2] = {0, CUT}, width[2] = {CUT, V - CUT};
    for (int part = 0; part < 2; part++) {
        for (size_t n = 0; n < N; n++)
            memcpy(parts[part] + n * width[part], logits + n * V + first[part], width[part] * sizeof(float));
        ek_cross_entropy_max(max[part], parts[part], N, width[part]);
    }
    for (size_t n = 0; n < N; n++)
        max[0][n] = fmaxf(max[0][n], max[1][n]);
    for (int part = 0; part < 2; part++)
        ek_cross_entropy_sums(sums[part], parts[part], max[0], targets, rows[part + 1], N, width[part]);
    for (size_t i = 0; i < (size_t)2 * N; i++)
        sums[0][i] += sums[1][i];
    float loss = (float)ek_cross_entropy_loss(sums[0], N), scale = 0.75f, gradient[N * V];
    for (int part = 0; part < 2; part++) {
        ek_cross_entropy_backward(parts[part], sums[0], targets, rows[part + 1], scale, N, width[part]);
        for (size_t n = 0; n < N; n++)
            memcpy(gradient + n * V + first[part], parts[part] + n * width[part], width[part] * sizeof(float));
    }
    shape s = {.N = N, .V = V, .tokens = targets, .row_of = rows[0]};
    check_operator(cross_entropy_reference, &s, doubles(logits, (size_t)N * V, NULL, 0), (size_t)N * V, 0, &loss,
                   &scale, 1, gradient, NULL);
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear),    cmocka_unit_test(linear_by_input), cmocka_unit_test(rmsnorm),
        cmocka_unit_test(rope),      cmocka_unit_test(attention),       cmocka_unit_test(swiglu),
        cmocka_unit_test(embedding), cmocka_unit_test(cross_entropy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
