/* Gathers the records of the ranks into steps and recoveries, and acts on what they tell: metrics, display, power,
 * returns. */
#include "train/monitor.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "power/xid.h"
#include "train/clock.h"
#include "train/journal.h"
#include "train/limits.h"
#include "train/phases.h"
#include "train/records.h"
#include "train/saves.h"

/* What one replica's ranks said of the step that is being gathered. */
typedef struct replica_step {
    ek_phase_replica pace;
    double exposed_seconds;                               /* of the slowest rank */
    uint64_t reshard_bytes, reduce_bytes, dispatch_bytes; /* of all ranks */
} replica_step;

struct ek_monitor {
    const ek_run *run;
    ek_journal journal;
    ek_membership *membership;
    ek_launcher *launcher; /* NULL: no rank runs */
    uint64_t wish;         /* as asked of the ranks */
    ek_saves *saves;       /* NULL: no checkpoints */
    ek_limits *limits;     /* NULL: power is not governed */
    bool *pending;         /* [ranks] lost, and no recovery has dealt with it yet */
    bool *straggling;      /* [ranks] told of already */
    bool *rejoined;        /* [rejoins] of the options: those that were asked for */
    double *watts;         /* [ranks] as the ranks' governors decided for the step that is gathered */
    uint32_t lost_count;   /* since launch */
    bool *struck;          /* [faults] of the options: those that came about */
    double *injected;      /* [ranks] when a rank said that it would kill or stop itself; 0: it did not */
    char last_cause[96];
    uint32_t timed_out;
    double first_noticed; /* of the losses that no recovery has dealt with; 0: none */

    bool gathering_step;
    uint32_t step_reports; /* ranks that have told of it */
    ek_step_record step;   /* earliest start, latest commit */
    replica_step *replicas;
    bool gathering_recovery;
    ek_recovery_record recovery;
    uint64_t *replica_bytes; /* [replicas] received in it */

    uint64_t last_step;       /* committed */
    uint64_t committed_steps; /* in this run, those that were lost again too */
    uint64_t saved_step;      /* of the last complete checkpoint */
    double stood_seconds;     /* for checkpoints */
    double committed_seconds, last_committed, last_loss;
    ek_phases *phases;
};

static const char *plural(uint64_t count, const char *one, const char *many)
{
    return count == 1 ? one : many;
}

/* A row of the table for what happened `at`; for what happens now. */
static ek_table_row row_at(const ek_monitor *monitor, uint64_t step, double at, const char *text)
{
    return (ek_table_row){.step = step, .seconds = at - monitor->journal.launched, .event = text};
}

static ek_table_row row_now(const ek_monitor *monitor, uint64_t step, const char *text)
{
    return row_at(monitor, step, ek_wall_seconds(), text);
}

/* Something about devices that the job goes on in spite of. */
static void complain(ek_monitor *monitor, const char *text)
{
    ek_journal_tell(&monitor->journal, row_now(monitor, monitor->last_step + 1, text), NULL);
}

/* ------------------------------------------------------------------------------------------------- steps */

/* Tells of what the replicas have where that has changed, and puts what the governors decided into effect. */
static ek_status follow_governors(ek_monitor *monitor)
{
    const ek_config *config = monitor->run->config;
    ek_phase_replica replicas[EK_MAX_REPLICAS];
    for (uint32_t r = 0; r < config->parallel.dp; r++) {
        replicas[r] = monitor->replicas[r].pace;
        replicas[r].degree = ek_membership_degree(monitor->membership, r);
    }
    bool changed = ek_phases_add(monitor->phases, monitor->step.step, replicas);
    for (uint32_t r = 0; changed && r < config->parallel.dp; r++) {
        json_t *event = json_pack("{s:s, s:I, s:i, s:i, s:f, s:i, s:f}", "event", "adjusted", "step",
                                  (json_int_t)monitor->step.step, "replica", (int)r, "tp", (int)replicas[r].degree,
                                  "power_watts", replicas[r].watts, "samples", (int)replicas[r].samples, "at",
                                  monitor->step.committed - monitor->journal.launched);
        if (replicas[r].predicted_seconds > 0.0)
            json_object_set_new(event, "predicted_seconds", json_real(replicas[r].predicted_seconds));
        EK_TRY(ek_metrics_write(&monitor->journal.metrics, event));
    }
    for (uint32_t rank = 0; rank < ek_membership_ranks(monitor->membership); rank++)
        if (monitor->watts[rank] > 0.0 && ek_limits_set(monitor->limits, rank, monitor->watts[rank]) != EK_OK)
            complain(monitor, ek_error());
    return EK_OK;
}

