/* A rank's part of a checkpoint: a copy of the units that it writes, so that training may go on while it writes them.
 * Every unit has one writer: of the ranks that hold it, one of the replica whose turn it is, so that all ranks write
 * about as much. */
#ifndef EK_CHECKPOINT_SNAPSHOT_H
#define EK_CHECKPOINT_SNAPSHOT_H

#include "checkpoint/files.h"

typedef struct ek_snapshot ek_snapshot;

/* planes[p][t] is the rank's share of tensor t (ek_model_tensors), its units in the order of the membership. */
ek_status ek_snapshot_create(ek_snapshot **snapshot, const ek_membership *membership, uint32_t rank,
                             const ek_model_config *config, const ek_tensor *tensors, size_t tensor_count,
                             float **const planes[EK_CHECKPOINT_PLANES]);
void ek_snapshot_destroy(ek_snapshot *snapshot);
uint64_t ek_snapshot_bytes(const ek_snapshot *snapshot);

/* Writes it into the checkpoint of `step` that is being made in `folder` (checkpoint.h), syncs, and leaves a list of
 * checksums beside it. May run in another thread than the one that made it. */
ek_status ek_snapshot_write(const ek_snapshot *snapshot, const char *folder, uint64_t step);

/* A unit's checksums, of all its planes: what the list is made of. */
typedef struct ek_unit_sums {
    uint32_t tensor, unit;
    uint64_t sums[EK_CHECKPOINT_PLANES];
} ek_unit_sums;

#define EK_SUMS_PREFIX "sums." /* and the rank: the name of the list */

#endif
