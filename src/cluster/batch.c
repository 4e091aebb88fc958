/* How the global batch is split over the replicas. */
#include "cluster/batch.h"

#include <math.h>

const char *const ek_batch_policy_names[] = {"keep", "shrink", "rebalance", NULL};

ek_batch_share ek_batch_even(uint32_t samples, uint32_t parts, uint32_t index)
{
    uint32_t first = (uint32_t)((uint64_t)index * samples / parts);
    uint32_t end = (uint32_t)(((uint64_t)index + 1) * samples / parts);
    return (ek_batch_share){first, end - first};
}

void ek_batch_split(uint32_t samples, const bool *active, uint32_t replicas, ek_batch_share *shares)
{
    uint32_t active_count = 0, index = 0;
    for (uint32_t replica = 0; replica < replicas; replica++)
        active_count += active[replica];
    for (uint32_t replica = 0; replica < replicas; replica++)
        shares[replica] = active[replica] ? ek_batch_even(samples, active_count, index++) : (ek_batch_share){0};
}

void ek_batch_shrink(uint32_t samples, const double *seconds, double step_seconds, uint32_t replicas,
                     ek_batch_share *shares)
{
    for (uint32_t replica = 0; replica < replicas; replica++) {
        shares[replica] = ek_batch_even(samples, replicas, replica);
        double fitting = floor(step_seconds / seconds[replica]);
        if (fitting < shares[replica].count)
            shares[replica].count = (uint32_t)fitting;
    }
}

/* The replica that would be done first with one sample more. Ties: one below its even share, then the lowest. During
 * the count `first` holds the even share. */
static uint32_t next_to_take(const double *seconds, uint32_t replicas, const ek_batch_share *shares)
{
    uint32_t next = 0;
    double next_done = INFINITY;
    bool next_is_below = false;
    for (uint32_t replica = 0; replica < replicas; replica++) {
        double done = (shares[replica].count + 1) * seconds[replica];
        bool is_below = shares[replica].count < shares[replica].first;
        if (done < next_done || (done == next_done && is_below && !next_is_below)) {
            next = replica;
            next_done = done;
            next_is_below = is_below;
        }
    }
    return next;
}

/* Handing each sample to the replica that would be done first with it is optimal, as the counts then are the `samples`
 * smallest of all completion times. The first ones need no search: at the time T at which replicas that could split
 * samples would be done, sum(T / seconds) = samples, every completion time up to T is among the smallest. */
void ek_batch_rebalance(uint32_t samples, const double *seconds, uint32_t replicas, ek_batch_share *shares)
{
    uint32_t active_count = 0, index = 0, left = samples;
    double samples_per_second = 0;
    for (uint32_t replica = 0; replica < replicas; replica++) {
        active_count += seconds[replica] < INFINITY;
        samples_per_second += 1 / seconds[replica];
    }
    for (uint32_t replica = 0; replica < replicas; replica++) {
        shares[replica] = (ek_batch_share){0};
        if (seconds[replica] == INFINITY)
            continue;
        shares[replica].first = ek_batch_even(samples, active_count, index++).count;
        double whole = floor(samples / samples_per_second / seconds[replica]);
        shares[replica].count = whole < left ? (uint32_t)whole : left;
        left -= shares[replica].count;
    }
    for (; active_count && left; left--)
        shares[next_to_take(seconds, replicas, shares)].count++;
    for (uint32_t replica = 0, first = 0; replica < replicas; replica++) {
        shares[replica].first = seconds[replica] < INFINITY ? first : 0;
        first += shares[replica].count;
    }
}
