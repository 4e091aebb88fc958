#include "train/monitor.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "train/clock.h"
#include "train/records.h"
#include "train/table.h"

/* What one replica's ranks said of the step that is being gathered. */
typedef struct replica_step {
    uint32_t samples;
    double busy_seconds, exposed_seconds; /* of the slowest rank */
    uint64_t reshard_bytes, reduce_bytes; /* of all ranks */
} replica_step;

struct ek_monitor {
    const ek_run *run;
    FILE *metrics; /* NULL: none */
    bool quiet, terminal;
    bool line_open; /* the terminal's progress line waits to be overwritten */
    ek_membership *membership;
    uint32_t *lost; /* [ranks] since launch, in the order in which they were lost */
    uint32_t lost_count, absent_at_start;
    double *injected;               /* [ranks] when a rank said that it would kill or stop itself; 0: it did not */
    double launched, first_noticed; /* first_noticed: of the losses that no recovery has dealt with; 0: none */

    bool gathering_step;
    uint32_t step_reports; /* ranks that have told of it */
    ek_step_record step;   /* earliest start, latest commit */
    replica_step *replicas;
    bool gathering_recovery;
    ek_recovery_record recovery;
    uint64_t *replica_bytes; /* [replicas] received in it */

    uint64_t committed_steps;
    double committed_seconds, last_committed, last_loss;
    ek_table table;
};

/* ----------------------------------------------------------------------------------------------- metrics */

/* Takes `line`. */
static ek_status write_line(ek_monitor *monitor, json_t *line)
{
    if (!monitor->metrics) {
        json_decref(line);
        return EK_OK;
    }
    bool written = line && json_dumpf(line, monitor->metrics, JSON_COMPACT | JSON_REAL_PRECISION(12)) == 0 &&
                   fputc('\n', monitor->metrics) != EOF && fflush(monitor->metrics) == 0;
    json_decref(line);
    if (written)
        return EK_OK;
    return ek_fail(EK_IO, "cannot write metrics to %s: %s", monitor->run->options->metrics_path, strerror(errno));
}

static const char *plural(uint64_t count, const char *one, const char *many)
{
    return count == 1 ? one : many;
}

/* ---------------------------------------------------------------------------------------------- progress */

/* "TP4+TP3"; replicas of the same degree in a row are counted: "6xTP4+TP3". */
static void describe_replicas(const ek_membership *membership, char *text, size_t size)
{
    uint32_t replicas = ek_membership_job(membership)->replicas;
    size_t length = 0;
    text[0] = '\0';
    for (uint32_t r = 0, next; r < replicas && length + 1 < size; r = next) {
        uint32_t degree = ek_membership_degree(membership, r);
        for (next = r; next < replicas && ek_membership_degree(membership, next) == degree; next++)
            ;
        char count[16] = "";
        if (next - r > 2)
            snprintf(count, sizeof count, "%ux", next - r);
        for (uint32_t i = 0; i < (next - r > 2 ? 1 : next - r) && length + 1 < size; i++)
            length += (size_t)snprintf(text + length, size - length, degree ? "%s%sTP%u" : "%s%sretired",
                                       length ? "+" : "", count, degree);
    }
}

static void show_step(ek_monitor *monitor, const ek_step_record *step, double seconds)
{
    if (monitor->quiet)
        return;
    uint64_t steps = monitor->run->config->train.steps;
    double left = monitor->committed_seconds / (double)monitor->committed_steps * (double)(steps - step->step);
    char replicas[128];
    describe_replicas(monitor->membership, replicas, sizeof replicas);
    printf("%sstep %*llu/%llu  loss %.6f  %8.0f tokens/s  %s  %.0f s left%s", monitor->terminal ? "\r\033[K" : "",
           snprintf(NULL, 0, "%llu", (unsigned long long)steps), (unsigned long long)step->step,
           (unsigned long long)steps, step->loss, (double)step->tokens / seconds, replicas, left,
           monitor->terminal ? "" : "\n");
    monitor->line_open = monitor->terminal;
    fflush(stdout);
}

static void show_event(ek_monitor *monitor, const char *text)
{
    if (monitor->quiet)
        return;
    printf("%s%s\n", monitor->line_open ? "\n" : "", text);
    monitor->line_open = false;
    fflush(stdout);
}

