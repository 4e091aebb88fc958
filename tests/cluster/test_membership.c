/* Memberships: the rules of losing and joining as cases, and their invariants over random histories. */
#include "histories.h"

#include "cluster/membership.h"

#include <stdlib.h>
#include <string.h>

static ek_membership *create(uint32_t replicas, uint32_t base_degree, uint32_t min_degree, uint32_t spares)
{
    static const ek_unit_group group = {.name = "ffn", .units = 64, .unit_bytes = 100};
    ek_membership *membership;
    assert_ok(ek_membership_create(&membership, &(ek_job){.replicas = replicas,
                                                          .base_degree = base_degree,
                                                          .min_degree = min_degree,
                                                          .spares = spares,
                                                          .groups = &group,
                                                          .group_count = 1}));
    return membership;
}

/* These two replace the membership by its successor. */
static void lose(ek_membership **membership, uint32_t count, const uint32_t *lost)
{
    ek_membership *next;
    assert_ok(ek_membership_lose(*membership, lost, count, &next));
    ek_membership_destroy(*membership);
    *membership = next;
}

static void join(ek_membership **membership, uint32_t rank)
{
    ek_membership *next;
    assert_ok(ek_membership_join(*membership, rank, &next));
    ek_membership_destroy(*membership);
    *membership = next;
}

#define LOSE(membership, ...)                                                                                          \
    lose(membership, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), (uint32_t[]){__VA_ARGS__})

static void assert_ranks(const ek_membership *membership, uint32_t replica, const uint32_t *ranks)
{
    for (uint32_t role = 0; role < ek_membership_job(membership)->base_degree; role++)
        assert_int_equal(ek_membership_rank(membership, replica, role), ranks[role]);
}

#define ASSERT_RANKS(membership, replica, ...) assert_ranks(membership, replica, (uint32_t[]){__VA_ARGS__})

static void assert_drop_order(const ek_membership *membership, uint32_t levels, const uint32_t *roles)
{
    assert_int_equal(ek_membership_sync_level(membership), levels);
    assert_memory_equal(ek_membership_drop_order(membership), roles, levels * sizeof *roles);
}

#define ASSERT_DROP_ORDER(membership, ...)                                                                             \
    assert_drop_order(membership, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), (uint32_t[]){__VA_ARGS__})

/* ------------------------------------------------------------------------------------------------ invariants */

/* Both directions of the map agree, every role of an active replica's level is held once, no other is. */
static void check_places(const ek_membership *membership)
{
    const ek_job *job = ek_membership_job(membership);
    uint32_t held = 0, deepest = 0;
    for (uint32_t replica = 0; replica < job->replicas; replica++) {
        uint32_t degree = ek_membership_degree(membership, replica), level = ek_membership_level(membership, replica);
        assert_int_equal(level, degree == 0 ? EK_NONE : job->base_degree - degree);
        if (degree > 0 && level > deepest)
            deepest = level;
        for (uint32_t role = 0; role < job->base_degree; role++) {
            uint32_t rank = ek_membership_rank(membership, replica, role), its_replica, its_role, count;
            bool exists = degree > 0 && ek_chain_count(ek_membership_chain(membership, 0), level, role) > 0;
            assert_int_equal(rank != EK_NONE, exists);
            if (!exists)
                continue;
            assert_true(ek_membership_place(membership, rank, &its_replica, &its_role));
            assert_true(its_replica == replica && its_role == role);
            assert_ptr_equal(ek_membership_units(membership, rank, 0, &count),
                             ek_chain_list(ek_membership_chain(membership, 0), role));
            assert_int_equal(count, ek_chain_count(ek_membership_chain(membership, 0), level, role));
            held++;
        }
    }
    assert_int_equal(held, history_active_ranks(membership));
    assert_int_equal(ek_membership_sync_level(membership), deepest);
}

static bool in_drop_order(const ek_membership *membership, uint32_t role)
{
    for (uint32_t level = 0; level < ek_membership_sync_level(membership); level++)
        if (ek_membership_drop_order(membership)[level] == role)
            return true;
    return false;
}

