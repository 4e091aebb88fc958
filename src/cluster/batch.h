/* How the global batch is split over the replicas. Pure: the same input gives the same split on every rank.
 *
 * Three policies for a replica that is slower than the others:
 *   keep       all take evenly; the slow one takes longer. Same samples, same losses
 *   shrink     the slow one leaves out the end of its range, and nobody takes that later: the step has fewer samples
 *              and its loss is the mean over those that are left
 *   rebalance  the slow one takes fewer, the others more: same samples, same losses */
#ifndef EK_CLUSTER_BATCH_H
#define EK_CLUSTER_BATCH_H

#include <evenkeel.h>

typedef enum ek_batch_policy { EK_BATCH_KEEP, EK_BATCH_SHRINK, EK_BATCH_REBALANCE } ek_batch_policy;

extern const char *const ek_batch_policy_names[]; /* in that order; ends with NULL */

typedef struct ek_batch_share {
    uint32_t first, count; /* samples of the global batch */
} ek_batch_share;

/* The contiguous range that an even split over `parts` gives to part `index`. */
ek_batch_share ek_batch_even(uint32_t samples, uint32_t parts, uint32_t index);

/* Policy keep: the active replicas take contiguous ranges in order of replica, even within one sample; the others get
 * none. If none is active nobody gets samples. shares is [replicas]. */
void ek_batch_split(uint32_t samples, const bool *active, uint32_t replicas, ek_batch_share *shares);

/* Policy shrink: every replica has its range of the even split over all replicas, retired ones too, and takes as many
 * samples from its front as it computes in step_seconds, maybe none. seconds[replica] are for one sample; 0:
 * the replica takes its whole range; INFINITY: it is retired. */
void ek_batch_shrink(uint32_t samples, const double *seconds, double step_seconds, uint32_t replicas,
                     ek_batch_share *shares);

/* Policy rebalance: contiguous ranges in order of replica, of the sizes for which the slowest replica is done soonest;
 * a replica may get none. seconds[replica], above 0, are for one sample; INFINITY: the replica is
 * retired. With equal seconds it is the even split. If all are retired nobody gets samples. Cost: O(replicas^2). */
void ek_batch_rebalance(uint32_t samples, const double *seconds, uint32_t replicas, ek_batch_share *shares);

#endif
