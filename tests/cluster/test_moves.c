/* State motion over random histories: stores are simulated, the moves applied to them, and the result compared with
 * what each rank must hold. */
#include "histories.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Units that a rank has at each position of a group; one entry for the replicated tensors. */
#define EMPTY UINT32_MAX
#define REPLICATED_VALUE 12345u

typedef struct stores {
    uint32_t ranks, groups;
    uint32_t **units; /* [ranks][groups + 1], NULL: none */
    uint32_t *counts;
} stores;

static stores make_stores(const ek_membership *membership)
{
    stores made = {.ranks = ek_membership_ranks(membership), .groups = ek_membership_job(membership)->group_count};
    size_t size = (size_t)made.ranks * (made.groups + 1);
    made.units = calloc(size, sizeof *made.units);
    made.counts = calloc(size, sizeof *made.counts);
    return made;
}

static void free_stores(stores *freed)
{
    for (size_t i = 0; i < (size_t)freed->ranks * (freed->groups + 1); i++)
        free(freed->units[i]);
    free(freed->units);
    free(freed->counts);
}

static size_t store_index(const stores *of, uint32_t rank, uint32_t group)
{
    return (size_t)rank * (of->groups + 1) + (group == EK_REPLICATED ? of->groups : group);
}

/* What every rank with a role holds under a membership. */
static stores full_stores(const ek_membership *membership)
{
    stores made = make_stores(membership);
    for (uint32_t rank = 0; rank < made.ranks; rank++) {
        if (!ek_membership_place(membership, rank, NULL, NULL))
            continue;
        for (uint32_t group = 0; group < made.groups; group++) {
            size_t i = store_index(&made, rank, group);
            const uint32_t *units = ek_membership_units(membership, rank, group, &made.counts[i]);
            made.units[i] = malloc(made.counts[i] * sizeof(uint32_t));
            memcpy(made.units[i], units, made.counts[i] * sizeof(uint32_t));
        }
        size_t i = store_index(&made, rank, EK_REPLICATED);
        made.counts[i] = 1;
        made.units[i] = malloc(sizeof(uint32_t));
        made.units[i][0] = REPLICATED_VALUE;
    }
    return made;
}

/* New stores as recovery makes them: what keeps its position is copied, the rest is empty. */
static stores kept_stores(const ek_membership *next, const stores *old)
{
    stores made = full_stores(next);
    for (size_t i = 0; i < (size_t)made.ranks * (made.groups + 1); i++)
        for (uint32_t position = 0; position < made.counts[i]; position++)
            if (position >= old->counts[i] || old->units[i][position] != made.units[i][position])
                made.units[i][position] = EMPTY;
    return made;
}

static bool known(const ek_membership *membership, uint32_t rank)
{
    return ek_membership_place(membership, rank, NULL, NULL) || ek_membership_is_spare(membership, rank);
}

static bool holds_in_replica(const ek_membership *old, const ek_membership *next, uint32_t replica, uint32_t group,
                             uint32_t unit)
{
    uint32_t level = ek_membership_level(old, replica);
    if (level == EK_NONE)
        return false;
    uint32_t rank =
        ek_membership_rank(old, replica, ek_chain_owner(ek_membership_chain(old, group), level, unit, NULL));
    return rank != EK_NONE && known(next, rank);
}

static void apply_move(const ek_membership *old, const ek_membership *next, const stores *before, stores *after,
                       const ek_move *move)
{
    assert_true(known(next, move->source));
    assert_true(ek_membership_place(old, move->source, NULL, NULL));
    assert_true(move->count > 0);
    uint32_t replica, source_replica;
    assert_true(ek_membership_place(next, move->destination, &replica, NULL));
    ek_membership_place(old, move->source, &source_replica, NULL);
    size_t source = store_index(before, move->source, move->group);
    size_t destination = store_index(after, move->destination, move->group);
    assert_true(move->source_first + move->count <= before->counts[source]);
    assert_true(move->destination_first + move->count <= after->counts[destination]);
    for (uint32_t i = 0; i < move->count; i++) {
        uint32_t unit = before->units[source][move->source_first + i];
        uint32_t *place = &after->units[destination][move->destination_first + i];
        assert_int_equal(*place, EMPTY); /* neither in place already nor moved twice */
        *place = unit;
        if (move->group != EK_REPLICATED && move->source != move->destination && source_replica != replica)
            assert_false(holds_in_replica(old, next, replica, move->group, unit));
    }
}

static bool is_before(const ek_move *a, const ek_move *b)
{
    if (a->destination != b->destination)
        return a->destination < b->destination;
    if (a->group != b->group)
        return a->group < b->group;
    return a->destination_first < b->destination_first;
}

