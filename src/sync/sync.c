/* Gradient synchronisation between replicas of different degree: ek_sync of evenkeel.h.
 *
 * Per bucket b three phases run on the gradient lane: pre (extras → cores), reduce (across the replicas, per role of
 * the sync layout; then partial replicated tensors over all ranks), post (cores → extras, then the other replicated
 * tensors from the first core to its whole replica). Every rank queues
 *
 *     pre 0, reduce 0, pre 1, post 0, reduce 1, pre 2, post 1, … , post last
 *
 * leaving out what it has no part in. That is one order for the whole job, fixed by bucket and phase and never by who
 * is ready first: of all unfinished operations the first in that order has every member waiting in it, so the lane
 * cannot deadlock.
 *
 * A bucket is one contiguous run of the gradient buffer: its sharded tensors, each with the rank's own units in front
 * and behind them, on a core, the units that arrive from extras, already in the order of the sync layout; then its
 * replicated tensors. */
#include <stdlib.h>

#include "base/error.h"

/* A run that this rank sends or receives in the pre phase, and the other way round in the post phase. */
typedef struct reshard_run {
    uint32_t peer; /* rank */
    size_t first, elements;
} reshard_run;

typedef struct gradient_bucket {
    size_t first;                        /* element of the gradient buffer */
    size_t sharded, replicated, partial; /* elements, one behind the other; partial ones are not in `replicated` */
    reshard_run *runs;                   /* to the cores, on an extra; from the extras, on a core */
    size_t run_count, run_capacity;
} gradient_bucket;

typedef struct tensor_place {
    size_t offset, own;
    bool replicated;
} tensor_place;

struct ek_sync {
    ek_engine *engine;
    bool active, core, first_core, counts_norm;
    uint32_t replica_root;                              /* index of the first core in the replica's group */
    ek_group *reduce_group, *replica_group, *all_group; /* all_group: NULL where nothing is partial */
    tensor_place *tensors;
    size_t tensor_count;
    gradient_bucket *buckets;
    uint32_t bucket_count, started;
    size_t elements;
    ek_message *messages; /* room for the largest bucket's runs */
    ek_request last;
};

static ek_status add_run(gradient_bucket *bucket, uint32_t peer, size_t first, size_t elements)
{
    if (bucket->run_count == bucket->run_capacity) {
        size_t capacity = bucket->run_capacity ? 2 * bucket->run_capacity : 8;
        reshard_run *runs = realloc(bucket->runs, capacity * sizeof *runs);
        if (!runs)
            return ek_fail(EK_NO_MEMORY, "out of memory for the gradient transfer plan");
        bucket->runs = runs;
        bucket->run_capacity = capacity;
    }
    bucket->runs[bucket->run_count++] = (reshard_run){peer, first, elements};
    return EK_OK;
}

/* Gives the replicated tensors of a bucket that are partial, or those that are not, their places; returns their size.
 */
static size_t place_replicated(ek_sync *sync, uint32_t b, bool partial, const ek_tensor *tensors, size_t tensor_count)
{
    size_t first = sync->elements;
    for (size_t t = 0; t < tensor_count; t++) {
        if (tensors[t].bucket != b || tensors[t].group != EK_REPLICATED || tensors[t].partial != partial)
            continue;
        sync->tensors[t].offset = sync->elements;
        sync->tensors[t].own = tensors[t].unit_elements;
        sync->tensors[t].replicated = true;
        sync->elements += tensors[t].unit_elements;
    }
    return sync->elements - first;
}

/* Where every tensor lies: bucket by bucket, sharded tensors before replicated ones. */
static void place_tensors(ek_sync *sync, const ek_membership *membership, uint32_t replica, uint32_t role,
                          const ek_tensor *tensors, size_t tensor_count)
{
    uint32_t level = ek_membership_level(membership, replica);
    uint32_t buffer_level = sync->core ? ek_membership_sync_level(membership) : level;
    for (uint32_t b = 0; b < sync->bucket_count; b++) {
        gradient_bucket *bucket = &sync->buckets[b];
        bucket->first = sync->elements;
        for (size_t t = 0; t < tensor_count; t++) {
            if (tensors[t].bucket != b || tensors[t].group == EK_REPLICATED)
                continue;
            const ek_chain *chain = ek_membership_chain(membership, tensors[t].group);
            sync->tensors[t].offset = sync->elements;
            sync->tensors[t].own = ek_chain_count(chain, level, role) * tensors[t].unit_elements;
            sync->elements += ek_chain_count(chain, buffer_level, role) * tensors[t].unit_elements;
        }
        bucket->sharded = sync->elements - bucket->first;
        bucket->replicated = place_replicated(sync, b, false, tensors, tensor_count);
        bucket->partial = place_replicated(sync, b, true, tensors, tensor_count);
    }
}

