/* Replanning: the degrees are the best there can be, and of all plans with these degrees none moves fewer cells, by
 * comparison with all plans of small clusters. With up to three replicas that is exact; with more it is a search that
 * ends at a local optimum, and may now and then move one more. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cluster/packing.h"
#include "plan/build.h"
#include "testing.h"

#define CELLS_MOST 9
#define POSITIONS_MOST 8

typedef struct small_case {
    uint32_t base_degree, stages, olds, dp;
    uint32_t cells;
    plan_candidate items[CELLS_MOST];
    uint32_t replicas, degrees[POSITIONS_MOST]; /* the best */
    double stage_bytes[POSITIONS_MOST];
} small_case;

/* Old replicas whose cells have lost some devices or all, and some spare cells. */
static small_case random_case(uint64_t trial)
{
    static const uint32_t stage_choices[] = {1, 2, 2, 3, 4};
    small_case made = {.base_degree = 2 + (uint32_t)(ek_random_u64(1, trial, 0) % 4),
                       .stages = stage_choices[ek_random_u64(1, trial, 1) % 5]};
    made.olds = 1 + (uint32_t)(ek_random_u64(1, trial, 2) % (POSITIONS_MOST / made.stages));
    made.dp = 1 + (uint32_t)(ek_random_u64(1, trial, 3) % (POSITIONS_MOST / made.stages));
    uint32_t spares = (uint32_t)(ek_random_u64(1, trial, 4) % 3), by_degree[8] = {0};
    for (uint32_t i = 0; i < made.olds * made.stages + spares && made.cells < CELLS_MOST; i++) {
        uint64_t number = ek_random_u64(2, trial, i);
        if (number % 8 == 0) /* gone */
            continue;
        uint32_t degree = made.base_degree;
        if (number / 8 % 2)
            degree = 1 + (uint32_t)(number / 16 % made.base_degree);
        uint32_t old = i < made.olds * made.stages ? i : EK_NONE;
        made.items[made.cells++] = (plan_candidate){.domain = i, .degree = degree, .old = old};
        by_degree[degree]++;
    }
    made.replicas = ek_packing_degrees(by_degree, made.base_degree, made.stages, made.dp, made.degrees);
    for (uint32_t stage = 0; stage < made.stages; stage++)
        made.stage_bytes[stage] = 10 + 7 * stage;
    return made;
}

/* --------------------------------------------------------------------------------------------- all plans */

typedef struct all_plans {
    const small_case *given;
    uint32_t ids[POSITIONS_MOST]; /* [replicas] which replica each is; olds and above: a new one */
    uint32_t chosen[POSITIONS_MOST];
    plan_cost best;
} all_plans;

static plan_cost cost_at(const small_case *given, uint32_t id, uint32_t stage, const plan_candidate *cell)
{
    if (cell->old == id * given->stages + stage && id < given->olds)
        return (plan_cost){0};
    bool has_stage = cell->old != EK_NONE && cell->old % given->stages == stage;
    return (plan_cost){1, has_stage ? 0 : (int64_t)given->stage_bytes[stage]};
}

static int compare_whole(const void *a, const void *b)
{
    return (int)*(const uint32_t *)a - (int)*(const uint32_t *)b;
}

static bool has_best_degrees(const small_case *given, const uint32_t *chosen)
{
    uint32_t least[POSITIONS_MOST];
    for (uint32_t replica = 0; replica < given->replicas; replica++) {
        least[replica] = given->base_degree;
        for (uint32_t stage = 0; stage < given->stages; stage++) {
            uint32_t degree = given->items[chosen[replica * given->stages + stage]].degree;
            least[replica] = degree < least[replica] ? degree : least[replica];
        }
    }
    qsort(least, given->replicas, sizeof *least, compare_whole);
    return memcmp(least, given->degrees, given->replicas * sizeof *least) == 0;
}

static bool less(plan_cost a, plan_cost b)
{
    return a.moves != b.moves ? a.moves < b.moves : a.bytes < b.bytes;
}

/* All ways to fill the positions from `position` on. */
static void try_cells(all_plans *search, uint32_t position, uint32_t used, plan_cost cost)
{
    const small_case *given = search->given;
    if (!less(cost, search->best))
        return;
    if (position == given->replicas * given->stages) {
        if (has_best_degrees(given, search->chosen))
            search->best = cost;
        return;
    }
    for (uint32_t cell = 0; cell < given->cells; cell++) {
        if (used >> cell & 1)
            continue;
        search->chosen[position] = cell;
        plan_cost own =
            cost_at(given, search->ids[position / given->stages], position % given->stages, &given->items[cell]);
        try_cells(search, position + 1, used | 1u << cell, (plan_cost){cost.moves + own.moves, cost.bytes + own.bytes});
    }
}

/* All choices of the old replicas that go on, in ascending order; where there are fewer, the rest are new. */
static void try_ids(all_plans *search, uint32_t replica, uint32_t first)
{
    const small_case *given = search->given;
    uint32_t ids = given->olds > given->replicas ? given->olds : given->replicas;
    if (replica == given->replicas) {
        try_cells(search, 0, 0, (plan_cost){0});
        return;
    }
    for (uint32_t id = first; id < ids; id++) {
        search->ids[replica] = id;
        try_ids(search, replica + 1, id + 1);
    }
}

/* ------------------------------------------------------------------------------------------------- the test */

static void test_against_all_plans(void **state)
{
    (void)state;
    uint32_t moving = 0, more = 0, dearer = 0, trials = 20000;
    for (uint64_t trial = 0; trial < trials; trial++) {
        small_case given = random_case(trial);
        ek_perf_parallel parallel = {.dp = given.dp, .tp = given.base_degree, .pp = given.stages};
        ek_plan_placement from = {.replicas = given.olds, .stages = given.stages, .base_degree = given.base_degree};
        ek_plan_options options = {.parallel = &parallel, .from = &from};
        plan_candidates candidates = {.items = given.items, .count = given.cells};
        uint32_t chosen[POSITIONS_MOST * POSITIONS_MOST], was[POSITIONS_MOST];
        memset(was, 0xff, sizeof was);
        plan_assignment assignment = {.chosen = chosen, .was = was};
        assert_ok(plan_assign_kept(&candidates, &options, given.stage_bytes, &assignment));
        assert_int_equal(assignment.replicas, given.replicas);

        plan_cost cost = {0};
        uint32_t used = 0;
        for (uint32_t position = 0; position < given.replicas * given.stages; position++) {
            assert_true(chosen[position] < given.cells && !(used >> chosen[position] & 1));
            used |= 1u << chosen[position];
            plan_cost own =
                cost_at(&given, was[position / given.stages], position % given.stages, &given.items[chosen[position]]);
            cost = (plan_cost){cost.moves + own.moves, cost.bytes + own.bytes};
        }
        assert_true(given.replicas == 0 || has_best_degrees(&given, chosen));
        all_plans all = {.given = &given, .best = {PLAN_IMPOSSIBLE, 0}};
        try_ids(&all, 0, 0);
        if (cost.moves > all.best.moves + (given.replicas > 3))
            fail_msg("trial %u moves %d cells where %d suffice", (unsigned)trial, (int)cost.moves, (int)all.best.moves);
        more += cost.moves > all.best.moves;
        moving += cost.moves > 0;
        dearer += cost.bytes > all.best.bytes;
    }
    print_message("of %u clusters %u have something to move, %u move a cell too many, %u too many bytes\n", trials,
                  moving, more, dearer);
    assert_in_range(moving, trials / 4, trials);
    assert_in_range(more, 0, trials / 5000);
    assert_in_range(dearer, 0, trials / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_all_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
