/* Measured step times that were published, as files: examples/published has a job in each, with its time and source,
 * examples/hardware what they ran on and how far each uncertain input may be off. Paths are from the working
 * directory. */
#ifndef EK_PERF_PUBLISHED_H
#define EK_PERF_PUBLISHED_H

#include "perf/perf.h"

typedef struct ek_published {
    double seconds;         /* of a step, measured */
    char *source, *machine; /* machine: the file that hardware was read from */
    ek_perf_model model;
    ek_perf_parallel parallel;
    ek_perf_hardware hardware;
} ek_published;

/* Reads a job's file, and the hardware's that it names. */
ek_status ek_published_read(ek_published **published, const char *path);
void ek_published_destroy(ek_published *published);
/* The model's time for a healthy replica of the job. */
ek_status ek_published_step(const ek_published *published, ek_perf_time *time);

/* An input of ek_perf_hardware and its range; in the file "ranges.NAME: [[low, high]]". */
typedef struct ek_perf_range {
    const char *name;
    size_t offset; /* of the double in ek_perf_hardware */
    double low, high;
} ek_perf_range;

#define EK_PERF_RANGES 7
ek_status ek_perf_ranges_read(const char *path, ek_perf_range ranges[EK_PERF_RANGES]);

#endif
