/* A rank's share of the training state: weights and the two moments of AdamW of every tensor, unit-major. It lies in
 * memory of the rank alone: huge pages speed up every step and each new store, and the copy that a recovery makes of
 * what others fetch costs less than they save. */
#ifndef EK_TRAIN_STORE_H
#define EK_TRAIN_STORE_H

#include "model/model.h"

enum { EK_PLANE_WEIGHTS, EK_PLANE_FIRST_MOMENT, EK_PLANE_SECOND_MOMENT, EK_PLANES };

typedef struct ek_store {
    float *memory;             /* all planes, one block; NULL on a rank without a role */
    float **planes[EK_PLANES]; /* [tensors]: where the rank's share of a tensor begins */
    size_t *elements;          /* [tensors]: its size */
} ek_store;

/* Zeroed room for the units that `rank` holds under `membership`. */
ek_status ek_store_create(ek_store *store, uint32_t rank, const ek_membership *membership, const ek_tensor *tensors,
                          size_t tensor_count);
void ek_store_destroy(ek_store *store);

/* Initial weights, from the seed and each unit's number alone. Beats with `note`. */
void ek_store_init(ek_store *store, ek_engine *engine, uint64_t note, const ek_membership *membership,
                   const ek_model_config *config, uint64_t seed, const ek_tensor *tensors, size_t tensor_count);

/* What recovery moves: states[EK_PLANES * tensor_count], from `old` (all zero on a newcomer) to `next`. */
void ek_store_states(const ek_store *old, const ek_store *next, const ek_tensor *tensors, size_t tensor_count,
                     ek_state *states);

#endif
