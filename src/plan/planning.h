/* All that one call of `evenkeel plan` finds out: the plan; with --from what it changes; with --drain what that costs.
 */
#ifndef EK_PLAN_PLANNING_H
#define EK_PLAN_PLANNING_H

#include <evenkeel.h>
#include <jansson.h>
#include <stdio.h>

#include "plan/change.h"
#include "plan/input.h"

typedef struct ek_planning {
    const ek_plan_input *input; /* the caller's */
    ek_plan *plan;              /* with what is to be drained out of use */
    ek_plan *before;            /* --drain: without; else NULL */
    ek_plan *in_place;          /* without moves; NULL: nothing to move from, or it cannot go on so */
    ek_plan_change *change;     /* NULL: nothing to change from */
    ek_inventory *drained;
    ek_plan_placement *placement;
} ek_planning;

/* from: a file, or NULL. drain: domains, nodes or DOMAIN.SLOT with commas between them, or NULL. Without `from` what is
 * drained leaves the plan that the job would have. Refusals name their place. */
ek_status ek_planning_create(ek_planning **planning, const ek_plan_input *input, const char *from, const char *drain);
void ek_planning_destroy(ek_planning *planning);

void ek_planning_print(const ek_planning *planning, FILE *file);
ek_status ek_planning_json(const ek_planning *planning, json_t **json);

#endif
