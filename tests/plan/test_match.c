/* The assignment problem, against all assignments of small ones. */
#include <stdlib.h>

#include "base/rng.h"
#include "plan/build.h"
#include "testing.h"

#define MOST 6

typedef struct problem {
    uint32_t rows, columns;
    plan_cost costs[MOST][MOST];
} problem;

static plan_cost cost_of(const void *user, uint32_t row, uint32_t column)
{
    const problem *given = user;
    return given->costs[row][column];
}

static bool less(plan_cost a, plan_cost b)
{
    return a.moves != b.moves ? a.moves < b.moves : a.bytes < b.bytes;
}

/* The best of all assignments of the rows from `row` on to columns that are not in `used`; PLAN_IMPOSSIBLE: none. */
static plan_cost best_of_all(const problem *given, uint32_t row, uint32_t used)
{
    plan_cost best = {PLAN_IMPOSSIBLE, 0};
    if (row == given->rows)
        return (plan_cost){0};
    for (uint32_t column = 0; column < given->columns; column++) {
        plan_cost own = given->costs[row][column];
        if (used >> column & 1 || own.moves == PLAN_IMPOSSIBLE)
            continue;
        plan_cost rest = best_of_all(given, row + 1, used | 1u << column);
        if (rest.moves == PLAN_IMPOSSIBLE)
            continue;
        plan_cost sum = {own.moves + rest.moves, own.bytes + rest.bytes};
        if (less(sum, best))
            best = sum;
    }
    return best;
}

/* Some pairs free, some impossible, the others of all kinds. */
static problem random_problem(uint64_t trial, uint32_t choice[MOST])
{
    problem made = {.rows = 1 + (uint32_t)(ek_random_u64(1, trial, 0) % MOST)};
    made.columns = made.rows + (uint32_t)(ek_random_u64(1, trial, 1) % (MOST + 1 - made.rows));
    for (uint32_t row = 0; row < made.rows; row++) {
        for (uint32_t column = 0; column < made.columns; column++) {
            uint64_t number = ek_random_u64(2, trial, row * MOST + column);
            made.costs[row][column] = (plan_cost){1 + (int64_t)(number % 2), (int64_t)(number / 8 % 5)};
            if (number / 64 % 5 == 0)
                made.costs[row][column].moves = PLAN_IMPOSSIBLE;
        }
        choice[row] = EK_NONE;
        if (ek_random_u64(3, trial, row) % 2) { /* each row's own */
            made.costs[row][row] = (plan_cost){0};
            choice[row] = row;
        }
    }
    return made;
}

static void test_against_all(void **state)
{
    (void)state;
    uint32_t possible = 0;
    for (uint64_t trial = 0; trial < 20000; trial++) {
        uint32_t choice[MOST], used = 0;
        problem given = random_problem(trial, choice);
        plan_cost best = best_of_all(&given, 0, 0), sum = {0};
        ek_status status = plan_match(given.rows, given.columns, cost_of, &given, choice);
        assert_int_equal(status, best.moves == PLAN_IMPOSSIBLE ? EK_INVALID : EK_OK);
        if (status != EK_OK)
            continue;
        possible++;
        for (uint32_t row = 0; row < given.rows; row++) {
            assert_true(choice[row] < given.columns && !(used >> choice[row] & 1));
            used |= 1u << choice[row];
            sum.moves += given.costs[row][choice[row]].moves;
            sum.bytes += given.costs[row][choice[row]].bytes;
        }
        assert_int_equal(sum.moves, best.moves);
        assert_int_equal(sum.bytes, best.bytes);
    }
    assert_in_range(possible, 10000, 19999); /* both kinds were tried */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
