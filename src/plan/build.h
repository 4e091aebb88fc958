/* The steps in which a plan is made, each in a file of its own; plan.c calls them in this order. */
#ifndef EK_PLAN_BUILD_H
#define EK_PLAN_BUILD_H

#include <evenkeel.h>

#include "plan/placement.h"
#include "plan/plan.h"

/* A TP group that could be: cells.c makes them, assign.c gives some of them a replica and a stage. */
typedef struct plan_candidate {
    uint32_t domain, degree;
    uint32_t *slots; /* [degree] of the inventory, ascending; in plan_candidates.slots */
    uint32_t old;    /* replica * stages + stage in the placement, or EK_NONE: it had no work */
} plan_candidate;

typedef struct plan_candidates {
    plan_candidate *items;
    size_t count;
    uint32_t *slots; /* what the items' lists lie in */
} plan_candidates;

/* Every domain's cells of at least least_degree slots, domain by domain. With a placement they are the cells that were
 * there as far as possible; `in_place`: exactly those, with the slots that they have left and those that are back. */
ek_status plan_list_candidates(plan_candidates *candidates, const ek_plan_options *options, uint32_t least_degree);
void plan_free_candidates(plan_candidates *candidates);

/* Which candidate serves which replica and stage. */
typedef struct plan_assignment {
    uint32_t replicas; /* the most that there are cells for, up to the job's */
    uint32_t *chosen;  /* [replicas][stages] candidates; replicas in ascending order of their least degree */
    uint32_t *was;     /* [replicas] the replica of the placement that each continues, or EK_NONE */
} plan_assignment;

/* Both lists have room for the job's replicas; was[] comes in with EK_NONE. */
ek_status plan_assign_packed(const plan_candidates *candidates, const ek_plan_options *options,
                             plan_assignment *assignment); /* assign.c */
ek_status plan_assign_in_place(const plan_candidates *candidates, const ek_plan_options *options,
                               plan_assignment *assignment); /* assign.c */
/* As few as possible are moved (keep.c). stage_bytes[stage]: the state of a cell there. */
ek_status plan_assign_kept(const plan_candidates *candidates, const ek_plan_options *options, const double *stage_bytes,
                           plan_assignment *assignment);

/* The assignment problem: rows <= columns; every row gets a column of its own, the sum of costs is least. choice[row]
 * comes in with columns that are known to be free of cost (EK_NONE: none is) and goes out complete. EK_INVALID: there
 * is no such assignment. (match.c) */
typedef struct plan_cost {
    int64_t moves, bytes; /* compared in this order; PLAN_IMPOSSIBLE moves: may not be */
} plan_cost;
#define PLAN_IMPOSSIBLE INT64_MAX
typedef plan_cost (*plan_cost_of)(const void *user, uint32_t row, uint32_t column);
ek_status plan_match(uint32_t rows, uint32_t columns, plan_cost_of cost_of, const void *user, uint32_t *choice);

/* Roles: positions, memberships, and the slots and roles of the cells, from the slots in `chosen` candidates. */
ek_status plan_seat(ek_plan *plan, const plan_candidates *candidates, const uint32_t *chosen,
                    const ek_plan_placement *from);

/* What flows between roles. */
ek_status plan_reshards(ek_plan *plan);
const ek_plan_reshard *plan_reshard_at(const ek_plan *plan, uint32_t stage, uint32_t level); /* NULL: nothing flows */

/* Bytes on the fullest rank. */
double plan_most_memory(const ek_plan *plan);

/* Samples, power and times. */
ek_status plan_pace(ek_plan *plan, const ek_plan_options *options);

#endif