/* The reshard runs of one tensor. Between two ranks they are listed by tensor and then by place in the core's list, on
 * both sides. */
static ek_status plan_tensor(ek_sync *sync, const ek_membership *membership, uint32_t replica, uint32_t role,
                             const ek_tensor *tensor, size_t offset)
{
    ek_transfer *transfers = NULL;
    size_t count = 0;
    EK_TRY(ek_chain_transfers(ek_membership_chain(membership, tensor->group), ek_membership_level(membership, replica),
                              ek_membership_sync_level(membership), &transfers, &count));
    ek_status status = EK_OK;
    for (size_t i = 0; i < count && status == EK_OK; i++) {
        const ek_transfer *transfer = &transfers[i];
        if (transfer->extra != role && transfer->core != role)
            continue;
        uint32_t peer_role = transfer->extra == role ? transfer->core : transfer->extra;
        uint32_t first_unit = transfer->extra == role ? transfer->extra_first : transfer->core_first;
        status = add_run(&sync->buckets[tensor->bucket], ek_membership_rank(membership, replica, peer_role),
                         offset + first_unit * tensor->unit_elements, transfer->count * tensor->unit_elements);
    }
    ek_free(transfers);
    return status;
}

static ek_status plan_reshard(ek_sync *sync, const ek_membership *membership, uint32_t replica, uint32_t role,
                              const ek_tensor *tensors, size_t tensor_count)
{
    for (size_t t = 0; t < tensor_count; t++)
        if (tensors[t].group != EK_REPLICATED)
            EK_TRY(plan_tensor(sync, membership, replica, role, &tensors[t], sync->tensors[t].offset));
    size_t most = 0;
    for (uint32_t b = 0; b < sync->bucket_count; b++)
        most = sync->buckets[b].run_count > most ? sync->buckets[b].run_count : most;
    sync->messages = calloc(most + 1, sizeof *sync->messages);
    return sync->messages ? EK_OK : ek_fail(EK_NO_MEMORY, "out of memory for the gradient transfer plan");
}

/* The group of every rank with a role. */
static ek_status make_all_group(ek_sync *sync, const ek_membership *membership, uint32_t *ranks)
{
    const ek_job *job = ek_membership_job(membership);
    uint32_t count = 0;
    for (uint32_t r = 0; r < job->replicas; r++)
        count += ek_membership_replica(membership, r, ranks + count);
    return ek_group_create(&sync->all_group, sync->engine, EK_LANE_GRADIENT, job->base_degree + job->replicas, ranks,
                           count);
}

/* Tags on the gradient lane: the role for its group across the replicas, base degree + replica for the ranks of one,
 * base degree + replicas for all. */
static ek_status make_groups(ek_sync *sync, const ek_membership *membership, uint32_t replica, uint32_t role,
                             bool any_partial)
{
    const ek_job *job = ek_membership_job(membership);
    uint32_t *ranks = calloc((size_t)job->replicas * job->base_degree, sizeof *ranks);
    if (!ranks)
        return ek_fail(EK_NO_MEMORY, "out of memory for the gradient groups");
    ek_status status = EK_OK;
    if (sync->core) {
        uint32_t count = 0;
        for (uint32_t r = 0; r < job->replicas; r++)
            if (ek_membership_degree(membership, r))
                ranks[count++] = ek_membership_rank(membership, r, role);
        status = ek_group_create(&sync->reduce_group, sync->engine, EK_LANE_GRADIENT, role, ranks, count);
    }
    if (status == EK_OK) {
        uint32_t count = ek_membership_replica(membership, replica, ranks);
        uint32_t root = ek_membership_rank(membership, replica, ek_membership_first_core(membership));
        while (ranks[sync->replica_root] != root)
            sync->replica_root++;
        status = ek_group_create(&sync->replica_group, sync->engine, EK_LANE_GRADIENT, job->base_degree + replica,
                                 ranks, count);
    }
    if (status == EK_OK && any_partial)
        status = make_all_group(sync, membership, ranks);
    free(ranks);
    return status;
}

