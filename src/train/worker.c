/* The step loop of one rank.
 *
 * - A step: forward and backward of every micro-batch, where the last backward hands each bucket to the gradient lane
 *   as it completes it; the end of the synchronisation; the vote; then, committed, the update and the report.
 * - Anything that ends with EK_PEER_LOST: recover, then the same step again.
 *
 * Weights are touched after the vote alone, so an aborted step leaves nothing behind but gradients, which the next
 * attempt clears. */
#include "train/worker.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cluster/batch.h"
#include "train/clock.h"
#include "train/compare.h"
#include "train/monitor.h"
#include "train/optimizer.h"
#include "train/pace.h"
#include "train/records.h"
#include "train/saver.h"
#include "train/store.h"

/* Tags of groups on the compute lane: the replica for its TP group, then this one for all ranks with a role. */
#define TAG_ALL_RANKS EK_MAX_REPLICAS

typedef struct ek_worker {
    const ek_run *run;
    const ek_config *config;
    ek_engine *engine;
    uint32_t rank;
    uint64_t committed; /* steps this rank has applied */
    bool began_step;    /* the next one has been begun */
    bool joining;       /* a newcomer, until its first recovery is over */

    ek_membership *membership;
    ek_store store;
    ek_saver *saver;         /* NULL: no checkpoints */
    uint64_t asked, granted; /* wishes as read in this step, and when a checkpoint was last made for one */
    bool stopping;           /* this step was the last, the launching process wishes so */
    ek_pace *pace;           /* NULL: the replicas are not kept in step */
    double *busy;            /* [ranks] of the last step, as reported; the rank's own until they are gathered */
    bool has_busy;           /* a step has been committed under this membership */

    /* What hangs on the membership: made by attach, gone with detach. Empty on a rank without a role, but for sync. */
    bool placed;
    uint32_t replica, role;
    bool speaks;          /* counts the loss of its samples in the vote; tensor parallelism: the first of a replica */
    ek_batch_share share; /* the replica's, of the global batch */
    ek_batch_share own;   /* what of it this rank computes: all, or a part in expert parallelism */
    uint32_t rounds;      /* micro-batches of each rank of the replica; some may be empty */
    uint32_t samples_of_all;
    ek_group *tp, *all;
    uint32_t *all_ranks;
    ek_sync *sync;
    ek_model *model;
    float *gradients;
    float **gradient_of; /* [tensors] */
    uint32_t *tokens;    /* (micro batch, T+1) */

    /* The step in progress */
    uint32_t first_sample; /* of the micro-batch, in the global batch */
    uint64_t flips;        /* tokens that chose other experts than a file says */
    uint32_t passes;       /* calls of on_progress in this pass */
    bool first_micro_batch, last_micro_batch;
} ek_worker;

static uint64_t current_step(const ek_worker *worker)
{
    return worker->committed + 1;
}

static void beat(ek_worker *worker, ek_phase phase)
{
    ek_beat(worker->engine, ek_note(current_step(worker), phase));
}

static bool is_here(const ek_worker *worker, uint32_t replica, uint32_t slot)
{
    return replica * worker->config->parallel.tp + slot == worker->rank;
}

/* Tells when, so that recovery can be timed from the fault itself. */
static ek_status inject(ek_worker *worker, size_t fault)
{
    ek_fault_record record = {.kind = EK_RECORD_FAULT, .fault = (uint32_t)fault, .injected = ek_wall_seconds()};
    EK_TRY(ek_report(worker->engine, &record, sizeof record));
    return ek_inject(worker->engine, worker->run->options->faults[fault].hang ? EK_FAULT_HANG : EK_FAULT_KILL);
}

