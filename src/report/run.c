/* Describes a run as a page: facts, where the wall time went, charts over the steps, the table of events. */
#include "report/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "report/run_data.h"

enum { ROWS_MOST = 1000, MARKS_MOST = 200 };

/* ------------------------------------------------------------------------------------------------- facts */

/* "8.5 s", "12 min 30 s", "3 h 20 min". */
static const char *describe_seconds(double seconds, char text[32])
{
    long whole = lround(seconds), minutes = lround(seconds / 60);
    if (seconds < 120.0)
        snprintf(text, 32, "%.1f s", seconds);
    else if (seconds < 7200.0)
        snprintf(text, 32, "%ld min %ld s", whole / 60, whole % 60);
    else
        snprintf(text, 32, "%ld h %ld min", minutes / 60, minutes % 60);
    return text;
}

static void add_fact(json_t *facts, const char *name, const char *value)
{
    json_array_append_new(facts, json_pack("{s:s, s:s}", "name", name, "value", value));
}

static ek_status measure_median_speed(const ek_goodput *goodput, double *tokens_per_second)
{
    double *speeds = malloc(goodput->step_count * sizeof *speeds);
    if (!speeds)
        return ek_fail(EK_NO_MEMORY, "out of memory for a run of so many steps");
    size_t count = 0;
    for (size_t i = 0; i < goodput->step_count; i++)
        if (goodput->steps[i].seconds > 0.0)
            speeds[count++] = goodput->steps[i].tokens / goodput->steps[i].seconds;
    *tokens_per_second = ek_median(speeds, count);
    free(speeds);
    return EK_OK;
}

static ek_status describe_facts(const ek_run_data *run, double goodput, json_t *facts)
{
    char text[64], time[32];
    double speed;
    EK_TRY(measure_median_speed(&run->goodput, &speed));
    add_fact(facts, "outcome", run->done ? "done" : run->ended ? "failed" : "no end: killed, or still going");
    snprintf(text, sizeof text, "%zu", run->goodput.step_count);
    add_fact(facts, "steps committed", text);
    add_fact(facts, "wall time", describe_seconds(run->last_moment, time));
    snprintf(text, sizeof text, "%.1f %%", 100.0 * goodput);
    add_fact(facts, "goodput", text);
    snprintf(text, sizeof text, "%.4f → %.4f", run->first_loss, run->last_loss);
    add_fact(facts, "loss, first to last step", text);
    snprintf(text, sizeof text, speed < 1000 ? "%.4g" : "%.0f", speed);
    add_fact(facts, "tokens/s, median", text);
    snprintf(text, sizeof text, "%zu", run->failures);
    add_fact(facts, "ranks lost", text);
    snprintf(text, sizeof text, "%zu", run->returns);
    add_fact(facts, "ranks returned", text);
    if (run->resumed_count) {
        snprintf(text, sizeof text, "%zu", run->resumed_count);
        add_fact(facts, "went on from a checkpoint", text);
    }
    return EK_OK;
}

/* ----------------------------------------------------------------------------------------------- goodput */

static const struct {
    const char *name, *meaning;
} parts[EK_GOODPUT_PARTS] = {
    [EK_GOODPUT_PRODUCTIVE] = {"productive steps", "committed steps with all replicas whole; of the others, what whole "
                                                   "ones need for as many tokens, in the median"},
    [EK_GOODPUT_SLOWER] = {"slower steps", "what committed steps with a reduced replica took beyond that"},
    [EK_GOODPUT_LOST] = {"lost work", "attempts at steps that did not commit and were done again, and waiting until "
                                      "the loss was noticed"},
    [EK_GOODPUT_RECOVERY] = {"recovery", "from noticing a loss, or from the boundary between steps at which a rank "
                                         "returned, until all ranks could step again"},
    [EK_GOODPUT_START] = {"start", "from a launch to its first step"},
    [EK_GOODPUT_OTHER] = {"other", "between steps without a loss, and after the last commit"},
};

