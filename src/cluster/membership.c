/* Who serves which role of which replica: making a membership, reading it, and the steps that losing (lose.c) and
 * joining (join.c) share. */
#include "cluster/membership.h"

#include "base/error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static ek_status check_job(const ek_job *job)
{
    if (job->replicas == 0 || job->base_degree == 0)
        return ek_fail(EK_INVALID, "a job needs at least one replica of at least one rank, not %u of %u", job->replicas,
                       job->base_degree);
    if ((uint64_t)job->replicas * job->base_degree + job->spares >= PLACE_SPARE)
        return ek_fail(EK_INVALID, "%u replicas of %u ranks and %u spares are too many", job->replicas,
                       job->base_degree, job->spares);
    if (job->min_degree > job->base_degree)
        return ek_fail(EK_INVALID, "the least degree %u is above the base degree %u", job->min_degree,
                       job->base_degree);
    for (uint32_t group = 0; group < job->group_count; group++)
        if (job->groups[group].units < job->base_degree)
            return ek_fail(EK_INVALID, "%u units of %s cannot be shared out to %u ranks: each needs at least one",
                           job->groups[group].units, job->groups[group].name, job->base_degree);
    return EK_OK;
}

static ek_status copy_groups(ek_job *job)
{
    ek_unit_group *groups = calloc((size_t)job->group_count + 1, sizeof *groups);
    const ek_unit_group *originals = job->groups;
    job->groups = groups;
    for (uint32_t group = 0; groups && group < job->group_count; group++) {
        groups[group] = originals[group];
        groups[group].name = strdup(originals[group].name);
        if (!groups[group].name)
            return ek_fail(EK_NO_MEMORY, "no memory for the name of a unit group");
    }
    return groups ? EK_OK : ek_fail(EK_NO_MEMORY, "no memory for %u unit groups", job->group_count);
}

/* Every rank absent, every replica retired. */
static ek_status allocate(const ek_job *job, ek_membership **membership)
{
    ek_membership *created = calloc(1, sizeof *created);
    if (!created)
        return ek_fail(EK_NO_MEMORY, "no memory for a membership");
    created->job = *job;
    size_t degree = job->base_degree, roles = job->replicas * degree, ranks = ek_membership_ranks(created);
    ek_status status = copy_groups(&created->job);
    created->drop_order = calloc(degree, sizeof *created->drop_order);
    created->gone_at = malloc(degree * sizeof *created->gone_at);
    created->degrees = calloc(job->replicas, sizeof *created->degrees);
    created->ranks = malloc(roles * sizeof *created->ranks);
    created->places = malloc(ranks * sizeof *created->places);
    created->chains = calloc((size_t)job->group_count + 1, sizeof(ek_chain *));
    if (status == EK_OK && (!created->drop_order || !created->gone_at || !created->degrees || !created->ranks ||
                            !created->places || !created->chains))
        status = ek_fail(EK_NO_MEMORY, "no memory for a membership of %zu ranks", ranks);
    if (status != EK_OK) {
        ek_membership_destroy(created);
        return status;
    }
    memset(created->gone_at, 0xff, degree * sizeof *created->gone_at);
    memset(created->ranks, 0xff, roles * sizeof *created->ranks);
    memset(created->places, 0xff, ranks * sizeof *created->places);
    *membership = created;
    return EK_OK;
}

static void destroy_chains(ek_membership *membership)
{
    for (uint32_t group = 0; group < membership->job.group_count; group++) {
        ek_chain_destroy(membership->chains[group]);
        membership->chains[group] = NULL;
    }
}

void ek_membership_destroy(ek_membership *membership)
{
    if (!membership)
        return;
    if (membership->chains)
        destroy_chains(membership);
    for (uint32_t group = 0; membership->job.groups && group < membership->job.group_count; group++)
        free((char *)membership->job.groups[group].name);
    free((ek_unit_group *)membership->job.groups);
    free(membership->drop_order);
    free(membership->gone_at);
    free(membership->degrees);
    free(membership->ranks);
    free(membership->places);
    free(membership->chains);
    free(membership);
}

ek_status membership_copy(const ek_membership *old, ek_membership **copy)
{
    ek_membership *created;
    EK_TRY(allocate(&old->job, &created));
    size_t degree = old->job.base_degree, replicas = old->job.replicas;
    created->sync_level = old->sync_level;
    memcpy(created->drop_order, old->drop_order, degree * sizeof *old->drop_order);
    memcpy(created->gone_at, old->gone_at, degree * sizeof *old->gone_at);
    memcpy(created->degrees, old->degrees, replicas * sizeof *old->degrees);
    memcpy(created->ranks, old->ranks, replicas * degree * sizeof *old->ranks);
    memcpy(created->places, old->places, ek_membership_ranks(old) * sizeof *old->places);
    *copy = created;
    return EK_OK;
}

ek_status membership_set_drop_order(ek_membership *membership, uint32_t kept, uint32_t levels, uint32_t replica)
{
    uint32_t degree = membership->job.base_degree;
    for (uint32_t role = 0; role < degree; role++)
        if (membership->gone_at[role] != EK_NONE && membership->gone_at[role] > kept)
            membership->gone_at[role] = EK_NONE;
    uint32_t level = kept;
    const uint32_t *ranks = membership_ranks_of(membership, replica);
    for (uint32_t role = 0; role < degree && level < levels; role++) {
        if (ranks[role] != EK_NONE || membership->gone_at[role] != EK_NONE)
            continue;
        membership->drop_order[level] = role;
        membership->gone_at[role] = ++level;
    }
    assert(level == levels);
    membership->sync_level = levels;

    destroy_chains(membership);
    for (uint32_t group = 0; group < membership->job.group_count; group++)
        EK_TRY(ek_chain_create(&membership->chains[group], membership->job.groups[group].units, degree,
                               membership->drop_order, levels, group));
    return EK_OK;
}

