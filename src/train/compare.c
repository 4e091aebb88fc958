/* Hashes of all copies, gathered on every rank, and the copies that differ from most put right. */
#include "train/compare.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/hash.h"

/* Units of a tensor on a rank, by number; NULL for a replicated one (its only unit is 0). */
static const uint32_t *units_of(const ek_membership *membership, uint32_t rank, const ek_tensor *tensor,
                                uint32_t *count)
{
    *count = 1;
    return tensor->group == EK_REPLICATED ? NULL : ek_membership_units(membership, rank, tensor->group, count);
}

static size_t hashes_of_rank(const ek_membership *membership, uint32_t rank, const ek_tensor *tensors,
                             size_t tensor_count)
{
    size_t hashes = 0;
    for (size_t t = 0; t < tensor_count; t++) {
        uint32_t count;
        units_of(membership, rank, &tensors[t], &count);
        hashes += count;
    }
    return hashes;
}

static void hash_state(ek_engine *engine, uint64_t note, const ek_membership *membership, const ek_store *store,
                       const ek_tensor *tensors, size_t tensor_count, uint64_t *hashes)
{
    uint32_t rank = ek_engine_rank(engine);
    for (size_t t = 0; t < tensor_count; t++) {
        uint32_t count;
        units_of(membership, rank, &tensors[t], &count);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t hash = 0;
            for (int plane = 0; plane < EK_PLANES; plane++)
                hash = ek_hash(store->planes[plane][t] + i * tensors[t].unit_elements,
                               tensors[t].unit_elements * sizeof(float), hash);
            *hashes++ = hash;
        }
        ek_beat(engine, note);
    }
}

/* What is known of a unit of a tensor while the hashes are walked. First the value that may have a majority (Boyer and
 * Moore, "MJRTY", 1991), then how many copies have it. */
typedef struct unit_tally {
    uint64_t hash;
    uint32_t rank, other; /* one that holds it; one that does not, or EK_NONE */
    uint32_t lead;
    uint32_t copies, agreeing;
} unit_tally;

typedef struct hash_place {
    size_t tensor;
    uint32_t unit, rank;
    uint64_t hash;
    unit_tally *tally;
} hash_place;

typedef ek_status (*hash_visit)(const hash_place *place, void *user);

typedef struct state_comparison {
    const ek_membership *membership;
    const ek_tensor *tensors;
    size_t tensor_count;
    const uint32_t *ranks;
    uint32_t members;
    const uint64_t *hashes; /* of all ranks, one after the other */
    unit_tally *tallies;    /* by tensor and unit */
    ek_odd_copy *odd;
    size_t odd_count;
} state_comparison;

static ek_status walk(const state_comparison *comparison, hash_visit visit, void *user)
{
    const uint64_t *hash = comparison->hashes;
    for (uint32_t i = 0; i < comparison->members; i++) {
        unit_tally *tallies = comparison->tallies;
        for (size_t t = 0; t < comparison->tensor_count; t++) {
            const ek_tensor *tensor = &comparison->tensors[t];
            uint32_t count;
            const uint32_t *units = units_of(comparison->membership, comparison->ranks[i], tensor, &count);
            for (uint32_t place = 0; place < count; place++, hash++) {
                uint32_t unit = units ? units[place] : 0;
                EK_TRY(visit(&(hash_place){t, unit, comparison->ranks[i], *hash, &tallies[unit]}, user));
            }
            tallies += units ? ek_membership_job(comparison->membership)->groups[tensor->group].units : 1;
        }
    }
    return EK_OK;
}

static ek_status find_candidate(const hash_place *place, void *user)
{
    (void)user;
    unit_tally *tally = place->tally;
    if (tally->lead == 0)
        *tally = (unit_tally){.hash = place->hash, .rank = place->rank, .other = EK_NONE, .lead = 1};
    else if (tally->hash == place->hash)
        tally->lead++;
    else
        tally->lead--;
    return EK_OK;
}

static ek_status count_copies(const hash_place *place, void *user)
{
    state_comparison *comparison = user;
    bool agrees = place->tally->hash == place->hash;
    place->tally->copies++;
    place->tally->agreeing += agrees;
    if (!agrees)
        place->tally->other = place->rank;
    comparison->odd_count += !agrees;
    return EK_OK;
}

static ek_status list_odd(const hash_place *place, void *user)
{
    state_comparison *comparison = user;
    const unit_tally *tally = place->tally;
    if (tally->hash == place->hash && tally->agreeing == tally->copies)
        return EK_OK;
    if (2 * tally->agreeing <= tally->copies)
        return ek_fail(EK_CORRUPT,
                       "unit %u of %s differs between rank %u and rank %u, and no value has most of its %u copies",
                       place->unit, comparison->tensors[place->tensor].name,
                       tally->rank < tally->other ? tally->rank : tally->other,
                       tally->rank < tally->other ? tally->other : tally->rank, tally->copies);
    if (tally->hash != place->hash)
        comparison->odd[comparison->odd_count++] = (ek_odd_copy){place->tensor, place->unit, place->rank, tally->rank};
    return EK_OK;
}

