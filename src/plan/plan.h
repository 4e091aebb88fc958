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
    uint32_t was;    /* replica * stages + stage that it had in the placement, or EK_NONE */
    double watts;    /* per device */
    uint32_t *slots; /* [degree] of the inventory, in ascending order of role */
    uint32_t *roles; /* [degree] 0 … N-1 */
} ek_plan_cell;

typedef struct ek_plan_replica {
    uint32_t was;          /* the replica of the placement that it continues, or EK_NONE */
    uint32_t least_degree; /* of its stages: what its samples are chosen by */
    double watts;          /* per device of its most reduced stages; the others need less, or the default */
    ek_batch_share share;
    ek_perf_time time;
} ek_plan_replica;

/* What a replica at `level` sends from extras to the core roles of its stage, and gets back, in each step. */
typedef struct ek_plan_flow {
    uint32_t extra, core; /* roles */
    double bytes;         /* one way */
} ek_plan_flow;

typedef struct ek_plan_reshard {
    uint32_t stage, level, replicas; /* so many replicas are at that level there */
    size_t flow_count;
    ek_plan_flow *flows;      /* by extra, then core */
    double bytes, most_bytes; /* one replica's, both ways; the most that one of its devices sends, as much as it gets */
} ek_plan_reshard;

typedef struct ek_plan {
    const ek_inventory *inventory;          /* the caller's */
    const ek_perf *perf;                    /* the caller's */
    ek_perf_parallel parallel;              /* as the job asks */
    ek_batch_policy policy;                 /* … */
    uint32_t replicas, stages, base_degree; /* replicas that there are cells for, at most what the job asks */
    uint32_t least_degree;                  /* at which a cell is used: min_tp, or above it the least that fits */
    ek_plan_cell *cells;                    /* [replicas][stages] */
    uint32_t *lists;                        /* what the cells' lists lie in */
    ek_plan_replica *replica;               /* [replicas], the most reduced first */
    ek_membership **memberships;            /* [stages]: rank = replica * N + position, below; all unit groups */
    uint32_t *positions;                    /* [replicas][stages][N] the slot at a position, or EK_NONE: lost */
    ek_plan_reshard *reshards;              /* by stage, then level; where something flows */
    size_t reshard_count;
    uint32_t *spare_domains; /* domains with live slots that no cell uses, in order */
    uint32_t spare_domain_count;
    uint32_t spare_slots;        /* live slots that no cell uses */
    uint32_t spare_domains_used; /* domains in use that the job would not use if nothing had failed */
    double device_memory_bytes;
    /* reshard bytes of a step, summed over the whole job, and the most that one device sends or receives */
    double reshard_bytes, reshard_bytes_most;
    double step_seconds, whole_step_seconds; /* as planned; with no failure */
    double samples_per_second, whole_samples_per_second;
} ek_plan;

typedef struct ek_plan_placement ek_plan_placement; /* plan/placement.h: where an earlier plan put each role */

typedef struct ek_plan_options {
    const ek_inventory *inventory;
    const ek_perf *perf;
    const ek_perf_parallel *parallel; /* what perf was made from, */
    const ek_perf_hardware *hardware; /* likewise */
    ek_batch_policy policy;
    ek_curve curve;
    double cap_watts, domain_watts; /* of ek_governor_options; 0: its defaults */
    const ek_plan_placement *from;  /* NULL: cells are packed in the order of domains. Otherwise as few move as degrees
                                       allow */
    bool in_place; /* with `from`: no cell moves, whatever the degrees; GPUs that are back join theirs */
} ek_plan_options;

/* EK_INVALID begins with the key at fault ("parallel.dp: "): a job larger than the cluster, a degree above the domain,
 * a share that does not fit. EK_NO_REPLICA: failures leave no cells for a single replica. */
ek_status ek_plan_create(ek_plan **plan, const ek_plan_options *options);
void ek_plan_destroy(ek_plan *plan);

static inline const ek_plan_cell *ek_plan_cell_at(const ek_plan *plan, uint32_t replica, uint32_t stage)
{
    return &plan->cells[(size_t)replica * plan->stages + stage];
}

#endif