static void check_sync_layout(const ek_membership *membership)
{
    uint32_t first = ek_membership_first_core(membership);
    assert_false(in_drop_order(membership, first));
    for (uint32_t role = 0; role < first; role++)
        assert_true(in_drop_order(membership, role));
    for (uint32_t group = 0; group < ek_membership_job(membership)->group_count; group++) {
        const ek_chain *chain = ek_membership_chain(membership, group);
        assert_int_equal(ek_chain_levels(chain), ek_membership_sync_level(membership));
        for (uint32_t role = 0; role < ek_chain_base_degree(chain); role++)
            assert_int_equal(ek_chain_count(chain, ek_chain_levels(chain), role) == 0, in_drop_order(membership, role));
    }
}

/* One drop order begins with what both memberships still need of the other: the deepest level of `old` that a replica
 * which stays was at. */
static void check_drop_orders(const ek_membership *old, const ek_membership *next)
{
    uint32_t common = 0;
    for (uint32_t replica = 0; replica < ek_membership_job(old)->replicas; replica++) {
        uint32_t before = ek_membership_level(old, replica), after = ek_membership_level(next, replica);
        if (before != EK_NONE && after != EK_NONE && (before < after ? before : after) > common)
            common = before < after ? before : after;
    }
    assert_memory_equal(ek_membership_drop_order(old), ek_membership_drop_order(next), common * sizeof(uint32_t));
}

/* Survivors stay in their replica and keep a role that exists; replicas that were not hit are as they were. */
static void check_survivors(const ek_membership *old, const ek_membership *next)
{
    for (uint32_t rank = 0; rank < ek_membership_ranks(old); rank++) {
        uint32_t replica, role, new_replica, new_role;
        if (!ek_membership_place(old, rank, &replica, &role))
            continue;
        if (ek_membership_degree(next, replica) == 0) {
            assert_false(ek_membership_place(next, rank, NULL, NULL));
            continue;
        }
        if (!ek_membership_place(next, rank, &new_replica, &new_role)) {
            assert_false(ek_membership_is_spare(next, rank)); /* lost */
            continue;
        }
        assert_int_equal(new_replica, replica);
        if (ek_chain_count(ek_membership_chain(next, 0), ek_membership_level(next, replica), role) > 0)
            assert_int_equal(new_role, role);
    }
}

static void assert_same(const ek_membership *a, const ek_membership *b)
{
    const ek_job *job = ek_membership_job(a);
    assert_int_equal(ek_membership_sync_level(a), ek_membership_sync_level(b));
    assert_drop_order(a, ek_membership_sync_level(b), ek_membership_drop_order(b));
    for (uint32_t replica = 0; replica < job->replicas; replica++)
        for (uint32_t role = 0; role < job->base_degree; role++)
            assert_int_equal(ek_membership_rank(a, replica, role), ek_membership_rank(b, replica, role));
    for (uint32_t rank = 0; rank < ek_membership_ranks(a); rank++)
        assert_int_equal(ek_membership_is_spare(a, rank), ek_membership_is_spare(b, rank));
}

/* The order in which lost ranks are named, and naming the long gone again, make no difference. */
static void check_order_of_lost(const ek_membership *old, const uint32_t *lost, uint32_t count,
                                const ek_membership *next)
{
    uint32_t ranks = ek_membership_ranks(old), *all = calloc(ranks + count + 1, sizeof *all), all_count = 0;
    for (uint32_t i = count; i > 0; i--)
        all[all_count++] = lost[i - 1];
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (!ek_membership_place(old, rank, NULL, NULL) && !ek_membership_is_spare(old, rank))
            all[all_count++] = rank;
    all[all_count++] = ranks;
    ek_membership *again;
    assert_ok(ek_membership_lose(old, all, all_count, &again));
    assert_same(next, again);
    ek_membership_destroy(again);
    free(all);
}

/* What is packed here and unpacked on a rank that knows but the job is the same. */
static void check_packing(const ek_membership *membership, const ek_membership *whole)
{
    ek_membership *unpacked;
    uint32_t *words = calloc(membership_packed_words(membership), sizeof *words);
    membership_pack(membership, words);
    assert_ok(membership_unpack(whole, words, &unpacked));
    assert_same(membership, unpacked);
    check_places(unpacked);
    for (uint32_t replica = 0; replica < ek_membership_job(membership)->replicas; replica++)
        assert_int_equal(ek_membership_degree(unpacked, replica), ek_membership_degree(membership, replica));
    assert_int_equal(ek_membership_first_core(unpacked), ek_membership_first_core(membership));
    ek_membership_destroy(unpacked);
    free(words);
}

