/* Reads the metrics of a run, a line at a time. */
#include "report/run_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* -------------------------------------------------------------------------------------------------- steps */

/* A run that goes on from a checkpoint may have another number of them. */
static ek_status add_lines(ek_run_data *run, uint32_t replicas)
{
    bool sums_up = replicas > EK_OWN_LINE_MOST;
    if (run->replicas && sums_up != (run->replicas > EK_OWN_LINE_MOST))
        return ek_fail(EK_INVALID, "a step of %u replicas after steps of %u; either all have at most %d, or none",
                       replicas, run->replicas, EK_OWN_LINE_MOST);
    uint32_t lines = sums_up ? EK_SUMMARY_LINES : replicas;
    ek_thin *series = calloc((size_t)EK_REPLICA_CHARTS * lines, sizeof *series);
    double *values = realloc(run->values, replicas * sizeof *values);
    run->values = values ? values : run->values;
    if (!series || !values) {
        free(series);
        return ek_fail(EK_NO_MEMORY, "out of memory for the charts of replicas");
    }
    for (uint32_t chart = 0; chart < EK_REPLICA_CHARTS; chart++)
        for (uint32_t line = 0; line < run->lines; line++)
            series[chart * lines + line] = run->of_replicas[chart * run->lines + line];
    free(run->of_replicas);
    run->of_replicas = series;
    run->lines = lines;
    run->replicas = replicas;
    return EK_OK;
}

static ek_status count_replicas(ek_run_data *run, size_t replicas)
{
    if (replicas < 1 || replicas > REPLICAS_MOST)
        return ek_fail(EK_INVALID, "a step needs \"replicas\", a list of 1 to %d; found %zu", REPLICAS_MOST, replicas);
    if (run->last_replicas && replicas != run->last_replicas)
        return ek_fail(EK_INVALID, "a step of %zu replicas; the steps before have %u", replicas, run->last_replicas);
    run->last_replicas = (uint32_t)replicas;
    bool other = replicas > run->replicas || (replicas > EK_OWN_LINE_MOST) != (run->replicas > EK_OWN_LINE_MOST);
    return other ? add_lines(run, (uint32_t)replicas) : EK_OK;
}

/* One measure of all replicas in one step. */
static ek_status add_replicas(ek_run_data *run, const json_t *replicas, double step, ek_replica_chart chart,
                              double *least)
{
    double *values = run->values;
    uint32_t count = (uint32_t)json_array_size(replicas), lines = run->lines < count ? run->lines : count;
    for (uint32_t r = 0; r < count; r++) {
        EK_TRY(take_number(json_array_get(replicas, r), "a replica", replica_keys[chart], &values[r]));
        run->most[chart] = fmax(run->most[chart], values[r]);
        *least = r == 0 ? values[r] : fmin(*least, values[r]);
    }
    if (run->replicas > EK_OWN_LINE_MOST) {
        double median = ek_median(values, count); /* sorts them */
        const double summary[EK_SUMMARY_LINES] = {values[0], median, values[count - 1]};
        memcpy(values, summary, sizeof summary);
    }
    for (uint32_t line = 0; line < lines; line++)
        ek_thin_add(&run->of_replicas[chart * run->lines + line], step, values[line]);
    return EK_OK;
}

static ek_status check_order(const ek_run_data *run, double step, double at)
{
    if (run->goodput.step_count && (step <= run->last_step || at < run->last_at))
        return ek_fail(EK_INVALID, "step %.0f at %g s after step %.0f at %g s; the metrics of one run are needed", step,
                       at, run->last_step, run->last_at);
    return EK_OK;
}

/* Since the first start. */
static double moment(ek_run_data *run, double at)
{
    if (run->goes_on && run->began + at < run->last_moment)
        run->began = run->last_moment;
    run->goes_on = false;
    return run->began + at;
}

