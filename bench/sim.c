/* Sampled scenarios of the 32K-GPU job of arXiv 2504.06095, by the second of one core. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "bench.h"
#include "sim/sampler.h"

enum { SEED = 1, FAILURES = 131, SCENARIOS = 2000000 }; /* 131 of 32,768 GPUs: 4e-3 */

static const char published_job[] =
    "model: {layers: 96, hidden: 20480, heads: 128, ffn: 81920, vocab: 51200, sequence: 16384}\n"
    "parallel: {dp: 128, tp: 32, pp: 8, min_tp: 28}\n"
    "batch: {global: 1024}\n"
    "device: {flops_per_second: 2250e12, matmul_efficiency: 0.72, multiprocessors: 148, memory_bytes: 189e9,\n"
    "  memory_bytes_per_second: 8e12, memory_efficiency: 0.84, tdp_watts: 1000}\n"
    "network: {domain_slots: 32, scale_up_bytes_per_second: 900e9, scale_up_efficiency: 0.745,\n"
    "  scale_out_bytes_per_second: 100e9, scale_out_efficiency: 0.85}\n"
    "power: {domain_watts: 36160}\n"
    "policies: {units: free}\n"
    "study: {kind: throughput}\n";

static ek_status read_job(ek_scenario **scenario)
{
    char path[48];
    int file = memfd_create("evenkeel-bench", MFD_CLOEXEC);
    size_t bytes = sizeof published_job - 1;
    if (file < 0 || write(file, published_job, bytes) != (ssize_t)bytes)
        return ek_fail(EK_SYSTEM, "cannot make a file in memory: %s", strerror(errno));
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    ek_status status = ek_scenario_read(scenario, path, NULL, 0);
    close(file);
    return status;
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The same study in numpy, which bench/run runs beside this. */
static void print_numpy_command(const ek_steps *steps, const ek_scenario *scenario)
{
    printf("  in numpy: bench/sim_numpy.py --domains %u --slots %u --stages %u --failures %d --samples",
           scenario->domains, scenario->hardware.domain_slots, steps->stages, FAILURES);
    for (uint32_t level = 0; level <= steps->levels; level++)
        printf(" %u", steps->level[level].samples);
    printf(" --boosted");
    for (uint32_t level = 0; level <= steps->levels; level++)
        printf(" %u", steps->level[level].boosted_samples);
    printf(" --pace");
    for (uint32_t level = 0; level <= steps->levels; level++)
        printf(" %.12g", steps->level[level].pace);
    putchar('\n');
}

static ek_status measure(const ek_scenario *scenario, const ek_steps *steps)
{
    ek_sampler *sampler;
    ek_sampled_means means;
    double seconds[2];
    EK_TRY(ek_sampler_create(&sampler, steps, scenario->domains, scenario->hardware.domain_slots, 1));
    ek_status status = EK_OK;
    for (int with_left = 1; with_left >= 0 && status == EK_OK; with_left--) {
        double start = cpu_seconds();
        const ek_sampling sampling = {
            .seed = SEED, .count = SCENARIOS, .failures = FAILURES, .with_left = with_left, .threads = 1};
        status = ek_sampler_run(sampler, &sampling, &means);
        seconds[with_left] = cpu_seconds() - start;
    }
    ek_sampler_destroy(sampler);
    EK_TRY(status);
    printf("sim: sampled scenarios of 32,768 GPUs of which %d have failed, all policies at once, one core, CPU time\n"
           "  packed: %.2f million scenarios/s; packed and left where failures fell: %.2f million\n"
           "  lost, packed:",
           FAILURES, 1e-6 * SCENARIOS / seconds[0], 1e-6 * SCENARIOS / seconds[1]);
    for (int policy = 0; policy < EK_POLICIES; policy++)
        printf(" %s %.6f +- %.6f", ek_policy_name(scenario, (ek_policy)policy), means.lost[EK_PACKED][policy].mean,
               means.lost[EK_PACKED][policy].half_width);
    putchar('\n');
    print_numpy_command(steps, scenario);
    return EK_OK;
}

ek_status ek_bench_sim(void)
{
    ek_scenario *scenario;
    ek_steps *steps;
    EK_TRY(read_job(&scenario));
    ek_status status = ek_steps_create(&steps, scenario);
    if (status == EK_OK) {
        status = measure(scenario, steps);
        ek_steps_destroy(steps);
    }
    ek_scenario_destroy(scenario);
    return status;
}
