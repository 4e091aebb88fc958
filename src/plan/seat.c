/* Which slot serves which role: a membership for each stage, in which the slots that a cell lacks were lost. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/build.h"

/* One stage at work. */
typedef struct seat_work {
    ek_plan *plan;
    const plan_candidates *candidates;
    const uint32_t *chosen;
    const ek_plan_placement *from;
    uint32_t stage;
    uint32_t sync_level, deepest; /* the lowest replica that is at it */
    uint32_t *drop_order;         /* [N], sync_level of them used; with a placement */
    bool *dropped;                /* [N] scratch */
    uint32_t *lost;               /* [replicas * N] scratch */
} seat_work;

static const plan_candidate *candidate_at(const seat_work *seating, uint32_t replica)
{
    return &seating->candidates->items[seating->chosen[(size_t)replica * seating->plan->stages + seating->stage]];
}

static uint32_t *positions_at(const ek_plan *plan, uint32_t replica, uint32_t stage)
{
    return plan->positions + ((size_t)replica * plan->stages + stage) * plan->base_degree;
}

/* ------------------------------------------------------------------------------------------------- positions */

/* Without a placement: the slots in order, then the lost ones, just as a job starts by the trainer's parallel.degrees.
 */
static void set_first_positions(const seat_work *seating)
{
    for (uint32_t replica = 0; replica < seating->plan->replicas; replica++) {
        const plan_candidate *candidate = candidate_at(seating, replica);
        memcpy(positions_at(seating->plan, replica, seating->stage), candidate->slots,
               candidate->degree * sizeof *candidate->slots);
    }
}

/* The role that a slot held in this stage, or EK_NONE. `was` is the cell that it was in. */
static uint32_t old_role(const seat_work *seating, const plan_candidate *candidate, uint32_t slot)
{
    if (candidate->old == EK_NONE || candidate->old % seating->plan->stages != seating->stage)
        return EK_NONE;
    const ek_placed_cell *was = &seating->from->cells[candidate->old];
    uint32_t first = 0, end = was->count;
    while (first < end) {
        uint32_t middle = (first + end) / 2;
        if (was->slots[middle] < slot)
            first = middle + 1;
        else
            end = middle;
    }
    return first < was->count && was->slots[first] == slot ? was->roles[first] : EK_NONE;
}

/* With a placement, as after a failure (ek_membership_lose): the drop order is cut to the sync level, then extended by
 * the roles that the deepest replica lacks. */
static void set_drop_order(seat_work *seating)
{
    uint32_t base_degree = seating->plan->base_degree, count = seating->from->sync_levels[seating->stage];
    const uint32_t *before = seating->from->drop_orders + (size_t)seating->stage * base_degree;
    count = count < seating->sync_level ? count : seating->sync_level;
    memset(seating->dropped, 0, base_degree * sizeof *seating->dropped);
    for (uint32_t i = 0; i < count; i++) {
        seating->drop_order[i] = before[i];
        seating->dropped[before[i]] = true;
    }
    bool *held = seating->dropped; /* from here on: dropped, or not to be */
    const plan_candidate *candidate = candidate_at(seating, seating->deepest);
    for (uint32_t i = 0; i < candidate->degree; i++) {
        uint32_t role = old_role(seating, candidate, candidate->slots[i]);
        if (role != EK_NONE)
            held[role] = true;
    }
    for (uint32_t role = 0; role < base_degree && count < seating->sync_level; role++)
        if (!held[role])
            seating->drop_order[count++] = role;
}

/* The lowest position from `first` on that a replica of this level has and nobody holds. */
static uint32_t next_vacant(const seat_work *seating, const uint32_t *positions, uint32_t first)
{
    while (seating->dropped[first] || positions[first] != EK_NONE)
        first++;
    return first;
}

/* Position = role, and seats as after a failure: slots keep the roles that their replica still has; those whose role is
 * gone take what is vacant, in ascending order of role; then come those that had none here. */
static void keep_positions(const seat_work *seating, uint32_t replica)
{
    const plan_candidate *candidate = candidate_at(seating, replica);
    uint32_t base_degree = seating->plan->base_degree, vacant = 0;
    uint32_t *positions = positions_at(seating->plan, replica, seating->stage);
    memset(seating->dropped, 0, base_degree * sizeof *seating->dropped);
    for (uint32_t level = 0; level < base_degree - candidate->degree; level++)
        seating->dropped[seating->drop_order[level]] = true;
    for (uint32_t i = 0; i < candidate->degree; i++) {
        uint32_t role = old_role(seating, candidate, candidate->slots[i]);
        if (role != EK_NONE)
            positions[role] = candidate->slots[i];
    }
    for (uint32_t role = 0; role < base_degree; role++) {
        if (!seating->dropped[role] || positions[role] == EK_NONE)
            continue;
        vacant = next_vacant(seating, positions, vacant);
        positions[vacant] = positions[role];
        positions[role] = EK_NONE;
    }
    for (uint32_t i = 0; i < candidate->degree; i++) {
        if (old_role(seating, candidate, candidate->slots[i]) != EK_NONE)
            continue;
        vacant = next_vacant(seating, positions, vacant);
        positions[vacant] = candidate->slots[i];
    }
}

