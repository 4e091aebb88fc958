/* Kills a rank in backward, many times. */
#include <stdio.h>

#include "base/error.h"
#include "bench.h"
#include "jobs.h"

enum { RUNS = 15, STEPS = 12, KILL = 6, FIRST_COUNTED = 3 };

/* Milliseconds from the kill to the next commit, less the median of the steps before it. */
static ek_status measure(double *milliseconds)
{
    static const char yaml[] = EK_BENCH_TINY "parallel: {dp: 2, tp: 4}\n"
                                             "batch: {global: 16, micro: 4}\n"
                                             "train: {steps: 12}\n";
    static ek_bench_job job;
    static const ek_fault_point kill = {.step = KILL, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD};
    EK_TRY(ek_bench_run(&(ek_bench_setup){.yaml = yaml, .faults = &kill, .fault_count = 1}, &job));
    if (job.steps != STEPS || job.failure_at == 0.0)
        return ek_fail(EK_SYSTEM, "the benchmark's job committed %zu steps", job.steps);
    double ordinary[KILL - FIRST_COUNTED];
    for (int step = FIRST_COUNTED; step < KILL; step++)
        ordinary[step - FIRST_COUNTED] = job.step[step].seconds;
    double step_seconds = ek_bench_median(ordinary, KILL - FIRST_COUNTED);
    *milliseconds = 1e3 * (job.step[KILL].at - job.failure_at - step_seconds);
    return EK_OK;
}

ek_status ek_bench_recovery(void)
{
    double milliseconds[RUNS], low, high;
    for (int run = 0; run < RUNS; run++) {
        ek_bench_progress("recovery", run, RUNS);
        EK_TRY(measure(&milliseconds[run]));
    }
    ek_bench_progress("recovery", RUNS, RUNS);
    double median = ek_bench_median(milliseconds, RUNS);
    ek_bench_median_interval(milliseconds, RUNS, &low, &high);
    printf("recovery: TP4+TP4, one rank killed in backward, the job goes on as TP4+TP3 (model of examples/tiny.yaml)\n"
           "  from the kill to the next commit, less one ordinary step:\n"
           "  median %.1f ms (95 %% interval %.1f to %.1f, least %.1f, most %.1f, %d runs)\n",
           median, low, high, milliseconds[0], milliseconds[RUNS - 1], RUNS);
    return EK_OK;
}