static bool some_unit_is_lost(const ek_membership *old, const ek_membership *next)
{
    const ek_job *job = ek_membership_job(old);
    for (uint32_t group = 0; group < job->group_count; group++)
        for (uint32_t unit = 0; unit < job->groups[group].units; unit++) {
            bool held = false;
            for (uint32_t replica = 0; replica < job->replicas && !held; replica++)
                held = holds_in_replica(old, next, replica, group, unit);
            if (!held)
                return true;
        }
    return false;
}

/* Returns false if a unit was lost, which must then be true. */
static bool check_moves(const ek_membership *old, const ek_membership *next)
{
    ek_move *moves;
    size_t count;
    ek_status status = ek_membership_moves(old, next, &moves, &count);
    if (status == EK_UNIT_LOST) {
        assert_true(some_unit_is_lost(old, next));
        return false;
    }
    assert_ok(status);
    stores before = full_stores(old), after = kept_stores(next, &before), expected = full_stores(next);
    for (size_t i = 0; i < count; i++) {
        apply_move(old, next, &before, &after, &moves[i]);
        if (i > 0)
            assert_true(is_before(&moves[i - 1], &moves[i]));
    }
    for (size_t i = 0; i < (size_t)after.ranks * (after.groups + 1); i++)
        assert_memory_equal(after.units[i], expected.units[i], after.counts[i] * sizeof(uint32_t));
    free_stores(&before);
    free_stores(&after);
    free_stores(&expected);
    ek_free(moves);
    return true;
}

static void moves_fill_every_store(void **state)
{
    (void)state;
    uint32_t checked = 0, lost_units = 0;
    for (uint64_t seed = 0; seed < 400; seed++) {
        history_random random = {.seed = seed};
        ek_unit_group groups[HISTORY_MAX_GROUPS];
        ek_job job = history_draw_job(&random, 3, groups);
        ek_membership *membership, *next;
        assert_ok(ek_membership_create(&membership, &job));
        for (uint32_t event = 0; event < 20; event++) {
            uint32_t lost[3], returning = history_draw_returning(&random, membership);
            if (history_draw(&random, 3) == 0 && returning != EK_NONE) {
                assert_ok(ek_membership_join(membership, returning, &next));
            } else {
                uint32_t count = history_draw_lost(&random, membership, 1 + history_draw(&random, 3), lost);
                if (ek_membership_lose(membership, lost, count, &next) != EK_OK)
                    break;
            }
            bool complete = check_moves(membership, next);
            ek_membership_destroy(membership);
            membership = next;
            checked++;
            lost_units += !complete;
        }
        ek_membership_destroy(membership);
    }
    print_message("%u recoveries planned, %u with a unit lost\n", checked, lost_units);
    assert_true(checked - lost_units > 1000 && lost_units > 10);
}

static ek_membership *create(uint32_t replicas, uint32_t base_degree, uint32_t spares, const ek_unit_group *groups,
                             uint32_t group_count)
{
    ek_membership *membership;
    assert_ok(ek_membership_create(&membership, &(ek_job){.replicas = replicas,
                                                          .base_degree = base_degree,
                                                          .spares = spares,
                                                          .groups = groups,
                                                          .group_count = group_count}));
    return membership;
}

/* Bytes that each rank sends to other replicas, and the number of runs sent so. */
static uint64_t *bytes_between_replicas(const ek_membership *old, const ek_membership *next, size_t *runs)
{
    ek_move *moves;
    size_t count;
    uint64_t *bytes = calloc(ek_membership_ranks(old), sizeof *bytes);
    assert_ok(ek_membership_moves(old, next, &moves, &count));
    *runs = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t source, destination;
        ek_membership_place(old, moves[i].source, &source, NULL);
        ek_membership_place(next, moves[i].destination, &destination, NULL);
        if (source == destination || moves[i].group == EK_REPLICATED)
            continue;
        bytes[moves[i].source] += moves[i].count * ek_membership_job(old)->groups[moves[i].group].unit_bytes;
        (*runs)++;
    }
    ek_free(moves);
    return bytes;
}

/* A rank is lost; those of its role in the other replicas serve what it held, in parts that differ by no more than a
 * unit or two, and in few runs: one for each destination and group, and one more for each source. */
