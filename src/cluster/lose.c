/* The membership after a failure: the three rules at ek_membership_lose in evenkeel.h. */
#include "cluster/membership.h"

#include "base/error.h"

#include <stdlib.h>

/* A failure being settled. next->degrees counts survivors alone until the spares are seated. */
struct failure {
    const ek_membership *old;
    ek_membership *next;
    bool *stays;           /* [R] */
    uint32_t *spares;      /* those that were spares before the failure, ascending */
    uint32_t *first_spare; /* [R] the replica gets spares[first_spare …], */
    uint32_t *spare_count; /* [R] so many */
    uint32_t all_spares;
    bool *allowed; /* [N + 1] degrees at which a replica may stay */
};

static void remove_lost(ek_membership *next, const uint32_t *lost, uint32_t lost_count)
{
    for (uint32_t i = 0; i < lost_count; i++) {
        uint32_t replica;
        if (lost[i] >= ek_membership_ranks(next))
            continue;
        if (ek_membership_place(next, lost[i], &replica, NULL)) {
            next->ranks[next->places[lost[i]]] = EK_NONE;
            next->degrees[replica]--;
        }
        next->places[lost[i]] = PLACE_ABSENT;
    }
}

static ek_status begin(struct failure *failure, const ek_membership *old, const uint32_t *lost, uint32_t lost_count)
{
    EK_TRY(membership_copy(old, &failure->next));
    ek_membership *next = failure->next;
    uint32_t replicas = old->job.replicas, ranks = ek_membership_ranks(old);
    failure->old = old;
    failure->stays = calloc(replicas, sizeof *failure->stays);
    failure->spares = calloc(ranks, sizeof *failure->spares);
    failure->first_spare = calloc(replicas, sizeof *failure->first_spare);
    failure->spare_count = calloc(replicas, sizeof *failure->spare_count);
    failure->allowed = calloc((size_t)old->job.base_degree + 1, sizeof *failure->allowed);
    if (!failure->stays || !failure->spares || !failure->first_spare || !failure->spare_count || !failure->allowed)
        return ek_fail(EK_NO_MEMORY, "no memory to settle a failure among %u ranks", ranks);
    remove_lost(next, lost, lost_count);
    for (uint32_t replica = 0; replica < replicas; replica++)
        failure->stays[replica] = old->degrees[replica] > 0;
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (next->places[rank] == PLACE_SPARE)
            failure->spares[failure->all_spares++] = rank;
    return EK_OK;
}

static void end(struct failure *failure)
{
    free(failure->stays);
    free(failure->spares);
    free(failure->first_spare);
    free(failure->spare_count);
    free(failure->allowed);
}

/* Rule 1: spares for the replicas that were hit, deepest first (ties: the lowest). */
static void share_out_spares(struct failure *failure)
{
    const ek_membership *old = failure->old, *next = failure->next;
    uint32_t given = 0;
    for (uint32_t survivors = 0; survivors < old->job.base_degree; survivors++) {
        for (uint32_t replica = 0; replica < old->job.replicas; replica++) {
            if (!failure->stays[replica] || next->degrees[replica] != survivors)
                continue;
            uint32_t lost = old->degrees[replica] - survivors, left = failure->all_spares - given;
            failure->first_spare[replica] = given;
            failure->spare_count[replica] = lost < left ? lost : left;
            given += failure->spare_count[replica];
        }
    }
}

static uint32_t degree_after(const struct failure *failure, uint32_t replica)
{
    return failure->next->degrees[replica] + failure->spare_count[replica];
}

/* The replica of the least degree among those that stay (ties: the lowest), or EK_NONE. */
static uint32_t find_deepest(const struct failure *failure)
{
    uint32_t deepest = EK_NONE;
    for (uint32_t replica = 0; replica < failure->old->job.replicas; replica++)
        if (failure->stays[replica] &&
            (deepest == EK_NONE || degree_after(failure, replica) < degree_after(failure, deepest)))
            deepest = replica;
    return deepest;
}