static ek_status add_step(ek_run_data *run, const json_t *line)
{
    double step, at, tokens, job[EK_JOB_CHARTS], least[EK_REPLICA_CHARTS];
    EK_TRY(take_number(line, "a step", "step", &step));
    EK_TRY(take_number(line, "a step", "at", &at));
    EK_TRY(take_number(line, "a step", "tokens", &tokens));
    for (int chart = 0; chart < EK_JOB_CHARTS; chart++)
        EK_TRY(take_number(line, "a step", job_keys[chart], &job[chart]));
    at = moment(run, at);
    EK_TRY(check_order(run, step, at));
    const json_t *replicas = json_object_get(line, "replicas");
    EK_TRY(count_replicas(run, json_array_size(replicas)));
    if (run->goodput.step_count == 0)
        run->first_loss = job[EK_CHART_LOSS];
    for (int chart = 0; chart < EK_REPLICA_CHARTS; chart++)
        EK_TRY(add_replicas(run, replicas, step, (ek_replica_chart)chart, &least[chart]));
    for (int chart = 0; chart < EK_JOB_CHARTS; chart++)
        ek_thin_add(&run->job[chart], step, job[chart]);
    ek_thin_add(&run->at, step, at);
    run->goodput.most_tp = run->most[EK_CHART_TP];
    run->last_step = step;
    run->last_at = at;
    run->last_moment = fmax(run->last_moment, at);
    run->last_loss = job[EK_CHART_LOSS];
    run->tokens += tokens;
    return ek_goodput_add_step(&run->goodput, (ek_goodput_step){.at = at,
                                                                .seconds = job[EK_CHART_SECONDS],
                                                                .tokens = tokens,
                                                                .least_tp = least[EK_CHART_TP]});
}

/* ------------------------------------------------------------------------------------------------- events */

/* From a checkpoint: what was done after it is done again. */
static ek_status add_resumed(ek_run_data *run, const json_t *line)
{
    double step, redone;
    EK_TRY(take_number(line, "a run that goes on", "step", &step));
    run->goes_on = true;
    run->last_replicas = 0;
    run->ended = run->done = false;
    if (run->goodput.step_count == 0)
        return EK_OK;
    for (int chart = 0; chart < EK_JOB_CHARTS; chart++)
        ek_thin_cut(&run->job[chart], step);
    for (uint32_t series = 0; series < EK_REPLICA_CHARTS * run->lines; series++)
        ek_thin_cut(&run->of_replicas[series], step);
    ek_thin_cut(&run->at, step);
    size_t count = run->last_step > step ? (size_t)(run->last_step - step) : 0;
    EK_TRY(ek_goodput_redo(&run->goodput, count, run->last_moment, &redone));
    run->tokens -= redone;
    run->last_step = fmin(run->last_step, step);
    return EK_OK;
}

static ek_status add_end(ek_run_data *run, const json_t *line)
{
    double seconds;
    EK_TRY(take_number(line, "the end", "seconds", &seconds));
    const char *status = json_string_value(json_object_get(line, "status"));
    const char *reason = json_string_value(json_object_get(line, "reason"));
    run->ended = true;
    run->done = status && strcmp(status, "done") == 0;
    run->last_moment = fmax(run->last_moment, moment(run, seconds));
    snprintf(run->reason, sizeof run->reason, "%s", reason ? reason : "no reason is told");
    return EK_OK;
}

static ek_status add_event(ek_run_data *run, const char *name, const json_t *line)
{
    if (strcmp(name, "end") == 0)
        return add_end(run, line);
    double at = 0.0, seconds;
    bool has_moment = json_object_get(line, "at");
    if (has_moment) {
        EK_TRY(take_number(line, "an event", "at", &at));
        at = moment(run, at);
    }
    run->last_moment = fmax(run->last_moment, at);
    if (strcmp(name, "failure") == 0) {
        run->failures++;
        EK_TRY(ek_goodput_add_loss(&run->goodput, at));
    } else if (strcmp(name, "recovered") == 0) {
        EK_TRY(take_number(line, "a recovery", "seconds", &seconds));
        EK_TRY(ek_goodput_add_recovery(&run->goodput, at - seconds, at));
    } else if (strcmp(name, "rejoined") == 0) {
        run->returns++;
    } else if (strcmp(name, "resumed") == 0) {
        EK_TRY(add_resumed(run, line));
    }
    return ek_report_events_add(&run->events, line, run->last_step + 1, has_moment ? at : NAN);
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
    *run = (ek_run_data){0};
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
    free(run->of_replicas);
    free(run->values);
}
