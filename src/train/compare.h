/* Comparing what must be identical (the units of all replicas, and replicated tensors on all ranks), and putting right
 * what is not, where most of its copies agree. */
#ifndef EK_TRAIN_COMPARE_H
#define EK_TRAIN_COMPARE_H

#include "train/store.h"

/* A copy that differs from most others. */
typedef struct ek_odd_copy {
    size_t tensor;
    uint32_t unit;      /* 0 of a replicated tensor */
    uint32_t odd, good; /* ranks: the one that holds it, and one that holds what most do */
} ek_odd_copy;

/* A collective of `group`, which holds all ranks with a role, in order of rank: ranks[]. Beats with `note`. *odd
 * (released with ek_free) lists what differs; empty if nothing does. EK_CORRUPT where no value of a unit has more than
 * half of its copies: it names tensor, unit and two ranks. */
ek_status ek_compare_state(ek_group *group, const uint32_t *ranks, const ek_membership *membership,
                           const ek_store *store, const ek_tensor *tensors, size_t tensor_count, ek_engine *engine,
                           uint64_t note, ek_odd_copy **odd, size_t *odd_count);

/* Gives each odd copy the value of a good one. All ranks of the comparison call it, with its list. */
ek_status ek_heal_state(const ek_odd_copy *odd, size_t odd_count, const ek_membership *membership, ek_store *store,
                        const ek_tensor *tensors, ek_engine *engine);

#endif
