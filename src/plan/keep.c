/* Replanning: of all assignments with the best degrees that there can be, one that moves few cells.
 *
 * The best degrees are those of packing (cluster/packing.h): for every degree no fewer replicas could hold all the
 * cells of that degree or less. So a replica has a label, the least degree that it may have in it, the labels of all
 * are what packing gives, and a cell may serve any replica whose label is at most its degree. Two questions are left.
 *
 * 1. Which replica gets which label (choose_labels). How many cells can stay follows from the labels in closed form:
 * let c stay in a replica of label L <= degree(c). For every degree v, replicas of a label above v need cells above v,
 * and of those so many may stay in replicas of label v or less as there are more than needed: surplus[v]. Every such
 * cell takes one of surplus[v] for each v from L to below degree(c); so the most that can stay is the most intervals
 * that fit under capacities, found by sweeping v upwards and giving up the interval that reaches farthest. Labels begin
 *    with the deepest for the replicas that have most cells that no other may hold, and then change places by twos and
 *    threes as long as more cells stay.
 * 2. Which cell goes where, given the labels: an assignment problem with the cost (moves, bytes), solved exactly
 *    (match.c). It starts from all the cells that could stay. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cluster/packing.h"
#include "plan/build.h"

#define KINDS_FOR_THREE 48 /* above it rotations of three take too long, and there is room enough for two */

typedef struct keep_work {
    const plan_candidates *candidates;
    const ek_plan_options *options;
    const double *stage_bytes;
    uint32_t stages, base_degree;
    uint32_t lowest;   /* degree that there is */
    uint32_t replicas; /* that there are cells for */
    uint32_t olds;     /* replicas of the placement, or as many as there are now: the last ones had nothing */
    uint32_t *labels;  /* [olds] base_degree + 1: the replica ends */
    uint32_t *cells;   /* [olds][base_degree + 1] by degree: its cells that are still there */
    int64_t *surplus;  /* [base_degree + 1] */
    int64_t *kept;     /* [base_degree + 2][base_degree + 1] by label and degree: cells that are still there */
    int64_t *reaching; /* [base_degree + 1] scratch of the sweep: cells that stay and take capacity, by degree */
    uint32_t *kinds;   /* [olds] scratch: one replica of each kind */
    uint32_t *old_of;  /* [replicas] the replica that it was, in ascending order of label */
    uint32_t *new_of;  /* [olds] the replica that it becomes, where it does not end */
} keep_work;

static void free_keeping(keep_work *keeping)
{
    free(keeping->labels);
    free(keeping->cells);
    free(keeping->surplus);
    free(keeping->kept);
    free(keeping->reaching);
    free(keeping->kinds);
    free(keeping->old_of);
    free(keeping->new_of);
}

static ek_status begin(keep_work *keeping)
{
    uint32_t olds = keeping->olds;
    size_t degrees = (size_t)keeping->base_degree + 1;
    keeping->labels = malloc((size_t)olds * sizeof *keeping->labels);
    keeping->cells = calloc(olds * degrees, sizeof *keeping->cells);
    keeping->surplus = calloc(degrees, sizeof *keeping->surplus);
    keeping->kept = calloc((degrees + 1) * degrees, sizeof *keeping->kept);
    keeping->reaching = calloc(degrees, sizeof *keeping->reaching);
    keeping->kinds = malloc((size_t)olds * sizeof *keeping->kinds);
    keeping->old_of = malloc((size_t)olds * sizeof *keeping->old_of);
    keeping->new_of = malloc((size_t)olds * sizeof *keeping->new_of);
    if (!keeping->labels || !keeping->cells || !keeping->surplus || !keeping->kept || !keeping->reaching ||
        !keeping->kinds || !keeping->old_of || !keeping->new_of)
        return ek_fail(EK_NO_MEMORY, "no memory to replan %u replicas", olds);
    keeping->lowest = keeping->base_degree;
    for (size_t i = 0; i < keeping->candidates->count; i++) {
        const plan_candidate *candidate = &keeping->candidates->items[i];
        if (candidate->degree < keeping->lowest)
            keeping->lowest = candidate->degree;
        if (candidate->old != EK_NONE)
            keeping->cells[candidate->old / keeping->stages * degrees + candidate->degree]++;
    }
    return EK_OK;
}

/* ---------------------------------------------------------------------------------------------- 1. the labels */

static int64_t *kept_at(const keep_work *keeping, uint32_t label, uint32_t degree)
{
    return &keeping->kept[(size_t)label * (keeping->base_degree + 1) + degree];
}

/* Counts the cells of a replica under its label, or no longer (sign -1). */
static void count_in(keep_work *keeping, uint32_t old, int sign)
{
    const uint32_t *cells = keeping->cells + (size_t)old * (keeping->base_degree + 1);
    for (uint32_t degree = keeping->lowest; degree <= keeping->base_degree; degree++)
        *kept_at(keeping, keeping->labels[old], degree) += sign * (int64_t)cells[degree];
}