/* Kills or stops this rank if the user asked for it here: once, also where it comes back to the same step. */
static ek_status fault_point(ek_worker *worker, ek_phase phase)
{
    const ek_train_options *options = worker->run->options;
    for (size_t i = 0; i < options->fault_count; i++) {
        const ek_fault_point *fault = &options->faults[i];
        bool due =
            phase == EK_PHASE_RECOVERY ? current_step(worker) >= fault->step : current_step(worker) == fault->step;
        if (due && fault->phase == phase && is_here(worker, fault->replica, fault->slot) &&
            !(worker->run->monitor && ek_monitor_has_struck(worker->run->monitor, i)))
            return inject(worker, i);
    }
    return EK_OK;
}

/* Between the layers: the middle of the first forward and of the last backward are the fault points of those phases. */
static ek_status on_progress(void *user, bool backward, int bucket)
{
    ek_worker *worker = user;
    beat(worker, backward ? EK_PHASE_BACKWARD : EK_PHASE_FORWARD);
    uint32_t middle = (worker->config->model.layers + 1) / 2;
    if (++worker->passes == middle && (backward ? worker->last_micro_batch : worker->first_micro_batch))
        EK_TRY(fault_point(worker, backward ? EK_PHASE_BACKWARD : EK_PHASE_FORWARD));
    return bucket < 0 ? EK_OK : ek_sync_start(worker->sync, worker->gradients, (uint32_t)bucket);
}

/* What the tokens of a layer with experts chose is recorded, or taken from a record. */
static ek_status on_route(void *user, uint32_t moe_layer, uint32_t B, uint32_t *choices)
{
    ek_worker *worker = user;
    return ek_routes_file_use(worker->run->routes, current_step(worker), worker->first_sample, B, moe_layer,
                              worker->speaks, choices, &worker->flips);
}

/* ----------------------------------------------------------------------------------------- keeping in step */

/* How long the rank has been at work so far: the CPU time of its compute thread, or what a device of a given rate would
 * have needed for what the rank has computed. */
static double work_seconds(const ek_worker *worker)
{
    double rate = worker->config->power.emulated_flops_per_second;
    if (rate == 0.0)
        return ek_busy_seconds();
    return worker->model ? (double)ek_model_flops(worker->model) / rate : 0.0;
}

/* What the rank says it was busy, of what it measured: emulated devices are as fast as their power limit lets them be.
 */
static double reported_seconds(const ek_worker *worker, double measured)
{
    const ek_train_options *options = worker->run->options;
    if (worker->placed && worker->config->power.backend == EK_POWER_EMULATED)
        measured /= ek_pace_speed(worker->pace, worker->rank);
    for (size_t i = 0; i < options->slow_count; i++)
        if (worker->committed >= options->slows[i].step &&
            is_here(worker, options->slows[i].replica, options->slows[i].slot))
            measured *= options->slows[i].factor;
    return measured;
}

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

/* The rank's own samples: under tensor parallelism the replica's, under expert parallelism an even part of them. */
static void take_samples(ek_worker *worker)
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

/* All ranks learn how long each was busy with the last step, and decide alike. */
static ek_status keep_pace(ek_worker *worker)
{
    if (!worker->pace || !worker->placed || !worker->has_busy)
        return EK_OK;
    size_t bytes[EK_RANKS_MOST];
    double own = worker->busy[worker->rank], gathered[EK_RANKS_MOST];
    uint32_t members = ek_group_size(worker->all);
    for (uint32_t i = 0; i < members; i++)
        bytes[i] = sizeof own;
    EK_TRY(ek_all_gather(worker->all, &own, gathered, bytes, NULL));
    memset(worker->busy, 0, ek_engine_ranks(worker->engine) * sizeof *worker->busy);
    for (uint32_t i = 0; i < members; i++)
        worker->busy[worker->all_ranks[i]] = gathered[i];
    worker->has_busy = false;
    ek_pace_observe(worker->pace, worker->busy);
    take_samples(worker);
    return EK_OK;
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
        .progress = on_progress,
        .route = worker->run->routes ? on_route : NULL,
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

/* Builds what this rank needs to step under its membership. A rank without a role gets a sync that does nothing. */
static ek_status attach(ek_worker *worker)
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
    take_samples(worker);
    return fit_model(worker);
}

