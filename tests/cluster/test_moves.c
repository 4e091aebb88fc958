/* State motion over random histories: stores are simulated, the moves applied to them, and the result compared with
 * what each rank must hold. */
#include "histories.h"

#include <stdlib.h>
#include <string.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves_fill_every_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
