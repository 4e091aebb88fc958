/* The inside of a membership and the steps that losing and joining share. The interface is in evenkeel.h. */
#ifndef EK_CLUSTER_MEMBERSHIP_H
#define EK_CLUSTER_MEMBERSHIP_H

#include <evenkeel.h>

/* Where a rank is, in ek_membership.places: replica * N + role, or one of these. */
#define PLACE_ABSENT UINT32_MAX
#define PLACE_SPARE (UINT32_MAX - 1)

/* R is job.replicas, N is job.base_degree. */
struct ek_membership {
    ek_job job; /* its groups and their names are the membership's own */
    uint32_t sync_level;
    uint32_t *drop_order; /* [N], sync_level of them used */
    uint32_t *gone_at;    /* [N] the first level at which the role does not exist; EK_NONE: not dropped */
    uint32_t *degrees;    /* [R], 0: retired */
    uint32_t *ranks;      /* [R][N] or EK_NONE */
    uint32_t *places;     /* [ranks] */
    ek_chain **chains;    /* [groups] */
};

static inline uint32_t *membership_ranks_of(const ek_membership *membership, uint32_t replica)
{
    return membership->ranks + (size_t)replica * membership->job.base_degree;
}

/* A copy to be changed, without chains. */
ek_status membership_copy(const ek_membership *old, ek_membership **copy);

/* Keeps the first `kept` roles of the drop order and extends it to `levels` by roles that no rank of `replica` holds,
 * in ascending order; then builds the chains. */
ek_status membership_set_drop_order(ek_membership *membership, uint32_t kept, uint32_t levels, uint32_t replica);

/* Gives every rank of a replica a role that exists at its level: ranks keep theirs if it does, the others, then the
 * `count` spares, take the vacant ones in ascending order. degrees[replica] counts the spares in. */
void membership_seat(ek_membership *membership, uint32_t replica, const uint32_t *spares, uint32_t count);

/* Whether the largest share at the level fits a rank's memory. */
bool membership_fits(const ek_membership *membership, uint32_t level);

/* A membership in words that its copy elsewhere can be made from, given any membership of the same job. */
size_t membership_packed_words(const ek_membership *membership);
void membership_pack(const ek_membership *membership, uint32_t *words);
ek_status membership_unpack(const ek_membership *shape, const uint32_t *words, ek_membership **membership);

#endif
