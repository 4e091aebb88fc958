/* Training jobs for benchmarks: run through ek_train, read back from its metrics. All files live in memory. */
#ifndef EK_BENCH_JOBS_H
#define EK_BENCH_JOBS_H

#include "train/train.h"

#define EK_BENCH_STEPS_MOST 64
#define EK_BENCH_REPLICAS_MOST 4
#define EK_BENCH_RETURNS_MOST 8

/* The model of examples/tiny.yaml; the rest of the configuration follows it. */
#define EK_BENCH_TINY "model: {layers: 4, hidden: 256, heads: 8, kv_heads: 4, ffn: 704, vocab: 256, sequence: 128}\n"

/* The model of examples/moe.yaml, likewise. */
#define EK_BENCH_EXPERTS                                                                                               \
    "model: {layers: 4, hidden: 256, heads: 8, kv_heads: 4, ffn: 704, vocab: 256, sequence: 128,\n"                    \
    "        experts: 12, top_k: 2, expert_ffn: 352}\n"

typedef struct ek_bench_step {
    double at, seconds; /* when it was committed; how long it took */
    double busy_seconds[EK_BENCH_REPLICAS_MOST], exposed_seconds[EK_BENCH_REPLICAS_MOST];
    uint64_t dispatch_bytes[EK_BENCH_REPLICAS_MOST];
} ek_bench_step;

typedef struct ek_bench_job {
    size_t steps;
    ek_bench_step step[EK_BENCH_STEPS_MOST + 1]; /* from 1 */
    double failure_at;                           /* when the last fault was injected; 0: none was */
    size_t return_count;
    size_t return_step[EK_BENCH_RETURNS_MOST]; /* the first step that a rank that came back took part in */
} ek_bench_job;

typedef struct ek_bench_setup {
    const char *yaml; /* the configuration without its data */
    const ek_fault_point *faults;
    size_t fault_count;
    const ek_rejoin *rejoins;
    size_t rejoin_count;
    double link_bytes_per_second, link_latency_seconds; /* emulated link; 0: none */
    ek_routes_use routes;
    const char *routes_path;
} ek_bench_setup;

/* A file in memory with a path that can be opened. */
typedef struct ek_bench_file {
    int fd;
    char path[48];
} ek_bench_file;

ek_status ek_bench_file_create(ek_bench_file *file, const void *content, size_t bytes);
void ek_bench_file_close(ek_bench_file *file);

/* The configuration of a benchmark that reads its tokens from `data_path`. */
ek_status ek_bench_config(ek_config **config, const char *yaml, const char *data_path);

ek_status ek_bench_run(const ek_bench_setup *setup, ek_bench_job *job);

/* The median; sorts values. */
double ek_bench_median(double *values, size_t count);

/* 95 % confidence interval of the median of sorted values, from order statistics (binomial; no assumption on their
 * distribution). */
void ek_bench_median_interval(const double *values, size_t count, double *low, double *high);

#endif