/* Errors that drivers reported: a device that is lost takes its rank along. */
static ek_status hear_devices(ek_monitor *monitor)
{
    for (;;) {
        bool any;
        uint32_t rank;
        uint64_t code;
        if (ek_limits_event(monitor->limits, &any, &rank, &code) != EK_OK)
            complain(monitor, ek_error());
        if (!any)
            return EK_OK;
        ek_xid xid = ek_xid_find(code);
        char text[160], place[EK_PLACE_BYTES] = "some device";
        if (rank != EK_NONE)
            ek_journal_place(&monitor->journal, rank, place);
        snprintf(text, sizeof text, "%s: Xid %llu, %s%s", place, (unsigned long long)code, xid.text,
                 xid.meaning == EK_XID_LOST ? ": the device is lost" : "");
        uint64_t step = monitor->last_step + 1;
        json_t *event = ek_journal_event(&monitor->journal, "device_error", step, rank);
        json_object_set_new(event, "xid", json_integer((json_int_t)code));
        json_object_set_new(event, "text", json_string(xid.text));
        EK_TRY(ek_journal_tell(&monitor->journal, row_now(monitor, step, text), event));
        if (xid.meaning == EK_XID_LOST && rank != EK_NONE && monitor->launcher)
            ek_launcher_kill(monitor->launcher, rank); /* refused: it is gone already */
    }
}

/* Ranks that are to come back once this many steps are committed. What is not lost yet is asked for again after the
 * next step. */
static void call_back(ek_monitor *monitor)
{
    const ek_train_options *options = monitor->run->options;
    for (size_t i = 0; i < options->rejoin_count && monitor->launcher; i++) {
        const ek_rejoin *rejoin = &options->rejoins[i];
        if (!monitor->rejoined[i] && rejoin->step <= monitor->last_step + 1)
            monitor->rejoined[i] =
                ek_launcher_revive(monitor->launcher,
                                   rejoin->replica * monitor->run->config->parallel.tp + rejoin->slot) == EK_OK;
    }
}

static ek_status write_step(ek_monitor *monitor, double seconds)
{
    const ek_step_record *step = &monitor->step;
    if (monitor->journal.metrics.file < 0)
        return EK_OK;
    json_t *replicas = json_array();
    for (uint32_t r = 0; r < ek_membership_job(monitor->membership)->replicas; r++) {
        const replica_step *replica = &monitor->replicas[r];
        json_t *item = json_pack("{s:i, s:i, s:i, s:f, s:f, s:f, s:I, s:I}", "id", (int)r, "tp",
                                 (int)ek_membership_degree(monitor->membership, r), "samples",
                                 (int)replica->pace.samples, "busy_seconds", replica->pace.busy_seconds, "power_watts",
                                 replica->pace.watts, "exposed_seconds", replica->exposed_seconds, "reshard_bytes",
                                 (json_int_t)replica->reshard_bytes, "reduce_bytes", (json_int_t)replica->reduce_bytes);
        if (monitor->run->config->parallel.mode == EK_MODE_EP)
            json_object_set_new(item, "dispatch_bytes", json_integer((json_int_t)replica->dispatch_bytes));
        json_array_append_new(replicas, item);
    }
    json_t *line =
        json_pack("{s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f, s:o}", "step", (json_int_t)step->step, "loss", step->loss,
                  "grad_norm", step->grad_norm, "learning_rate", step->learning_rate, "tokens",
                  (json_int_t)step->tokens, "seconds", seconds, "tokens_per_second", (double)step->tokens / seconds,
                  "at", step->committed - monitor->journal.launched, "replicas", replicas);
    if (monitor->run->config->model.experts)
        json_object_set_new(line, "aux_loss", json_real(step->aux_loss));
    if (monitor->run->routes)
        json_object_set_new(line, "route_flips", json_integer((json_int_t)step->flips));
    return ek_metrics_write(&monitor->journal.metrics, line);
}

