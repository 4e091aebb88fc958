/* What a reduced peer costs a healthy replica: interleaved pairs of a uniform and a nonuniform job. */
#include <stdio.h>

#include "base/error.h"
#include "bench.h"
#include "jobs.h"

enum { PAIRS = 24, STEPS = 10, FIRST_COUNTED = 3 };

#define COMMON                                                                                                         \
    "batch: {global: 8, micro: 2}\n"                                                                                   \
    "train: {steps: 10}\n"

typedef struct healthy_sample {
    double busy, exposed; /* of the healthy replica: medians over the counted steps */
} healthy_sample;

static ek_status measure(const char *yaml, healthy_sample *sample)
{
    static ek_bench_job job;
    EK_TRY(ek_bench_run(&(ek_bench_setup){.yaml = yaml, .link_bytes_per_second = 10e9, .link_latency_seconds = 10e-6},
                        &job));
    double busy[STEPS], exposed[STEPS];
    size_t count = 0;
    for (size_t step = FIRST_COUNTED; step <= job.steps; step++, count++) {
        busy[count] = job.step[step].busy_seconds[0];
        exposed[count] = job.step[step].exposed_seconds[0];
    }
    if (!count)
        return ek_fail(EK_SYSTEM, "the benchmark's job committed %zu steps", job.steps);
    sample->busy = ek_bench_median(busy, count);
    sample->exposed = ek_bench_median(exposed, count);
    return EK_OK;
}

/* `name` as in --only, `what` for the reader. */
static ek_status compare(const char *name, const char *what, const char *uniform, const char *reduced)
{
    double ratio[PAIRS], exposed_uniform[PAIRS], exposed_reduced[PAIRS], busy[PAIRS], low, high;
    for (int pair = 0; pair < PAIRS; pair++) {
        healthy_sample a, b;
        ek_bench_progress(name, pair, PAIRS);
        EK_TRY(measure(pair % 2 ? reduced : uniform, pair % 2 ? &b : &a)); /* who goes first alternates */
        EK_TRY(measure(pair % 2 ? uniform : reduced, pair % 2 ? &a : &b));
        ratio[pair] = b.busy / a.busy;
        busy[pair] = a.busy;
        exposed_uniform[pair] = a.exposed;
        exposed_reduced[pair] = b.exposed;
    }
    ek_bench_progress(name, PAIRS, PAIRS);
    double median = ek_bench_median(ratio, PAIRS);
    ek_bench_median_interval(ratio, PAIRS, &low, &high);
    printf(
        "%s: %s; emulated link of 10 GB/s and 10 us\n"
        "  compute-thread CPU time per step: ratio %.4f (95 %% interval %.4f to %.4f, %d interleaved pairs; %.1f ms a "
        "step)\n"
        "  exposed gradient communication: %.2f ms beside the whole one, %.2f ms beside the reduced one\n",
        name, what, median, low, high, PAIRS, 1e3 * ek_bench_median(busy, PAIRS),
        1e3 * ek_bench_median(exposed_uniform, PAIRS), 1e3 * ek_bench_median(exposed_reduced, PAIRS));
    return EK_OK;
}

ek_status ek_bench_overhead(void)
{
    return compare("overhead", "the healthy TP2 replica beside TP1, against beside TP2",
                   EK_BENCH_TINY COMMON "parallel: {dp: 2, tp: 2}\n",
                   EK_BENCH_TINY COMMON "parallel: {dp: 2, tp: 2, degrees: [2, 1]}\n");
}

ek_status ek_bench_expert_overhead(void)
{
    return compare("expert-overhead", "the healthy EP2 replica beside EP1, against beside EP2",
                   EK_BENCH_EXPERTS COMMON "parallel: {mode: ep, dp: 2, tp: 2}\n",
                   EK_BENCH_EXPERTS COMMON "parallel: {mode: ep, dp: 2, tp: 2, degrees: [2, 1]}\n");
}
