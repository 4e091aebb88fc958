/* Random histories of failures from a seed. */
#include "histories.h"

#include "base/rng.h"

#include <stdlib.h>

uint32_t history_draw(history_random *random, uint32_t below)
{
    return (uint32_t)(ek_random_u64(random->seed, 0, random->draws++) % below);
}

uint32_t history_active_ranks(const ek_membership *membership)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < ek_membership_ranks(membership); rank++)
        count += ek_membership_place(membership, rank, NULL, NULL);
    return count;
}

uint32_t history_known_ranks(const ek_membership *membership, uint32_t *ranks)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < ek_membership_ranks(membership); rank++)
        if (ek_membership_place(membership, rank, NULL, NULL) || ek_membership_is_spare(membership, rank))
            ranks[count++] = rank;
    return count;
}

uint32_t history_draw_lost(history_random *random, const ek_membership *membership, uint32_t count, uint32_t *lost)
{
    uint32_t *known = calloc(ek_membership_ranks(membership), sizeof *known);
    uint32_t known_count = history_known_ranks(membership, known), drawn = 0;
    while (drawn < count && known_count > 0) {
        uint32_t i = history_draw(random, known_count);
        lost[drawn++] = known[i];
        known[i] = known[--known_count];
    }
    free(known);
    return drawn;
}

uint32_t history_draw_returning(history_random *random, const ek_membership *membership)
{
    uint32_t ranks = ek_membership_ranks(membership), begin = history_draw(random, ranks);
    for (uint32_t i = 0; i < ranks; i++)
        if (!ek_membership_place(membership, (begin + i) % ranks, NULL, NULL))
            return (begin + i) % ranks;
    return EK_NONE;
}

ek_job history_draw_job(history_random *random, uint32_t spares, ek_unit_group groups[HISTORY_MAX_GROUPS])
{
    static const char *const names[HISTORY_MAX_GROUPS] = {"attention", "ffn", "vocab"};
    ek_job job = {.replicas = 1 + history_draw(random, 5), .base_degree = 1 + history_draw(random, 8)};
    job.min_degree = history_draw(random, job.base_degree + 1);
    job.spares = history_draw(random, spares + 1);
    job.group_count = 1 + history_draw(random, HISTORY_MAX_GROUPS);
    for (uint32_t group = 0; group < job.group_count; group++)
        groups[group] = (ek_unit_group){.name = names[group],
                                        .units = job.base_degree + history_draw(random, 60),
                                        .unit_bytes = history_draw(random, 2) * (100 + history_draw(random, 900))};
    job.groups = groups;
    job.replicated_bytes = history_draw(random, 500);
    return job;
}
