/* A step: forward and backward of every micro-batch, where the last backward hands each bucket to the gradient lane as
 * it completes it; the end of the synchronisation; the vote; then, committed, the update and the report. Read from
 * ek_worker_run_step up.
 *
 * Weights are touched after the vote alone, so an aborted step leaves nothing behind but gradients, which the next
 * attempt clears. */
#include "train/worker_parts.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "train/clock.h"
#include "train/compare.h"
#include "train/monitor.h"
#include "train/optimizer.h"

/* ------------------------------------------------------------------------------------- faults and progress */

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

ek_status ek_worker_fault_point(ek_worker *worker, ek_phase phase)
{
    const ek_train_options *options = worker->run->options;
    for (size_t i = 0; i < options->fault_count; i++) {
        const ek_fault_point *fault = &options->faults[i];
        bool due = phase == EK_PHASE_RECOVERY ? ek_worker_step_now(worker) >= fault->step
                                              : ek_worker_step_now(worker) == fault->step;
        if (due && fault->phase == phase && is_here(worker, fault->replica, fault->slot) &&
            !(worker->run->monitor && ek_monitor_has_struck(worker->run->monitor, i)))
            return inject(worker, i);
    }
    return EK_OK;
}

/* Between the layers: the middle of the first forward and of the last backward are the fault points of those phases. */
ek_status ek_worker_progress(void *user, bool backward, int bucket)
{
    ek_worker *worker = user;
    ek_worker_beat(worker, backward ? EK_PHASE_BACKWARD : EK_PHASE_FORWARD);
    uint32_t middle = (worker->config->model.layers + 1) / 2;
    if (++worker->passes == middle && (backward ? worker->last_micro_batch : worker->first_micro_batch))
        EK_TRY(ek_worker_fault_point(worker, backward ? EK_PHASE_BACKWARD : EK_PHASE_FORWARD));
    return bucket < 0 ? EK_OK : ek_sync_start(worker->sync, worker->gradients, (uint32_t)bucket);
}

/* What the tokens of a layer with experts chose is recorded, or taken from a record. */
ek_status ek_worker_route(void *user, uint32_t moe_layer, uint32_t B, uint32_t *choices)
{
    ek_worker *worker = user;
    return ek_routes_file_use(worker->run->routes, ek_worker_step_now(worker), worker->first_sample, B, moe_layer,
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
    ek_worker_take_samples(worker);
    return EK_OK;
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
    EK_TRY(ek_worker_fault_point(worker, EK_PHASE_FORWARD));
    EK_TRY(ek_worker_fault_point(worker, EK_PHASE_BACKWARD));
    clear_gradients(worker);
    for (uint32_t bucket = 0; bucket < worker->run->bucket_count; bucket++)
        EK_TRY(ek_sync_start(worker->sync, worker->gradients, bucket));
    return EK_OK;
}

/* The optimizer: local, and run to its end whatever happens to peers. */
static ek_status update(ek_worker *worker, double norm)
{
    ek_adamw adamw = ek_adamw_step(worker->config, ek_worker_step_now(worker), norm);
    for (size_t t = 0; worker->placed && t < worker->run->tensor_count; t++) {
        ek_adamw_update(&adamw, ek_model_decays(&worker->config->model, t), worker->store.planes[EK_PLANE_WEIGHTS][t],
                        worker->gradient_of[t], worker->store.planes[EK_PLANE_FIRST_MOMENT][t],
                        worker->store.planes[EK_PLANE_SECOND_MOMENT][t], worker->store.elements[t]);
        ek_worker_beat(worker, EK_PHASE_OPTIMIZER);
        if (t == 0)
            EK_TRY(ek_worker_fault_point(worker, EK_PHASE_OPTIMIZER));
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

ek_status ek_worker_run_step(ek_worker *worker)
{
    enum { LOSS, SQUARE, SAMPLES, BALANCE, FLIPS, SAVE, STOP, VALUES };
    const ek_config *config = worker->config;
    ek_step_record record = {.kind = EK_RECORD_STEP, .step = ek_worker_step_now(worker)};
    record.started = ek_wall_seconds();
    double busy = work_seconds(worker), values[VALUES] = {0}, sums[VALUES];
    uint64_t dispatched = worker->model ? ek_model_dispatched_bytes(worker->model) : 0;

    worker->began_step = true;
    ek_worker_beat(worker, EK_PHASE_FORWARD);
    EK_TRY(keep_pace(worker));
    ek_model_loss loss = {0};
    worker->flips = 0;
    EK_TRY(worker->share.count ? forward_and_backward(worker, &loss) : contribute_zeros(worker));

    ek_worker_beat(worker, EK_PHASE_SYNC);
    EK_TRY(ek_worker_fault_point(worker, EK_PHASE_SYNC));
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

    ek_worker_beat(worker, EK_PHASE_COMMIT);
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
    EK_TRY(ek_worker_fault_point(worker, EK_PHASE_COMMIT));

    ek_worker_beat(worker, EK_PHASE_OPTIMIZER);
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

ek_status ek_worker_compare(ek_worker *worker)
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
