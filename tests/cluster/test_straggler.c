/* Stragglers: found after so many steps in a row, reported once, and never where units alone explain the time. */
#include "testing.h"

#include <math.h>

#include "base/rng.h"
#include "cluster/histories.h"
#include "cluster/straggler.h"

#define RANKS_MOST 64

/* 16 attention units over 8, 7 or fewer roles: 2 or 3 for a rank. */
static const ek_unit_group groups[] = {{"attention", 16, 300}, {"ffn", 64, 100}};
static const ek_job job = {.replicas = 2, .base_degree = 8, .spares = 1, .groups = groups, .group_count = 2};

/* Busy seconds as from units, with a part that does not depend on them, and noise. */
static void fill_busy(const ek_membership *membership, uint64_t step, double fixed, double noise, double *busy)
{
    for (uint32_t rank = 0; rank < ek_membership_ranks(membership); rank++) {
        busy[rank] = 0;
        if (!ek_membership_place(membership, rank, NULL, NULL))
            continue;
        uint32_t attention, ffn;
        ek_membership_units(membership, rank, 0, &attention);
        ek_membership_units(membership, rank, 1, &ffn);
        busy[rank] = (fixed + attention * 3.0 + ffn) * (1 + noise * ek_random_normal(9, step, rank));
    }
}

static void found_after_the_set_steps_and_once(void **state)
{
    (void)state;
    ek_membership *membership;
    ek_stragglers *stragglers;
    double busy[RANKS_MOST], slowdown;
    uint32_t found[RANKS_MOST];
    assert_ok(ek_membership_create(&membership, &job));
    assert_ok(ek_stragglers_create(&stragglers, &job, 1.2, 3));
    ek_stragglers_reset(stragglers, membership);
    for (uint64_t step = 1; step <= 40; step++) {
        fill_busy(membership, step, 5, 0.02, busy);
        bool slow = (step >= 5 && step < 20 && step != 7) || step >= 30; /* 5, 6 are too few; 8, 9, 10 are not */
        busy[11] *= slow ? 1.4 : 1;
        uint32_t count = ek_stragglers_observe(stragglers, busy, found);
        assert_int_equal(count, step == 10 || step == 32);
        if (count)
            assert_int_equal(found[0], 11);
        bool is = (step >= 10 && step < 22) || step >= 32; /* three good steps make it none again */
        assert_int_equal(ek_stragglers_is(stragglers, 11, &slowdown), is);
        if (is)
            assert_true(fabs(slowdown - 1.4) < 0.12);
        for (uint32_t rank = 0; rank < 17; rank++)
            assert_true(rank == 11 || !ek_stragglers_is(stragglers, rank, &slowdown));
    }
    ek_stragglers_reset(stragglers, membership);
    assert_false(ek_stragglers_is(stragglers, 11, &slowdown));
    ek_stragglers_destroy(stragglers);
    ek_membership_destroy(membership);
}

/* Random jobs after random losses, with units few and many, time that goes with them or does not, and one group that
 * costs more than the other: nobody is reported without a real delay, and whoever takes twice what the units explain
 * is.
 */
static void uneven_units_raise_no_alarm(void **state)
{
    (void)state;
    for (uint64_t trial = 0; trial < 300; trial++) {
        history_random random = {trial, 0};
        ek_unit_group drawn[HISTORY_MAX_GROUPS];
        ek_job random_job = history_draw_job(&random, 2, drawn);
        ek_membership *whole, *membership;
        ek_stragglers *stragglers;
        uint32_t lost[RANKS_MOST], found[RANKS_MOST], slow = EK_NONE, replica, role;
        double busy[RANKS_MOST], fixed = 20 * ek_random_uniform(7, trial, 0);
        assert_ok(ek_membership_create(&whole, &random_job));
        uint32_t lost_count = history_draw_lost(&random, whole, history_draw(&random, 4), lost);
        if (ek_membership_lose(whole, lost, lost_count, &membership) != EK_OK) {
            ek_membership_destroy(whole);
            continue;
        }
        assert_ok(ek_stragglers_create(&stragglers, &random_job, 1.05, 2));
        ek_stragglers_reset(stragglers, membership);
        for (uint32_t step = 0; step < 4; step++) {
            for (uint32_t rank = 0; rank < ek_membership_ranks(membership); rank++) {
                busy[rank] = 0;
                if (!ek_membership_place(membership, rank, &replica, &role))
                    continue;
                busy[rank] = fixed + 0.001;
                for (uint32_t group = 0; group < random_job.group_count; group++) {
                    uint32_t units;
                    ek_membership_units(membership, rank, group, &units);
                    busy[rank] += units * (0.1 + 5 * ek_random_uniform(8, trial, group));
                }
                if (ek_membership_degree(membership, replica) > 1)
                    slow = rank;
            }
            assert_int_equal(ek_stragglers_observe(stragglers, busy, found), 0);
        }
        if (slow != EK_NONE) {
            /* its peers have at least one unit of each group; it has at most two more of any */
            busy[slow] *= 10;
            assert_int_equal(ek_stragglers_observe(stragglers, busy, found), 0);
            assert_int_equal(ek_stragglers_observe(stragglers, busy, found), 1);
            assert_int_equal(found[0], slow);
        }
        ek_stragglers_destroy(stragglers);
        ek_membership_destroy(membership);
        ek_membership_destroy(whole);
    }
}

/* With a single peer, or none, and with ranks that report nothing. */
static void few_peers(void **state)
{
    (void)state;
    ek_job small = job;
    small.base_degree = 2;
    ek_membership *membership, *reduced;
    ek_stragglers *stragglers;
    uint32_t found[5];
    assert_ok(ek_membership_create(&membership, &small));
    assert_ok(ek_stragglers_create(&stragglers, &small, 1.5, 1));
    ek_stragglers_reset(stragglers, membership);
    assert_int_equal(ek_stragglers_observe(stragglers, (double[]){1, 2, 0, 1, 9}, found), 1);
    assert_int_equal(found[0], 1);
    assert_ok(ek_membership_lose(membership, (uint32_t[]){1, 4}, 2, &reduced)); /* and no spare is left */
    ek_stragglers_reset(stragglers, reduced);
    assert_int_equal(ek_stragglers_observe(stragglers, (double[]){100, 50, 1, 1, 9}, found), 0);
    ek_stragglers_destroy(stragglers);
    ek_membership_destroy(membership);
    ek_membership_destroy(reduced);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(found_after_the_set_steps_and_once),
        cmocka_unit_test(uneven_units_raise_no_alarm),
        cmocka_unit_test(few_peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
