/* How the global batch is split over the replicas. */
#ifndef EK_CLUSTER_BATCH_H
#define EK_CLUSTER_BATCH_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ek_batch_share {
    uint32_t first, count; /* samples of the global batch */
} ek_batch_share;

/* Policy keep: the active replicas take contiguous ranges in order of replica, even within one sample; the others get
 * none. If none is active nobody gets samples. shares is [replicas]. */
void ek_batch_split(uint32_t samples, const bool *active, uint32_t replicas, ek_batch_share *shares);

#endif