/* All that the ranks say of a step is in: all of them have reported it, or one tells of what came later, since every
 * rank reports a step before it can vote for the next. */
static ek_status close_step(ek_monitor *monitor)
{
    if (!monitor->gathering_step)
        return EK_OK;
    monitor->gathering_step = false;
    const ek_step_record *step = &monitor->step;
    double seconds = step->committed - fmax(step->started, monitor->last_committed);
    monitor->committed_steps++;
    monitor->last_step = step->step;
    monitor->committed_seconds += seconds;
    monitor->last_committed = step->committed;
    monitor->last_loss = step->loss;
    uint64_t steps = monitor->run->config->train.steps;
    ek_display_step(&monitor->journal.display, step, steps, seconds,
                    monitor->committed_seconds / (double)monitor->committed_steps * (double)(steps - step->step),
                    monitor->membership);
    EK_TRY(write_step(monitor, seconds));
    call_back(monitor);
    EK_TRY(hear_devices(monitor));
    return follow_governors(monitor);
}

static ek_status note_straggler(ek_monitor *monitor, uint32_t rank, const ek_step_record *step)
{
    bool new = step->straggles && !monitor->straggling[rank];
    monitor->straggling[rank] = step->straggles;
    if (!new)
        return EK_OK;
    char text[160], place[EK_PLACE_BYTES];
    snprintf(text, sizeof text, "%s straggles", ek_journal_place(&monitor->journal, rank, place));
    json_t *event = ek_journal_event(&monitor->journal, "straggler", step->step, rank);
    json_object_set_new(event, "busy_seconds", json_real(step->busy_seconds));
    json_object_set_new(event, "power_watts", json_real(step->watts));
    return ek_journal_tell(&monitor->journal, row_now(monitor, step->step, text), event);
}

static ek_status gather_step(ek_monitor *monitor, uint32_t rank, const ek_step_record *step)
{
    if (!monitor->gathering_step) {
        monitor->gathering_step = true;
        monitor->step_reports = 0;
        monitor->step = *step;
        memset(monitor->replicas, 0, monitor->run->config->parallel.dp * sizeof *monitor->replicas);
        memset(monitor->watts, 0, ek_membership_ranks(monitor->membership) * sizeof *monitor->watts);
    }
    monitor->step.started = fmin(monitor->step.started, step->started);
    monitor->step.committed = fmax(monitor->step.committed, step->committed);
    uint32_t r;
    if (ek_membership_place(monitor->membership, rank, &r, NULL)) {
        replica_step *replica = &monitor->replicas[r];
        replica->pace.samples = step->samples;
        replica->pace.busy_seconds = fmax(replica->pace.busy_seconds, step->busy_seconds);
        replica->exposed_seconds = fmax(replica->exposed_seconds, step->exposed_seconds);
        replica->reshard_bytes += step->reshard_bytes;
        replica->reduce_bytes += step->reduce_bytes;
        replica->dispatch_bytes += step->dispatch_bytes;
        replica->pace.watts = fmax(replica->pace.watts, step->watts);
        replica->pace.total_watts += step->watts;
        replica->pace.predicted_seconds = fmax(replica->pace.predicted_seconds, step->predicted_seconds);
    }
    monitor->watts[rank] = step->watts;
    EK_TRY(note_straggler(monitor, rank, step));
    uint32_t reporting = 0;
    for (rank = 0; rank < ek_membership_ranks(monitor->membership); rank++)
        reporting += ek_rank_is_known(monitor->membership, rank) && !monitor->pending[rank];
    return ++monitor->step_reports == reporting ? close_step(monitor) : EK_OK;
}

/* ------------------------------------------------------------------------------------------- checkpoints */