static ek_status find_odd_copies(state_comparison *comparison)
{
    EK_TRY(walk(comparison, find_candidate, NULL));
    EK_TRY(walk(comparison, count_copies, comparison));
    if (!comparison->odd_count)
        return EK_OK;
    comparison->odd = calloc(comparison->odd_count, sizeof *comparison->odd);
    if (!comparison->odd)
        return ek_fail(EK_NO_MEMORY, "out of memory for comparing state");
    comparison->odd_count = 0;
    return walk(comparison, list_odd, comparison);
}

static size_t units_of_all_tensors(const ek_membership *membership, const ek_tensor *tensors, size_t tensor_count)
{
    size_t units = 0;
    for (size_t t = 0; t < tensor_count; t++)
        units += tensors[t].group == EK_REPLICATED ? 1 : ek_membership_job(membership)->groups[tensors[t].group].units;
    return units;
}

ek_status ek_compare_state(ek_group *group, const uint32_t *ranks, const ek_membership *membership,
                           const ek_store *store, const ek_tensor *tensors, size_t tensor_count, ek_engine *engine,
                           uint64_t note, ek_odd_copy **odd, size_t *odd_count)
{
    state_comparison comparison = {.membership = membership,
                                   .tensors = tensors,
                                   .tensor_count = tensor_count,
                                   .ranks = ranks,
                                   .members = ek_group_size(group)};
    size_t total = 0, mine = 0;
    size_t *bytes = calloc(comparison.members, sizeof *bytes);
    comparison.tallies = calloc(units_of_all_tensors(membership, tensors, tensor_count), sizeof *comparison.tallies);
    void *memory = NULL;
    ek_status status = bytes && comparison.tallies ? EK_OK : ek_fail(EK_NO_MEMORY, "out of memory for comparing state");
    for (uint32_t i = 0; i < comparison.members && status == EK_OK; i++) {
        mine = ranks[i] == ek_engine_rank(engine) ? total : mine;
        bytes[i] = hashes_of_rank(membership, ranks[i], tensors, tensor_count) * sizeof(uint64_t);
        total += bytes[i] / sizeof(uint64_t);
    }
    if (status == EK_OK)
        status = ek_engine_alloc(engine, total * sizeof(uint64_t), &memory);
    uint64_t *hashes = memory;
    if (status == EK_OK) {
        hash_state(engine, note, membership, store, tensors, tensor_count, hashes + mine);
        status = ek_all_gather(group, hashes + mine, hashes, bytes, NULL);
    }
    comparison.hashes = hashes;
    if (status == EK_OK)
        status = find_odd_copies(&comparison);
    if (memory)
        ek_engine_free(engine, memory);
    free(comparison.tallies);
    free(bytes);
    if (status != EK_OK) {
        free(comparison.odd);
        return status;
    }
    *odd = comparison.odd;
    *odd_count = comparison.odd_count;
    return EK_OK;
}

static float *copy_of(const ek_odd_copy *odd, uint32_t rank, int plane, const ek_membership *membership,
                      const ek_store *store, const ek_tensor *tensors)
{
    const ek_tensor *tensor = &tensors[odd->tensor];
    uint32_t count, place = 0;
    const uint32_t *units = units_of(membership, rank, tensor, &count);
    while (units && units[place] != odd->unit)
        place++;
    return store->planes[plane][odd->tensor] + place * tensor->unit_elements;
}

ek_status ek_heal_state(const ek_odd_copy *odd, size_t odd_count, const ek_membership *membership, ek_store *store,
                        const ek_tensor *tensors, ek_engine *engine)
{
    uint32_t rank = ek_engine_rank(engine);
    size_t send_count = 0, receive_count = 0;
    ek_message *sends = calloc(2 * EK_PLANES * odd_count, sizeof *sends);
    if (!sends)
        return ek_fail(EK_NO_MEMORY, "out of memory for healing state");
    ek_message *receives = sends + EK_PLANES * odd_count;
    for (size_t i = 0; i < odd_count; i++) {
        size_t bytes = tensors[odd[i].tensor].unit_elements * sizeof(float);
        for (int plane = 0; plane < EK_PLANES; plane++) {
            if (odd[i].good == rank)
                sends[send_count++] =
                    (ek_message){odd[i].odd, copy_of(&odd[i], rank, plane, membership, store, tensors), bytes};
            if (odd[i].odd == rank)
                receives[receive_count++] =
                    (ek_message){odd[i].good, copy_of(&odd[i], rank, plane, membership, store, tensors), bytes};
        }
    }
    ek_status status = ek_exchange(engine, EK_LANE_COMPUTE, sends, send_count, receives, receive_count, NULL);
    free(sends);
    return status;
}
