/* Whole training steps against the rate of SGEMM. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "bench.h"
#include "jobs.h"
#include "nn/nn.h"
#include "train/clock.h"

#include <cblas.h> /* last: it brings complex.h, whose I is a letter of shapes elsewhere */

enum { STEPS = 14, FIRST_COUNTED = 3, LAYERS = 6, HIDDEN = 384, FFN = 1024, VOCAB = 256, SEQUENCE = 256, BATCH = 8 };

#define MODEL "model: {layers: 6, hidden: 384, heads: 6, ffn: 1024, vocab: 256, sequence: 256}\n"

/* Floating-point operations of the matrix products of a token, forward and backward: 6 for each weight, and causal
 * attention over half of the sequence. */
static double operations_per_token(void)
{
    double layer = 4.0 * HIDDEN * HIDDEN + 3.0 * HIDDEN * FFN;
    double attention = 2.0 * HIDDEN * (SEQUENCE / 2.0);
    return 6.0 * (LAYERS * (layer + attention) + (double)HIDDEN * VOCAB);
}

/* OpenBLAS's rate on one thread, at the model's largest product, in operations per second. */
static ek_status measure_sgemm(double *rate)
{
    const int N = BATCH * SEQUENCE, C = HIDDEN, O = 2 * FFN;
    float *in = calloc((size_t)N * C, sizeof *in), *weight = calloc((size_t)O * C, sizeof *weight);
    float *out = calloc((size_t)N * O, sizeof *out);
    ek_status status = in && weight && out ? EK_OK : ek_fail(EK_NO_MEMORY, "out of memory for the benchmark");
    ek_nn_use_one_thread();
    double start = ek_wall_seconds(), elapsed = 0.0, operations = 0.0;
    for (; status == EK_OK && elapsed < 2.0; elapsed = ek_wall_seconds() - start, operations += 2.0 * N * C * O)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, O, C, 1.0f, in, C, weight, C, 0.0f, out, O);
    free(in);
    free(weight);
    free(out);
    *rate = operations / elapsed;
    return status;
}

/* Tokens per second of whole training steps: the median step. */
static ek_status measure_job(const char *yaml, double tokens_per_step, double *tokens_per_second)
{
    static ek_bench_job job;
    EK_TRY(ek_bench_run(&(ek_bench_setup){.yaml = yaml}, &job));
    double seconds[STEPS];
    size_t count = 0;
    for (size_t step = FIRST_COUNTED; step <= job.steps; step++)
        seconds[count++] = job.step[step].seconds;
    *tokens_per_second = tokens_per_step / ek_bench_median(seconds, count);
    return EK_OK;
}

ek_status ek_bench_speed(void)
{
    static const char one[] = MODEL "parallel: {dp: 1, tp: 1}\nbatch: {global: 8, micro: 8}\ntrain: {steps: 14}\n";
    static const char two[] = MODEL "parallel: {dp: 2, tp: 1}\nbatch: {global: 16, micro: 8}\ntrain: {steps: 14}\n";
    double sgemm, tokens_one, tokens_two;
    EK_TRY(measure_job(one, BATCH * SEQUENCE, &tokens_one));
    EK_TRY(measure_sgemm(&sgemm));
    EK_TRY(measure_job(two, 2 * BATCH * SEQUENCE, &tokens_two));
    printf("speed: 6 layers, hidden 384, 6 heads, FFN 1024, vocabulary 256, sequence 256, batch 8 a rank; whole steps\n"
           "  one rank:        %7.0f tokens/s, %.1f %% of SGEMM's %.1f GFLOP/s (%s kernels, one thread, %.1f MFLOP a "
           "token)\n"
           "  two ranks of DP: %7.0f tokens/s\n",
           tokens_one, 100.0 * tokens_one * operations_per_token() / sgemm, 1e-9 * sgemm, openblas_get_corename(),
           1e-6 * operations_per_token(), tokens_two);
    return EK_OK;
}
