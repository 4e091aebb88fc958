/* The jobs of examples/published, read with the fields of the performance model. */
#ifndef TESTS_PERF_PUBLISHED_H
#define TESTS_PERF_PUBLISHED_H

#include "perf/perf.h"

typedef struct published_job {
    double seconds; /* measured */
    char *source;
    ek_perf_model model;
    ek_perf_parallel parallel;
} published_job;

/* Of examples/published/NAME.yaml; released with published_free. */
void published_read(const char *name, published_job *job);
void published_free(published_job *job);
/* Of examples/hardware/NAME.yaml. */
void published_hardware(const char *name, ek_perf_hardware *hardware);
/* A healthy replica with its part of the job's samples. */
void published_step(const published_job *job, const ek_perf_hardware *hardware, ek_perf_time *time);

#endif
