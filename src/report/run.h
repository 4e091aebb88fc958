/* The report of a training run, from its metrics (docs/metrics.md). */
#ifndef EK_REPORT_RUN_H
#define EK_REPORT_RUN_H

#include <jansson.h>

#include <evenkeel.h>

/* The description of the page (report.h). title NULL: one is made from the path. EK_IO: the file cannot be read.
 * EK_INVALID: it does not hold the metrics of a run; the text names the line. Memory: some 40 bytes a step, 250 an
 * event. */
ek_status ek_run_describe(const char *path, const char *title, json_t **page);

#endif