/* ----------------------------------------------------------------------------------------------- membership */

/* *membership without the ranks in lost. */
static ek_status lose(ek_membership **membership, const uint32_t *lost, uint32_t count)
{
    ek_membership *next;
    EK_TRY(ek_membership_lose(*membership, lost, count, &next));
    ek_membership_destroy(*membership);
    *membership = next;
    return EK_OK;
}

/* The deepest replica loses the roles of the drop order one by one, so that this is the drop order; then all that have
 * no slot are lost at once. */
static ek_status lose_missing(const seat_work *seating, ek_membership **membership)
{
    const ek_plan *plan = seating->plan;
    uint32_t base_degree = plan->base_degree, count = 0;
    for (uint32_t level = 0; seating->from && level < seating->sync_level; level++) {
        uint32_t rank = seating->deepest * base_degree + seating->drop_order[level];
        EK_TRY(lose(membership, &rank, 1));
    }
    for (uint32_t replica = 0; replica < plan->replicas; replica++)
        for (uint32_t position = 0; position < base_degree; position++)
            if (positions_at(plan, replica, seating->stage)[position] == EK_NONE)
                seating->lost[count++] = replica * base_degree + position;
    return count > 0 ? lose(membership, seating->lost, count) : EK_OK;
}

static void read_roles(const seat_work *seating, const ek_membership *membership)
{
    const ek_plan *plan = seating->plan;
    for (uint32_t replica = 0; replica < plan->replicas; replica++) {
        ek_plan_cell *cell = &plan->cells[(size_t)replica * plan->stages + seating->stage];
        const uint32_t *positions = positions_at(plan, replica, seating->stage);
        uint32_t count = 0;
        for (uint32_t role = 0; role < plan->base_degree; role++) {
            uint32_t rank = ek_membership_rank(membership, replica, role);
            if (rank == EK_NONE)
                continue;
            cell->slots[count] = positions[rank - replica * plan->base_degree];
            cell->roles[count++] = role;
        }
    }
}

static ek_status seat_stage(seat_work *seating)
{
    ek_plan *plan = seating->plan;
    seating->sync_level = 0;
    for (uint32_t replica = 0; replica < plan->replicas; replica++) {
        uint32_t level = plan->base_degree - candidate_at(seating, replica)->degree;
        if (replica == 0 || level > seating->sync_level) {
            seating->sync_level = level;
            seating->deepest = replica;
        }
    }
    if (seating->from)
        set_drop_order(seating);
    else
        set_first_positions(seating);
    for (uint32_t replica = 0; replica < plan->replicas && seating->from; replica++)
        keep_positions(seating, replica);

    ek_unit_group groups[EK_PERF_GROUPS_MOST];
    const ek_job job = {.replicas = plan->replicas,
                        .base_degree = plan->base_degree,
                        .groups = groups,
                        .group_count = ek_perf_groups(plan->perf, groups)};
    ek_membership *membership;
    EK_TRY(ek_membership_create(&membership, &job));
    ek_status status = lose_missing(seating, &membership);
    plan->memberships[seating->stage] = membership; /* the plan's, whatever happens */
    if (status == EK_OK)
        read_roles(seating, membership);
    return status;
}

static ek_status allocate_cells(ek_plan *plan, const plan_candidates *candidates, const uint32_t *chosen)
{
    size_t count = (size_t)plan->replicas * plan->stages, slots = 0;
    for (size_t cell = 0; cell < count; cell++)
        slots += candidates->items[chosen[cell]].degree;
    uint32_t *lists = plan->lists = malloc(2 * slots * sizeof *lists);
    if (!lists)
        return ek_fail(EK_NO_MEMORY, "no memory for the roles of %zu ranks", slots);
    for (size_t cell = 0; cell < count; cell++) {
        const plan_candidate *candidate = &candidates->items[chosen[cell]];
        plan->cells[cell] = (ek_plan_cell){.domain = candidate->domain,
                                           .degree = candidate->degree,
                                           .was = candidate->old,
                                           .slots = lists,
                                           .roles = lists + candidate->degree};
        lists += 2 * (size_t)candidate->degree;
    }
    return EK_OK;
}

ek_status plan_seat(ek_plan *plan, const plan_candidates *candidates, const uint32_t *chosen,
                    const ek_plan_placement *from)
{
    size_t positions = (size_t)plan->replicas * plan->base_degree;
    EK_TRY(allocate_cells(plan, candidates, chosen));
    memset(plan->positions, 0xff, positions * plan->stages * sizeof *plan->positions);
    seat_work seating = {.plan = plan, .candidates = candidates, .chosen = chosen, .from = from};
    seating.drop_order = calloc(plan->base_degree, sizeof *seating.drop_order);
    seating.dropped = malloc(plan->base_degree * sizeof *seating.dropped);
    seating.lost = malloc(positions * sizeof *seating.lost);
    ek_status status = EK_OK;
    if (!seating.drop_order || !seating.dropped || !seating.lost)
        status = ek_fail(EK_NO_MEMORY, "no memory to seat %zu ranks", positions);
    for (; seating.stage < plan->stages && status == EK_OK; seating.stage++)
        status = seat_stage(&seating);
    free(seating.drop_order);
    free(seating.dropped);
    free(seating.lost);
    return status;
}
