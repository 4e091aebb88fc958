/* Scenarios for tests. */
#include "scenarios.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char scenario_small[] =
    "model: {layers: 8, hidden: 1024, heads: 16, ffn: 4096, vocab: 8192, sequence: 1024}\n"
    "parallel: {dp: 4, tp: 4, pp: 2, min_tp: 2}\n"
    "batch: {global: 32}\n"
    "device: {flops_per_second: 1e15, matmul_efficiency: 0.7, multiprocessors: 100, memory_bytes: 8e10,\n"
    "  memory_bytes_per_second: 3e12, memory_efficiency: 0.8, tdp_watts: 500}\n"
    "network: {domain_slots: 4, scale_up_bytes_per_second: 4e11, scale_up_efficiency: 0.7,\n"
    "  scale_out_bytes_per_second: 5e10, scale_out_efficiency: 0.8}\n"
    "cluster: {domains: 10}\n"
    "study: {kind: throughput, samples: 1000, histories: 20}\n";

static size_t count(const char *const *overrides)
{
    size_t number = 0;
    while (overrides[number])
        number++;
    return number;
}

ek_scenario *scenario_ready(const char *name, const char *const *overrides)
{
    char path[500];
    ek_scenario *scenario;
    snprintf(path, sizeof path, EXAMPLES "/%s.yaml", name);
    assert_ok(ek_scenario_read(&scenario, path, overrides, count(overrides)));
    return scenario;
}

const char *scenario_file(const char *text, size_t bytes)
{
    static char paths[16][40];
    static unsigned files;
    assert_true(files < sizeof paths / sizeof *paths);
    int file = memfd_create("scenario", MFD_CLOEXEC);
    assert_true(file >= 0 && write(file, text, bytes) == (ssize_t)bytes);
    snprintf(paths[files], sizeof *paths, "/proc/self/fd/%d", file);
    return paths[files++];
}

ek_scenario *scenario_of_small(const char *const *overrides)
{
    static const char *path;
    ek_scenario *scenario;
    if (!path)
        path = scenario_file(scenario_small, strlen(scenario_small));
    assert_ok(ek_scenario_read(&scenario, path, overrides, count(overrides)));
    return scenario;
}