static json_t *describe_goodput(const double seconds[EK_GOODPUT_PARTS], double total, bool has_whole)
{
    json_t *series = json_array(), *rows = json_array(), *text = json_array();
    for (int part = 0; part < EK_GOODPUT_PARTS; part++) {
        json_array_append_new(series,
                              json_pack("{s:s, s:[[i, f]]}", "name", parts[part].name, "points", 0, seconds[part]));
        json_array_append_new(rows, json_pack("[s, f, f, s]", parts[part].name, seconds[part],
                                              total > 0.0 ? 100.0 * seconds[part] / total : 0.0, parts[part].meaning));
    }
    json_array_append_new(rows, json_pack("[s, f, f, s]", "total", total, 100.0, "the wall time of the run"));
    json_array_append_new(
        text, json_string("Every second of the run is in one of these parts. Goodput is the share of committed "
                          "steps, slower ones too."));
    if (!has_whole)
        json_array_append_new(text, json_string("No step had all replicas whole, so slower steps cannot be told from "
                                                "productive ones."));
    json_t *chart = json_pack("{s:s, s:b, s:b, s:{}, s:{s:s}, s:[s], s:o}", "kind", "bar", "flat", 1, "stacked", 1, "x",
                              "y", "name", "seconds of wall time", "categories", "this run", "series", series);
    json_t *table = json_pack("{s:[s, {s:s, s:i}, {s:s, s:i}, s], s:o}", "columns", "part", "name", "seconds", "digits",
                              3, "name", "share, %", "digits", 2, "what it is", "rows", rows);
    return json_pack("{s:s, s:o, s:o, s:o}", "heading", "Where goodput went", "text", text, "chart", chart, "table",
                     table);
}

/* ------------------------------------------------------------------------------------------------ charts */

typedef struct chart_words {
    const char *name, *y, *kind;
    bool from_zero;
} chart_words;

static const chart_words job_charts[EK_JOB_CHARTS] = {
    [EK_CHART_LOSS] = {"Loss", "mean cross-entropy", "line", false},
    [EK_CHART_SPEED] = {"Throughput", "tokens per second", "line", true},
    [EK_CHART_SECONDS] = {"Time of a step", "seconds from commit to commit", "line", true},
};

static const chart_words replica_charts[EK_REPLICA_CHARTS] = {
    [EK_CHART_TP] = {"TP degree", "ranks of each replica; 0: retired", "step", true},
    [EK_CHART_POWER] = {"Power limit", "watts per device of each replica, the highest of its ranks", "step", false},
    [EK_CHART_SAMPLES] = {"Samples", "samples of the global batch that each replica has", "step", true},
    [EK_CHART_BUSY] = {"Busy time", "seconds of computing in a step, the slowest rank of each replica", "line", true},
};

static json_t *describe_chart(const chart_words *words, json_t *series)
{
    return json_pack("{s:s, s:s, s:{s:s}, s:{s:s, s:b}, s:o}", "name", words->name, "kind", words->kind, "x", "name",
                     "step", "y", "name", words->y, "zero", words->from_zero, "series", series);
}

/* Of a series that is too long the means, with the extremes around them: a line, whatever the chart is. */
static json_t *describe_series(const char *name, const ek_thin *thin, const char *kind)
{
    json_t *series = json_pack("{s:s, s:o}", "name", name, "points", ek_thin_means(thin, strcmp(kind, "step") == 0));
    if (thin->width > 1) {
        json_object_set_new(series, "kind", json_string("line"));
        json_object_set_new(series, "band", ek_thin_band(thin));
    }
    return series;
}

static json_t *describe_replica_chart(const ek_run_data *run, ek_replica_chart chart)
{
    static const char *const summary[] = {"lowest", "median", "highest"};
    json_t *series = json_array();
    for (uint32_t line = 0; line < run->lines; line++) {
        char name[32];
        if (run->replicas > EK_OWN_LINE_MOST)
            snprintf(name, sizeof name, "%s", summary[line % EK_SUMMARY_LINES]);
        else
            snprintf(name, sizeof name, "replica %u", line);
        json_array_append_new(
            series, describe_series(name, &run->of_replicas[chart * run->lines + line], replica_charts[chart].kind));
    }
    return describe_chart(&replica_charts[chart], series);
}

/* What the charts leave out, in words. */
static json_t *describe_thinning(const ek_run_data *run, size_t marks_left_out)
{
    char line[256];
    json_t *text = json_array();
    json_array_append_new(text, json_string("Marks above the charts are events; the table below tells what happened."));
    if (run->at.width > 1) {
        snprintf(
            line, sizeof line,
            "Lines are means of %llu steps each; the bands around them reach from the lowest to the highest value.",
            (unsigned long long)run->at.width);
        json_array_append_new(text, json_string(line));
    }
    if (run->replicas > EK_OWN_LINE_MOST) {
        snprintf(line, sizeof line, "Of the %u replicas the lowest, the median and the highest value are drawn.",
                 run->replicas);
        json_array_append_new(text, json_string(line));
    }
    if (marks_left_out) {
        snprintf(line, sizeof line, "%zu marks are left out, evenly, so that the others can be told apart.",
                 marks_left_out);
        json_array_append_new(text, json_string(line));
    }
    return text;
}

