/* The governor and the stragglers, fed with the busy times of all ranks. */
#include "train/pace.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cluster/straggler.h"

struct ek_pace {
    ek_job job;
    ek_curve curve;
    double default_watts;
    const ek_membership *membership; /* the caller's, of the last reset */
    bool warm;                       /* a step has been observed since then */
    ek_governor *governor;
    ek_stragglers *stragglers; /* NULL: not looked for */
    double *rank_seconds;      /* [ranks] at the default limit */
    double *replica_seconds;   /* [replicas] of the slowest rank */
    uint32_t *found;           /* [ranks] */
};

bool ek_pace_wanted(const ek_config *config)
{
    return config->batch.policy != EK_BATCH_KEEP || config->power.backend != EK_POWER_NONE ||
           config->health.straggler_factor > 0;
}

static ek_status build(ek_pace *pace, const ek_config *config, bool may_raise)
{
    EK_TRY(ek_curve_from_pairs(&pace->curve, config->power.curve, config->power.curve_count));
    EK_TRY(
        ek_governor_create(&pace->governor, &(ek_governor_options){
                                                .replicas = pace->job.replicas,
                                                .base_degree = pace->job.base_degree,
                                                .samples = config->batch.global,
                                                .policy = config->batch.policy,
                                                .curve = pace->curve,
                                                .default_watts = pace->default_watts,
                                                .cap_watts = may_raise ? config->power.cap_watts : pace->default_watts,
                                                .domain_watts = may_raise ? config->power.domain_watts : 0,
                                            }));
    if (config->health.straggler_factor > 0)
        EK_TRY(ek_stragglers_create(&pace->stragglers, &pace->job, config->health.straggler_factor,
                                    config->health.straggler_steps));
    size_t ranks = (size_t)pace->job.replicas * pace->job.base_degree + pace->job.spares;
    pace->rank_seconds = calloc(ranks, sizeof *pace->rank_seconds);
    pace->replica_seconds = calloc(pace->job.replicas, sizeof *pace->replica_seconds);
    pace->found = calloc(ranks, sizeof *pace->found);
    return pace->rank_seconds && pace->replica_seconds && pace->found
               ? EK_OK
               : ek_fail(EK_NO_MEMORY, "out of memory for busy times");
}

ek_status ek_pace_create(ek_pace **out, const ek_config *config, const ek_job *job, double default_watts,
                         bool may_raise)
{
    ek_pace *pace = calloc(1, sizeof *pace);
    if (!pace)
        return ek_fail(EK_NO_MEMORY, "out of memory for busy times");
    pace->job = *job;
    pace->default_watts = default_watts;
    ek_status status = build(pace, config, may_raise);
    if (status != EK_OK) {
        ek_pace_destroy(pace);
        return status;
    }
    *out = pace;
    return EK_OK;
}

void ek_pace_destroy(ek_pace *pace)
{
    if (!pace)
        return;
    ek_governor_destroy(pace->governor);
    ek_stragglers_destroy(pace->stragglers);
    free(pace->rank_seconds);
    free(pace->replica_seconds);
    free(pace->found);
    free(pace);
}

void ek_pace_reset(ek_pace *pace, const ek_membership *membership)
{
    pace->membership = membership;
    pace->warm = false;
    ek_governor_reset(pace->governor, membership);
    if (pace->stragglers)
        ek_stragglers_reset(pace->stragglers, membership);
}

/* A rank that is known to straggle does not set the pace of its replica: what it lacks is made up by its own power, as
 * far as that goes. Beyond, its replica is as slow as it is. */
void ek_pace_observe(ek_pace *pace, const double *busy_seconds)
{
    uint32_t ranks = ek_membership_ranks(pace->membership), replica;
    if (!pace->warm) {
        pace->warm = true;
        return;
    }
    memset(pace->replica_seconds, 0, pace->job.replicas * sizeof *pace->replica_seconds);
    memset(pace->rank_seconds, 0, ranks * sizeof *pace->rank_seconds);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (!ek_membership_place(pace->membership, rank, &replica, NULL))
            continue;
        pace->rank_seconds[rank] = busy_seconds[rank] * ek_pace_speed(pace, rank);
        if (busy_seconds[rank] > pace->replica_seconds[replica])
            pace->replica_seconds[replica] = busy_seconds[rank];
    }
    ek_governor_observe(pace->governor, pace->replica_seconds);
    if (pace->stragglers)
        ek_stragglers_observe(pace->stragglers, pace->rank_seconds, pace->found);
}

ek_decision ek_pace_decision(const ek_pace *pace, uint32_t replica)
{
    return ek_governor_decision(pace->governor, replica);
}

uint32_t ek_pace_samples(const ek_pace *pace)
{
    uint32_t samples = 0;
    for (uint32_t replica = 0; replica < pace->job.replicas; replica++)
        samples += ek_pace_decision(pace, replica).share.count;
    return samples;
}

bool ek_pace_straggles(const ek_pace *pace, uint32_t rank)
{
    double slowdown;
    return pace->stragglers && ek_stragglers_is(pace->stragglers, rank, &slowdown);
}

double ek_pace_watts(const ek_pace *pace, uint32_t rank)
{
    uint32_t replica, count = 0;
    if (!ek_membership_place(pace->membership, rank, &replica, NULL))
        return 0.0;
    double slowdown, watts = ek_pace_decision(pace, replica).watts;
    if (!pace->stragglers || !ek_stragglers_is(pace->stragglers, rank, &slowdown))
        return watts;
    for (uint32_t role = 0; role < pace->job.base_degree; role++) {
        uint32_t peer = ek_membership_rank(pace->membership, replica, role);
        count += peer != EK_NONE && ek_pace_straggles(pace, peer);
    }
    return ek_governor_straggler_watts(pace->governor, replica, slowdown, count);
}

double ek_pace_speed(const ek_pace *pace, uint32_t rank)
{
    double watts = ek_pace_watts(pace, rank);
    return watts > 0.0 ? ek_curve_speed(&pace->curve, watts / pace->default_watts) : 1.0;
}
