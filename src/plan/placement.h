/* Where a plan put each role of a job: what replanning has to know about the plan that is running. Names are resolved
 * in the inventory of today; what that no longer has, or has out of use, holds nothing. */
#ifndef EK_PLAN_PLACEMENT_H
#define EK_PLAN_PLACEMENT_H

#include <evenkeel.h>

#include "plan/plan.h"

/* A cell as it was. */
typedef struct ek_placed_cell {
    uint32_t degree;
    uint32_t count;  /* of its slots those that are live today */
    uint32_t *slots; /* [count] of the inventory, ascending */
    uint32_t *roles; /* [count] that they hold */
} ek_placed_cell;

struct ek_plan_placement {
    uint32_t replicas, stages, base_degree;
    ek_placed_cell *cells; /* [replicas][stages] */
    uint32_t *lists;       /* what their lists lie in */
    uint32_t *drop_orders; /* [stages][base_degree] */
    uint32_t *sync_levels; /* [stages] how many of them are used */
};

/* From the output of `evenkeel plan --format json`. Refused (EK_INVALID, "FILE: …"): what is no such output, or of a
 * job with other stages or another base degree than `parallel`. */
ek_status ek_plan_placement_read(ek_plan_placement **placement, const char *path, const ek_inventory *inventory,
                                 const ek_perf_parallel *parallel);
/* From a plan whose inventory has the same slots as `inventory`. */
ek_status ek_plan_placement_of(ek_plan_placement **placement, const ek_plan *plan, const ek_inventory *inventory);
void ek_plan_placement_destroy(ek_plan_placement *placement);

static inline const ek_placed_cell *ek_placed_at(const ek_plan_placement *placement, uint32_t replica, uint32_t stage)
{
    return &placement->cells[(size_t)replica * placement->stages + stage];
}

#endif