static void sources_are_balanced(void **state)
{
    (void)state;
    const ek_unit_group groups[] = {{"attention", 64, 4000}, {"ffn", 1024, 300}, {"vocab", 2048, 70}};
    const uint64_t lost_bytes = (64 * 4000 + 1024 * 300 + 2048 * 70) / 8;
    ek_membership *old = create(5, 8, 0, groups, 3), *next;
    assert_ok(ek_membership_lose(old, (uint32_t[]){11}, 1, &next));
    size_t runs;
    uint64_t *bytes = bytes_between_replicas(old, next, &runs);
    for (uint32_t rank = 0; rank < 40; rank++) {
        if (rank % 8 == 3 && rank != 11)
            assert_in_range(bytes[rank], lost_bytes / 4 - 4000, lost_bytes / 4 + 4000);
        else
            assert_int_equal(bytes[rank], 0);
    }
    assert_true(runs <= 7 * 3 + 4);
    free(bytes);
    ek_membership_destroy(old);
    ek_membership_destroy(next);
}

/* What each rank would send to other replicas if every unit were spread evenly over all that hold it. */
static void add_fair_shares(const ek_membership *old, const ek_membership *next, double *fair)
{
    const ek_job *job = ek_membership_job(old);
    for (uint32_t rank = 0; rank < ek_membership_ranks(next); rank++)
        for (uint32_t group = 0; group < job->group_count; group++) {
            uint32_t replica, count;
            const uint32_t *units = ek_membership_units(next, rank, group, &count);
            for (uint32_t i = 0; i < count; i++) {
                uint32_t holders[8], holder_count = 0;
                ek_membership_place(next, rank, &replica, NULL);
                if (holds_in_replica(old, next, replica, group, units[i]))
                    continue;
                for (uint32_t other = 0; other < job->replicas; other++)
                    if (holds_in_replica(old, next, other, group, units[i]))
                        holders[holder_count++] =
                            ek_membership_rank(old, other,
                                               ek_chain_owner(ek_membership_chain(old, group),
                                                              ek_membership_level(old, other), units[i], NULL));
                for (uint32_t holder = 0; holder < holder_count; holder++)
                    fair[holders[holder]] += (double)job->groups[group].unit_bytes / holder_count;
            }
        }
}

/* Over histories: no source serves more than two units above the fair share of the one that serves most when every open
 * unit is spread over all its holders. */
static void sources_are_balanced_in_histories(void **state)
{
    (void)state;
    uint32_t checked = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        history_random random = {.seed = seed};
        ek_unit_group groups[] = {{"attention", 16 + history_draw(&random, 30), 400}, {"ffn", 90, 100}};
        ek_membership *membership = create(5, 8, 0, groups, 2), *next;
        for (uint32_t event = 0; event < 6; event++) {
            uint32_t lost[2], count = history_draw_lost(&random, membership, 2, lost);
            double fair[40] = {0}, most = 0;
            ek_move *moves;
            size_t move_count, runs;
            assert_ok(ek_membership_lose(membership, lost, count, &next));
            ek_status status = ek_membership_moves(membership, next, &moves, &move_count);
            if (status == EK_OK) {
                ek_free(moves);
                add_fair_shares(membership, next, fair);
                uint64_t *bytes = bytes_between_replicas(membership, next, &runs);
                for (uint32_t rank = 0; rank < 40; rank++)
                    most = fair[rank] > most ? fair[rank] : most;
                for (uint32_t rank = 0; rank < 40; rank++)
                    assert_true((double)bytes[rank] <= most + 2 * 400);
                free(bytes);
                checked++;
            }
            ek_membership_destroy(membership);
            membership = next;
            if (status != EK_OK)
                break;
        }
        ek_membership_destroy(membership);
    }
    assert_true(checked > 500);
}

/* Both holders of a unit die: the text names the unit and them. */
static void lost_unit_is_named(void **state)
{
    (void)state;
    const ek_unit_group groups[] = {{"vocab", 256, 1}, {"attention", 24, 1}};
    ek_membership *old = create(2, 4, 0, groups + 1, 1), *next;
    ek_move *moves = NULL;
    size_t count = 77;
    assert_ok(ek_membership_lose(old, (uint32_t[]){2, 6}, 2, &next));
    assert_int_equal(ek_membership_moves(old, next, &moves, &count), EK_UNIT_LOST);
    assert_string_equal(ek_error(), "no survivor holds unit 12 of attention (lost with ranks 2, 6)");
    assert_true(moves == NULL && count == 77);
    ek_membership_destroy(next);
    ek_membership_destroy(old);

    old = create(100, 2, 0, groups, 2); /* the list of ranks is cut, the text is one line */
    uint32_t lost[100];
    for (uint32_t replica = 0; replica < 100; replica++)
        lost[replica] = 2 * replica;
    assert_ok(ek_membership_lose(old, lost, 100, &next));
    assert_int_equal(ek_membership_moves(old, next, &moves, &count), EK_UNIT_LOST);
    assert_non_null(strstr(ek_error(), "unit 0 of vocab (lost with ranks 0, 2, 4, 6, 8, 10, 12, 14 and 92 more)"));
    ek_membership_destroy(next);
    ek_membership_destroy(old);
}

