/* Reads the metrics of a run, a line at a time: once to learn which steps were done again, and once for all else. */
#include "report/run_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "report/lines.h"

#define REPLICAS_MOST 4096

static const char *const job_keys[EK_JOB_CHARTS] = {"loss", "tokens_per_second", "seconds"};
static const char *const replica_keys[EK_REPLICA_CHARTS] = {"tp", "power_watts", "samples", "busy_seconds"};

static ek_status take_number(const json_t *object, const char *what, const char *key, double *value)
{
    const json_t *found = json_object_get(object, key);
    if (!json_is_number(found) || !(json_number_value(found) >= 0.0))
        return ek_fail(EK_INVALID,
                       "%s needs \"%s\", a number that is not negative; a file that evenkeel train --metrics wrote is "
                       "needed",
                       what, key);
    *value = json_number_value(found);
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------- survey */

static ek_status note_resumed(ek_run_data *run, const json_t *line)
{
    double step;
    EK_TRY(take_number(line, "a resumed run", "step", &step));
    if (run->resumed_count == run->resumed_room) {
        size_t room = run->resumed_room ? 2 * run->resumed_room : 16;
        double *larger = realloc(run->resumed, room * sizeof *larger);
        if (!larger)
            return ek_fail(EK_NO_MEMORY, "out of memory for a run that was resumed so often");
        run->resumed = larger;
        run->resumed_room = room;
    }
    run->resumed[run->resumed_count++] = step;
    return EK_OK;
}

static ek_status survey(void *user, const json_t *line)
{
    ek_run_data *run = user;
    const char *event = json_string_value(json_object_get(line, "event"));
    if (event)
        return strcmp(event, "resumed") == 0 ? note_resumed(run, line) : EK_OK;
    size_t replicas = json_array_size(json_object_get(line, "replicas"));
    if (replicas <= REPLICAS_MOST && replicas > run->replicas) /* others are refused when they are read */
        run->replicas = (uint32_t)replicas;
    return EK_OK;
}

/* -------------------------------------------------------------------------------------------------- steps */

/* A step behind the checkpoint that the run went on from later, and so done again. */
static bool is_done_again(const ek_run_data *run, double step)
{
    return run->part < run->resumed_count && step > run->resumed[run->part];
}

static ek_status begin_replicas(ek_run_data *run)
{
    run->lines = run->replicas <= EK_OWN_LINE_MOST ? run->replicas : EK_SUMMARY_LINES;
    run->of_replicas = calloc((size_t)EK_REPLICA_CHARTS * run->lines + 1, sizeof *run->of_replicas);
    run->values = calloc(run->replicas + 1, sizeof *run->values);
    if (!run->of_replicas || !run->values)
        return ek_fail(EK_NO_MEMORY, "out of memory for the charts of replicas");
    return EK_OK;
}

/* A launch may have other replicas than the one before, but they do not change on the way. */
static ek_status check_replicas(ek_run_data *run, size_t replicas)
{
    if (replicas < 1 || replicas > run->replicas)
        return ek_fail(EK_INVALID, "a step needs \"replicas\", a list of 1 to %d; found %zu", REPLICAS_MOST, replicas);
    if (run->in_part && replicas != run->in_part)
        return ek_fail(EK_INVALID, "a step of %zu replicas; the steps before have %u", replicas, run->in_part);
    run->in_part = (uint32_t)replicas;
    return EK_OK;
}

/* One measure of all replicas in one step; those that this launch does not have are as if retired. */
static ek_status add_replicas(ek_run_data *run, const json_t *replicas, double step, ek_replica_chart chart,
                              double *least)
{
    double *values = run->values;
    for (uint32_t r = 0; r < run->replicas; r++) {
        values[r] = 0.0;
        if (r < run->in_part)
            EK_TRY(take_number(json_array_get(replicas, r), "a replica", replica_keys[chart], &values[r]));
        run->most[chart] = fmax(run->most[chart], values[r]);
        *least = r == 0 ? values[r] : fmin(*least, values[r]);
    }
    if (run->replicas > EK_OWN_LINE_MOST) {
        double median = ek_median(values, run->replicas); /* sorts them */
        const double summary[EK_SUMMARY_LINES] = {values[0], median, values[run->replicas - 1]};
        memcpy(values, summary, sizeof summary);
    }
    for (uint32_t line = 0; line < run->lines; line++)
        ek_thin_add(&run->of_replicas[chart * run->lines + line], step, values[line]);
    return EK_OK;
}

static ek_status check_order(const ek_run_data *run, double step, double at)
{
    if ((run->in_part || run->part) && (step <= run->last_step || at < run->last_at))
        return ek_fail(EK_INVALID, "step %.0f at %g s after step %.0f at %g s; the metrics of one run are needed", step,
                       at, run->last_step, run->last_at);
    return EK_OK;
}

static ek_status add_step(ek_run_data *run, const json_t *line)
{
    double step, at, tokens, job[EK_JOB_CHARTS], least[EK_REPLICA_CHARTS];
    EK_TRY(take_number(line, "a step", "step", &step));
    EK_TRY(take_number(line, "a step", "at", &at));
    EK_TRY(take_number(line, "a step", "tokens", &tokens));
    for (int chart = 0; chart < EK_JOB_CHARTS; chart++)
        EK_TRY(take_number(line, "a step", job_keys[chart], &job[chart]));
    at += run->launched;
    EK_TRY(check_order(run, step, at));
    const json_t *replicas = json_object_get(line, "replicas");
    EK_TRY(check_replicas(run, json_array_size(replicas)));
    run->last_step = step;
    run->last_at = at;
    run->last_moment = fmax(run->last_moment, at);
    if (is_done_again(run, step))
        return EK_OK;
    if (run->goodput.step_count == 0)
        run->first_loss = job[EK_CHART_LOSS];
    for (int chart = 0; chart < EK_REPLICA_CHARTS; chart++)
        EK_TRY(add_replicas(run, replicas, step, (ek_replica_chart)chart, &least[chart]));
    for (int chart = 0; chart < EK_JOB_CHARTS; chart++)
        ek_thin_add(&run->job[chart], step, job[chart]);
    ek_thin_add(&run->at, step, at);
    run->goodput.most_tp = run->most[EK_CHART_TP];
    run->last_loss = job[EK_CHART_LOSS];
    run->tokens += tokens;
    return ek_goodput_add_step(&run->goodput, (ek_goodput_step){.at = at,
                                                                .seconds = job[EK_CHART_SECONDS],
                                                                .tokens = tokens,
                                                                .least_tp = least[EK_CHART_TP]});
}

/* ------------------------------------------------------------------------------------------------- events */

static ek_status add_end(ek_run_data *run, const json_t *line)
{
    double seconds;
    EK_TRY(take_number(line, "the end", "seconds", &seconds));
    const char *status = json_string_value(json_object_get(line, "status"));
    const char *reason = json_string_value(json_object_get(line, "reason"));
    run->ended = true;
    run->done = status && strcmp(status, "done") == 0;
    run->last_moment = fmax(run->last_moment, run->launched + seconds);
    snprintf(run->reason, sizeof run->reason, "%s", reason ? reason : "no reason is told");
    return EK_OK;
}

/* The job was launched again. What ran before it in vain, since the last checkpoint, was lost. */
static ek_status add_launch(ek_run_data *run, double step)
{
    if (run->last_step > step || !run->ended)
        EK_TRY(ek_goodput_add_loss(&run->goodput, run->last_moment));
    run->launched = run->last_moment;
    run->ended = false;
    return ek_goodput_add_launch(&run->goodput, run->launched);
}

/* By a new launch, or, where a unit was lost, in the same one: its clock goes on. */
static ek_status go_on(ek_run_data *run, const json_t *line)
{
    double step, at = 0.0;
    EK_TRY(take_number(line, "a resumed run", "step", &step));
    if (json_object_get(line, "at"))
        EK_TRY(take_number(line, "a resumed run", "at", &at));
    if (run->launched + at < run->last_moment)
        EK_TRY(add_launch(run, step));
    run->part++;
    run->in_part = 0;
    run->last_step = step;
    return EK_OK;
}

static ek_status add_event(ek_run_data *run, const char *name, const json_t *line)
{
    if (strcmp(name, "end") == 0)
        return add_end(run, line);
    if (strcmp(name, "resumed") == 0)
        EK_TRY(go_on(run, line));
    double at = 0.0, seconds;
    if (json_object_get(line, "at"))
        EK_TRY(take_number(line, "an event", "at", &at));
    at += run->launched;
    run->last_moment = fmax(run->last_moment, at);
    if (strcmp(name, "failure") == 0) {
        run->failures++;
        EK_TRY(ek_goodput_add_loss(&run->goodput, at));
    } else if (strcmp(name, "recovered") == 0) {
        EK_TRY(take_number(line, "a recovery", "seconds", &seconds));
        EK_TRY(ek_goodput_add_recovery(&run->goodput, at - seconds, at));
    } else if (strcmp(name, "rejoined") == 0) {
        run->returns++;
    }
    return ek_report_events_add(&run->events, line, run->last_step + 1, run->launched);
}

static ek_status visit(void *user, const json_t *line)
{
    ek_run_data *run = user;
    const char *event = json_string_value(json_object_get(line, "event"));
    if (event)
        return add_event(run, event, line);
    return add_step(run, line);
}

/* ---------------------------------------------------------------------------------------------- interface */

ek_status ek_run_read(const char *path, ek_run_data *run)
{
    struct stat file;
    *run = (ek_run_data){0};
    EK_TRY(ek_lines_read(path, survey, run, &run->torn));
    if (stat(path, &file) != 0 || !S_ISREG(file.st_mode))
        return ek_fail(EK_INVALID, "%s: is no regular file; metrics are read twice", path);
    for (size_t i = run->resumed_count; i > 1; i--)
        run->resumed[i - 2] = fmin(run->resumed[i - 2], run->resumed[i - 1]);
    EK_TRY(begin_replicas(run));
    EK_TRY(ek_lines_read(path, visit, run, &run->torn));
    if (run->goodput.step_count == 0)
        return ek_fail(EK_INVALID, "%s: holds no committed step; a file that evenkeel train --metrics wrote is needed",
                       path);
    return EK_OK;
}

void ek_run_clear(ek_run_data *run)
{
    ek_goodput_clear(&run->goodput);
    ek_report_events_clear(&run->events);
    free(run->resumed);
    free(run->of_replicas);
    free(run->values);
}