static void check_fits(const ek_membership *membership)
{
    const ek_job *job = ek_membership_job(membership);
    for (uint32_t rank = 0; rank < ek_membership_ranks(membership); rank++) {
        uint64_t bytes = job->replicated_bytes;
        for (uint32_t group = 0; group < job->group_count; group++) {
            uint32_t count;
            ek_membership_units(membership, rank, group, &count);
            bytes += count * job->groups[group].unit_bytes;
        }
        assert_true(job->rank_bytes == 0 || bytes <= job->rank_bytes);
    }
}

/* After each failure of a history, for jobs with and without a limit by memory. */
static void random_histories(void **state)
{
    (void)state;
    uint32_t losses = 0, joins = 0, retired = 0;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        history_random random = {.seed = seed};
        ek_unit_group groups[HISTORY_MAX_GROUPS];
        ek_job job = history_draw_job(&random, 3, groups);
        ek_membership *whole, *membership, *next;
        job.rank_bytes = seed % 2 * 30000;
        if (ek_membership_create(&whole, &job) != EK_OK)
            continue;
        assert_ok(ek_membership_lose(whole, NULL, 0, &membership));
        for (uint32_t event = 0; event < 30; event++) {
            uint32_t lost[3], returning = history_draw_returning(&random, membership);
            if (history_draw(&random, 3) == 0 && returning != EK_NONE) {
                assert_ok(ek_membership_join(membership, returning, &next));
                joins++;
            } else {
                uint32_t count = history_draw_lost(&random, membership, 1 + history_draw(&random, 3), lost);
                ek_status status = ek_membership_lose(membership, lost, count, &next);
                if (status != EK_OK) {
                    assert_int_equal(status, EK_NO_REPLICA);
                    break;
                }
                losses++;
                check_survivors(membership, next);
                check_order_of_lost(membership, lost, count, next);
            }
            check_places(next);
            check_sync_layout(next);
            check_drop_orders(membership, next);
            check_fits(next);
            check_packing(next, whole);
            for (uint32_t replica = 0; replica < job.replicas; replica++) {
                uint32_t degree = ek_membership_degree(next, replica);
                assert_true(degree == 0 || degree >= job.min_degree);
                retired += degree == 0 && ek_membership_degree(membership, replica) > 0;
            }
            ek_membership_destroy(membership);
            membership = next;
        }
        ek_membership_destroy(membership);
        ek_membership_destroy(whole);
    }
    print_message("%u failures, %u returns, %u replicas retired\n", losses, joins, retired);
    assert_true(losses > 2000 && joins > 1000 && retired > 200);
}

/* One rank lost from whole replicas and joined again: everything as before. */
static void join_undoes_lose(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 12; rank++) {
        ek_membership *whole = create(3, 4, 1, 0), *membership = create(3, 4, 1, 0);
        LOSE(&membership, rank);
        join(&membership, rank);
        assert_same(whole, membership);
        ek_membership_destroy(whole);
        ek_membership_destroy(membership);
    }
}

/* After one failure of any size, once all have joined every replica is whole and D is empty. (After several it may not
 * be: survivors of a retired replica that stepped in elsewhere stay there.) */
static void all_return(void **state)
{
    (void)state;
    uint32_t retired = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        history_random random = {.seed = seed};
        ek_membership *whole = create(4, 4, (uint32_t)(seed % 5), 0), *membership;
        uint32_t lost[8], count = history_draw_lost(&random, whole, 1 + (uint32_t)(seed % 8), lost);
        if (ek_membership_lose(whole, lost, count, &membership) == EK_OK) {
            for (uint32_t replica = 0; replica < 4; replica++)
                retired += ek_membership_degree(membership, replica) == 0;
            for (uint32_t i = 0; i < count; i++)
                join(&membership, lost[i]);
            for (uint32_t replica = 0; replica < 4; replica++)
                assert_int_equal(ek_membership_degree(membership, replica), 4);
            assert_int_equal(ek_membership_sync_level(membership), 0);
            ek_membership_destroy(membership);
        }
        ek_membership_destroy(whole);
    }
    assert_true(retired > 50);
}

/* ----------------------------------------------------------------------------------------------------- cases */

static void starts_whole(void **state)
{
    (void)state;
    ek_membership *membership = create(2, 3, 0, 1);
    ASSERT_RANKS(membership, 0, 0, 1, 2);
    ASSERT_RANKS(membership, 1, 3, 4, 5);
    assert_true(ek_membership_is_spare(membership, 6));
    assert_int_equal(ek_membership_ranks(membership), 7);
    assert_int_equal(ek_membership_job(membership)->min_degree, 1);
    check_places(membership);
    ek_membership_destroy(membership);
}