/* All but the model, which a recovery that leaves the rank's units alone lets stay. */
static void detach(ek_worker *worker)
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

static void drop_model(ek_worker *worker)
{
    ek_model_destroy(worker->model);
    worker->model = NULL;
}

/* -------------------------------------------------------------------------------------------------- step */

/* The samples of a micro-batch into worker->tokens; returns how many. */
static uint32_t read_samples(ek_worker *worker, uint32_t round)
{
    const ek_config *config = worker->config;
    uint32_t done = round * config->batch.micro, own = worker->own.count;
    uint32_t left = done < own ? own - done : 0, B = left < config->batch.micro ? left : config->batch.micro;
    worker->first_sample = worker->own.first + done;
    for (uint32_t b = 0; b < B; b++)
        ek_data_sample(worker->run->data, config->train.seed,
                       worker->committed * config->batch.global + worker->first_sample + b,
                       worker->tokens + (size_t)b * (config->model.sequence + 1));
    return B;
}

/* The rank's own units alone: what arrives in the synchronisation overwrites its place. */
static void clear_gradients(const ek_worker *worker)
{
    for (size_t t = 0; worker->gradients && t < worker->run->tensor_count; t++)
        memset(worker->gradient_of[t], 0, ek_sync_own(worker->sync, t) * sizeof(float));
}

/* The gradients of the rank's samples, and the sums of their losses. Buckets are on their way when it returns. */
static ek_status forward_and_backward(ek_worker *worker, ek_model_loss *sums)
{
    float scale = (float)(1.0 / ((double)worker->samples_of_all * worker->config->model.sequence));
    float *const *weights = worker->store.planes[EK_PLANE_WEIGHTS];
    clear_gradients(worker);
    for (uint32_t round = 0; round < worker->rounds; round++) {
        ek_model_loss loss;
        uint32_t B = read_samples(worker, round);
        worker->first_micro_batch = round == 0;
        worker->last_micro_batch = round + 1 == worker->rounds;
        worker->passes = 0;
        EK_TRY(ek_model_forward(worker->model, weights, worker->tokens, B, &loss));
        worker->passes = 0;
        EK_TRY(ek_model_backward(worker->model, weights, worker->gradient_of, worker->tokens, B, scale,
                                 worker->last_micro_batch));
        sums->cross_entropy += loss.cross_entropy;
        sums->balance += loss.balance;
    }
    return EK_OK;
}

/* A replica without samples contributes zeros: no forward, no backward, every bucket at once. */
static ek_status contribute_zeros(ek_worker *worker)
{
    EK_TRY(fault_point(worker, EK_PHASE_FORWARD));
    EK_TRY(fault_point(worker, EK_PHASE_BACKWARD));
    clear_gradients(worker);
    for (uint32_t bucket = 0; bucket < worker->run->bucket_count; bucket++)
        EK_TRY(ek_sync_start(worker->sync, worker->gradients, bucket));
    return EK_OK;
}

/* The optimizer: local, and run to its end whatever happens to peers. */
static ek_status update(ek_worker *worker, double norm)
{
    ek_adamw adamw = ek_adamw_step(worker->config, current_step(worker), norm);
    for (size_t t = 0; worker->placed && t < worker->run->tensor_count; t++) {
        ek_adamw_update(&adamw, ek_model_decays(&worker->config->model, t), worker->store.planes[EK_PLANE_WEIGHTS][t],
                        worker->gradient_of[t], worker->store.planes[EK_PLANE_FIRST_MOMENT][t],
                        worker->store.planes[EK_PLANE_SECOND_MOMENT][t], worker->store.elements[t]);
        beat(worker, EK_PHASE_OPTIMIZER);
        if (t == 0)
            EK_TRY(fault_point(worker, EK_PHASE_OPTIMIZER));
    }
    return EK_OK;
}