static json_t *describe_steps(const ek_run_data *run)
{
    json_t *charts = json_array();
    for (int chart = 0; chart < EK_JOB_CHARTS; chart++) {
        const chart_words *words = &job_charts[chart];
        json_t *series = json_pack("[o]", describe_series(words->name, &run->job[chart], words->kind));
        json_array_append_new(charts, describe_chart(words, series));
    }
    for (int chart = 0; chart < EK_REPLICA_CHARTS; chart++)
        if (chart != EK_CHART_POWER || run->most[chart] > 0.0) /* power is not governed in every run */
            json_array_append_new(charts, describe_replica_chart(run, (ek_replica_chart)chart));
    size_t left_out;
    json_t *marks = ek_report_events_marks(&run->events, MARKS_MOST, &left_out);
    return json_pack("{s:s, s:o, s:{s:s, s:o}, s:o, s:o}", "heading", "Step by step", "text",
                     describe_thinning(run, left_out), "other_x", "name", "seconds since the launch", "points",
                     ek_thin_ends(&run->at), "charts", charts, "events", marks);
}

/* ------------------------------------------------------------------------------------------------ events */

static json_t *describe_events(const ek_run_data *run)
{
    char line[128];
    json_t *text = json_array();
    if (run->events.count == 0)
        json_array_append_new(text, json_string("None: no rank was lost, nothing was adjusted."));
    if (run->events.count > ROWS_MOST) {
        snprintf(line, sizeof line, "The first %d of %zu events.", ROWS_MOST, run->events.count);
        json_array_append_new(text, json_string(line));
    }
    json_t *section = json_pack("{s:s, s:o}", "heading", "Events", "text", text);
    if (run->events.count)
        json_object_set_new(section, "table", ek_report_events_table(&run->events, ROWS_MOST));
    return section;
}

/* --------------------------------------------------------------------------------------------- interface */

/* What a reader must know before the figures. */
static json_t *describe_warnings(const ek_run_data *run)
{
    char line[sizeof run->reason + 32];
    json_t *text = json_array();
    if (run->ended && !run->done) {
        snprintf(line, sizeof line, "The run failed: %s.", run->reason);
        json_array_append_new(text, json_string(line));
    }
    if (run->torn)
        json_array_append_new(text,
                              json_string("The last line of the metrics is torn, as a crash leaves it; it is left "
                                          "out."));
    return text;
}

static ek_status describe(ek_run_data *run, const char *path, const char *title, json_t **page)
{
    double seconds[EK_GOODPUT_PARTS];
    bool has_whole;
    EK_TRY(ek_goodput_split(&run->goodput, run->last_moment, seconds, &has_whole));
    double committed = seconds[EK_GOODPUT_PRODUCTIVE] + seconds[EK_GOODPUT_SLOWER];
    double total = 0.0;
    for (int part = 0; part < EK_GOODPUT_PARTS; part++)
        total += seconds[part];
    json_t *facts = json_array();
    ek_status status = describe_facts(run, total > 0.0 ? committed / total : 0.0, facts);
    if (status != EK_OK) {
        json_decref(facts);
        return status;
    }
    *page =
        json_pack("{s:s, s:o*, s:o, s:o, s:[o, o, o]}", "title", title ? title : "Training run", "subtitle",
                  json_string(path) /* NULL where it is no UTF-8 */, "text", describe_warnings(run), "facts", facts,
                  "sections", describe_goodput(seconds, total, has_whole), describe_steps(run), describe_events(run));
    return *page ? EK_OK : ek_fail(EK_NO_MEMORY, "out of memory for the report");
}

ek_status ek_run_describe(const char *path, const char *title, json_t **page)
{
    json_t *text = json_string(title ? title : "");
    if (!text)
        return ek_fail(EK_INVALID, "the title is no UTF-8 text");
    json_decref(text);
    ek_run_data *run = malloc(sizeof *run); /* larger than a stack likes */
    if (!run)
        return ek_fail(EK_NO_MEMORY, "out of memory for the report");
    ek_status status = ek_run_read(path, run);
    if (status == EK_OK)
        status = describe(run, path, title, page);
    ek_run_clear(run);
    free(run);
    return status;
}
