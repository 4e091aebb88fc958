/* The plan of a job on a cluster: which domain serves which replica and stage, at which degree, what each rank holds,
 * what flows where, how much power and how many samples each replica gets, and how fast that should be.
 *
 * It calls what the trainer runs: roles and units come from a membership for each stage (src/cluster), in which the
 * slots that are missing were lost; transfers from its chains (src/layout); power and samples from the governor
 * (src/power); times from src/perf. */
#ifndef EK_PLAN_PLAN_H
#define EK_PLAN_PLAN_H

#include <evenkeel.h>

#include "perf/perf.h"
#include "plan/inventory.h"
#include "power/governor.h"

/* A TP group: one stage of one replica. */
typedef struct ek_plan_cell {
    uint32_t domain;
    uint32_t degree;
    uint32_t *slots; /* [degree] of the inventory, in ascending order of role */
    uint32_t *roles; /* [degree] 0 … N-1 */
} ek_plan_cell;

typedef struct ek_plan_replica {
    uint32_t least_degree; /* of its stages: what its samples are chosen by */
    double watts;          /* per device of its reduced stages; the others are at the default */
    ek_batch_share share;
    ek_perf_time time;
} ek_plan_replica;

typedef struct ek_plan {
    const ek_inventory *inventory;          /* the caller's */
    const ek_perf *perf;                    /* the caller's */
    uint32_t replicas, stages, base_degree; /* replicas that there are cells for, at most what the job asks */
    ek_plan_cell *cells;                    /* [replicas][stages] */
    ek_plan_replica *replica;               /* [replicas], the most reduced first */
    ek_membership **memberships;            /* [stages]: rank = replica * N + position; whole slots first */
    uint32_t *spare_domains;                /* domains with live slots that no cell uses, in order */
    uint32_t spare_domain_count;
    uint32_t spare_slots; /* live slots that no cell uses */
    /* reshard bytes of a step, summed over the whole job, and the most that one device sends or receives */
    double reshard_bytes, reshard_bytes_most;
    double step_seconds, whole_step_seconds; /* as planned; with no failure */
    double samples_per_second, whole_samples_per_second;
} ek_plan;

static inline const ek_plan_cell *ek_plan_cell_at(const ek_plan *plan, uint32_t replica, uint32_t stage)
{
    return &plan->cells[(size_t)replica * plan->stages + stage];
}

#endif