/* ------------------------------------------------------------------------------------------------- steps */

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
    monitor->committed_seconds += seconds;
    monitor->last_committed = step->committed;
    monitor->last_loss = step->loss;
    show_step(monitor, step, seconds);
    if (!monitor->metrics)
        return EK_OK;
    json_t *replicas = json_array();
    for (uint32_t r = 0; r < ek_membership_job(monitor->membership)->replicas; r++) {
        const replica_step *replica = &monitor->replicas[r];
        json_array_append_new(replicas,
                              json_pack("{s:i, s:i, s:i, s:f, s:f, s:I, s:I}", "id", (int)r, "tp",
                                        (int)ek_membership_degree(monitor->membership, r), "samples",
                                        (int)replica->samples, "busy_seconds", replica->busy_seconds, "exposed_seconds",
                                        replica->exposed_seconds, "reshard_bytes", (json_int_t)replica->reshard_bytes,
                                        "reduce_bytes", (json_int_t)replica->reduce_bytes));
    }
    return write_line(monitor, json_pack("{s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f, s:o}", "step",
                                         (json_int_t)step->step, "loss", step->loss, "grad_norm", step->grad_norm,
                                         "learning_rate", step->learning_rate, "tokens", (json_int_t)step->tokens,
                                         "seconds", seconds, "tokens_per_second", (double)step->tokens / seconds, "at",
                                         step->committed - monitor->launched, "replicas", replicas));
}

static ek_status gather_step(ek_monitor *monitor, uint32_t rank, const ek_step_record *step)
{
    if (!monitor->gathering_step) {
        monitor->gathering_step = true;
        monitor->step_reports = 0;
        monitor->step = *step;
        memset(monitor->replicas, 0, monitor->run->config->parallel.dp * sizeof *monitor->replicas);
    }
    monitor->step.started = fmin(monitor->step.started, step->started);
    monitor->step.committed = fmax(monitor->step.committed, step->committed);
    uint32_t r;
    if (ek_membership_place(monitor->membership, rank, &r, NULL)) {
        replica_step *replica = &monitor->replicas[r];
        replica->samples = step->samples;
        replica->busy_seconds = fmax(replica->busy_seconds, step->busy_seconds);
        replica->exposed_seconds = fmax(replica->exposed_seconds, step->exposed_seconds);
        replica->reshard_bytes += step->reshard_bytes;
        replica->reduce_bytes += step->reduce_bytes;
    }
    uint32_t ranks = ek_membership_ranks(monitor->membership) - monitor->absent_at_start - monitor->lost_count;
    return ++monitor->step_reports == ranks ? close_step(monitor) : EK_OK;
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
    if (monitor->first_noticed == 0.0)
        monitor->first_noticed = now;
    monitor->lost[monitor->lost_count++] = loss->rank;
    uint32_t replica = loss->rank / monitor->run->config->parallel.tp;
    uint32_t slot = loss->rank % monitor->run->config->parallel.tp;
    uint64_t step = ek_note_step(loss->note);
    const char *phase = ek_phase_name((ek_phase)ek_note_phase(loss->note));
    char cause[96], text[256];
    describe_loss(loss, monitor->run->config, cause, sizeof cause);
    snprintf(text, sizeof text, "replica %u slot %u lost (%s)", replica, slot, cause);
    ek_table_add(&monitor->table,
                 (ek_table_row){.step = step, .seconds = now - monitor->launched, .event = text, .detail = phase});
    char line[384];
    snprintf(line, sizeof line, "step %llu: %s in %s", (unsigned long long)step, text, phase);
    show_event(monitor, line);
    json_t *event =
        json_pack("{s:s, s:I, s:i, s:i, s:s, s:s, s:f}", "event", "failure", "step", (json_int_t)step, "replica",
                  (int)replica, "slot", (int)slot, "phase", phase, "cause", cause, "at", now - monitor->launched);
    if (monitor->injected[loss->rank] > 0.0)
        json_object_set_new(event, "injected_at", json_real(monitor->injected[loss->rank] - monitor->launched));
    return write_line(monitor, event);
}