/* A spare has nothing: it fetches every unit of its role and the replicated tensors, these from its own replica. */
static void spare_fetches_everything(void **state)
{
    (void)state;
    const ek_unit_group group = {"ffn", 12, 100};
    ek_membership *old = create(2, 4, 1, &group, 1), *next;
    ek_move *moves;
    size_t count;
    assert_ok(ek_membership_lose(old, (uint32_t[]){5}, 1, &next));
    assert_ok(ek_membership_moves(old, next, &moves, &count));
    assert_int_equal(count, 2);
    assert_memory_equal(&moves[0], &((ek_move){0, 1, 8, 0, 0, 3}), sizeof *moves);
    assert_memory_equal(&moves[1], &((ek_move){EK_REPLICATED, 4, 8, 0, 0, 1}), sizeof *moves);
    ek_free(moves);
    ek_membership_destroy(next);
    ek_membership_destroy(old);
}

/* Ranks of a retired replica still serve: replica 0 loses two of four, replica 1 the rank that holds the same units as
 * rank 2, which survives in the replica that is given up. */
static void retired_replica_serves(void **state)
{
    (void)state;
    const ek_unit_group group = {"ffn", 12, 100};
    ek_membership *old, *next;
    ek_move *moves;
    size_t count;
    ek_job job = {.replicas = 2, .base_degree = 4, .min_degree = 3, .groups = &group, .group_count = 1};
    assert_ok(ek_membership_create(&old, &job));
    assert_ok(ek_membership_lose(old, (uint32_t[]){0, 1, 6}, 3, &next));
    assert_int_equal(ek_membership_degree(next, 0), 0);
    assert_ok(ek_membership_moves(old, next, &moves, &count));
    assert_int_equal(count, 3);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(moves[i].source, 2);
    ek_free(moves);
    ek_membership_destroy(next);
    ek_membership_destroy(old);
}

static void nothing_moves_without_a_change(void **state)
{
    (void)state;
    const ek_unit_group group = {"ffn", 12, 100};
    ek_membership *old = create(2, 4, 1, &group, 1), *next;
    ek_move *moves;
    size_t count;
    assert_ok(ek_membership_lose(old, NULL, 0, &next));
    assert_ok(ek_membership_moves(old, next, &moves, &count));
    assert_int_equal(count, 0);
    ek_free(moves);
    ek_membership_destroy(next);
    ek_membership_destroy(old);
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* 32,768 ranks, 100 of them lost: in one failure and one by one. */
static void large_jobs_are_planned_quickly(void **state)
{
    (void)state;
    const ek_unit_group groups[] = {{"attention", 128, 4000}, {"ffn", 128, 300}, {"vocab", 128, 70}};
    history_random random = {.seed = 7};
    double start = seconds_now();
    ek_membership *whole = create(1024, 32, 0, groups, 3), *next;
    uint32_t lost[100];
    assert_int_equal(history_draw_lost(&random, whole, 100, lost), 100);
    double created = seconds_now();
    ek_move *moves;
    size_t count;
    assert_ok(ek_membership_lose(whole, lost, 100, &next));
    double settled = seconds_now();
    assert_ok(ek_membership_moves(whole, next, &moves, &count));
    double planned = seconds_now();
    ek_free(moves);
    ek_membership_destroy(next);
    ek_membership *membership = whole;
    for (uint32_t i = 0; i < 100; i++) {
        assert_ok(ek_membership_lose(membership, &lost[i], 1, &next));
        assert_ok(ek_membership_moves(membership, next, &moves, &count));
        ek_free(moves);
        ek_membership_destroy(membership);
        membership = next;
    }
    double one_by_one = seconds_now();
    ek_membership_destroy(membership);
    print_message("32,768 ranks: created in %.1f ms; 100 lost at once: settled in %.1f ms, planned in %.1f ms; "
                  "one by one: %.1f ms each\n",
                  (created - start) * 1e3, (settled - created) * 1e3, (planned - settled) * 1e3,
                  (one_by_one - planned) * 1e3 / 100);
    assert_true(planned - start < 1.0); /* far above what it takes, for a busy or instrumented machine */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_moves_without_a_change), cmocka_unit_test(spare_fetches_everything),
        cmocka_unit_test(retired_replica_serves),         cmocka_unit_test(lost_unit_is_named),
        cmocka_unit_test(sources_are_balanced),           cmocka_unit_test(sources_are_balanced_in_histories),
        cmocka_unit_test(large_jobs_are_planned_quickly), cmocka_unit_test(moves_fill_every_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
