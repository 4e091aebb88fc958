/* Where a rank's weights and moments lie, and how they are described to a recovery. */
#include "train/store.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

static size_t share_elements(const ek_membership *membership, uint32_t rank, const ek_tensor *tensor)
{
    if (tensor->group == EK_REPLICATED)
        return tensor->unit_elements;
    uint32_t units;
    ek_membership_units(membership, rank, tensor->group, &units);
    return units * tensor->unit_elements;
}

ek_status ek_store_create(ek_store *store, uint32_t rank, const ek_membership *membership, const ek_tensor *tensors,
                          size_t tensor_count)
{
    ek_store made = {0};
    made.elements = calloc(tensor_count, sizeof *made.elements);
    float **places = calloc(EK_PLANES * tensor_count, sizeof(float *));
    made.planes[0] = places;
    if (!made.elements || !places) {
        ek_store_destroy(&made);
        return ek_fail(EK_NO_MEMORY, "out of memory for the training state");
    }
    for (int plane = 1; plane < EK_PLANES; plane++)
        made.planes[plane] = places + (size_t)plane * tensor_count;
    if (ek_membership_place(membership, rank, NULL, NULL)) {
        size_t total = 0;
        for (size_t t = 0; t < tensor_count; t++)
            total += made.elements[t] = share_elements(membership, rank, &tensors[t]);
        made.memory = ek_large_alloc(EK_PLANES * total * sizeof(float));
        if (!made.memory) {
            ek_store_destroy(&made);
            return ek_fail(EK_NO_MEMORY, "no memory for %zu weights and their moments", total);
        }
        memset(made.memory, 0, EK_PLANES * total * sizeof(float));
        float *next = made.memory;
        for (size_t i = 0; i < EK_PLANES * tensor_count; next += made.elements[i % tensor_count], i++)
            places[i] = next;
    }
    *store = made;
    return EK_OK;
}

void ek_store_destroy(ek_store *store)
{
    free(store->memory);
    free(store->planes[0]);
    free(store->elements);
    *store = (ek_store){0};
}

void ek_store_init(ek_store *store, ek_engine *engine, uint64_t note, const ek_membership *membership,
                   const ek_model_config *config, uint64_t seed, const ek_tensor *tensors, size_t tensor_count)
{
    if (!store->memory)
        return;
    for (size_t t = 0; t < tensor_count; t++) {
        float *weights = store->planes[EK_PLANE_WEIGHTS][t];
        if (tensors[t].group == EK_REPLICATED) {
            ek_model_init(config, seed, t, 0, weights);
            ek_beat(engine, note);
            continue;
        }
        uint32_t count;
        const uint32_t *units = ek_membership_units(membership, ek_engine_rank(engine), tensors[t].group, &count);
        for (uint32_t i = 0; i < count; i++) {
            ek_model_init(config, seed, t, units[i], weights + i * tensors[t].unit_elements);
            ek_beat(engine, note);
        }
    }
}

void ek_store_states(const ek_store *old, const ek_store *next, const ek_tensor *tensors, size_t tensor_count,
                     ek_state *states)
{
    for (size_t plane = 0; plane < EK_PLANES; plane++)
        for (size_t t = 0; t < tensor_count; t++)
            states[plane * tensor_count + t] = (ek_state){
                .group = tensors[t].group,
                .unit_bytes = tensors[t].unit_elements * sizeof(float),
                .old_data = old->memory ? old->planes[plane][t] : NULL,
                .new_data = next->planes[plane][t],
            };
}
