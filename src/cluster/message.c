/* A membership as a message to a rank of the same job. */
#include "cluster/membership.h"

#include "base/error.h"

#include <string.h>

/* The words: sync level | drop order [N] | places [ranks]. All else follows from them. */
size_t membership_packed_words(const ek_membership *membership)
{
    return 1 + (size_t)membership->job.base_degree + ek_membership_ranks(membership);
}

void membership_pack(const ek_membership *membership, uint32_t *words)
{
    uint32_t degree = membership->job.base_degree;
    words[0] = membership->sync_level;
    memcpy(words + 1, membership->drop_order, degree * sizeof *words);
    memcpy(words + 1 + degree, membership->places, ek_membership_ranks(membership) * sizeof *words);
}

ek_status membership_unpack(const ek_membership *shape, const uint32_t *words, ek_membership **membership)
{
    ek_membership *created;
    EK_TRY(membership_copy(shape, &created));
    uint32_t degree = created->job.base_degree, ranks = ek_membership_ranks(created), level = words[0];
    memcpy(created->drop_order, words + 1, degree * sizeof *words);
    memcpy(created->places, words + 1 + degree, ranks * sizeof *words);
    memset(created->gone_at, 0xff, degree * sizeof *created->gone_at);
    for (uint32_t k = 0; k < level; k++)
        created->gone_at[created->drop_order[k]] = k + 1;
    memset(created->degrees, 0, created->job.replicas * sizeof *created->degrees);
    memset(created->ranks, 0xff, (size_t)created->job.replicas * degree * sizeof *created->ranks);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        uint32_t replica;
        if (!ek_membership_place(created, rank, &replica, NULL))
            continue;
        created->ranks[created->places[rank]] = rank;
        created->degrees[replica]++;
    }
    ek_status status = membership_set_drop_order(created, level, level, 0);
    if (status != EK_OK) {
        ek_membership_destroy(created);
        return status;
    }
    *membership = created;
    return EK_OK;
}
