/* What a new plan changes about the one that is running, and whether the change pays. */
#ifndef EK_PLAN_CHANGE_H
#define EK_PLAN_CHANGE_H

#include <evenkeel.h>
#include <jansson.h>
#include <stdio.h>

#include "plan/placement.h"
#include "plan/plan.h"

/* A TP group that gets another place. */
typedef struct ek_plan_move {
    uint32_t domain;
    uint32_t replica, stage;         /* of the new plan */
    uint32_t old_replica, old_stage; /* of the old one; EK_NONE: it was spare */
} ek_plan_move;

typedef struct ek_plan_change {
    ek_plan_move *moves; /* by replica and stage of the new plan */
    size_t move_count;
    uint32_t domains_moved;
    double bytes, bytes_most;   /* state that devices need and do not hold; the most that one fetches */
    double move_seconds;        /* to fetch it, and to restart */
    double in_place_bytes;      /* of going on without moves, */
    double in_place_throughput; /* in samples per second; 0: the job cannot */
    double horizon_seconds;     /* until the next repair */
    double break_even_seconds;  /* until what was moved has made up for moving; INFINITY: never */
    bool pays;                  /* before the next repair */
} ek_plan_change;

typedef struct ek_plan_change_options {
    double repair_hours, restart_seconds;
    double bytes_per_second; /* that a device fetches state at */
} ek_plan_change_options;

/* From the placement to `plan`, which was made from it. `in_place`: the plan without moves; NULL: there is none. */
ek_status ek_plan_change_create(ek_plan_change **change, const ek_plan *plan, const ek_plan *in_place,
                                const ek_plan_placement *from, const ek_plan_change_options *options);
void ek_plan_change_destroy(ek_plan_change *change);

/* State that the devices of the plan need and do not hold: parameters and optimizer state of units; what every rank has
 * (norms) is left out, but for mode ep, where that is all but experts. *most: the most that one device needs. */
ek_status ek_plan_bytes_to_fetch(const ek_plan *plan, const ek_plan_placement *from, double *bytes, double *most);

void ek_plan_print_change(const ek_plan_change *change, const ek_plan *plan, FILE *file);
ek_status ek_plan_change_json(const ek_plan_change *change, const ek_plan *plan, json_t **json);

#endif