static ek_status tell_save(void *user, const ek_save *save)
{
    ek_monitor *monitor = user;
    char text[EK_ERROR_BYTES + 64];
    json_t *event =
        ek_journal_event(&monitor->journal, save->complete ? "checkpoint" : "checkpoint_failed", save->step, EK_NONE);
    if (save->complete) {
        monitor->saved_step = save->step;
        monitor->stood_seconds += save->stood_seconds;
        snprintf(text, sizeof text, "checkpoint: %.2f MB in %.2f s, training stood still for %.1f ms",
                 1e-6 * (double)save->bytes, save->seconds, 1e3 * save->stood_seconds);
        json_object_set_new(event, "bytes", json_integer((json_int_t)save->bytes));
        json_object_set_new(event, "seconds", json_real(save->seconds));
        json_object_set_new(event, "stood_seconds", json_real(save->stood_seconds));
    } else {
        snprintf(text, sizeof text, "no checkpoint: %s", save->trouble);
        json_object_set_new(event, "reason", json_string(save->trouble));
    }
    EK_TRY(ek_journal_tell(&monitor->journal, row_now(monitor, save->step, text), event));
    if (save->complete && save->trouble)
        complain(monitor, save->trouble);
    return EK_OK;
}

/* ---------------------------------------------------------------------------------- failures, recoveries */

static void describe_loss(const ek_loss *loss, const ek_config *config, char *text, size_t size)
{
    if (loss->cause == EK_LOSS_TIMEOUT)
        snprintf(text, size, "no progress for %g s", config->engine.timeout_seconds);
    else if (loss->cause == EK_LOSS_SIGNAL)
        snprintf(text, size, "signal %d, %s", loss->code, strsignal(loss->code));
    else
        snprintf(text, size, "exit status %d", loss->code);
}

ek_status ek_monitor_lost(void *user, const ek_loss *loss)
{
    ek_monitor *monitor = ((const ek_run *)user)->monitor;
    double now = ek_wall_seconds();
    if (!loss->is_new && monitor->first_noticed == 0.0)
        monitor->first_noticed = now;
    monitor->pending[loss->rank] = !loss->is_new;
    monitor->straggling[loss->rank] = false;
    monitor->lost_count++;
    monitor->timed_out += loss->cause == EK_LOSS_TIMEOUT;
    uint64_t step = ek_note_step(loss->note);
    const char *phase = ek_phase_name((ek_phase)ek_note_phase(loss->note));
    char text[256], place[EK_PLACE_BYTES];
    describe_loss(loss, monitor->run->config, monitor->last_cause, sizeof monitor->last_cause);
    snprintf(text, sizeof text, "%s lost (%s)", ek_journal_place(&monitor->journal, loss->rank, place),
             monitor->last_cause);
    json_t *event = ek_journal_event(&monitor->journal, "failure", step, loss->rank);
    json_object_set_new(event, "phase", json_string(phase));
    json_object_set_new(event, "cause", json_string(monitor->last_cause));
    json_object_set_new(event, "at", json_real(now - monitor->journal.launched));
    if (monitor->injected[loss->rank] > 0.0)
        json_object_set_new(event, "injected_at", json_real(monitor->injected[loss->rank] - monitor->journal.launched));
    monitor->injected[loss->rank] = 0.0;
    ek_table_row row = row_at(monitor, step, now, text);
    row.detail = phase;
    EK_TRY(ek_journal_tell(&monitor->journal, row, event));
    if (ek_limits_reset(monitor->limits, loss->rank) != EK_OK)
        complain(monitor, ek_error());
    return ek_saves_lost(monitor->saves, loss->rank);
}

/* One event for each replica whose degree the recovery changed. */
static ek_status write_recovered(ek_monitor *monitor, const ek_membership *before)
{
    const ek_recovery_record *recovery = &monitor->recovery;
    uint64_t step = recovery->committed_step + 1;
    double noticed = monitor->first_noticed > 0.0 ? fmin(recovery->noticed, monitor->first_noticed) : recovery->noticed;
    for (uint32_t r = 0; r < ek_membership_job(before)->replicas; r++) {
        uint32_t degree = ek_membership_degree(monitor->membership, r);
        if (degree == ek_membership_degree(before, r))
            continue;
        char text[128];
        if (degree)
            snprintf(text, sizeof text, "replica %u goes on as %s%u", r, ek_config_parallelism(monitor->run->config),
                     degree);
        else
            snprintf(text, sizeof text, "replica %u is retired", r);
        ek_table_row row = row_at(monitor, step, recovery->ended, text);
        row.recovered = true;
        row.recovery_seconds = recovery->ended - noticed;
        row.bytes = monitor->replica_bytes[r];
        row.redone_steps = recovery->redone_steps;
        json_t *event =
            json_pack("{s:s, s:I, s:i, s:i, s:f, s:I, s:i, s:f}", "event", "recovered", "step", (json_int_t)step,
                      "replica", (int)r, "tp", (int)degree, "seconds", row.recovery_seconds, "bytes",
                      (json_int_t)row.bytes, "redone_steps", (int)row.redone_steps, "at", row.seconds);
        EK_TRY(ek_journal_tell(&monitor->journal, row, event));
    }
    return EK_OK;
}