/* What the step took of the rank's time, and what it had been given. */
static void describe_pace(ek_worker *worker, ek_step_record *record)
{
    record->samples = worker->share.count;
    if (!worker->pace || !worker->placed)
        return;
    record->busy_seconds = worker->busy[worker->rank] = reported_seconds(worker, record->busy_seconds);
    worker->has_busy = true;
    if (worker->config->power.backend != EK_POWER_NONE)
        record->watts = ek_pace_watts(worker->pace, worker->rank);
    record->predicted_seconds = ek_pace_decision(worker->pace, worker->replica).predicted_seconds;
    record->straggles = ek_pace_straggles(worker->pace, worker->rank);
}

/* A checkpoint, where one is due or wished for, which all ranks have learnt alike from the vote. */
static ek_status save(ek_worker *worker, bool wished, bool stop)
{
    const ek_config *config = worker->config;
    if (!worker->saver)
        return EK_OK;
    uint64_t note = ek_note(worker->committed, EK_PHASE_OPTIMIZER);
    worker->stopping = stop;
    if (wished)
        worker->granted = worker->asked;
    bool last = worker->committed == config->train.steps || stop;
    bool due = config->checkpoint.every && worker->committed % config->checkpoint.every == 0;
    EK_TRY(ek_saver_tell(worker->saver, false, note));
    if ((last || due || wished) && worker->placed)
        EK_TRY(ek_saver_begin(worker->saver, worker->membership, &worker->store, worker->committed, note));
    return last ? ek_saver_tell(worker->saver, true, note) : EK_OK;
}

/* The lowest rank of the job. */
static uint32_t first_rank(const ek_worker *worker)
{
    uint32_t rank = 0;
    while (!ek_rank_is_known(worker->membership, rank))
        rank++;
    return rank;
}

static ek_status run_step(ek_worker *worker)
{
    enum { LOSS, SQUARE, SAMPLES, BALANCE, FLIPS, SAVE, STOP, VALUES };
    const ek_config *config = worker->config;
    ek_step_record record = {.kind = EK_RECORD_STEP, .step = current_step(worker)};
    record.started = ek_wall_seconds();
    double busy = work_seconds(worker), values[VALUES] = {0}, sums[VALUES];
    uint64_t dispatched = worker->model ? ek_model_dispatched_bytes(worker->model) : 0;

    worker->began_step = true;
    beat(worker, EK_PHASE_FORWARD);
    EK_TRY(keep_pace(worker));
    ek_model_loss loss = {0};
    worker->flips = 0;
    EK_TRY(worker->share.count ? forward_and_backward(worker, &loss) : contribute_zeros(worker));

    beat(worker, EK_PHASE_SYNC);
    EK_TRY(fault_point(worker, EK_PHASE_SYNC));
    double backward_ended = ek_wall_seconds();
    EK_TRY(ek_sync_finish(worker->sync, worker->gradients));
    record.exposed_seconds = ek_wall_seconds() - backward_ended;
    if (worker->speaks) {
        values[LOSS] = loss.cross_entropy;
        values[SAMPLES] = worker->own.count;
        values[BALANCE] = loss.balance;
        values[FLIPS] = (double)worker->flips;
    }
    /* One rank speaks for all, as they may hear of a wish in different steps; any may be the next to do so. */
    worker->asked = ek_engine_asked(worker->engine);
    if (worker->rank == first_rank(worker)) {
        values[SAVE] = worker->asked / EK_WISH_SAVE > worker->granted / EK_WISH_SAVE;
        values[STOP] = worker->asked & EK_WISH_STOP;
    }
    values[SQUARE] = ek_sync_square(worker->sync, worker->gradients);

    beat(worker, EK_PHASE_COMMIT);
    EK_TRY(ek_vote(worker->engine, record.step, values, sums, VALUES));
    record.committed = ek_wall_seconds();
    record.tokens = (uint64_t)sums[SAMPLES] * config->model.sequence;
    record.loss = sums[LOSS] / (double)record.tokens;
    if (config->model.experts)
        record.aux_loss = sums[BALANCE] / (sums[SAMPLES] * ek_model_moe_layers(&config->model));
    record.flips = (uint64_t)sums[FLIPS];
    record.grad_norm = sqrt(sums[SQUARE]);
    record.learning_rate = ek_learning_rate(config, record.step);
    if (!isfinite(record.loss) || !isfinite(record.grad_norm))
        return ek_fail(EK_CORRUPT, "step %llu: the loss is %g and the gradient norm %g; lower optimizer.lr",
                       (unsigned long long)record.step, record.loss, record.grad_norm);
    EK_TRY(fault_point(worker, EK_PHASE_COMMIT));

    beat(worker, EK_PHASE_OPTIMIZER);
    EK_TRY(update(worker, record.grad_norm));
    worker->committed++;
    worker->began_step = false;
    record.busy_seconds = work_seconds(worker) - busy;
    describe_pace(worker, &record);
    ek_sync_traffic(worker->sync, &record.reshard_bytes, &record.reduce_bytes);
    record.dispatch_bytes = worker->model ? ek_model_dispatched_bytes(worker->model) - dispatched : 0;
    EK_TRY(ek_report(worker->engine, &record, sizeof record));
    return save(worker, sums[SAVE] > 0.0, sums[STOP] > 0.0);
}

