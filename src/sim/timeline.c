/* A job through a history of failures. */
#include "sim/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cluster/packing.h"

const ek_conduct ek_conducts[EK_CONDUCTS] = {
    {"restart", EK_POLICY_DROP, false},   {"dp-drop", EK_POLICY_DROP, true},
    {"reroute", EK_POLICY_REROUTE, true}, {"ntp-restart", EK_POLICY_NTP, false},
    {"ntp", EK_POLICY_NTP, true},         {"ntp-pw-restart", EK_POLICY_NTP_PW, false},
    {"ntp-pw", EK_POLICY_NTP_PW, true},
};

#define SECONDS_PER_HOUR 3600.0
#define NOTHING 1e-9 /* of the horizon: what rounding leaves of work that was all done again */

typedef struct timeline_job {
    const ek_scenario *scenario;
    const ek_sampler *tables;
    const ek_steps *steps;
    const ek_conduct *conduct;
    const ek_trace *trace;
    double now, resume;   /* hours; before `resume` the job stands still */
    double since_restart; /* hours that it ran, for the checkpoints in them */
    double throughput, deepest_seconds, watts;
    double joules;            /* in watt hours */
    ek_goodput sums;          /* in hours */
    uint32_t *failed;         /* [domains] slots */
    uint32_t *cell_at;        /* [domains * cells]: the cell (domain * cells + index) that serves a place; places beyond
                                 replicas * stages are spare */
    uint32_t *scratch;        /* [levels + 3] */
    uint32_t *replica_levels; /* [replicas] */
    uint32_t *cells_of;       /* [base_degree + 1] cells by degree, and */
    uint32_t *degrees;        /* [replicas] what packing makes of them */
    bool *used;               /* [domains] by a replica that computes */
} timeline_job;

static uint32_t cell_level(const timeline_job *job, uint32_t cell)
{
    uint32_t cells = job->tables->cells;
    return job->tables->cell_levels[(size_t)job->failed[cell / cells] * cells + cell % cells];
}

/* ---------------------------------------------------------------------------------------------- the replicas */

/* Cells serve places in order of level: whole ones first, so that the most damaged share the last replicas and the very
 * worst are spare. A counting sort. */
static void pack(timeline_job *job)
{
    uint32_t cells = job->tables->domains * job->tables->cells, levels = job->steps->levels + 1, *start = job->scratch;
    memset(start, 0, (levels + 2) * sizeof *start);
    for (uint32_t cell = 0; cell < cells; cell++)
        start[cell_level(job, cell) + 1]++;
    for (uint32_t level = 1; level <= levels; level++)
        start[level] += start[level - 1];
    for (uint32_t cell = 0; cell < cells; cell++)
        job->cell_at[start[cell_level(job, cell)]++] = cell;
}

/* Power of a TP group in use: under NTP all stages of a replica are at its level, under NTP-PW each is at its own,
 * boosted if it is damaged. */
static double cell_watts(const timeline_job *job, uint32_t level, uint32_t replica_level, uint32_t *devices)
{
    double tdp_watts = job->scenario->hardware.tdp_watts;
    bool boosts = job->conduct->policy == EK_POLICY_NTP_PW && level > 0;
    *devices = job->steps->base_degree - (job->conduct->policy == EK_POLICY_NTP ? replica_level : level);
    return *devices * (boosts ? job->steps->level[level].watts : tdp_watts);
}

static double live_devices(const timeline_job *job)
{
    double live = (double)job->tables->domains * job->scenario->hardware.domain_slots;
    for (uint32_t domain = 0; domain < job->tables->domains; domain++)
        live -= job->failed[domain];
    return live;
}

/* Which domains are in use, and what they take. */
static void look_at_use(timeline_job *job, uint32_t deepest)
{
    const ek_steps *steps = job->steps;
    double idle = live_devices(job);
    job->watts = 0;
    memset(job->used, 0, job->tables->domains * sizeof *job->used);
    for (uint32_t place = 0; place < steps->replicas * steps->stages; place++) {
        uint32_t replica_level = job->replica_levels[place / steps->stages], cell = job->cell_at[place], devices;
        if (replica_level > deepest)
            continue;
        job->used[cell / job->tables->cells] = true;
        job->watts += cell_watts(job, cell_level(job, cell), replica_level, &devices);
        idle -= devices;
    }
    job->watts += idle * job->scenario->power.idle_watts;
}