static ek_status check_tensors(const ek_membership *membership, const ek_tensor *tensors, size_t tensor_count,
                               uint32_t *bucket_count)
{
    uint32_t buckets = 0;
    for (size_t t = 0; t < tensor_count; t++) {
        if (tensors[t].group != EK_REPLICATED && tensors[t].group >= ek_membership_job(membership)->group_count)
            return ek_fail(EK_INVALID, "tensor %s: unit group %u; the job has %u", tensors[t].name, tensors[t].group,
                           ek_membership_job(membership)->group_count);
        if (tensors[t].bucket >= tensor_count)
            return ek_fail(EK_INVALID, "tensor %s: bucket %u; buckets are numbered from 0 without gaps",
                           tensors[t].name, tensors[t].bucket);
        buckets = tensors[t].bucket + 1 > buckets ? tensors[t].bucket + 1 : buckets;
    }
    *bucket_count = buckets;
    return EK_OK;
}

static ek_status build(ek_sync *sync, const ek_membership *membership, const ek_tensor *tensors, size_t tensor_count)
{
    sync->tensors = calloc(tensor_count + 1, sizeof *sync->tensors);
    sync->tensor_count = tensor_count;
    sync->buckets = calloc(sync->bucket_count + 1u, sizeof *sync->buckets);
    if (!sync->tensors || !sync->buckets)
        return ek_fail(EK_NO_MEMORY, "out of memory for the gradient transfer plan");
    uint32_t replica, role;
    if (!ek_membership_place(membership, ek_engine_rank(sync->engine), &replica, &role))
        return EK_OK;
    uint32_t sync_level = ek_membership_sync_level(membership);
    const uint32_t *drop_order = ek_membership_drop_order(membership);
    sync->active = true;
    sync->core = true;
    for (uint32_t i = 0; i < sync_level; i++)
        sync->core = sync->core && drop_order[i] != role;
    sync->first_core = role == ek_membership_first_core(membership);
    sync->counts_norm = true;
    for (uint32_t r = 0; r < replica; r++) /* the lowest replica that is in use counts the norm */
        sync->counts_norm = sync->counts_norm && !ek_membership_degree(membership, r);
    place_tensors(sync, membership, replica, role, tensors, tensor_count);
    EK_TRY(plan_reshard(sync, membership, replica, role, tensors, tensor_count));
    bool any_partial = false;
    for (uint32_t b = 0; b < sync->bucket_count; b++)
        any_partial = any_partial || sync->buckets[b].partial;
    return make_groups(sync, membership, replica, role, any_partial);
}

ek_status ek_sync_create(ek_sync **out, ek_engine *engine, const ek_membership *membership, const ek_tensor *tensors,
                         size_t tensor_count)
{
    uint32_t bucket_count = 0;
    EK_TRY(check_tensors(membership, tensors, tensor_count, &bucket_count));
    ek_sync *sync = calloc(1, sizeof *sync);
    if (!sync)
        return ek_fail(EK_NO_MEMORY, "out of memory for the gradient transfer plan");
    sync->engine = engine;
    sync->bucket_count = bucket_count;
    ek_status status = build(sync, membership, tensors, tensor_count);
    if (status != EK_OK) {
        ek_sync_destroy(sync);
        return status;
    }
    *out = sync;
    return EK_OK;
}

void ek_sync_destroy(ek_sync *sync)
{
    if (!sync)
        return;
    if (sync->last)
        ek_wait(sync->engine, EK_LANE_GRADIENT, sync->last); /* a loss ends it too; what it says no longer matters */
    ek_group_destroy(sync->reduce_group);
    ek_group_destroy(sync->replica_group);
    ek_group_destroy(sync->all_group);
    for (uint32_t b = 0; sync->buckets && b < sync->bucket_count; b++)
        free(sync->buckets[b].runs);
    free(sync->buckets);
    free(sync->tensors);
    free(sync->messages);
    free(sync);
}

size_t ek_sync_elements(const ek_sync *sync)
{
    return sync->elements;
}

size_t ek_sync_offset(const ek_sync *sync, size_t tensor)
{
    return sync->tensors[tensor].offset;
}

size_t ek_sync_own(const ek_sync *sync, size_t tensor)
{
    return sync->tensors[tensor].own;
}

static ek_status reshard(ek_sync *sync, float *gradients, const gradient_bucket *bucket, bool to_cores)
{
    if (!bucket->run_count)
        return EK_OK;
    for (size_t i = 0; i < bucket->run_count; i++) {
        const reshard_run *run = &bucket->runs[i];
        sync->messages[i] = (ek_message){run->peer, gradients + run->first, run->elements * sizeof(float)};
    }
    bool sends = sync->core != to_cores;
    return ek_exchange(sync->engine, EK_LANE_GRADIENT, sync->messages, sends ? bucket->run_count : 0, sync->messages,
                       sends ? 0 : bucket->run_count, &sync->last);
}