/* How many cells can stay. */
static int64_t most_kept(const keep_work *keeping)
{
    int64_t stay = 0, reaching = 0;
    uint32_t base_degree = keeping->base_degree;
    memset(keeping->reaching, 0, ((size_t)base_degree + 1) * sizeof *keeping->reaching);
    for (uint32_t v = keeping->lowest; v <= base_degree; v++) {
        reaching -= keeping->reaching[v]; /* v is no longer below their degree */
        keeping->reaching[v] = 0;
        for (uint32_t degree = v; degree <= base_degree; degree++) {
            int64_t begin_here = *kept_at(keeping, v, degree);
            stay += begin_here;
            if (degree > v) {
                keeping->reaching[degree] += begin_here;
                reaching += begin_here;
            }
        }
        for (uint32_t degree = base_degree; reaching > keeping->surplus[v]; degree--) {
            int64_t excess = reaching - keeping->surplus[v];
            int64_t given_up = excess < keeping->reaching[degree] ? excess : keeping->reaching[degree];
            keeping->reaching[degree] -= given_up;
            reaching -= given_up;
            stay -= given_up;
        }
    }
    return stay;
}

static uint32_t cells_up_to(const keep_work *keeping, uint32_t old, uint32_t degree)
{
    uint32_t count = 0;
    for (uint32_t d = keeping->lowest; d <= degree; d++)
        count += keeping->cells[(size_t)old * (keeping->base_degree + 1) + d];
    return count;
}

/* The replica without a label that has most cells: those of up to `degree`, or, for degree 0, those that are gone. */
static uint32_t most_needy(const keep_work *keeping, uint32_t degree)
{
    uint32_t found = EK_NONE, found_cells = 0;
    for (uint32_t old = 0; old < keeping->olds; old++) {
        if (keeping->labels[old] != 0)
            continue;
        uint32_t cells = degree > 0 ? cells_up_to(keeping, old, degree)
                                    : keeping->stages - cells_up_to(keeping, old, keeping->base_degree);
        if (found == EK_NONE || cells > found_cells) {
            found = old;
            found_cells = cells;
        }
    }
    return found;
}

/* The replicas that end are those that have lost most; then the deepest label goes to whoever has most cells that need
 * it. */
static void begin_labels(keep_work *keeping, const uint32_t *degrees)
{
    memset(keeping->labels, 0, keeping->olds * sizeof *keeping->labels);
    for (uint32_t i = keeping->replicas; i < keeping->olds; i++)
        keeping->labels[most_needy(keeping, 0)] = keeping->base_degree + 1;
    for (uint32_t replica = 0; replica < keeping->replicas; replica++)
        keeping->labels[most_needy(keeping, degrees[replica])] = degrees[replica];
}

/* Hands labels round: each of the replicas gets the next one's, the last the first's. */
static void rotate_labels(keep_work *keeping, const uint32_t *olds, uint32_t count)
{
    uint32_t first = keeping->labels[olds[0]];
    for (uint32_t i = 0; i < count; i++) {
        count_in(keeping, olds[i], -1);
        keeping->labels[olds[i]] = i + 1 < count ? keeping->labels[olds[i + 1]] : first;
        count_in(keeping, olds[i], 1);
    }
}

/* One replica of each kind: replicas with the same label and the same cells are interchangeable. */
static uint32_t list_kinds(const keep_work *keeping)
{
    uint32_t *kinds = keeping->kinds;
    size_t degrees = (size_t)keeping->base_degree + 1;
    uint32_t count = 0;
    for (uint32_t old = 0; old < keeping->olds; old++) {
        uint32_t i = 0;
        while (i < count && (keeping->labels[kinds[i]] != keeping->labels[old] ||
                             memcmp(keeping->cells + kinds[i] * degrees, keeping->cells + old * degrees,
                                    degrees * sizeof *keeping->cells) != 0))
            i++;
        if (i == count)
            kinds[count++] = old;
    }
    return count;
}

/* Rotates where more cells stay then. */
static bool try_rotation(keep_work *keeping, const uint32_t *olds, uint32_t count, int64_t *best)
{
    rotate_labels(keeping, olds, count);
    int64_t kept = most_kept(keeping);
    if (kept > *best) {
        *best = kept;
        return true;
    }
    for (uint32_t i = 1; i < count; i++) /* all the way round */
        rotate_labels(keeping, olds, count);
    return false;
}