/* One event for each replica whose degree the recovery changed. */
static ek_status write_recovered(ek_monitor *monitor, const ek_membership *before)
{
    const ek_recovery_record *recovery = &monitor->recovery;
    uint64_t step = recovery->committed_step + 1;
    double seconds = recovery->ended - fmin(recovery->noticed, monitor->first_noticed);
    for (uint32_t r = 0; r < ek_membership_job(before)->replicas; r++) {
        uint32_t degree = ek_membership_degree(monitor->membership, r);
        if (degree == ek_membership_degree(before, r))
            continue;
        char text[128];
        snprintf(text, sizeof text, degree ? "replica %u goes on as TP%u" : "replica %u is retired", r, degree);
        ek_table_add(&monitor->table, (ek_table_row){.step = step,
                                                     .seconds = recovery->ended - monitor->launched,
                                                     .event = text,
                                                     .recovered = true,
                                                     .recovery_seconds = seconds,
                                                     .bytes = monitor->replica_bytes[r],
                                                     .redone_steps = recovery->redone_steps});
        char line[256];
        snprintf(line, sizeof line, "step %llu: %s after %.1f ms, %.2f MB moved, %u %s redone",
                 (unsigned long long)step, text, 1e3 * seconds, 1e-6 * (double)monitor->replica_bytes[r],
                 recovery->redone_steps, plural(recovery->redone_steps, "step", "steps"));
        show_event(monitor, line);
        EK_TRY(write_line(monitor, json_pack("{s:s, s:I, s:i, s:i, s:f, s:I, s:i, s:f}", "event", "recovered", "step",
                                             (json_int_t)step, "replica", (int)r, "tp", (int)degree, "seconds", seconds,
                                             "bytes", (json_int_t)monitor->replica_bytes[r], "redone_steps",
                                             (int)recovery->redone_steps, "at", recovery->ended - monitor->launched)));
    }
    return EK_OK;
}

static ek_status close_recovery(ek_monitor *monitor)
{
    if (!monitor->gathering_recovery)
        return EK_OK;
    monitor->gathering_recovery = false;
    ek_membership *before = monitor->membership;
    uint32_t dealt_with = monitor->recovery.absent - monitor->absent_at_start;
    EK_TRY(ek_membership_lose(before, monitor->lost, dealt_with, &monitor->membership));
    ek_status status = write_recovered(monitor, before);
    ek_membership_destroy(before);
    monitor->first_noticed = dealt_with < monitor->lost_count ? ek_wall_seconds() : 0.0;
    return status;
}

static ek_status gather_recovery(ek_monitor *monitor, uint32_t rank, const ek_recovery_record *recovery)
{
    if (monitor->gathering_recovery && monitor->recovery.absent != recovery->absent)
        EK_TRY(close_recovery(monitor));
    if (!monitor->gathering_recovery) {
        EK_TRY(close_step(monitor));
        monitor->gathering_recovery = true;
        monitor->recovery = *recovery;
        memset(monitor->replica_bytes, 0, monitor->run->config->parallel.dp * sizeof *monitor->replica_bytes);
    }
    ek_recovery_record *all = &monitor->recovery;
    all->noticed = fmin(all->noticed, recovery->noticed);
    all->ended = fmax(all->ended, recovery->ended);
    all->redone_steps = recovery->redone_steps > all->redone_steps ? recovery->redone_steps : all->redone_steps;
    uint32_t replica = rank / monitor->run->config->parallel.tp;
    if (replica < monitor->run->config->parallel.dp)
        monitor->replica_bytes[replica] += recovery->bytes;
    return EK_OK;
}

/* --------------------------------------------------------------------------------------------- interface */

ek_status ek_monitor_report(void *user, uint32_t rank, const void *data, size_t bytes)
{
    ek_monitor *monitor = ((const ek_run *)user)->monitor;
    ek_record record = {0};
    memcpy(&record, data, bytes < sizeof record ? bytes : sizeof record);
    if (record.kind == EK_RECORD_RECOVERED)
        return gather_recovery(monitor, rank, &record.recovery);
    if (record.kind == EK_RECORD_FAULT) {
        monitor->injected[rank] = record.fault.injected;
        return EK_OK;
    }
    if (record.step.step <=
        monitor->committed_steps) /* closed early, since a rank that reported it was lost meanwhile */
        return EK_OK;
    if (!monitor->gathering_step || monitor->step.step != record.step.step) {
        EK_TRY(close_step(monitor));
        EK_TRY(close_recovery(monitor));
    }
    return gather_step(monitor, rank, &record.step);
}

