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

/* Empties the file, or goes on at the end of its last whole line. path NULL: none is wanted. */
ek_status ek_metrics_open(ek_metrics *metrics, const char *path, bool append);
void ek_metrics_close(ek_metrics *metrics);

/* Takes `line`. A line that does not fit is taken back. */
ek_status ek_metrics_write(ek_metrics *metrics, json_t *line);

#endif