/* Ranks that have come back. */
static ek_status write_rejoined(ek_monitor *monitor, const ek_membership *before)
{
    uint64_t step = monitor->recovery.committed_step + 1;
    for (uint32_t rank = 0; rank < ek_membership_ranks(before); rank++) {
        if (ek_rank_is_known(before, rank) || !ek_rank_is_known(monitor->membership, rank))
            continue;
        char text[128], place[EK_PLACE_BYTES];
        snprintf(text, sizeof text, "%s is back", ek_journal_place(&monitor->journal, rank, place));
        ek_table_row row = row_at(monitor, step, monitor->recovery.ended, text);
        json_t *event = ek_journal_event(&monitor->journal, "rejoined", step, rank);
        json_object_set_new(event, "at", json_real(row.seconds));
        EK_TRY(ek_journal_tell(&monitor->journal, row, event));
    }
    return EK_OK;
}

static ek_status close_recovery(ek_monitor *monitor)
{
    if (!monitor->gathering_recovery)
        return EK_OK;
    monitor->gathering_recovery = false;
    ek_membership *before = monitor->membership, *next;
    uint32_t ranks = ek_membership_ranks(before);
    bool live[EK_RANKS_MOST], any_pending = false;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        live[rank] = monitor->recovery.live[rank / 8] >> rank % 8 & 1;
        monitor->pending[rank] = monitor->pending[rank] && live[rank]; /* lost after they agreed */
        any_pending = any_pending || monitor->pending[rank];
    }
    EK_TRY(ek_membership_follow(before, live, &next));
    monitor->membership = next;
    ek_status status = write_rejoined(monitor, before);
    if (status == EK_OK)
        status = write_recovered(monitor, before);
    ek_membership_destroy(before);
    monitor->first_noticed = any_pending ? ek_wall_seconds() : 0.0;
    return status;
}

static ek_status gather_recovery(ek_monitor *monitor, uint32_t rank, const ek_recovery_record *recovery)
{
    if (monitor->gathering_recovery && (monitor->recovery.committed_step != recovery->committed_step ||
                                        memcmp(monitor->recovery.live, recovery->live, sizeof recovery->live) != 0))
        EK_TRY(close_recovery(monitor));
    if (!monitor->gathering_recovery) {
        EK_TRY(close_step(monitor));
        monitor->gathering_recovery = true;
        monitor->recovery = *recovery;
        monitor->recovery.noticed = INFINITY;
        memset(monitor->replica_bytes, 0, monitor->run->config->parallel.dp * sizeof *monitor->replica_bytes);
    }
    ek_recovery_record *all = &monitor->recovery;
    if (!recovery->is_new) /* a newcomer has waited for the others */
        all->noticed = fmin(all->noticed, recovery->noticed);
    all->ended = fmax(all->ended, recovery->ended);
    all->redone_steps = recovery->redone_steps > all->redone_steps ? recovery->redone_steps : all->redone_steps;
    uint32_t replica = rank / monitor->run->config->parallel.tp;
    if (replica < monitor->run->config->parallel.dp)
        monitor->replica_bytes[replica] += recovery->bytes;
    return EK_OK;
}

/* A copy that differed from most: the device that held it is not to be trusted. */
static ek_status write_healed(ek_monitor *monitor, uint32_t rank, const ek_healed_record *healed)
{
    const char *tensor = monitor->run->tensors[healed->tensor].name;
    char text[160], place[EK_PLACE_BYTES];
    snprintf(text, sizeof text, "%s: unit %u of %s was corrupt, healed from rank %u",
             ek_journal_place(&monitor->journal, rank, place), healed->unit, tensor, healed->good);
    json_t *event = ek_journal_event(&monitor->journal, "healed", healed->step, rank);
    json_object_set_new(event, "tensor", json_string(tensor));
    json_object_set_new(event, "unit", json_integer(healed->unit));
    json_object_set_new(event, "from_rank", json_integer(healed->good));
    return ek_journal_tell(&monitor->journal, row_now(monitor, healed->step, text), event);
}