void membership_seat(ek_membership *membership, uint32_t replica, const uint32_t *spares, uint32_t count)
{
    uint32_t degree = membership->job.base_degree, level = degree - membership->degrees[replica];
    uint32_t *ranks = membership_ranks_of(membership, replica);
    uint32_t displaced = 0, spare = 0; /* a role below `displaced` has been asked for a rank to move */
    for (uint32_t role = 0; role < degree; role++) {
        if (membership->gone_at[role] <= level)
            continue;
        if (ranks[role] == EK_NONE) {
            while (displaced < degree && (membership->gone_at[displaced] > level || ranks[displaced] == EK_NONE))
                displaced++;
            if (displaced < degree) {
                ranks[role] = ranks[displaced];
                ranks[displaced] = EK_NONE;
            } else {
                assert(spare < count);
                ranks[role] = spares[spare++];
            }
        }
        membership->places[ranks[role]] = replica * degree + role;
    }
    assert(spare == count);
    (void)count;
}

bool membership_fits(const ek_membership *membership, uint32_t level)
{
    const ek_job *job = &membership->job;
    if (job->rank_bytes == 0)
        return true;
    for (uint32_t role = 0; role < job->base_degree; role++) {
        uint64_t bytes = job->replicated_bytes;
        for (uint32_t group = 0; group < job->group_count; group++)
            bytes += ek_chain_count(membership->chains[group], level, role) * job->groups[group].unit_bytes;
        if (bytes > job->rank_bytes)
            return false;
    }
    return true;
}

ek_status ek_membership_create(ek_membership **membership, const ek_job *job)
{
    EK_TRY(check_job(job));
    ek_membership *created;
    EK_TRY(allocate(job, &created));
    if (created->job.min_degree == 0)
        created->job.min_degree = 1;
    uint32_t roles = job->replicas * job->base_degree;
    for (uint32_t rank = 0; rank < roles; rank++)
        created->ranks[rank] = created->places[rank] = rank;
    for (uint32_t spare = 0; spare < job->spares; spare++)
        created->places[roles + spare] = PLACE_SPARE;
    for (uint32_t replica = 0; replica < job->replicas; replica++)
        created->degrees[replica] = job->base_degree;

    ek_status status = membership_set_drop_order(created, 0, 0, 0);
    if (status == EK_OK && !membership_fits(created, 0))
        status = ek_fail(EK_INVALID, "a rank's share of the state does not fit its %llu bytes at degree %u",
                         (unsigned long long)job->rank_bytes, job->base_degree);
    if (status != EK_OK) {
        ek_membership_destroy(created);
        return status;
    }
    *membership = created;
    return EK_OK;
}

const ek_job *ek_membership_job(const ek_membership *membership)
{
    return &membership->job;
}

uint32_t ek_membership_ranks(const ek_membership *membership)
{
    return membership->job.replicas * membership->job.base_degree + membership->job.spares;
}

uint32_t ek_membership_sync_level(const ek_membership *membership)
{
    return membership->sync_level;
}

const uint32_t *ek_membership_drop_order(const ek_membership *membership)
{
    return membership->drop_order;
}

uint32_t ek_membership_degree(const ek_membership *membership, uint32_t replica)
{
    assert(replica < membership->job.replicas);
    return membership->degrees[replica];
}

uint32_t ek_membership_level(const ek_membership *membership, uint32_t replica)
{
    uint32_t degree = ek_membership_degree(membership, replica);
    return degree == 0 ? EK_NONE : membership->job.base_degree - degree;
}

uint32_t ek_membership_rank(const ek_membership *membership, uint32_t replica, uint32_t role)
{
    assert(replica < membership->job.replicas && role < membership->job.base_degree);
    return membership_ranks_of(membership, replica)[role];
}

uint32_t ek_membership_replica(const ek_membership *membership, uint32_t replica, uint32_t *ranks)
{
    uint32_t count = 0;
    for (uint32_t role = 0; role < membership->job.base_degree; role++) {
        uint32_t rank = ek_membership_rank(membership, replica, role);
        if (rank != EK_NONE)
            ranks[count++] = rank;
    }
    return count;
}

bool ek_membership_place(const ek_membership *membership, uint32_t rank, uint32_t *replica, uint32_t *role)
{
    assert(rank < ek_membership_ranks(membership));
    uint32_t place = membership->places[rank];
    if (place == PLACE_ABSENT || place == PLACE_SPARE)
        return false;
    if (replica)
        *replica = place / membership->job.base_degree;
    if (role)
        *role = place % membership->job.base_degree;
    return true;
}

bool ek_membership_is_spare(const ek_membership *membership, uint32_t rank)
{
    assert(rank < ek_membership_ranks(membership));
    return membership->places[rank] == PLACE_SPARE;
}

const ek_chain *ek_membership_chain(const ek_membership *membership, uint32_t group)
{
    assert(group < membership->job.group_count);
    return membership->chains[group];
}

const uint32_t *ek_membership_units(const ek_membership *membership, uint32_t rank, uint32_t group, uint32_t *count)
{
    uint32_t replica, role;
    if (!ek_membership_place(membership, rank, &replica, &role)) {
        *count = 0;
        return NULL;
    }
    const ek_chain *chain = ek_membership_chain(membership, group);
    *count = ek_chain_count(chain, ek_membership_level(membership, replica), role);
    return ek_chain_list(chain, role);
}

uint32_t ek_membership_first_core(const ek_membership *membership)
{
    uint32_t role = 0;
    while (membership->gone_at[role] != EK_NONE)
        role++;
    return role;
}