/* The first failure costs a role; a failure elsewhere in another replica follows the drop order. */
static void later_failures_follow_the_drop_order(void **state)
{
    (void)state;
    ek_membership *membership = create(2, 4, 1, 0);
    LOSE(&membership, 2);
    ASSERT_DROP_ORDER(membership, 2);
    ASSERT_RANKS(membership, 0, 0, 1, EK_NONE, 3);
    LOSE(&membership, 5);
    ASSERT_DROP_ORDER(membership, 2);
    ASSERT_RANKS(membership, 1, 4, 6, EK_NONE, 7);
    LOSE(&membership, 4, 7);
    ASSERT_DROP_ORDER(membership, 2, 0, 3);
    ASSERT_RANKS(membership, 0, 0, 1, EK_NONE, 3);
    ASSERT_RANKS(membership, 1, EK_NONE, 6, EK_NONE, EK_NONE);
    assert_int_equal(ek_membership_first_core(membership), 1);
    ek_membership_destroy(membership);
}

/* The drop order shrinks when the deepest replica is retired. */
static void retired_replica_gives_up_its_levels(void **state)
{
    (void)state;
    ek_membership *membership = create(3, 4, 3, 0);
    LOSE(&membership, 1);
    LOSE(&membership, 2);
    assert_int_equal(ek_membership_degree(membership, 0), 0);
    assert_int_equal(ek_membership_level(membership, 0), EK_NONE);
    assert_int_equal(ek_membership_sync_level(membership), 0);
    assert_true(ek_membership_is_spare(membership, 0) && ek_membership_is_spare(membership, 3));
    LOSE(&membership, 6); /* a survivor of the retired replica steps in */
    ASSERT_RANKS(membership, 1, 4, 5, 0, 7);
    assert_int_equal(ek_membership_sync_level(membership), 0);
    LOSE(&membership, 3); /* a spare: nobody else notices */
    ASSERT_RANKS(membership, 1, 4, 5, 0, 7);
    ek_membership_destroy(membership);
}

/* Survivors of a replica that this failure retires do not step in at once. */
static void survivors_step_in_only_later(void **state)
{
    (void)state;
    ek_membership *membership = create(3, 4, 3, 0);
    LOSE(&membership, 0, 1, 5);
    assert_int_equal(ek_membership_degree(membership, 0), 0);
    ASSERT_RANKS(membership, 1, 4, EK_NONE, 6, 7);
    ASSERT_DROP_ORDER(membership, 1);
    ek_membership_destroy(membership);
}

static void spares_fill_the_deepest_first(void **state)
{
    (void)state;
    ek_membership *membership = create(3, 4, 1, 2);
    LOSE(&membership, 1, 6, 7);
    ASSERT_RANKS(membership, 1, 4, 5, 12, 13);
    ASSERT_RANKS(membership, 0, 0, EK_NONE, 2, 3);
    ASSERT_DROP_ORDER(membership, 1);
    ek_membership_destroy(membership);
}

/* Two spares cannot save a replica that lacks three; they go where they help. */
static void spares_are_not_wasted(void **state)
{
    (void)state;
    ek_membership *membership = create(3, 4, 4, 2);
    LOSE(&membership, 0, 1, 2, 6, 7);
    assert_int_equal(ek_membership_degree(membership, 0), 0);
    ASSERT_RANKS(membership, 1, 4, 5, 12, 13);
    assert_true(ek_membership_is_spare(membership, 3));
    assert_int_equal(ek_membership_degree(membership, 2), 4);
    ek_membership_destroy(membership);
}

/* 64 units of 100 bytes: a share is 1600 bytes at degree 4, 2200 at 3 (22 units), 3200 at 2. */
static void memory_limits_the_degree(void **state)
{
    (void)state;
    static const ek_unit_group group = {.name = "ffn", .units = 64, .unit_bytes = 100};
    ek_job job = {.replicas = 2, .base_degree = 4, .groups = &group, .group_count = 1, .replicated_bytes = 50};
    ek_membership *membership;
    job.rank_bytes = 1649;
    assert_int_equal(ek_membership_create(&membership, &job), EK_INVALID);
    job.rank_bytes = 2249;
    assert_ok(ek_membership_create(&membership, &job));
    LOSE(&membership, 2);
    assert_int_equal(ek_membership_degree(membership, 0), 0);
    ek_membership_destroy(membership);
    job.rank_bytes = 2250;
    assert_ok(ek_membership_create(&membership, &job));
    LOSE(&membership, 2);
    assert_int_equal(ek_membership_degree(membership, 0), 3);
    LOSE(&membership, 1);
    assert_int_equal(ek_membership_degree(membership, 0), 0);
    ek_membership_destroy(membership);
}

