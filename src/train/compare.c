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

typedef struct seen {
    uint64_t hash;
    uint32_t rank;
    bool set;
} seen;

/* Walks one rank's hashes; the first hash seen of a unit is what later ones are held against. */
static ek_status compare_rank(const ek_membership *membership, uint32_t rank, const ek_tensor *tensors,
                              size_t tensor_count, const uint64_t *hashes, seen *first)
{
    const ek_job *job = ek_membership_job(membership);
    for (size_t t = 0; t < tensor_count; t++) {
        uint32_t count;
        const uint32_t *units = units_of(membership, rank, &tensors[t], &count);
        for (uint32_t i = 0; i < count; i++, hashes++) {
            uint32_t unit = units ? units[i] : 0;
            if (!first[unit].set)
                first[unit] = (seen){*hashes, rank, true};
            else if (first[unit].hash != *hashes)
                return ek_fail(EK_CORRUPT, "unit %u of %s differs between rank %u and rank %u", unit, tensors[t].name,
                               first[unit].rank, rank);
        }
        first += units ? job->groups[tensors[t].group].units : 1;
    }
    return EK_OK;
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
                           uint64_t note)
{
    uint32_t members = ek_group_size(group), rank = ek_engine_rank(engine);
    size_t total = 0, mine = 0;
    size_t *bytes = calloc(members, sizeof *bytes);
    seen *first = calloc(units_of_all_tensors(membership, tensors, tensor_count), sizeof *first);
    void *memory = NULL;
    ek_status status = bytes && first ? EK_OK : ek_fail(EK_NO_MEMORY, "out of memory for comparing state");
    for (uint32_t i = 0; i < members && status == EK_OK; i++) {
        mine = ranks[i] == rank ? total : mine;
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
    for (uint32_t i = 0; i < members && status == EK_OK; i++) {
        status = compare_rank(membership, ranks[i], tensors, tensor_count, hashes, first);
        hashes += bytes[i] / sizeof(uint64_t);
    }
    if (memory)
        ek_engine_free(engine, memory);
    free(first);
    free(bytes);
    return status;
}
