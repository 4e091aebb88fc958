/* Goodput over time under every conduct: one history as a trace, many for the means. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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
} measures[] = {
    {"done", offsetof(ek_goodput, done)},
    {"reduced", offsetof(ek_goodput, reduced)},
    {"stalled", offsetof(ek_goodput, stalled)},
    {"redone", offsetof(ek_goodput, redone)},
    {"checkpoints", offsetof(ek_goodput, checkpoints)},
    {"per_gpu", offsetof(ek_goodput, per_gpu)},
    {"energy", offsetof(ek_goodput, energy)},
    {"stops", offsetof(ek_goodput, stops)},
};
enum { MEASURES = sizeof measures / sizeof *measures, PARTS = 5 }; /* the first ones are where the time went */

static double measure(const ek_goodput *goodput, size_t which)
{
    return *(const double *)((const char *)goodput + measures[which].offset);
}

typedef struct goodput_run {
    ek_study *study;
    const ek_sampler *tables;
    uint32_t histories;
    ek_goodput *goodputs; /* [histories][EK_CONDUCTS] */
} goodput_run;

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

static ek_status add_means(const goodput_run *run)
{
    json_t *table = ek_study_table(run->study, "goodput", mean_columns, COUNT(mean_columns)), *section, *chart;
    json_t *names = json_array(), *series[PARTS];
    EK_TRY(ek_study_section(run->study, "Where the time went",
                            "Parts of the horizon, in the mean over the histories: work that counts, throughput below "
                            "full, standing still, work done again, checkpoints.",
                            &section));
    EK_TRY(ek_study_chart(section, "bar", "", "part of the time, %", &chart));
    if (json_object_set_new(chart, "categories", names) != 0)
        return ek_fail(EK_NO_MEMORY, "no memory for a chart");
    for (int part = 0; part < PARTS; part++)
        EK_TRY(ek_study_series(chart, measures[part].name, &series[part]));
    for (size_t conduct = 0; conduct < EK_CONDUCTS; conduct++) {
        EK_TRY(ek_study_add(names, json_string(ek_conducts[conduct].name)));
        for (size_t which = 0; which < MEASURES; which++) {
            ek_mean mean = mean_of(run, conduct, which);
            EK_TRY(ek_study_add(ek_study_rows(table),
                                json_pack("[s, s, f, f, i]", ek_conducts[conduct].name, measures[which].name, mean.mean,
                                          mean.half_width, (int)run->histories)));
            if (which < PARTS)
                EK_TRY(ek_study_point(series[which], (double)conduct, 100 * mean.mean));
        }
        ek_mean done = mean_of(run, conduct, 0);
        EK_TRY(ek_study_fact(run->study, ek_conducts[conduct].name, "%.2f ± %.2f %%", 100 * done.mean,
                             100 * done.half_width));
    }
    return ek_study_show(section, table);
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
    return ek_study_point(target->series, hours / 24, 100 * throughput);
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
    EK_TRY(ek_study_section(run->study, "One history",
                            "Throughput of the job over time, 0 while it stands still, and the devices that are down.",
                            &section));
    EK_TRY(ek_study_chart(section, "step", "days", "throughput, %", &chart));
    EK_TRY(ek_history_create(&history, scenario, scenario->domains, 0));
    ek_status status = EK_OK;
    for (size_t i = 0; i < EK_CONDUCTS && status == EK_OK; i++) {
        trace_target target = {ek_conducts[i].name, table, NULL, 0};
        const ek_trace trace = {add_trace_point, &target};
        ek_goodput goodput;
        status = ek_study_series(chart, ek_conducts[i].name, &target.series);
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