/* --------------------------------------------------------------------------------------------- interface */

ek_status ek_monitor_start(void *user, ek_launcher *launcher)
{
    ek_monitor *monitor = ((const ek_run *)user)->monitor;
    monitor->launcher = launcher;
    ek_launcher_ask(launcher, monitor->wish); /* of ranks that were launched before, too */
    return EK_OK;
}

ek_status ek_monitor_report(void *user, uint32_t rank, const void *data, size_t bytes)
{
    ek_monitor *monitor = ((const ek_run *)user)->monitor;
    ek_record record = {0};
    memcpy(&record, data, bytes < sizeof record ? bytes : sizeof record);
    if (record.kind == EK_RECORD_RECOVERED)
        return gather_recovery(monitor, rank, &record.recovery);
    if (record.kind == EK_RECORD_FAULT) {
        monitor->injected[rank] = record.fault.injected;
        monitor->struck[record.fault.fault] = true;
        return EK_OK;
    }
    if (record.kind == EK_RECORD_HEALED)
        return write_healed(monitor, rank, &record.healed);
    if (record.kind == EK_RECORD_SAVED)
        return ek_saves_report(monitor->saves, rank, &record.saved);
    if (record.step.step <= monitor->last_step) /* closed early, since a rank that reported it was lost meanwhile */
        return EK_OK;
    if (!monitor->gathering_step || monitor->step.step != record.step.step) {
        EK_TRY(close_step(monitor));
        EK_TRY(close_recovery(monitor));
    }
    return gather_step(monitor, rank, &record.step);
}

static void ask(ek_monitor *monitor, uint64_t wish)
{
    monitor->wish = wish;
    ek_launcher_ask(monitor->launcher, wish);
}

/* SIGUSR1 asks for a checkpoint, SIGTERM for one and the end; the second SIGTERM, and the others, for the end at once.
 */
ek_status ek_monitor_signal(void *user, int signal)
{
    const ek_run *run = user;
    if (run->monitor->saves && signal == SIGUSR1) {
        ask(run->monitor, run->monitor->wish + EK_WISH_SAVE);
        return EK_OK;
    }
    if (signal == SIGUSR1)
        return EK_OK;
    if (run->monitor->saves && signal == SIGTERM && !(run->monitor->wish & EK_WISH_STOP)) {
        ask(run->monitor, run->monitor->wish | EK_WISH_STOP);
        return EK_OK;
    }
    return ek_fail(EK_INTERRUPTED, "the job was ended by %s", strsignal(signal));
}

uint64_t ek_monitor_last_step(const ek_monitor *monitor)
{
    return monitor->last_step;
}

bool ek_monitor_stops(const ek_monitor *monitor)
{
    return monitor->wish & EK_WISH_STOP;
}

uint64_t ek_monitor_saved_step(const ek_monitor *monitor)
{
    return monitor->saved_step;
}

ek_status ek_monitor_survivors(const ek_monitor *monitor, const ek_membership *start, ek_membership **survivors)
{
    uint32_t ranks = ek_membership_ranks(start), count = 0, *lost = calloc(ranks, sizeof *lost);
    if (!lost)
        return ek_fail(EK_NO_MEMORY, "out of memory for the membership");
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (monitor->pending[rank] || !ek_rank_is_known(monitor->membership, rank))
            lost[count++] = rank;
    ek_status status = ek_membership_lose(start, lost, count, survivors);
    free(lost);
    return status;
}

/* No rank runs any more: nothing that is gathered will become more, and there is no launcher to ask for ranks. */
static ek_status close_all(ek_monitor *monitor)
{
    monitor->launcher = NULL;
    EK_TRY(close_step(monitor));
    EK_TRY(close_recovery(monitor));
    return ek_saves_end(monitor->saves);
}

