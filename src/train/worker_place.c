/* What hangs on the membership: groups, synchronisation, gradients, samples, the model. */
#include "train/worker_parts.h"

#include <stdlib.h>

#include "base/error.h"

/* Tags of groups on the compute lane: the replica for its TP group, then this one for all ranks with a role. */
#define TAG_ALL_RANKS EK_MAX_REPLICAS

/* The samples that the batch policy gives the replica: evenly, unless the pace says otherwise. */
static ek_batch_share replica_share(ek_worker *worker)
{
    uint32_t replicas = worker->config->parallel.dp;
    worker->samples_of_all = worker->config->batch.global;
    if (worker->pace) {
        worker->samples_of_all = ek_pace_samples(worker->pace);
        return ek_pace_decision(worker->pace, worker->replica).share;
    }
    bool active[EK_MAX_REPLICAS];
    ek_batch_share shares[EK_MAX_REPLICAS];
    for (uint32_t r = 0; r < replicas; r++)
        active[r] = ek_membership_degree(worker->membership, r) > 0;
    ek_batch_split(worker->config->batch.global, active, replicas, shares);
    return shares[worker->replica];
}

void ek_worker_take_samples(ek_worker *worker)
{
    uint32_t micro = worker->config->batch.micro, members = worker->tp ? ek_group_size(worker->tp) : 1;
    worker->share = worker->own = replica_share(worker);
    uint32_t most = worker->share.count;
    if (worker->config->parallel.mode == EK_MODE_EP) {
        worker->own = ek_batch_even(worker->share.count, members, worker->tp ? ek_group_index(worker->tp) : 0);
        worker->own.first += worker->share.first;
        most = (worker->share.count + members - 1) / members;
    }
    worker->rounds = (most + micro - 1) / micro;
}

/* ------------------------------------------------------------------------------------- attach and detach */

static ek_status make_groups(ek_worker *worker)
{
    const ek_membership *membership = worker->membership;
    uint32_t *ranks = calloc(ek_membership_ranks(membership), sizeof *ranks);
    worker->all_ranks = ranks;
    if (!ranks)
        return ek_fail(EK_NO_MEMORY, "out of memory for the list of ranks");
    uint32_t degree = ek_membership_replica(membership, worker->replica, ranks);
    worker->speaks = ranks[0] == worker->rank || worker->config->parallel.mode == EK_MODE_EP;
    if (degree > 1)
        EK_TRY(ek_group_create(&worker->tp, worker->engine, EK_LANE_COMPUTE, worker->replica, ranks, degree));
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < ek_membership_ranks(membership); rank++)
        if (ek_membership_place(membership, rank, NULL, NULL))
            ranks[count++] = rank;
    return ek_group_create(&worker->all, worker->engine, EK_LANE_COMPUTE, TAG_ALL_RANKS, ranks, count);
}

static ek_status make_gradients(ek_worker *worker)
{
    void *memory;
    EK_TRY(ek_engine_alloc(worker->engine, ek_sync_elements(worker->sync) * sizeof(float), &memory));
    worker->gradients = memory;
    for (size_t t = 0; t < worker->run->tensor_count; t++)
        worker->gradient_of[t] = worker->gradients + ek_sync_offset(worker->sync, t);
    return EK_OK;
}

/* Which member of the replica's group holds each expert; NULL where tokens do not travel. Released with free(). */
static ek_status find_owners(const ek_worker *worker, uint32_t **owners)
{
    *owners = NULL;
    if (worker->config->parallel.mode != EK_MODE_EP)
        return EK_OK;
    uint32_t *ranks = calloc(worker->config->parallel.tp, sizeof *ranks);
    *owners = calloc(worker->config->model.experts, sizeof **owners);
    if (!ranks || !*owners) {
        free(ranks);
        free(*owners);
        return ek_fail(EK_NO_MEMORY, "out of memory for the owners of experts");
    }
    uint32_t degree = ek_membership_replica(worker->membership, worker->replica, ranks), count;
    uint32_t group = ek_model_group(&worker->config->model, EK_GROUP_EXPERTS);
    for (uint32_t member = 0; member < degree; member++) {
        const uint32_t *units = ek_membership_units(worker->membership, ranks[member], group, &count);
        for (uint32_t i = 0; i < count; i++)
            (*owners)[units[i]] = member;
    }
    free(ranks);
    return EK_OK;
}

/* The units of a kind that the rank computes with, and how many; NULL: all of them. */
static const uint32_t *units_held(const ek_worker *worker, uint32_t kind, uint32_t *count)
{
    const ek_model_config *model = &worker->config->model;
    uint32_t group = ek_model_group(model, kind);
    if (group < EK_MODEL_GROUPS)
        return ek_membership_units(worker->membership, worker->rank, group, count);
    *count = group == EK_REPLICATED ? ek_model_units(model, kind) : 0;
    return NULL;
}

static ek_status make_model(ek_worker *worker, const uint32_t *owners)
{
    ek_model_options options = {
        .config = &worker->config->model,
        .engine = worker->engine,
        .tp = worker->tp,
        .expert_owners = owners,
        .micro_batch = worker->config->batch.micro,
        .progress = ek_worker_progress,
        .route = worker->run->routes ? ek_worker_route : NULL,
        .user = worker,
    };
    for (uint32_t kind = 0; kind < EK_MODEL_GROUPS; kind++) {
        const uint32_t *units = units_held(worker, kind, &options.units[kind]);
        if (kind == EK_GROUP_VOCAB)
            options.vocab_units = units;
        if (kind == EK_GROUP_EXPERTS)
            options.expert_units = units;
    }
    return ek_model_create(&worker->model, &options);
}

/* A model for the membership: the one there is, if the rank's units have stayed. */
static ek_status fit_model(ek_worker *worker)
{
    uint32_t *owners;
    EK_TRY(find_owners(worker, &owners));
    ek_status status = EK_OK;
    if (worker->model)
        ek_model_regroup(worker->model, worker->tp, owners);
    else
        status = make_model(worker, owners);
    free(owners);
    return status;
}

ek_status ek_worker_attach(ek_worker *worker)
{
    worker->placed = ek_membership_place(worker->membership, worker->rank, &worker->replica, &worker->role);
    EK_TRY(ek_sync_create(&worker->sync, worker->engine, worker->membership, worker->run->tensors,
                          worker->run->tensor_count));
    if (!worker->placed)
        return EK_OK;
    EK_TRY(make_groups(worker));
    EK_TRY(make_gradients(worker));
    if (worker->pace)
        ek_pace_reset(worker->pace, worker->membership);
    ek_worker_take_samples(worker);
    return fit_model(worker);
}

void ek_worker_detach(ek_worker *worker)
{
    ek_sync_destroy(worker->sync); /* first: it waits for what still uses the gradients */
    ek_group_destroy(worker->tp);
    ek_group_destroy(worker->all);
    if (worker->gradients)
        ek_engine_free(worker->engine, worker->gradients);
    free(worker->all_ranks);
    worker->sync = NULL;
    worker->tp = worker->all = NULL;
    worker->gradients = NULL;
    worker->all_ranks = NULL;
    worker->speaks = worker->has_busy = false;
    worker->share = worker->own = (ek_batch_share){0};
}

void ek_worker_drop_model(ek_worker *worker)
{
    ek_model_destroy(worker->model);
    worker->model = NULL;
}
