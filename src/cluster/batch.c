/* How the global batch is split over the replicas. */
#include "cluster/batch.h"

void ek_batch_split(uint32_t samples, const bool *active, uint32_t replicas, ek_batch_share *shares)
{
    uint32_t active_count = 0, index = 0;
    for (uint32_t replica = 0; replica < replicas; replica++)
        active_count += active[replica];
    for (uint32_t replica = 0; replica < replicas; replica++) {
        shares[replica] = (ek_batch_share){0};
        if (!active[replica])
            continue;
        uint32_t first = (uint32_t)((uint64_t)index * samples / active_count);
        uint32_t end = (uint32_t)(((uint64_t)index + 1) * samples / active_count);
        shares[replica] = (ek_batch_share){first, end - first};
        index++;
    }
}
