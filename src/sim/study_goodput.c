/* Goodput over time under every conduct: one history as a trace, many for the means. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "sim/parallel.h"
#include "sim/study.h"
#include "sim/timeline.h"

static const char *const mean_columns[] = {"conduct", "measure", "mean", "ci95", "histories"};
static const char *const trace_columns[] = {"conduct", "hours", "throughput"};
static const char *const down_columns[] = {"hours", "devices_down"};
#define COUNT(columns) (sizeof(columns) / sizeof *(columns))

static const struct {
    const char *name;
    size_t offset;
    bool percent; /* for people */
} measures[] = {
    {"done", offsetof(ek_goodput, done), true},
    {"reduced", offsetof(ek_goodput, reduced), true},
    {"stalled", offsetof(ek_goodput, stalled), true},
    {"redone", offsetof(ek_goodput, redone), true},
    {"checkpoints", offsetof(ek_goodput, checkpoints), true},
    {"per_gpu", offsetof(ek_goodput, per_gpu), true},
    {"energy", offsetof(ek_goodput, energy), false},
    {"stops", offsetof(ek_goodput, stops), false},
};
enum { MEASURES = sizeof measures / sizeof *measures, PARTS = 5 }; /* the first ones are where the time went */

static double measure(const ek_goodput *goodput, size_t which)
{
    double value;
    memcpy(&value, (const char *)goodput + measures[which].offset, sizeof value);
    return value;
}

typedef struct goodput_run {
    ek_study *study;
    const ek_sampler *tables;
    uint32_t histories;
    ek_goodput *goodputs; /* [histories][EK_CONDUCTS] */
} goodput_run;

static const char *name_of(const goodput_run *run, size_t conduct)
{
    return ek_name_in_mode(run->study->scenario, ek_conducts[conduct].name);
}

static ek_status run_history(void *context, uint32_t number)
{
    const goodput_run *run = context;
    const ek_scenario *scenario = run->study->scenario;
    ek_history *history;
    EK_TRY(ek_history_create(&history, scenario, scenario->domains, number));
    ek_status status = EK_OK;
    for (size_t i = 0; i < EK_CONDUCTS && status == EK_OK; i++)
        status = ek_timeline_run(scenario, run->tables, history, &ek_conducts[i], NULL,
                                 &run->goodputs[(size_t)number * EK_CONDUCTS + i]);
    ek_history_destroy(history);
    return status;
}

static void show_progress(void *context, uint32_t done)
{
    const goodput_run *run = context;
    ek_study_progress(run->study, (double)done / run->histories);
}

/* ------------------------------------------------------------------------------------------------------- the means */

static ek_mean mean_of(const goodput_run *run, size_t conduct, size_t which)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < run->histories; i++) {
        double value = measure(&run->goodputs[(size_t)i * EK_CONDUCTS + conduct], which);
        sum += value;
        squares += value * value;
    }
    return ek_mean_of_sums(sum, squares, run->histories);
}

#define MEAN_BYTES 64

/* "80.46 ± 0.14"; of one history there is no interval. "-": there is none, as in some history nothing was done. */
static void write_mean(double scale, const ek_mean *mean, char text[MEAN_BYTES])
{
    if (isnan(mean->mean))
        snprintf(text, MEAN_BYTES, "-");
    else if (isnan(mean->half_width))
        snprintf(text, MEAN_BYTES, "%.2f", scale * mean->mean);
    else
        snprintf(text, MEAN_BYTES, "%.2f ± %.2f", scale * mean->mean, scale * mean->half_width);
}

/* A row for people: the parts as "80.46 ± 0.14" percent, the other measures likewise. */
static ek_status show_conduct(const goodput_run *run, size_t conduct, json_t *shown)
{
    json_t *row = json_pack("[s]", name_of(run, conduct));
    for (size_t which = 0; which < MEASURES; which++) {
        ek_mean mean = mean_of(run, conduct, which);
        double scale = measures[which].percent ? 100 : 1;
        char text[MEAN_BYTES];
        write_mean(scale, &mean, text);
        if (json_array_append_new(row, json_string(text)) != 0) {
            json_decref(row);
            return ek_fail(EK_NO_MEMORY, "no memory for a table");
        }
    }
    return ek_study_add(ek_study_rows(shown), row);
}

