/* Brings a rank back, many times. */
#include <stdio.h>

#include "base/error.h"
#include "bench.h"
#include "jobs.h"

/* Each run loses the same rank again and again: killed in step 3 + 10 i, asked back when step 5 + 10 i begins. */
enum { RUNS = 3, STEPS = 62, CYCLE = 10, CYCLES = 6, FIRST_KILL = 3, FIRST_RETURN = 5, RETURNS = RUNS * CYCLES };

typedef struct return_cost {
    double steps, milliseconds, step_milliseconds;
} return_cost;

static ek_status run_job(const char *yaml, ek_bench_job *job)
{
    ek_fault_point kills[CYCLES];
    ek_rejoin rejoins[CYCLES];
    for (uint32_t i = 0; i < CYCLES; i++) {
        kills[i] =
            (ek_fault_point){.step = FIRST_KILL + CYCLE * i, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD};
        rejoins[i] = (ek_rejoin){.step = FIRST_RETURN + CYCLE * i, .replica = 1, .slot = 2};
    }
    EK_TRY(ek_bench_run(
        &(ek_bench_setup){
            .yaml = yaml, .faults = kills, .fault_count = CYCLES, .rejoins = rejoins, .rejoin_count = CYCLES},
        job));
    if (job->steps != STEPS || job->return_count != CYCLES)
        return ek_fail(EK_SYSTEM, "the benchmark's job committed %zu steps and saw %zu returns of %d", job->steps,
                       job->return_count, CYCLES);
    return EK_OK;
}

/* From the last commit before the return to the next one, less an ordinary step: the median of those between this
 * return and the next kill, in which the job is whole as in the step that is measured. */
static ek_status measure(const ek_bench_job *job, size_t i, return_cost *cost)
{
    size_t first = job->return_step[i], next_kill = FIRST_KILL + CYCLE * (i + 1), count = 0;
    double ordinary[CYCLE];
    for (size_t step = first + 1; step < next_kill && step <= job->steps; step++)
        ordinary[count++] = job->step[step].at - job->step[step - 1].at;
    if (!count)
        return ek_fail(EK_SYSTEM, "return %zu came in step %zu, too late to be measured", i, first);
    double step_seconds = ek_bench_median(ordinary, count);
    double seconds = job->step[first].at - job->step[first - 1].at - step_seconds;
    *cost = (return_cost){seconds / step_seconds, 1e3 * seconds, 1e3 * step_seconds};
    return EK_OK;
}

static ek_status measure_model(const char *yaml, const char *name)
{
    static ek_bench_job job;
    double steps[RETURNS], milliseconds[RETURNS], step_milliseconds[RETURNS], low, high;
    for (int run = 0; run < RUNS; run++) {
        ek_bench_progress("return", run, RUNS);
        EK_TRY(run_job(yaml, &job));
        for (size_t i = 0; i < CYCLES; i++) {
            return_cost cost;
            size_t at = (size_t)run * CYCLES + i;
            EK_TRY(measure(&job, i, &cost));
            steps[at] = cost.steps;
            milliseconds[at] = cost.milliseconds;
            step_milliseconds[at] = cost.step_milliseconds;
        }
    }
    ek_bench_progress("return", RUNS, RUNS);
    double median = ek_bench_median(steps, RETURNS);
    ek_bench_median_interval(steps, RETURNS, &low, &high);
    printf(
        "  %s: median %.2f ordinary steps (95 %% interval %.2f to %.2f, %d returns), %.0f ms; a step takes %.0f ms\n",
        name, median, low, high, RETURNS, ek_bench_median(milliseconds, RETURNS),
        ek_bench_median(step_milliseconds, RETURNS));
    return EK_OK;
}

#define COMMON                                                                                                         \
    "parallel: {dp: 2, tp: 4}\n"                                                                                       \
    "train: {steps: 62}\n"

ek_status ek_bench_return(void)
{
    static const char tiny[] = EK_BENCH_TINY COMMON "batch: {global: 16, micro: 4}\n";
    static const char larger[] =
        "model: {layers: 6, hidden: 512, heads: 8, ffn: 1408, vocab: 256, sequence: 64}\n" COMMON
        "batch: {global: 8, micro: 4}\n";
    printf("return: TP4+TP3, the lost rank comes back, the job goes on as TP4+TP4\n"
           "  from the last commit before it to the next one, less one ordinary step:\n");
    EK_TRY(measure_model(tiny, " 3.1 M parameters (examples/tiny.yaml)           "));
    return measure_model(larger, "19.5 M parameters (6 layers of 512, 512 tokens a step)");
}
