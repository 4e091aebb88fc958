/* What is kept of a run's metrics while they are read: enough for the report, in little memory. A run that went on from
 * a checkpoint has lines of steps that were done again; the later ones count. */
#ifndef EK_REPORT_RUN_DATA_H
#define EK_REPORT_RUN_DATA_H

#include <stdbool.h>

#include <evenkeel.h>

#include "report/events.h"
#include "report/goodput.h"
#include "report/thin.h"

/* Up to EK_OWN_LINE_MOST replicas have a line each in the charts; more are summed up in EK_SUMMARY_LINES, the lowest,
 * the median and the highest. */
enum { EK_OWN_LINE_MOST = 8, EK_SUMMARY_LINES = 3 };

/* Charts of the whole job, and of each replica. */
typedef enum ek_job_chart { EK_CHART_LOSS, EK_CHART_SPEED, EK_CHART_SECONDS, EK_JOB_CHARTS } ek_job_chart;
typedef enum ek_replica_chart {
    EK_CHART_TP,
    EK_CHART_POWER,
    EK_CHART_SAMPLES,
    EK_CHART_BUSY,
    EK_REPLICA_CHARTS
} ek_replica_chart;

typedef struct ek_run_data {
    ek_thin job[EK_JOB_CHARTS], at;
    uint32_t replicas, lines;       /* replicas: the most in any step; lines: in a chart of replicas */
    ek_thin *of_replicas;           /* [EK_REPLICA_CHARTS][lines] */
    double *values;                 /* [replicas] scratch */
    double most[EK_REPLICA_CHARTS]; /* of any replica in any step */
    double first_loss, last_loss, tokens;

    ek_goodput goodput;
    ek_report_events events;
    double *resumed; /* the step of each `resumed` in the file, then of it and all behind it the least */
    size_t resumed_count, resumed_room;
    size_t part;               /* which of them has been read last, from 1; 0: none yet */
    uint32_t in_part;          /* replicas of each step since then; 0: none yet */
    double launched;           /* when the launch that is read began; what follows is since the first one */
    double last_step, last_at; /* of the last commit */
    double last_moment;        /* of anything that the file tells of */
    size_t failures, returns;

    bool torn, ended, done;
    char reason[512]; /* why it failed, if it ended so */
} ek_run_data;

/* EK_IO: the file cannot be read. EK_INVALID: it does not hold the metrics of a run, the text names the line, or it
 * cannot be read twice. On failure too *run is to be cleared. */
ek_status ek_run_read(const char *path, ek_run_data *run);
void ek_run_clear(ek_run_data *run);

#endif