/* What the job's replicas come to, with what has failed. */
static void evaluate(timeline_job *job)
{
    const ek_steps *steps = job->steps;
    uint32_t *replicas_at = job->scratch, retired = steps->levels + 1, deepest[EK_POLICIES];
    double throughput[EK_POLICIES];
    memset(replicas_at, 0, (retired + 1) * sizeof *replicas_at);
    for (uint32_t replica = 0; replica < steps->replicas; replica++) {
        uint32_t level = 0;
        for (uint32_t stage = 0; stage < steps->stages; stage++)
            level = (uint32_t)fmax(level, cell_level(job, job->cell_at[replica * steps->stages + stage]));
        job->replica_levels[replica] = level;
        replicas_at[level]++;
    }
    ek_steps_throughput(steps, replicas_at, retired, throughput, deepest);
    job->throughput = throughput[job->conduct->policy];
    job->deepest_seconds = steps->level[deepest[job->conduct->policy]].step_seconds;
    look_at_use(job, deepest[job->conduct->policy]);
}

/* -------------------------------------------------------------------------------------------------- the time */

static ek_status trace(const timeline_job *job, double hours, double throughput)
{
    return job->trace ? job->trace->point(job->trace->context, hours, throughput) : EK_OK;
}

/* Time passes up to `hours`, without a change. */
static ek_status pass(timeline_job *job, double hours)
{
    double standing = fmin(fmax(job->resume - job->now, 0), hours - job->now), running = hours - job->now - standing;
    const ek_sim_policies *policies = &job->scenario->policies;
    double checkpoint_hours = job->conduct->in_place ? policies->in_place_checkpoint_hours : policies->checkpoint_hours;
    double pause_hours = policies->checkpoint_seconds / SECONDS_PER_HOUR;
    double training = running * (checkpoint_hours / (checkpoint_hours + pause_hours));
    if (running > 0 && standing > 0)
        EK_TRY(trace(job, job->resume, job->throughput));
    job->sums.stalled += standing;
    job->sums.checkpoints += running - training;
    job->sums.done += training * job->throughput;
    job->sums.reduced += training * (1 - job->throughput);
    if (standing > 0)
        job->joules += standing * live_devices(job) * job->scenario->power.idle_watts;
    job->joules += running * job->watts;
    job->since_restart += running;
    job->now = hours;
    return EK_OK;
}

static void redo(timeline_job *job, double training_hours)
{
    job->sums.done -= training_hours * job->throughput;
    job->sums.redone += training_hours * job->throughput;
}

static ek_status stand_still(timeline_job *job, double seconds)
{
    job->sums.stops++;
    job->resume = fmax(job->resume, job->now + seconds / SECONDS_PER_HOUR);
    return trace(job, job->now, seconds > 0 ? 0 : job->throughput);
}

/* The job starts anew, packed. */
static ek_status restart(timeline_job *job, double seconds)
{
    pack(job);
    evaluate(job);
    job->since_restart = 0;
    return stand_still(job, seconds);
}

/* A device in use has failed. */
static ek_status lose(timeline_job *job)
{
    const ek_sim_policies *policies = &job->scenario->policies;
    if (!job->conduct->in_place) {
        double period = policies->checkpoint_hours + policies->checkpoint_seconds / SECONDS_PER_HOUR;
        redo(job, fmin(fmod(job->since_restart, period), policies->checkpoint_hours));
        return restart(job, policies->detect_seconds + policies->restart_seconds);
    }
    if (job->now > job->resume)
        redo(job, fmin(job->deepest_seconds / 2 / SECONDS_PER_HOUR, job->now - job->resume));
    evaluate(job);
    return stand_still(job, policies->detect_seconds + policies->recover_seconds);
}

static ek_status take_change(timeline_job *job, const ek_change *change)
{
    job->failed[change->domain] = change->failed;
    if (change->failure && job->used[change->domain])
        return lose(job);
    double before = job->throughput;
    if (job->conduct->in_place) {
        evaluate(job);
        return job->throughput != before ? stand_still(job, job->scenario->policies.return_seconds) : EK_OK;
    }
    /* a restarted job takes up nothing until it restarts again, which it does at once if it stands still for want of
     * devices */
    bool may_go_on = before == 0 && !change->failure;
    return may_go_on ? restart(job, job->scenario->policies.restart_seconds) : EK_OK;
}