static void show_job(const ek_monitor *monitor)
{
    const ek_config *config = monitor->run->config;
    char replicas[128];
    describe_replicas(monitor->membership, replicas, sizeof replicas);
    printf("training %.1f M parameters on %s: %llu steps of %u samples, %llu tokens\n",
           1e-6 * (double)ek_model_parameters(&config->model), replicas, (unsigned long long)config->train.steps,
           config->batch.global, (unsigned long long)config->batch.global * config->model.sequence);
    fflush(stdout);
}

ek_status ek_monitor_create(ek_monitor **out, const ek_run *run)
{
    ek_monitor *monitor = calloc(1, sizeof *monitor);
    if (!monitor)
        return ek_fail(EK_NO_MEMORY, "out of memory for metrics");
    const char *path = run->options->metrics_path;
    monitor->run = run;
    monitor->quiet = run->options->quiet;
    monitor->terminal = isatty(STDOUT_FILENO);
    monitor->lost = calloc(ek_membership_ranks(run->membership), sizeof *monitor->lost);
    monitor->injected = calloc(ek_membership_ranks(run->membership), sizeof *monitor->injected);
    monitor->replicas = calloc(run->config->parallel.dp, sizeof *monitor->replicas);
    monitor->replica_bytes = calloc(run->config->parallel.dp, sizeof *monitor->replica_bytes);
    monitor->absent_at_start = ek_absent_ranks(run->membership);
    ek_status status = ek_membership_lose(run->membership, NULL, 0, &monitor->membership);
    if (status == EK_OK && (!monitor->lost || !monitor->injected || !monitor->replicas || !monitor->replica_bytes))
        status = ek_fail(EK_NO_MEMORY, "out of memory for metrics");
    if (status == EK_OK && path && !(monitor->metrics = fopen(path, "we")))
        status = ek_fail(EK_IO, "--metrics %s: %s; name a file that can be written", path, strerror(errno));
    if (status != EK_OK) {
        ek_monitor_destroy(monitor);
        return status;
    }
    monitor->launched = ek_wall_seconds();
    if (!monitor->quiet)
        show_job(monitor);
    *out = monitor;
    return EK_OK;
}

void ek_monitor_destroy(ek_monitor *monitor)
{
    if (!monitor)
        return;
    if (monitor->metrics)
        fclose(monitor->metrics);
    ek_table_clear(&monitor->table);
    ek_membership_destroy(monitor->membership);
    free(monitor->lost);
    free(monitor->injected);
    free(monitor->replicas);
    free(monitor->replica_bytes);
    free(monitor);
}

ek_status ek_monitor_finish(ek_monitor *monitor, ek_status status)
{
    char reason[EK_ERROR_BYTES];
    snprintf(reason, sizeof reason, "%s", ek_error());
    ek_status written = close_step(monitor);
    if (written == EK_OK)
        written = close_recovery(monitor);
    double wall = ek_wall_seconds() - monitor->launched;
    double goodput = wall > 0.0 ? monitor->committed_seconds / wall : 0.0;
    json_t *line = json_pack("{s:s, s:s, s:I, s:f, s:f, s:f}", "event", "end", "status",
                             status == EK_OK ? "done" : "failed", "steps", (json_int_t)monitor->committed_steps, "loss",
                             monitor->last_loss, "seconds", wall, "goodput", goodput);
    if (status != EK_OK)
        json_object_set_new(line, "reason", json_string(reason));
    if (written == EK_OK)
        written = write_line(monitor, line);
    else
        json_decref(line);
    if (!monitor->quiet) {
        show_event(monitor, "");
        ek_table_print(&monitor->table, stdout);
        if (monitor->committed_steps)
            printf("%llu %s committed in %.1f s, last loss %.6f, goodput %.1f %% (time spent on committed steps)\n",
                   (unsigned long long)monitor->committed_steps, plural(monitor->committed_steps, "step", "steps"),
                   wall, monitor->last_loss, 100.0 * goodput);
        else
            printf("no step committed in %.1f s\n", wall);
        fflush(stdout);
    }
    if (status != EK_OK) /* the text of what went wrong first is the one to keep */
        return ek_fail(status, "%s", reason);
    return written;
}