ek_status ek_monitor_resume(ek_monitor *monitor)
{
    const ek_run *run = monitor->run;
    char text[64];
    ek_membership *membership;
    EK_TRY(close_all(monitor));
    EK_TRY(ek_membership_lose(run->membership, NULL, 0, &membership));
    ek_membership_destroy(monitor->membership);
    monitor->membership = membership;
    memset(monitor->pending, 0, ek_membership_ranks(membership) * sizeof *monitor->pending);
    monitor->first_noticed = 0.0;
    if (monitor->last_step >
        run->briefing.resumed_step) { /* what is lost again was no use; nobody knows how long just these took */
        double kept =
            1.0 - (double)(monitor->last_step - run->briefing.resumed_step) / (double)monitor->committed_steps;
        monitor->committed_steps -= monitor->last_step - run->briefing.resumed_step;
        monitor->committed_seconds *= kept;
    }
    monitor->last_step = run->briefing.resumed_step;
    if (run->briefing.resumed_step)
        snprintf(text, sizeof text, "goes on from the checkpoint of step %" PRIu64, run->briefing.resumed_step);
    else
        snprintf(text, sizeof text, "begins anew, there is no checkpoint");
    ek_table_row row = row_now(monitor, run->briefing.resumed_step + 1, text);
    json_t *event = ek_journal_event(&monitor->journal, "resumed", run->briefing.resumed_step, EK_NONE);
    json_object_set_new(event, "at", json_real(row.seconds));
    return ek_journal_tell(&monitor->journal, row, event);
}

bool ek_monitor_has_struck(const ek_monitor *monitor, size_t fault)
{
    return monitor->struck[fault]; /* set before the rank was started again */
}

ek_status ek_monitor_create(ek_monitor **out, const ek_run *run, ek_limits *limits, const char *complaint)
{
    ek_monitor *monitor = calloc(1, sizeof *monitor);
    if (!monitor)
        return ek_fail(EK_NO_MEMORY, "out of memory for metrics");
    monitor->run = run;
    monitor->limits = limits;
    ek_status status = ek_journal_open(&monitor->journal, run->options);
    uint32_t ranks = ek_membership_ranks(run->membership);
    monitor->pending = calloc(ranks, sizeof *monitor->pending);
    monitor->straggling = calloc(ranks, sizeof *monitor->straggling);
    monitor->watts = calloc(ranks, sizeof *monitor->watts);
    monitor->rejoined = calloc(run->options->rejoin_count + 1, sizeof *monitor->rejoined);
    monitor->injected = calloc(ranks, sizeof *monitor->injected);
    monitor->struck = calloc(run->options->fault_count + 1, sizeof *monitor->struck);
    monitor->replicas = calloc(run->config->parallel.dp, sizeof *monitor->replicas);
    monitor->replica_bytes = calloc(run->config->parallel.dp, sizeof *monitor->replica_bytes);
    if (status == EK_OK)
        status = ek_membership_lose(run->membership, NULL, 0, &monitor->membership);
    if (status == EK_OK && (!monitor->pending || !monitor->straggling || !monitor->watts || !monitor->rejoined ||
                            !monitor->injected || !monitor->struck || !monitor->replicas || !monitor->replica_bytes))
        status = ek_fail(EK_NO_MEMORY, "out of memory for metrics");
    if (status == EK_OK)
        status = ek_saves_create(&monitor->saves, run->checkpoints, run->config->checkpoint.keep, tell_save, monitor);
    if (status == EK_OK)
        status = ek_phases_create(&monitor->phases,
                                  &(ek_phase_job){.parallelism = ek_config_parallelism(run->config),
                                                  .replicas = run->config->parallel.dp,
                                                  .base_degree = run->config->parallel.tp,
                                                  .samples = run->config->batch.global,
                                                  .default_watts = run->config->power.backend == EK_POWER_NONE
                                                                       ? 0.0
                                                                       : run->briefing.default_watts});
    if (status != EK_OK) {
        ek_monitor_destroy(monitor);
        return status;
    }
    ek_display_job(&monitor->journal.display, run->config, monitor->membership);
    if (complaint[0])
        complain(monitor, complaint);
    if (run->briefing.resumed_step || monitor->journal.metrics.bytes > 0)
        status = ek_monitor_resume(monitor);
    if (status != EK_OK) {
        ek_monitor_destroy(monitor);
        return status;
    }
    *out = monitor;
    return EK_OK;
}

