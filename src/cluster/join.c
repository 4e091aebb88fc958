/* The membership after a rank joined; see ek_membership_join in evenkeel.h. */
#include "cluster/membership.h"

#include "base/error.h"

#include <stdlib.h>

/* The replica that a rank was born into, or EK_NONE. */
static uint32_t home_of(const ek_membership *membership, uint32_t rank)
{
    uint32_t home = rank / membership->job.base_degree;
    return home < membership->job.replicas ? home : EK_NONE;
}

/* The deepest replica (ties: the lowest), or EK_NONE if all are retired. */
static uint32_t find_deepest(const ek_membership *membership)
{
    uint32_t deepest = EK_NONE;
    for (uint32_t replica = 0; replica < membership->job.replicas; replica++) {
        uint32_t degree = membership->degrees[replica];
        if (degree > 0 && (deepest == EK_NONE || degree < membership->degrees[deepest]))
            deepest = replica;
    }
    return deepest;
}

/* `rank` takes the role that its replica dropped last. */
static void fill(ek_membership *membership, uint32_t replica, uint32_t rank)
{
    uint32_t role = membership->drop_order[ek_membership_level(membership, replica) - 1];
    membership_ranks_of(membership, replica)[role] = rank;
    membership->places[rank] = replica * membership->job.base_degree + role;
    membership->degrees[replica]++;
}

/* A retired replica comes back with those of its ranks that are spares, if they are enough; each gets the role that it
 * had at first if that exists. Otherwise *revived is false and the membership as it was, but without chains. */
static ek_status revive(ek_membership *membership, uint32_t replica, bool *revived)
{
    uint32_t degree = membership->job.base_degree, *ranks = membership_ranks_of(membership, replica), present = 0;
    *revived = false;
    for (uint32_t slot = 0; slot < degree; slot++) {
        uint32_t rank = replica * degree + slot;
        if (membership->places[rank] == PLACE_SPARE) {
            ranks[slot] = rank;
            present++;
        }
    }
    uint32_t level = degree - present, sync_level = membership->sync_level;
    if (present >= membership->job.min_degree) {
        EK_TRY(membership_set_drop_order(membership, sync_level, level > sync_level ? level : sync_level, replica));
        *revived = membership_fits(membership, level);
    }
    if (*revived) {
        membership->degrees[replica] = present;
        membership_seat(membership, replica, NULL, 0);
        return EK_OK;
    }
    for (uint32_t slot = 0; slot < degree; slot++)
        ranks[slot] = EK_NONE;
    return EK_OK;
}

static ek_status settle(ek_membership *next, uint32_t rank)
{
    uint32_t home = home_of(next, rank);
    next->places[rank] = PLACE_SPARE;
    if (home != EK_NONE && next->degrees[home] == 0) {
        bool revived;
        EK_TRY(revive(next, home, &revived));
    } else {
        uint32_t deepest = find_deepest(next);
        bool home_has_room = home != EK_NONE && next->degrees[home] < next->job.base_degree;
        uint32_t replica = home_has_room ? home : deepest;
        if (ek_membership_level(next, replica) > 0)
            fill(next, replica, rank);
    }
    uint32_t level = ek_membership_level(next, find_deepest(next));
    return membership_set_drop_order(next, level, level, 0);
}

ek_status ek_membership_join(const ek_membership *old, uint32_t rank, ek_membership **next)
{
    if (rank >= ek_membership_ranks(old))
        return ek_fail(EK_INVALID, "rank %u cannot join: the job knows ranks below %u", rank, ek_membership_ranks(old));
    if (ek_membership_place(old, rank, NULL, NULL))
        return ek_fail(EK_INVALID, "rank %u cannot join: it holds a role already", rank);
    ek_membership *joined;
    EK_TRY(membership_copy(old, &joined));
    ek_status status = settle(joined, rank);
    if (status != EK_OK) {
        ek_membership_destroy(joined);
        return status;
    }
    *next = joined;
    return EK_OK;
}

ek_status ek_membership_follow(const ek_membership *old, const bool *live, ek_membership **next)
{
    uint32_t ranks = ek_membership_ranks(old), lost_count = 0;
    uint32_t *lost = calloc(ranks, sizeof *lost);
    if (!lost)
        return ek_fail(EK_NO_MEMORY, "no memory for a membership");
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (!live[rank])
            lost[lost_count++] = rank;
    ek_membership *current = NULL;
    ek_status status = ek_membership_lose(old, lost, lost_count, &current);
    for (uint32_t rank = 0; rank < ranks && status == EK_OK; rank++) {
        if (!live[rank] || ek_membership_place(old, rank, NULL, NULL) || ek_membership_is_spare(old, rank))
            continue;
        ek_membership *joined = NULL;
        status = ek_membership_join(current, rank, &joined);
        ek_membership_destroy(current);
        current = joined;
    }
    free(lost);
    if (status == EK_OK)
        *next = current;
    else
        ek_membership_destroy(current);
    return status;
}