/* The replica with the fewest survivors (ties: the lowest) among those whose degree is not allowed, or EK_NONE. By
 * survivors and not by degree, so that spares that could not save a replica go to the next. */
static uint32_t find_too_small(const struct failure *failure)
{
    const ek_membership *next = failure->next;
    uint32_t found = EK_NONE;
    for (uint32_t replica = 0; replica < next->job.replicas; replica++)
        if (failure->stays[replica] && !failure->allowed[degree_after(failure, replica)] &&
            (found == EK_NONE || next->degrees[replica] < next->degrees[found]))
            found = replica;
    return found;
}

static void retire(struct failure *failure, uint32_t replica)
{
    ek_membership *next = failure->next;
    uint32_t *ranks = membership_ranks_of(next, replica);
    for (uint32_t role = 0; role < next->job.base_degree; role++) {
        if (ranks[role] != EK_NONE)
            next->places[ranks[role]] = PLACE_SPARE;
        ranks[role] = EK_NONE;
    }
    next->degrees[replica] = 0;
    failure->stays[replica] = false;
    failure->spare_count[replica] = 0;
}

/* Rule 2. `deepest` is the deepest replica that stays. */
static ek_status settle_drop_order(struct failure *failure, uint32_t deepest)
{
    uint32_t base_degree = failure->old->job.base_degree, kept = 0;
    for (uint32_t replica = 0; replica < failure->old->job.replicas; replica++) {
        uint32_t level = ek_membership_level(failure->old, replica);
        if (failure->stays[replica] && level > kept)
            kept = level;
    }
    return membership_set_drop_order(failure->next, kept, base_degree - degree_after(failure, deepest), deepest);
}

/* Rules 1 and 2. Retires replicas one by one until all that stay are large enough. Each time the spares and the drop
 * order are settled anew, since others may now get the spares and the sync level may have fallen. */
static ek_status settle(struct failure *failure)
{
    uint32_t base_degree = failure->old->job.base_degree;
    for (;;) {
        share_out_spares(failure);
        for (uint32_t degree = 0; degree <= base_degree; degree++)
            failure->allowed[degree] = degree >= failure->old->job.min_degree;
        uint32_t too_small = find_too_small(failure);
        if (too_small == EK_NONE) {
            uint32_t deepest = find_deepest(failure);
            if (deepest == EK_NONE)
                return ek_fail(EK_NO_REPLICA, "no replica stays: none has as many ranks left as a replica must have");
            EK_TRY(settle_drop_order(failure, deepest));
            for (uint32_t level = 0; level <= failure->next->sync_level; level++)
                failure->allowed[base_degree - level] = membership_fits(failure->next, level);
            too_small = find_too_small(failure);
        }
        if (too_small == EK_NONE)
            return EK_OK;
        retire(failure, too_small);
    }
}

/* Rule 3, in the replicas that were hit. */
static void seat(struct failure *failure)
{
    ek_membership *next = failure->next;
    for (uint32_t replica = 0; replica < next->job.replicas; replica++) {
        if (!failure->stays[replica] || next->degrees[replica] == failure->old->degrees[replica])
            continue;
        next->degrees[replica] = degree_after(failure, replica);
        membership_seat(next, replica, failure->spares + failure->first_spare[replica], failure->spare_count[replica]);
    }
}

ek_status ek_membership_lose(const ek_membership *old, const uint32_t *lost, uint32_t lost_count, ek_membership **next)
{
    struct failure failure = {0};
    ek_status status = begin(&failure, old, lost, lost_count);
    if (status == EK_OK)
        status = settle(&failure);
    if (status == EK_OK) {
        seat(&failure);
        *next = failure.next;
    } else {
        ek_membership_destroy(failure.next);
    }
    end(&failure);
    return status;
}
