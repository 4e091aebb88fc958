/* Comparing what must be identical: the units of all replicas, and replicated tensors on all ranks. */
#ifndef EK_TRAIN_COMPARE_H
#define EK_TRAIN_COMPARE_H

#include "train/store.h"

/* A collective of `group`, which holds all ranks with a role, in order of rank. EK_CORRUPT names tensor, unit and two
 * ranks. */
ek_status ek_compare_state(ek_group *group, const uint32_t *ranks, const ek_membership *membership,
                           const ek_store *store, const ek_tensor *tensors, size_t tensor_count, ek_engine *engine,
                           uint64_t note);

#endif