static ek_status reduce(ek_sync *sync, float *gradients, const gradient_bucket *bucket)
{
    size_t count = bucket->sharded + (sync->first_core ? bucket->replicated : 0);
    if (sync->core && count)
        EK_TRY(ek_all_reduce(sync->reduce_group, gradients + bucket->first, count, EK_SUM, &sync->last));
    if (!bucket->partial)
        return EK_OK;
    return ek_all_reduce(sync->all_group, gradients + bucket->first + bucket->sharded + bucket->replicated,
                         bucket->partial, EK_SUM, &sync->last);
}

static ek_status post(ek_sync *sync, float *gradients, const gradient_bucket *bucket)
{
    EK_TRY(reshard(sync, gradients, bucket, false));
    if (!bucket->replicated || ek_group_size(sync->replica_group) == 1)
        return EK_OK;
    return ek_broadcast(sync->replica_group, gradients + bucket->first + bucket->sharded,
                        bucket->replicated * sizeof(float), sync->replica_root, &sync->last);
}

ek_status ek_sync_start(ek_sync *sync, float *gradients, uint32_t b)
{
    if (b != sync->started || b >= sync->bucket_count)
        return ek_fail(EK_INVALID, "ek_sync_start: bucket %u; bucket %u of %u is next", b, sync->started,
                       sync->bucket_count);
    sync->started++;
    if (!sync->active)
        return EK_OK;
    EK_TRY(reshard(sync, gradients, &sync->buckets[b], true));
    if (b > 0)
        EK_TRY(post(sync, gradients, &sync->buckets[b - 1]));
    return reduce(sync, gradients, &sync->buckets[b]);
}

ek_status ek_sync_finish(ek_sync *sync, float *gradients)
{
    if (sync->started != sync->bucket_count)
        return ek_fail(EK_INVALID, "ek_sync_finish: %u of %u buckets were started", sync->started, sync->bucket_count);
    sync->started = 0;
    if (!sync->active || !sync->bucket_count)
        return EK_OK;
    EK_TRY(post(sync, gradients, &sync->buckets[sync->bucket_count - 1]));
    return sync->last ? ek_wait(sync->engine, EK_LANE_GRADIENT, sync->last) : EK_OK;
}

static double sum_of_squares(const float *values, size_t count)
{
    double sum = 0.0, sums[8] = {0}; /* eight side by side, which the compiler can keep in vector registers */
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (size_t j = 0; j < 8; j++)
            sums[j] += (double)values[i + j] * values[i + j];
    for (; i < count; i++)
        sums[i % 8] += (double)values[i] * values[i];
    for (size_t j = 0; j < 8; j++)
        sum += sums[j];
    return sum;
}

/* Every rank of one replica counts its own units, extras too, so that a healthy replica has no more to do beside a
 * reduced one. */
double ek_sync_square(const ek_sync *sync, const float *gradients)
{
    double square = 0.0;
    for (size_t t = 0; t < sync->tensor_count && sync->counts_norm; t++) {
        const tensor_place *tensor = &sync->tensors[t];
        if (!tensor->replicated || sync->first_core)
            square += sum_of_squares(gradients + tensor->offset, tensor->own);
    }
    return square;
}

void ek_sync_traffic(const ek_sync *sync, uint64_t *reshard_bytes, uint64_t *reduce_bytes)
{
    uint64_t reshard = 0, reduce = 0;
    for (uint32_t b = 0; b < sync->bucket_count && sync->active; b++) {
        const gradient_bucket *bucket = &sync->buckets[b];
        for (size_t i = 0; i < bucket->run_count; i++)
            reshard += bucket->runs[i].elements * sizeof(float); /* sent once: before on an extra, after on a core */
        if (sync->core) {
            uint64_t members = ek_group_size(sync->reduce_group);
            uint64_t bytes = (bucket->sharded + (sync->first_core ? bucket->replicated : 0)) * sizeof(float);
            reduce += 2 * (members - 1) * bytes / members;
        }
        if (bucket->partial) {
            uint64_t members = ek_group_size(sync->all_group);
            reduce += 2 * (members - 1) * bucket->partial * sizeof(float) / members;
        }
    }
    *reshard_bytes = reshard;
    *reduce_bytes = reduce;
}
