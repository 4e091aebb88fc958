/* Chains of layouts: balance and prefix for all small sizes and drop orders and at random for large ones, owners, and
 * the transfers against an element map made without them. */
#include "testing.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

#define SEED 20240607

/* ----------------------------------------------------------------------------------------------- properties */

/* Level 0 is contiguous sharding. */
static void check_level0(const ek_chain *chain)
{
    uint64_t units = ek_chain_total_units(chain), degree = ek_chain_base_degree(chain);
    for (uint32_t role = 0; role < degree; role++) {
        uint64_t first = role * units / degree, end = (role + 1) * units / degree;
        assert_int_equal(ek_chain_count(chain, 0, role), end - first);
        for (uint64_t unit = first; unit < end; unit++)
            assert_int_equal(ek_chain_list(chain, role)[unit - first], unit);
    }
}

/* Every unit is held once, where ek_chain_owner says, by a role that exists; sizes differ by at most one. */
static void check_level(const ek_chain *chain, const uint32_t *drop_order, uint32_t level, bool *seen)
{
    uint32_t units = ek_chain_total_units(chain), degree = ek_chain_base_degree(chain), total = 0;
    memset(seen, 0, units);
    for (uint32_t role = 0; role < degree; role++) {
        uint32_t count = ek_chain_count(chain, level, role);
        bool dropped = false;
        for (uint32_t i = 0; i < level; i++)
            dropped |= drop_order[i] == role;
        if (dropped) {
            assert_int_equal(count, 0);
            continue;
        }
        assert_true(count == units / (degree - level) || count == (units - 1) / (degree - level) + 1);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t unit = ek_chain_list(chain, role)[i], position;
            assert_false(seen[unit]);
            seen[unit] = true;
            assert_int_equal(ek_chain_owner(chain, level, unit, &position), role);
            assert_int_equal(position, i);
        }
        total += count;
    }
    assert_int_equal(total, units);
}

/* Each role is dealt one contiguous run of the dropped role's list: what lies behind its old units. That those are a
 * prefix follows from there being one list per role, if counts never shrink. */
static void check_runs(const ek_chain *chain, uint32_t dropped, uint32_t level)
{
    const uint32_t *list = ek_chain_list(chain, dropped);
    uint32_t size = ek_chain_count(chain, level, dropped);
    for (uint32_t role = 0; role < ek_chain_base_degree(chain); role++) {
        uint32_t before = ek_chain_count(chain, level, role), after = ek_chain_count(chain, level + 1, role);
        if (role == dropped || after == before)
            continue;
        assert_true(after > before);
        uint32_t at = 0;
        while (at < size && list[at] != ek_chain_list(chain, role)[before])
            at++;
        assert_true(at + (after - before) <= size);
        assert_memory_equal(list + at, ek_chain_list(chain, role) + before, (after - before) * sizeof *list);
    }
}

static void check_chain(uint32_t units, uint32_t degree, const uint32_t *drop_order, uint32_t levels, uint32_t ties)
{
    ek_chain *chain;
    assert_ok(ek_chain_create(&chain, units, degree, drop_order, levels, ties));
    assert_int_equal(ek_chain_levels(chain), levels);
    bool *seen = malloc(units);
    check_level0(chain);
    for (uint32_t level = 0; level <= levels; level++)
        check_level(chain, drop_order, level, seen);
    for (uint32_t level = 0; level < levels; level++)
        check_runs(chain, drop_order[level], level);
    free(seen);
    ek_chain_destroy(chain);
}

/* Calls `visit` for every drop order that leaves one of `degree` roles. Shorter ones are their prefixes. */
static void for_all_drop_orders(uint32_t units, uint32_t degree, uint32_t *order, uint32_t length,
                                void (*visit)(uint32_t, uint32_t, const uint32_t *, uint32_t, uint32_t))
{
    if (length + 1 == degree) {
        visit(units, degree, order, length, units % 5);
        return;
    }
    for (uint32_t role = 0; role < degree; role++) {
        bool used = false;
        for (uint32_t i = 0; i < length; i++)
            used |= order[i] == role;
        if (used)
            continue;
        order[length] = role;
        for_all_drop_orders(units, degree, order, length + 1, visit);
    }
}

static void random_drop_order(uint64_t draw, uint32_t degree, uint32_t *order)
{
    for (uint32_t i = 0; i < degree; i++)
        order[i] = (uint32_t)ek_random_permute(ek_random_u64(SEED, 1, draw), i, degree);
}