/* Flips a bit of a weight if the user asked for it. */
static void flip(ek_worker *worker)
{
    const ek_train_options *options = worker->run->options;
    for (size_t i = 0; i < options->flip_count && worker->placed; i++) {
        if (options->flips[i].step != worker->committed ||
            !is_here(worker, options->flips[i].replica, options->flips[i].slot))
            continue;
        size_t tensor = worker->run->tensor_count / 2;
        while (worker->run->tensors[tensor].group == EK_REPLICATED)
            tensor = (tensor + 1) % worker->run->tensor_count; /* some tensor is sharded */
        float *weight = worker->store.planes[EK_PLANE_WEIGHTS][tensor];
        uint32_t bits;
        memcpy(&bits, weight, sizeof bits);
        bits ^= 1u << 20; /* of the mantissa: a wrong number, not a monstrous one */
        memcpy(weight, &bits, sizeof bits);
    }
}

/* Puts the odd copies right, and has their ranks tell of it. */
static ek_status heal(ek_worker *worker, const ek_odd_copy *odd, size_t odd_count)
{
    EK_TRY(ek_heal_state(odd, odd_count, worker->membership, &worker->store, worker->run->tensors, worker->engine));
    for (size_t i = 0; i < odd_count; i++) {
        ek_healed_record record = {.kind = EK_RECORD_HEALED,
                                   .step = worker->committed,
                                   .tensor = (uint32_t)odd[i].tensor,
                                   .unit = odd[i].unit,
                                   .good = odd[i].good};
        if (odd[i].odd == worker->rank)
            EK_TRY(ek_report(worker->engine, &record, sizeof record));
    }
    return EK_OK;
}

static ek_status compare(ek_worker *worker)
{
    uint64_t every = worker->config->health.compare_every;
    flip(worker);
    if (!every || worker->committed % every || !worker->placed)
        return EK_OK;
    ek_odd_copy *odd;
    size_t odd_count;
    ek_status status = ek_compare_state(worker->all, worker->all_ranks, worker->membership, &worker->store,
                                        worker->run->tensors, worker->run->tensor_count, worker->engine,
                                        ek_note(worker->committed, EK_PHASE_OPTIMIZER), &odd, &odd_count);
    if (status == EK_CORRUPT)
        return ek_fail_prefix(status, "after step %llu: ", (unsigned long long)worker->committed);
    EK_TRY(status);
    status = odd_count ? heal(worker, odd, odd_count) : EK_OK;
    ek_free(odd);
    return status;
}

