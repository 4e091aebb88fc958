/* A rank's part of a checkpoint: a copy of the units that it writes, so that training may go on while it writes them.
 * Every unit has one writer: of the ranks that hold it, that of the replica whose turn it is. Turns go round from unit
 * to unit and from layer to layer, so replicas write alike, and within a replica everyone its units' part. */
#ifndef EK_CHECKPOINT_SNAPSHOT_H
#define EK_CHECKPOINT_SNAPSHOT_H

#include "checkpoint/planes.h"

typedef struct ek_snapshot ek_snapshot;

/* planes[p][t] is the rank's share of tensor t of plane p. */
ek_status ek_snapshot_create(ek_snapshot **snapshot, const ek_share *share, float **const planes[EK_CHECKPOINT_PLANES]);
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