/* What throughput would be if the job were packed. */
static double packed_throughput(const timeline_job *job)
{
    const ek_steps *steps = job->steps;
    uint32_t cells = job->tables->domains * job->tables->cells, retired = steps->levels + 1, *at = job->scratch;
    double throughput[EK_POLICIES];
    memset(job->cells_of, 0, (steps->base_degree + 1) * sizeof *job->cells_of);
    for (uint32_t cell = 0; cell < cells; cell++)
        if (cell_level(job, cell) < retired)
            job->cells_of[steps->base_degree - cell_level(job, cell)]++;
    uint32_t packed =
        ek_packing_degrees(job->cells_of, steps->base_degree, steps->stages, steps->replicas, job->degrees);
    memset(at, 0, (retired + 1) * sizeof *at);
    at[retired] = steps->replicas - packed;
    for (uint32_t replica = 0; replica < packed; replica++)
        at[steps->base_degree - job->degrees[replica]]++;
    ek_steps_throughput(steps, at, retired, throughput, NULL);
    return throughput[job->conduct->policy];
}

/* A planned restart after a checkpoint, if packing gains anything. */
static ek_status repack(timeline_job *job)
{
    const ek_sim_policies *policies = &job->scenario->policies;
    if (packed_throughput(job) <= job->throughput)
        return EK_OK;
    return restart(job, policies->checkpoint_seconds + policies->restart_seconds);
}

/* ------------------------------------------------------------------------------------------------- a history */

static ek_status live_through(timeline_job *job, const ek_history *history)
{
    double horizon_hours = job->scenario->study.horizon_days * 24, every = job->scenario->policies.repack_hours;
    double next_repack = every > 0 ? every : INFINITY;
    size_t i = 0;
    for (; i < history->count && history->changes[i].hours < 0; i++)
        job->failed[history->changes[i].domain] = history->changes[i].failed;
    pack(job);
    evaluate(job);
    EK_TRY(trace(job, 0, job->throughput));
    for (;;) {
        double next_change = i < history->count ? history->changes[i].hours : INFINITY;
        double next = fmin(fmin(next_change, next_repack), horizon_hours);
        EK_TRY(pass(job, next));
        if (next >= horizon_hours)
            return EK_OK;
        if (next_repack <= next_change) {
            EK_TRY(repack(job));
            next_repack += every;
        } else {
            EK_TRY(take_change(job, &history->changes[i++]));
        }
    }
}

static ek_goodput divide(const timeline_job *job)
{
    double hours = job->scenario->study.horizon_days * 24;
    double needed = (double)job->steps->replicas * job->steps->stages * job->steps->base_degree;
    double owned = (double)job->tables->domains * job->scenario->hardware.domain_slots;
    ek_goodput goodput = job->sums;
    goodput.done /= hours;
    goodput.reduced /= hours;
    goodput.stalled /= hours;
    goodput.redone /= hours;
    goodput.checkpoints /= hours;
    goodput.per_gpu = goodput.done * needed / owned;
    double full = needed * job->scenario->hardware.tdp_watts * hours; /* watt hours, with no failure */
    goodput.energy = goodput.done > NOTHING ? job->joules / full / goodput.done : NAN;
    return goodput;
}

ek_status ek_timeline_run(const ek_scenario *scenario, const ek_sampler *tables, const ek_history *history,
                          const ek_conduct *conduct, const ek_trace *trace, ek_goodput *goodput)
{
    const ek_steps *steps = tables->steps;
    timeline_job job = {.scenario = scenario,
                        .tables = tables,
                        .steps = steps,
                        .conduct = conduct,
                        .trace = trace,
                        .failed = calloc(tables->domains, sizeof *job.failed),
                        .cell_at = calloc((size_t)tables->domains * tables->cells, sizeof *job.cell_at),
                        .scratch = calloc(steps->levels + 3, sizeof *job.scratch),
                        .replica_levels = calloc(steps->replicas, sizeof *job.replica_levels),
                        .cells_of = calloc(steps->base_degree + 1, sizeof *job.cells_of),
                        .degrees = calloc(steps->replicas, sizeof *job.degrees),
                        .used = calloc(tables->domains, sizeof *job.used)};
    ek_status status = EK_OK;
    if (!job.failed || !job.cell_at || !job.scratch || !job.replica_levels || !job.cells_of || !job.degrees ||
        !job.used)
        status = ek_fail(EK_NO_MEMORY, "no memory for a job on %u domains", tables->domains);
    else
        status = live_through(&job, history);
    if (status == EK_OK)
        *goodput = divide(&job);
    free(job.failed);
    free(job.cell_at);
    free(job.scratch);
    free(job.replica_levels);
    free(job.cells_of);
    free(job.degrees);
    free(job.used);
    return status;
}
