/* Models, layouts and hardware to ask the performance model about. */
#ifndef TESTS_PERF_JOBS_H
#define TESTS_PERF_JOBS_H

#include "perf/perf.h"

typedef struct perf_job {
    ek_perf_model model;
    ek_perf_parallel parallel;
    ek_perf_hardware hardware;
} perf_job;

/* The 530B model of arXiv 2205.05198 on A100, with neither recomputation nor sequence parallelism. */
perf_job job_530b(void);
/* Any job that is allowed; the same for the same number. */
perf_job job_random(uint64_t number);
/* A number from `least` to `most`; `key` tells draws of one job apart. */
uint32_t job_draw(uint64_t number, uint64_t key, uint32_t least, uint32_t most);

#endif
