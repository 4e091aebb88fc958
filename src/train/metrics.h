/* The metrics file: JSON lines, whole ones alone. */
#ifndef EK_TRAIN_METRICS_H
#define EK_TRAIN_METRICS_H

#include <jansson.h>
#include <sys/types.h>

#include <evenkeel.h>

typedef struct ek_metrics {
    const char *path; /* the caller's */
    int file;         /* -1: no metrics are wanted */
    off_t bytes;      /* written */
} ek_metrics;

/* Refuses an output file that is one of inputs[] (each may be NULL), which the run uses too; `option` named it. */
ek_status ek_output_check(const char *option, const char *path, const char *const *inputs, size_t input_count);

/* Empties the file, or goes on at the end of its last whole line; refuses one of inputs[], as ek_output_check. path
 * NULL: none is wanted. */
ek_status ek_metrics_open(ek_metrics *metrics, const char *path, bool append, const char *const *inputs,
                          size_t input_count);
void ek_metrics_close(ek_metrics *metrics);

/* Takes `line`. A line that does not fit is taken back. */
ek_status ek_metrics_write(ek_metrics *metrics, json_t *line);

#endif