/* ---------------------------------------------------------------------------------------------- recovery */

/* Fills a new store with what this rank holds under the recovery's membership, kept or fetched, and serves the others.
 * A rank whose units all stay needs no new store: `next` stays empty. */
static ek_status move_state(ek_worker *worker, ek_recovery *recovery, ek_store *next)
{
    const ek_run *run = worker->run;
    if (worker->joining)
        worker->committed = ek_recovery_committed_step(recovery);
    if (ek_recovery_committed_step(recovery) != worker->committed)
        return ek_fail(EK_CORRUPT, "rank %u has applied %llu steps, the job has committed %llu", worker->rank,
                       (unsigned long long)worker->committed, (unsigned long long)ek_recovery_committed_step(recovery));
    EK_TRY(fault_point(worker, EK_PHASE_RECOVERY));
    bool keeps = ek_recovery_keeps(recovery);
    if (!keeps) {
        drop_model(worker);
        EK_TRY(ek_store_create(next, worker->rank, ek_recovery_membership(recovery), run->tensors, run->tensor_count));
    }
    ek_state *states = calloc(EK_PLANES * run->tensor_count, sizeof *states);
    if (!states)
        return ek_fail(EK_NO_MEMORY, "out of memory for recovery");
    ek_store_states(&worker->store, keeps ? &worker->store : next, run->tensors, run->tensor_count, states);
    ek_status status = ek_recovery_move(recovery, states, EK_PLANES * run->tensor_count);
    free(states);
    return status;
}

/* One attempt; EK_PEER_LOST asks for another. */
static ek_status try_recovery(ek_worker *worker, ek_recovery_record *record)
{
    ek_recovery *recovery;
    EK_TRY(ek_recovery_begin(&recovery, worker->engine, worker->membership));
    beat(worker, EK_PHASE_RECOVERY);
    ek_store next = {0};
    ek_status status = move_state(worker, recovery, &next);
    record->bytes += ek_recovery_bytes(recovery);
    ek_membership *membership;
    status = ek_recovery_end(&recovery, status, &membership);
    if (status != EK_OK) {
        ek_store_destroy(&next);
        return status;
    }
    if (next.elements) {
        ek_store_destroy(&worker->store);
        worker->store = next;
    }
    ek_membership_destroy(worker->membership);
    worker->membership = membership;
    return EK_OK;
}

static ek_status recover(ek_worker *worker)
{
    ek_recovery_record record = {.kind = EK_RECORD_RECOVERED, .noticed = ek_wall_seconds()};
    record.redone_steps = worker->began_step;
    record.is_new = worker->joining;
    detach(worker);
    ek_status status;
    do
        status = try_recovery(worker, &record);
    while (status == EK_PEER_LOST);
    if (status != EK_OK)
        return status;
    worker->joining = false;
    EK_TRY(attach(worker));
    record.committed_step = worker->committed;
    for (uint32_t rank = 0; rank < ek_membership_ranks(worker->membership); rank++)
        if (ek_rank_is_known(worker->membership, rank))
            record.live[rank / 8] |= (uint8_t)(1u << rank % 8);
    record.ended = ek_wall_seconds();
    return ek_report(worker->engine, &record, sizeof record);
}

/* -------------------------------------------------------------------------------------------------- main */

static void beat_loading(void *worker)
{
    beat(worker, EK_PHASE_FORWARD);
}