void ek_monitor_destroy(ek_monitor *monitor)
{
    if (!monitor)
        return;
    ek_journal_close(&monitor->journal);
    ek_membership_destroy(monitor->membership);
    ek_phases_destroy(monitor->phases);
    ek_saves_destroy(monitor->saves);
    free(monitor->pending);
    free(monitor->straggling);
    free(monitor->watts);
    free(monitor->rejoined);
    free(monitor->injected);
    free(monitor->struck);
    free(monitor->replicas);
    free(monitor->replica_bytes);
    free(monitor);
}

/* The faults that the user asked for and that did not come about: the rank was lost before, or there was no recovery.
 */
static void show_unstruck(const ek_monitor *monitor)
{
    const ek_train_options *options = monitor->run->options;
    for (size_t i = 0; i < options->fault_count; i++)
        if (!monitor->struck[i])
            printf("--%s %llu:%u.%u@%s never struck\n", options->faults[i].hang ? "hang" : "kill",
                   (unsigned long long)options->faults[i].step, options->faults[i].replica, options->faults[i].slot,
                   ek_phase_name(options->faults[i].phase));
}

/* Adds to what went wrong what the user can do about it. */
static void explain(const ek_monitor *monitor, ek_status status, char *reason, size_t size)
{
    size_t length = strlen(reason);
    if (status == EK_PEER_LOST && monitor->last_cause[0])
        snprintf(reason + length, size - length, ", the last by %s%s", monitor->last_cause,
                 monitor->timed_out == monitor->lost_count ? "; raise engine.timeout_seconds if they were but slow"
                                                           : "");
    if (status == EK_UNIT_LOST)
        snprintf(reason + length, size - length, "; more replicas (parallel.dp) hold more copies");
}

ek_status ek_monitor_finish(ek_monitor *monitor, ek_status status)
{
    char reason[EK_ERROR_BYTES];
    snprintf(reason, sizeof reason, "%s", ek_error());
    explain(monitor, status, reason, sizeof reason);
    ek_status written = close_all(monitor);
    double wall = ek_wall_seconds() - monitor->journal.launched;
    double goodput = wall > 0.0 ? monitor->committed_seconds / wall : 0.0;
    json_t *line = json_pack("{s:s, s:s, s:I, s:f, s:f}", "event", "end", "status", status == EK_OK ? "done" : "failed",
                             "steps", (json_int_t)monitor->committed_steps, "seconds", wall, "goodput", goodput);
    if (monitor->committed_steps)
        json_object_set_new(line, "loss", json_real(monitor->last_loss));
    if (status != EK_OK)
        json_object_set_new(line, "reason", json_string(reason));
    if (monitor->saves && monitor->committed_steps)
        json_object_set_new(line, "checkpoint_seconds_per_step",
                            json_real(monitor->stood_seconds / (double)monitor->committed_steps));
    if (written == EK_OK)
        written = ek_metrics_write(&monitor->journal.metrics, line);
    else
        json_decref(line);
    if (!monitor->journal.display.quiet) {
        ek_display_event(&monitor->journal.display, "");
        ek_table_print(&monitor->journal.table, stdout);
        ek_phases_print(monitor->phases, stdout);
        if (monitor->committed_steps)
            printf("%llu %s committed in %.1f s, last loss %.6f, goodput %.1f %% (time spent on committed steps)\n",
                   (unsigned long long)monitor->committed_steps, plural(monitor->committed_steps, "step", "steps"),
                   wall, monitor->last_loss, 100.0 * goodput);
        else if (status == EK_OK)
            printf("nothing to do: the checkpoint has all %" PRIu64 " steps\n", monitor->last_step);
        else
            printf("no step committed in %.1f s\n", wall);
        if (monitor->saved_step && monitor->committed_steps)
            printf("last checkpoint: step %" PRIu64 "; checkpoints cost %.2f ms a step\n", monitor->saved_step,
                   1e3 * monitor->stood_seconds / (double)monitor->committed_steps);
        show_unstruck(monitor);
        fflush(stdout);
    }
    if (status != EK_OK) /* the text of what went wrong first is the one to keep */
        return ek_fail(status, "%s", reason);
    return written;
}