/* The first rotation of two or three replicas of different kinds with which more cells stay. */
static bool improve_once(keep_work *keeping, int64_t *best)
{
    const uint32_t *kinds = keeping->kinds;
    uint32_t count = list_kinds(keeping);
    for (uint32_t a = 0; a < count; a++)
        for (uint32_t b = a + 1; b < count; b++)
            if (try_rotation(keeping, (uint32_t[]){kinds[a], kinds[b]}, 2, best))
                return true;
    for (uint32_t a = 0; a < count && count <= KINDS_FOR_THREE; a++)
        for (uint32_t b = a + 1; b < count; b++)
            for (uint32_t c = a + 1; c < count; c++)
                if (c != b && try_rotation(keeping, (uint32_t[]){kinds[a], kinds[b], kinds[c]}, 3, best))
                    return true;
    return false;
}

static void improve_labels(keep_work *keeping)
{
    int64_t best = most_kept(keeping);
    while (improve_once(keeping, &best))
        ;
}

/* degrees[replicas]: what packing gives. */
static void choose_labels(keep_work *keeping, const uint32_t *degrees)
{
    for (uint32_t v = 0; v <= keeping->base_degree; v++) {
        for (size_t i = 0; i < keeping->candidates->count; i++)
            keeping->surplus[v] += keeping->candidates->items[i].degree > v;
        for (uint32_t replica = 0; replica < keeping->replicas; replica++)
            keeping->surplus[v] -= degrees[replica] > v ? keeping->stages : 0;
    }
    begin_labels(keeping, degrees);
    for (uint32_t old = 0; old < keeping->olds; old++)
        count_in(keeping, old, 1);
    improve_labels(keeping);
    uint32_t next = 0;
    for (uint32_t label = keeping->lowest; label <= keeping->base_degree; label++)
        for (uint32_t old = 0; old < keeping->olds; old++)
            if (keeping->labels[old] == label) {
                keeping->new_of[old] = next;
                keeping->old_of[next++] = old;
            }
}

/* --------------------------------------------------------------------------------------- 2. the assignment */

static plan_cost cost_of(const void *user, uint32_t row, uint32_t column)
{
    const keep_work *keeping = user;
    const plan_candidate *candidate = &keeping->candidates->items[column];
    uint32_t old = keeping->old_of[row / keeping->stages], stage = row % keeping->stages;
    if (candidate->degree < keeping->labels[old])
        return (plan_cost){PLAN_IMPOSSIBLE, 0};
    if (candidate->old == old * keeping->stages + stage)
        return (plan_cost){0};
    bool has_stage = candidate->old != EK_NONE && candidate->old % keeping->stages == stage;
    return (plan_cost){1, has_stage ? 0 : (int64_t)keeping->stage_bytes[stage]};
}

/* All that could stay do, for a beginning. */
static void begin_choice(const keep_work *keeping, uint32_t *chosen)
{
    memset(chosen, 0xff, (size_t)keeping->replicas * keeping->stages * sizeof *chosen);
    for (size_t i = 0; i < keeping->candidates->count; i++) {
        const plan_candidate *candidate = &keeping->candidates->items[i];
        if (candidate->old == EK_NONE)
            continue;
        uint32_t old = candidate->old / keeping->stages, stage = candidate->old % keeping->stages;
        if (candidate->degree >= keeping->labels[old])
            chosen[keeping->new_of[old] * keeping->stages + stage] = (uint32_t)i;
    }
}

ek_status plan_assign_kept(const plan_candidates *candidates, const ek_plan_options *options, const double *stage_bytes,
                           plan_assignment *assignment)
{
    const ek_perf_parallel *parallel = options->parallel;
    keep_work keeping = {.candidates = candidates,
                         .options = options,
                         .stage_bytes = stage_bytes,
                         .stages = parallel->pp,
                         .base_degree = parallel->tp};
    uint32_t *by_degree = calloc((size_t)parallel->tp + 1, sizeof *by_degree);
    uint32_t *degrees = malloc((size_t)parallel->dp * sizeof *degrees);
    ek_status status = EK_OK;
    if (!by_degree || !degrees)
        status = ek_fail(EK_NO_MEMORY, "no memory to replan %u replicas", parallel->dp);
    for (size_t i = 0; i < candidates->count && status == EK_OK; i++)
        by_degree[candidates->items[i].degree]++;
    if (status == EK_OK) {
        keeping.replicas = ek_packing_degrees(by_degree, parallel->tp, parallel->pp, parallel->dp, degrees);
        keeping.olds = options->from->replicas > keeping.replicas ? options->from->replicas : keeping.replicas;
        status = begin(&keeping);
    }
    if (status == EK_OK) {
        choose_labels(&keeping, degrees);
        begin_choice(&keeping, assignment->chosen);
        status = plan_match(keeping.replicas * keeping.stages, (uint32_t)candidates->count, cost_of, &keeping,
                            assignment->chosen);
        for (uint32_t replica = 0; replica < keeping.replicas; replica++)
            if (keeping.old_of[replica] < options->from->replicas)
                assignment->was[replica] = keeping.old_of[replica];
    }
    assignment->replicas = keeping.replicas;
    free_keeping(&keeping);
    free(by_degree);
    free(degrees);
    return status;
}
