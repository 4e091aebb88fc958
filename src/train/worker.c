/* The life of one rank: it begins, takes steps, and recovers. Whatever ends with EK_PEER_LOST: recover, then the same
 * step again. */
#include "train/worker_parts.h"

#include <stdlib.h>

#include "base/error.h"
#include "train/clock.h"

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
    EK_TRY(ek_worker_fault_point(worker, EK_PHASE_RECOVERY));
    bool keeps = ek_recovery_keeps(recovery);
    if (!keeps) {
        ek_worker_drop_model(worker);
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
    ek_worker_beat(worker, EK_PHASE_RECOVERY);
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
    ek_worker_detach(worker);
    ek_status status;
    do
        status = try_recovery(worker, &record);
    while (status == EK_PEER_LOST);
    if (status != EK_OK)
        return status;
    worker->joining = false;
    EK_TRY(ek_worker_attach(worker));
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
    ek_worker_beat(worker, EK_PHASE_FORWARD);
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
    ek_store_init(store, worker->engine, ek_note(ek_worker_step_now(worker), EK_PHASE_FORWARD), worker->membership,
                  &config->model, config->train.seed, run->tensors, run->tensor_count);
    return EK_OK;
}

static ek_status begin(ek_worker *worker, ek_run *run)
{
    const ek_config *config = worker->config;
    ek_worker_beat(worker, EK_PHASE_FORWARD);
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
    return ek_worker_attach(worker);
}

static void end(ek_worker *worker)
{
    ek_worker_detach(worker);
    ek_worker_drop_model(worker);
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
        status = ek_worker_run_step(&worker);
        if (status == EK_OK)
            status = ek_worker_compare(&worker);
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