/* The state to start from: a checkpoint, weights of elsewhere, or the seed. */
static ek_status fill_store(ek_worker *worker)
{
    const ek_run *run = worker->run;
    const ek_config *config = worker->config;
    ek_store *store = &worker->store;
    EK_TRY(ek_store_create(store, worker->rank, worker->membership, run->tensors, run->tensor_count));
    if (!store->memory) /* a spare */
        return EK_OK;
    ek_share share = {worker->membership, worker->rank, &config->model, run->tensors, run->tensor_count};
    if (run->briefing.resumed_step)
        return ek_checkpoint_load(run->briefing.resumed_path, &share, store->planes, beat_loading, worker);
    if (config->checkpoint.weights)
        return ek_checkpoint_load_weights(config->checkpoint.weights, &share, store->planes[EK_PLANE_WEIGHTS],
                                          beat_loading, worker);
    ek_store_init(store, worker->engine, ek_note(current_step(worker), EK_PHASE_FORWARD), worker->membership,
                  &config->model, config->train.seed, run->tensors, run->tensor_count);
    return EK_OK;
}

static ek_status begin(ek_worker *worker, ek_run *run)
{
    const ek_config *config = worker->config;
    beat(worker, EK_PHASE_FORWARD);
    EK_TRY(ek_run_open_routes(run));
    worker->gradient_of = calloc(run->tensor_count, sizeof *worker->gradient_of);
    worker->tokens = calloc((size_t)config->batch.micro * (config->model.sequence + 1), sizeof *worker->tokens);
    if (!worker->gradient_of || !worker->tokens)
        return ek_fail(EK_NO_MEMORY, "out of memory for the token buffer");
    EK_TRY(ek_membership_lose(run->membership, NULL, 0, &worker->membership)); /* a copy of its own */
    worker->busy = calloc(ek_engine_ranks(worker->engine), sizeof *worker->busy);
    if (!worker->busy)
        return ek_fail(EK_NO_MEMORY, "out of memory for busy times");
    worker->committed = run->briefing.resumed_step;
    worker->granted = ek_engine_is_new(worker->engine) ? ek_engine_asked(worker->engine) : 0;
    if (config->checkpoint.dir)
        EK_TRY(ek_saver_create(&worker->saver, run, worker->engine));
    if (ek_pace_wanted(config))
        EK_TRY(ek_pace_create(&worker->pace, config, ek_membership_job(run->membership), run->briefing.default_watts,
                              run->briefing.may_raise));
    if (ek_engine_is_new(worker->engine)) { /* the others have its state, and the membership */
        worker->joining = true;
        return recover(worker);
    }
    EK_TRY(fill_store(worker));
    return attach(worker);
}

static void end(ek_worker *worker)
{
    detach(worker);
    drop_model(worker);
    ek_store_destroy(&worker->store);
    ek_saver_destroy(worker->saver);
    ek_pace_destroy(worker->pace);
    ek_membership_destroy(worker->membership);
    free(worker->busy);
    free(worker->gradient_of);
    free(worker->tokens);
}

/* A straggler is treated as failed, where that is configured: it ends itself, and its replica goes on without it. */
static ek_status give_up_if_slow(ek_worker *worker)
{
    if (!worker->config->health.straggler_fails || !worker->pace || !worker->placed ||
        !ek_pace_straggles(worker->pace, worker->rank))
        return EK_OK;
    return ek_inject(worker->engine, EK_FAULT_KILL);
}

static bool is_done(const ek_worker *worker)
{
    return worker->committed == worker->config->train.steps || worker->stopping;
}

ek_status ek_worker_main(ek_engine *engine, void *user)
{
    ek_run *run = user;
    ek_worker worker = {.run = run, .config = run->config, .engine = engine, .rank = ek_engine_rank(engine)};
    ek_status status = begin(&worker, run);
    while (status == EK_OK && !is_done(&worker)) {
        status = run_step(&worker);
        if (status == EK_OK)
            status = compare(&worker);
        if (status == EK_OK && !is_done(&worker) && ek_engine_joining(engine))
            status = recover(&worker);
        if (status == EK_OK)
            status = give_up_if_slow(&worker);
        if (status == EK_PEER_LOST) /* after the last step there is nothing left to recover for */
            status = is_done(&worker) ? EK_OK : recover(&worker);
    }
    end(&worker);
    return status;
}