static void nobody_stays(void **state)
{
    (void)state;
    ek_membership *membership = create(2, 2, 2, 0), *next = NULL;
    assert_int_equal(ek_membership_lose(membership, (uint32_t[]){0, 3}, 2, &next), EK_NO_REPLICA);
    assert_null(next);
    ek_membership_destroy(membership);
}

static void joins_home_first(void **state)
{
    (void)state;
    ek_membership *membership = create(2, 4, 1, 1);
    LOSE(&membership, 8); /* the spare */
    LOSE(&membership, 1);
    LOSE(&membership, 5, 6);
    ASSERT_DROP_ORDER(membership, 1, 2);
    join(&membership, 1); /* home, although replica 1 is deeper */
    ASSERT_RANKS(membership, 0, 0, 1, 2, 3);
    ASSERT_DROP_ORDER(membership, 1, 2);
    join(&membership, 8); /* has no home */
    ASSERT_RANKS(membership, 1, 4, EK_NONE, 8, 7);
    ASSERT_DROP_ORDER(membership, 1);
    join(&membership, 6); /* whole again with the former spare */
    ASSERT_RANKS(membership, 1, 4, 6, 8, 7);
    join(&membership, 5);
    assert_true(ek_membership_is_spare(membership, 5));
    ek_membership_destroy(membership);
}

static void retired_replica_comes_back(void **state)
{
    (void)state;
    ek_membership *membership = create(2, 4, 3, 0), *next = NULL;
    LOSE(&membership, 4, 5);
    assert_int_equal(ek_membership_degree(membership, 1), 0);
    join(&membership, 5);
    assert_int_equal(ek_membership_degree(membership, 1), 3);
    ASSERT_RANKS(membership, 1, EK_NONE, 5, 6, 7);
    ASSERT_DROP_ORDER(membership, 0);
    join(&membership, 4);
    ASSERT_RANKS(membership, 1, 4, 5, 6, 7);
    assert_int_equal(ek_membership_join(membership, 4, &next), EK_INVALID);
    assert_int_equal(ek_membership_join(membership, 8, &next), EK_INVALID);
    ek_membership_destroy(membership);
}

static void bad_jobs(void **state)
{
    (void)state;
    ek_unit_group group = {.name = "attention", .units = 4};
    ek_job good = {.replicas = 2, .base_degree = 4, .groups = &group, .group_count = 1}, job = good;
    ek_membership *membership = NULL;
    job.replicas = 0;
    assert_int_equal(ek_membership_create(&membership, &job), EK_INVALID);
    job = good;
    job.base_degree = 0;
    assert_int_equal(ek_membership_create(&membership, &job), EK_INVALID);
    job = good;
    job.min_degree = 5;
    assert_int_equal(ek_membership_create(&membership, &job), EK_INVALID);
    job = good;
    job.replicas = UINT32_MAX / 2;
    assert_int_equal(ek_membership_create(&membership, &job), EK_INVALID);
    job = good;
    group.units = 3;
    assert_int_equal(ek_membership_create(&membership, &job), EK_INVALID);
    assert_string_equal(ek_error(), "3 units of attention cannot be shared out to 4 ranks: each needs at least one");
    assert_null(membership);
    ek_membership_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_whole),
        cmocka_unit_test(later_failures_follow_the_drop_order),
        cmocka_unit_test(retired_replica_gives_up_its_levels),
        cmocka_unit_test(survivors_step_in_only_later),
        cmocka_unit_test(spares_fill_the_deepest_first),
        cmocka_unit_test(spares_are_not_wasted),
        cmocka_unit_test(memory_limits_the_degree),
        cmocka_unit_test(nobody_stays),
        cmocka_unit_test(joins_home_first),
        cmocka_unit_test(retired_replica_comes_back),
        cmocka_unit_test(bad_jobs),
        cmocka_unit_test(join_undoes_lose),
        cmocka_unit_test(all_return),
        cmocka_unit_test(random_histories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
