#include "train/monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
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
    int metrics;         /* file descriptor; -1: none */
    off_t metrics_bytes; /* written, in whole lines */
    bool quiet, terminal;
    bool line_open; /* the terminal's progress line waits to be overwritten */
    ek_membership *membership;
    uint32_t *lost; /* [ranks] since launch, in the order in which they were lost */
    uint32_t lost_count, absent_at_start;
    bool *struck;     /* [faults] of the options: those that came about */
    double *injected; /* [ranks] when a rank said that it would kill or stop itself; 0: it did not */
    char last_cause[96];
    uint32_t timed_out;
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

static bool write_all(int file, const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t written = write(file, text, bytes);
        if (written < 0 && errno != EINTR)
            return false;
        text += written > 0 ? written : 0;
        bytes -= written > 0 ? (size_t)written : 0;
    }
    return true;
}

/* Takes `line`. A line that does not fit is taken back, so that a reader finds whole lines alone. */
static ek_status write_line(ek_monitor *monitor, json_t *line)
{
    char *text = monitor->metrics >= 0 && line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
    json_decref(line);
    if (monitor->metrics < 0)
        return EK_OK;
    if (!text)
        return ek_fail(EK_NO_MEMORY, "out of memory for a line of metrics");
    size_t bytes = strlen(text);
    text[bytes++] = '\n'; /* in place of the end of the string */
    bool written = write_all(monitor->metrics, text, bytes);
    free(text);
    if (written) {
        monitor->metrics_bytes += (off_t)bytes;
        return EK_OK;
    }
    ek_fail(EK_IO, "cannot write metrics to %s: %s; make room, or name another file with --metrics",
            monitor->run->options->metrics_path, strerror(errno));
    if (ftruncate(monitor->metrics, monitor->metrics_bytes) != 0) /* no regular file: nothing to take back */
        return EK_IO;
    return EK_IO;
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
    if (monitor->metrics < 0)
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
    snprintf(monitor->last_cause, sizeof monitor->last_cause, "%s", cause);
    monitor->timed_out += loss->cause == EK_LOSS_TIMEOUT;
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
        monitor->struck[record.fault.fault] = true;
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

/* Empties the file, unless it is one that the run reads. */
static ek_status open_metrics(ek_monitor *monitor, const char *path)
{
    const char *const inputs[] = {monitor->run->config->data.path, monitor->run->options->config_path};
    struct stat metrics, input;
    for (size_t i = 0; i < 2; i++)
        if (inputs[i] && stat(path, &metrics) == 0 && stat(inputs[i], &input) == 0 && metrics.st_dev == input.st_dev &&
            metrics.st_ino == input.st_ino)
            return ek_fail(EK_IO, "--metrics %s: that is %s, which the run reads; name another file", path,
                           i == 0 ? "the data" : "the configuration");
    monitor->metrics = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (monitor->metrics < 0)
        return ek_fail(EK_IO, "--metrics %s: %s; name a file that can be written", path, strerror(errno));
    return EK_OK;
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
    monitor->metrics = -1;
    monitor->quiet = run->options->quiet;
    monitor->terminal = isatty(STDOUT_FILENO);
    monitor->lost = calloc(ek_membership_ranks(run->membership), sizeof *monitor->lost);
    monitor->injected = calloc(ek_membership_ranks(run->membership), sizeof *monitor->injected);
    monitor->struck = calloc(run->options->fault_count + 1, sizeof *monitor->struck);
    monitor->replicas = calloc(run->config->parallel.dp, sizeof *monitor->replicas);
    monitor->replica_bytes = calloc(run->config->parallel.dp, sizeof *monitor->replica_bytes);
    monitor->absent_at_start = ek_absent_ranks(run->membership);
    ek_status status = ek_membership_lose(run->membership, NULL, 0, &monitor->membership);
    if (status == EK_OK &&
        (!monitor->lost || !monitor->injected || !monitor->struck || !monitor->replicas || !monitor->replica_bytes))
        status = ek_fail(EK_NO_MEMORY, "out of memory for metrics");
    if (status == EK_OK && path)
        status = open_metrics(monitor, path);
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
    if (monitor->metrics >= 0)
        close(monitor->metrics);
    ek_table_clear(&monitor->table);
    ek_membership_destroy(monitor->membership);
    free(monitor->lost);
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
    ek_status written = close_step(monitor);
    if (written == EK_OK)
        written = close_recovery(monitor);
    double wall = ek_wall_seconds() - monitor->launched;
    double goodput = wall > 0.0 ? monitor->committed_seconds / wall : 0.0;
    json_t *line = json_pack("{s:s, s:s, s:I, s:f, s:f}", "event", "end", "status", status == EK_OK ? "done" : "failed",
                             "steps", (json_int_t)monitor->committed_steps, "seconds", wall, "goodput", goodput);
    if (monitor->committed_steps)
        json_object_set_new(line, "loss", json_real(monitor->last_loss));
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
        show_unstruck(monitor);
        fflush(stdout);
    }
    if (status != EK_OK) /* the text of what went wrong first is the one to keep */
        return ek_fail(status, "%s", reason);
    return written;
}
