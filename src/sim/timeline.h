/* Goodput over time: a job lives through a history of failures under one way of dealing with them.
 *
 * Between two changes the job runs at the steady throughput of its replicas (steps.h). A failure of a device in use
 * costs the time until it is known, the recovery or the restart, and what has to be done again: the step in flight,
 * half of it in the mean, or all since the last checkpoint. Failures during that time begin it anew. Checkpoints are
 * written under every policy, evenly spread. docs/simulator.md has all that is assumed. */
#ifndef EK_SIM_TIMELINE_H
#define EK_SIM_TIMELINE_H

#include "sim/history.h"
#include "sim/sampler.h"

/* A policy, and how it is entered: by recovery in place, where failures are left where they fell, or by a restart from
 * the last checkpoint, which packs. */
typedef struct ek_conduct {
    const char *name;
    ek_policy policy;
    bool in_place;
} ek_conduct;

#define EK_CONDUCTS 7
extern const ek_conduct ek_conducts[EK_CONDUCTS];

/* Where the time went, as parts of the horizon: they add up to 1. */
typedef struct ek_goodput {
    double done;    /* work that counts, as at full throughput of the job */
    double reduced; /* throughput below full */
    double stalled; /* detection, recovery, restarts, returns */
    double redone;  /* work that had to be done again */
    double checkpoints;
    double per_gpu; /* done, per device owned: spares and devices that are down count */
    double energy;  /* joules for a sample, against no failure and no checkpoints; NAN: nothing was done */
    double stops;   /* times that the job stood still for a failure or a return */
} ek_goodput;

/* Told of the job's throughput whenever it changes: 0 while it stands still. */
typedef struct ek_trace {
    ek_status (*point)(void *context, double hours, double throughput);
    void *context;
} ek_trace;

/* tables: of the cluster, with blast radius 1. trace may be NULL. */
ek_status ek_timeline_run(const ek_scenario *scenario, const ek_sampler *tables, const ek_history *history,
                          const ek_conduct *conduct, const ek_trace *trace, ek_goodput *goodput);

#endif