static json_t *number_or_none(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

static ek_status add_conduct(const goodput_run *run, size_t conduct, json_t *table, json_t *const series[PARTS])
{
    const char *name = name_of(run, conduct);
    for (size_t which = 0; which < MEASURES; which++) {
        ek_mean mean = mean_of(run, conduct, which);
        EK_TRY(ek_study_add(ek_study_rows(table),
                            json_pack("[s, s, o, o, i]", name, measures[which].name, number_or_none(mean.mean),
                                      number_or_none(mean.half_width), (int)run->histories)));
        if (which < PARTS)
            EK_TRY(ek_study_point(series[which], (double)conduct, 100 * mean.mean));
        if (which == 0) {
            char text[MEAN_BYTES];
            write_mean(100, &mean, text);
            EK_TRY(ek_study_fact(run->study, name, "%s %%", text));
        }
    }
    return EK_OK;
}

/* The table that the section shows: a column for each measure. */
static ek_status make_shown(json_t *section, json_t **shown)
{
    *shown = json_pack("{s:[s], s:[]}", "columns", "conduct", "rows");
    if (json_object_set_new(section, "table", *shown) != 0)
        return ek_fail(EK_NO_MEMORY, "no memory for a table");
    for (size_t which = 0; which < MEASURES; which++) {
        char heading[32];
        snprintf(heading, sizeof heading, "%s%s", measures[which].name, measures[which].percent ? ", %" : "");
        EK_TRY(ek_study_add(json_object_get(*shown, "columns"), json_string(heading)));
    }
    return EK_OK;
}

static ek_status add_means(const goodput_run *run)
{
    json_t *table = ek_study_table(run->study, "goodput", mean_columns, COUNT(mean_columns)), *section, *chart, *shown;
    json_t *names, *series[PARTS];
    EK_TRY(ek_study_section(run->study, "Where the time went",
                            "Parts of the horizon, in the mean over the histories: work that counts, throughput below "
                            "full, standing still, work done again, checkpoints. per_gpu is the work that counts for "
                            "each device owned, energy what a sample takes against no failure, stops how often the "
                            "job stood still.",
                            &section));
    EK_TRY(ek_study_chart(section, "bar", "", "part of the time, %", &chart));
    if (json_object_set_new(chart, "categories", names = json_array()) != 0 ||
        json_object_set_new(chart, "flat", json_true()) != 0 || json_object_set_new(chart, "stacked", json_true()) != 0)
        return ek_fail(EK_NO_MEMORY, "no memory for a chart");
    EK_TRY(ek_study_fact(run->study, "work that counts", "of %g days, mean of %u %s",
                         run->study->scenario->study.horizon_days, run->histories,
                         run->histories == 1 ? "history" : "histories"));
    for (int part = 0; part < PARTS; part++)
        EK_TRY(ek_study_series(chart, measures[part].name, &series[part]));
    EK_TRY(make_shown(section, &shown));
    for (size_t conduct = 0; conduct < EK_CONDUCTS; conduct++) {
        EK_TRY(ek_study_add(names, json_string(name_of(run, conduct))));
        EK_TRY(add_conduct(run, conduct, table, series));
        EK_TRY(show_conduct(run, conduct, shown));
    }
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------------- the trace */

typedef struct trace_target {
    const char *conduct;
    json_t *table, *series;
    double throughput; /* of the last point */
} trace_target;

static ek_status add_trace_point(void *context, double hours, double throughput)
{
    trace_target *target = context;
    target->throughput = throughput;
    EK_TRY(ek_study_add(ek_study_rows(target->table), json_pack("[s, f, f]", target->conduct, hours, throughput)));
    /* hundreds of short stops would hide the rest of the chart */
    return throughput > 0 ? ek_study_point(target->series, hours / 24, 100 * throughput) : EK_OK;
}

static ek_status trace_devices(ek_study *study, const ek_history *history, json_t *section)
{
    json_t *table = ek_study_table(study, "devices", down_columns, COUNT(down_columns)), *chart, *series;
    EK_TRY(ek_study_chart(section, "step", "days", "devices down", &chart));
    EK_TRY(ek_study_series(chart, "down", &series));
    uint32_t *failed = calloc(study->scenario->domains, sizeof *failed), down = 0;
    if (!failed)
        return ek_fail(EK_NO_MEMORY, "no memory for a trace");
    ek_status status = EK_OK;
    for (size_t i = 0; i < history->count && status == EK_OK; i++) {
        const ek_change *change = &history->changes[i];
        down += change->failed - failed[change->domain];
        failed[change->domain] = change->failed;
        if (change->hours < 0)
            continue;
        status = ek_study_add(ek_study_rows(table), json_pack("[f, i]", change->hours, (int)down));
        if (status == EK_OK)
            status = ek_study_point(series, change->hours / 24, down);
    }
    free(failed);
    return status;
}

static ek_status add_trace(const goodput_run *run)
{
    const ek_scenario *scenario = run->study->scenario;
    json_t *table = ek_study_table(run->study, "trace", trace_columns, COUNT(trace_columns)), *section, *chart;
    ek_history *history;
    EK_TRY(ek_study_section(
        run->study, "One history",
        "Throughput of the job while it runs, and the devices that are down. trace.csv has the stops, too: "
        "there throughput is 0.",
        &section));
    EK_TRY(ek_study_chart(section, "step", "days", "throughput while running, %", &chart));
    EK_TRY(ek_history_create(&history, scenario, scenario->domains, 0));
    ek_status status = EK_OK;
    for (size_t i = 0; i < EK_CONDUCTS && status == EK_OK; i++) {
        trace_target target = {name_of(run, i), table, NULL, 0};
        const ek_trace trace = {add_trace_point, &target};
        ek_goodput goodput;
        status = ek_study_series(chart, target.conduct, &target.series);
        if (status == EK_OK)
            status = ek_timeline_run(scenario, run->tables, history, &ek_conducts[i], &trace, &goodput);
        if (status == EK_OK) /* up to the end */
            status = add_trace_point(&target, scenario->study.horizon_days * 24, target.throughput);
    }
    if (status == EK_OK)
        status = trace_devices(run->study, history, section);
    ek_history_destroy(history);
    return status;
}

ek_status ek_study_goodput(ek_study *study)
{
    const ek_scenario *scenario = study->scenario;
    ek_steps *steps;
    ek_sampler *tables = NULL;
    EK_TRY(ek_steps_create(&steps, scenario));
    goodput_run run = {.study = study, .histories = scenario->study.histories};
    if (scenario->failures.events_path)
        run.histories = 1; /* what happened happened once */
    ek_status status = ek_sampler_create(&tables, steps, scenario->domains, scenario->hardware.domain_slots, 1);
    run.tables = tables;
    run.goodputs = calloc((size_t)run.histories * EK_CONDUCTS, sizeof *run.goodputs);
    if (status == EK_OK && !run.goodputs)
        status = ek_fail(EK_NO_MEMORY, "no memory for %u histories", run.histories);
    if (status == EK_OK)
        status = ek_parallel_run(&(ek_parallel){.threads = study->threads,
                                                .run = run_history,
                                                .context = &run,
                                                .progress = show_progress,
                                                .progress_context = &run},
                                 run.histories);
    if (status == EK_OK)
        status = add_means(&run);
    if (status == EK_OK)
        status = add_trace(&run);
    free(run.goodputs);
    ek_sampler_destroy(tables);
    ek_steps_destroy(steps);
    return status;
}
