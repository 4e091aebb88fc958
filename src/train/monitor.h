/* The launching process' view of a run: gathers what the ranks report and writes it down as metrics (JSON lines),
 * progress lines and the closing table. docs/metrics.md describes the lines. */
#ifndef EK_TRAIN_MONITOR_H
#define EK_TRAIN_MONITOR_H

#include "train/limits.h"
#include "train/worker.h"

typedef struct ek_monitor ek_monitor;

/* Opens (and empties) options->metrics_path. EK_IO if that cannot be done. limits: the caller's, NULL where power is
 * not governed; complaint: why, "" if it was not asked for. */
ek_status ek_monitor_create(ek_monitor **monitor, const ek_run *run, ek_limits *limits, const char *complaint);
void ek_monitor_destroy(ek_monitor *monitor);

/* For ek_launch; `run` is the ek_run whose monitor this is. A status other than EK_OK: the metrics could not be
 * written. */
ek_status ek_monitor_start(void *run, ek_launcher *launcher);
ek_status ek_monitor_report(void *run, uint32_t rank, const void *record, size_t bytes);
ek_status ek_monitor_lost(void *run, const ek_loss *loss);

ek_status ek_monitor_signal(void *run, int signal);

/* The last committed step; that of the last complete checkpoint that this run has made, 0: none. */
uint64_t ek_monitor_last_step(const ek_monitor *monitor);
uint64_t ek_monitor_saved_step(const ek_monitor *monitor);
/* Whether the ranks were asked to end before the last step. */
bool ek_monitor_stops(const ek_monitor *monitor);

/* `start` without the ranks that are lost now. EK_NO_REPLICA: they do not suffice. */
ek_status ek_monitor_survivors(const ek_monitor *monitor, const ek_membership *start, ek_membership **survivors);

/* The run goes on from run->resumed_step with run->membership, before the ranks are launched. */
ek_status ek_monitor_resume(ek_monitor *monitor);

/* In a rank, of its own faults: whether it has died of this one before, in an earlier life. */
bool ek_monitor_has_struck(const ek_monitor *monitor, size_t fault);

/* After the launch: the last metrics line, and the table. Returns `status`, or EK_IO if all went well but the last line
 * could not be written. */
ek_status ek_monitor_finish(ek_monitor *monitor, ek_status status);

#endif