static void all_small_chains(void **state)
{
    (void)state;
    uint32_t order[6];
    for (uint32_t degree = 1; degree <= 6; degree++)
        for (uint32_t units = degree; units <= 40; units++)
            for_all_drop_orders(units, degree, order, 0, check_chain);
}

static void small_chains_of_many_roles(void **state)
{
    (void)state;
    uint32_t order[8];
    uint64_t draw = 0;
    for (uint32_t degree = 7; degree <= 8; degree++)
        for (uint32_t units = degree; units <= 40; units++)
            for (uint32_t ties = 0; ties < 50; ties++) {
                random_drop_order(draw++, degree, order);
                check_chain(units, degree, order, degree - 1, ties);
            }
}

/* The experts of published models on domains of 32 with up to four devices less, and 13 on 4 and 3. */
static void experts_that_nothing_divides(void **state)
{
    (void)state;
    static const struct {
        uint32_t experts, degree, levels;
    } cases[] = {{224, 32, 4}, {128, 32, 4}, {13, 4, 1}};
    uint32_t order[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint64_t draw = 0; draw < 20; draw++) {
            random_drop_order(draw, cases[i].degree, order);
            check_chain(cases[i].experts, cases[i].degree, order, cases[i].levels, (uint32_t)draw);
        }
}

static void random_large_chains(void **state)
{
    (void)state;
    uint32_t order[72];
    for (uint64_t draw = 0; draw < 60; draw++) {
        uint32_t degree = 1 + (uint32_t)(ek_random_u64(SEED, 2, draw) % 72);
        uint32_t most = draw % 3 == 0 ? 100000 : 1000;
        uint32_t units = degree + (uint32_t)(ek_random_u64(SEED, 3, draw) % (most - degree + 1));
        uint32_t levels = (uint32_t)(ek_random_u64(SEED, 4, draw) % degree);
        random_drop_order(1000000 + draw, degree, order);
        check_chain(units, degree, order, levels, (uint32_t)draw);
    }
    random_drop_order(0, 72, order);
    check_chain(100000, 72, order, 71, 3);
}

/* ------------------------------------------------------------------------------------------------- transfers */

/* A replica at `level` whose units carry their own number, moved by the transfers, must be the sync layout. */
static void check_transfers(const ek_chain *chain, uint32_t level, uint32_t sync_level)
{
    uint32_t degree = ek_chain_base_degree(chain), units = ek_chain_total_units(chain), arrived = 0, expected = 0;
    ek_transfer *transfers, last = {0};
    size_t count;
    assert_ok(ek_chain_transfers(chain, level, sync_level, &transfers, &count));
    bool *filled = calloc((size_t)degree * units, sizeof *filled);
    for (size_t i = 0; i < count; i++) {
        ek_transfer run = transfers[i];
        assert_true(ek_chain_count(chain, level, run.extra) > 0 && ek_chain_count(chain, sync_level, run.extra) == 0);
        assert_true(run.count > 0);
        assert_true(run.extra_first + run.count <= ek_chain_count(chain, level, run.extra));
        assert_true(run.core_first >= ek_chain_count(chain, level, run.core));
        assert_true(run.core_first + run.count <= ek_chain_count(chain, sync_level, run.core));
        for (uint32_t unit = 0; unit < run.count; unit++) {
            assert_int_equal(ek_chain_list(chain, run.core)[run.core_first + unit],
                             ek_chain_list(chain, run.extra)[run.extra_first + unit]);
            bool *place = &filled[(size_t)run.core * units + run.core_first + unit];
            assert_false(*place);
            *place = true;
        }
        if (i > 0) {
            assert_true(run.core > last.core || (run.core == last.core && run.core_first > last.core_first));
            assert_false(run.core == last.core && run.extra == last.extra &&
                         run.extra_first == last.extra_first + last.count); /* one run would do */
        }
        last = run;
        arrived += run.count;
    }
    for (uint32_t role = 0; role < degree; role++)
        if (ek_chain_count(chain, sync_level, role) == 0)
            expected += ek_chain_count(chain, level, role);
    assert_int_equal(arrived, expected);
    free(filled);
    ek_free(transfers);
}

static void check_all_transfers(uint32_t units, uint32_t degree, const uint32_t *drop_order, uint32_t levels,
                                uint32_t ties)
{
    ek_chain *chain;
    assert_ok(ek_chain_create(&chain, units, degree, drop_order, levels, ties));
    for (uint32_t sync_level = 0; sync_level <= levels; sync_level++)
        for (uint32_t level = 0; level <= sync_level; level++)
            check_transfers(chain, level, sync_level);
    ek_chain_destroy(chain);
}

static void transfers_reach_their_owners(void **state)
{
    (void)state;
    uint32_t order[32];
    for (uint32_t units = 4; units <= 40; units++)
        for_all_drop_orders(units, 4, order, 0, check_all_transfers);
    for (uint64_t draw = 0; draw < 40; draw++) {
        uint32_t degree = 2 + (uint32_t)(ek_random_u64(SEED, 5, draw) % 31);
        uint32_t units = degree + (uint32_t)(ek_random_u64(SEED, 6, draw) % 400);
        random_drop_order(2000000 + draw, degree, order);
        check_all_transfers(units, degree, order, degree <= 12 ? degree - 1 : 12, (uint32_t)draw);
    }
}

static void no_transfers_at_the_sync_level(void **state)
{
    (void)state;
    ek_chain *chain;
    ek_transfer *transfers;
    size_t count;
    assert_ok(ek_chain_create(&chain, 12, 4, (uint32_t[]){2, 0}, 2, 0));
    assert_ok(ek_chain_transfers(chain, 2, 2, &transfers, &count));
    assert_int_equal(count, 0);
    ek_free(transfers);
    assert_int_equal(ek_chain_transfers(chain, 2, 1, &transfers, &count), EK_INVALID);
    assert_int_equal(ek_chain_transfers(chain, 0, 3, &transfers, &count), EK_INVALID);
    ek_chain_destroy(chain);
}

/* ---------------------------------------------------------------------------------------------------- cases */

/* The example of section "The chain of layouts": U = 12, N = 4, D = [2]. */
static void documented_example(void **state)
{
    (void)state;
    ek_chain *chain;
    assert_ok(ek_chain_create(&chain, 12, 4, (uint32_t[]){2}, 1, 0));
    static const uint32_t lists[4][4] = {{0, 1, 2, 6}, {3, 4, 5, 7}, {6, 7, 8}, {9, 10, 11, 8}};
    for (uint32_t role = 0; role < 4; role++) {
        assert_int_equal(ek_chain_count(chain, 0, role), 3);
        assert_int_equal(ek_chain_count(chain, 1, role), role == 2 ? 0 : 4);
        assert_memory_equal(ek_chain_list(chain, role), lists[role], (role == 2 ? 3 : 4) * sizeof(uint32_t));
    }
    ek_chain_destroy(chain);
}

/* 13 units on 3 roles: one has five of them, and which one depends on `ties`. */
static void ties_rotate(void **state)
{
    (void)state;
    bool larger[4] = {false};
    for (uint32_t ties = 0; ties < 8; ties++) {
        ek_chain *chain;
        assert_ok(ek_chain_create(&chain, 13, 4, (uint32_t[]){3}, 1, ties));
        for (uint32_t role = 0; role < 3; role++)
            larger[role] |= ek_chain_count(chain, 1, role) == 5;
        ek_chain_destroy(chain);
    }
    assert_true(larger[0] && larger[1] && larger[2]);
}

static void bad_arguments(void **state)
{
    (void)state;
    ek_chain *chain = NULL;
    assert_int_equal(ek_chain_create(&chain, 12, 0, NULL, 0, 0), EK_INVALID);
    assert_int_equal(ek_chain_create(&chain, 3, 4, NULL, 0, 0), EK_INVALID);
    assert_string_equal(ek_error(), "3 units cannot be shared out to 4 roles: each needs at least one");
    assert_int_equal(ek_chain_create(&chain, 12, 4, (uint32_t[]){0, 1, 2, 3}, 4, 0), EK_INVALID);
    assert_int_equal(ek_chain_create(&chain, 12, 4, (uint32_t[]){4}, 1, 0), EK_INVALID);
    assert_int_equal(ek_chain_create(&chain, 12, 4, (uint32_t[]){1, 1}, 2, 0), EK_INVALID);
    assert_null(chain);
    ek_chain_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented_example),
        cmocka_unit_test(ties_rotate),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(all_small_chains),
        cmocka_unit_test(small_chains_of_many_roles),
        cmocka_unit_test(experts_that_nothing_divides),
        cmocka_unit_test(random_large_chains),
        cmocka_unit_test(transfers_reach_their_owners),
        cmocka_unit_test(no_transfers_at_the_sync_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
