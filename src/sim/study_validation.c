/* The performance model beside published step times, with the gradient communication hidden and not; and how far the
 * time of the scenario's own job moves when each uncertain input goes through its range. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "perf/published.h"
#include "sim/study.h"

static const char *const published_columns[] = {
    "job",     "source", "measured", "not_hidden", "not_hidden_off", "hidden",    "hidden_off",
    "compute", "tensor", "pipeline", "bubble",     "data",           "optimizer",
};
#define PUBLISHED_COLUMNS (sizeof published_columns / sizeof *published_columns)

static const char *const tornado_columns[] = {"input", "fast_value", "slow_value", "fast", "as_given", "slow"};
#define TORNADO_COLUMNS (sizeof tornado_columns / sizeof *tornado_columns)

#define SUFFIX ".yaml"

static int is_job(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name), suffix = strlen(SUFFIX);
    return length > suffix && strcmp(entry->d_name + length - suffix, SUFFIX) == 0;
}

/* The same in every locale. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* -------------------------------------------------------------------------------------------- published times */

typedef struct chart_parts {
    json_t *categories, *not_hidden, *hidden;
} chart_parts;

/* How many jobs the model is off by at most 10 % for. */
static size_t count_within_ten(const json_t *series)
{
    size_t i, near = 0;
    json_t *point;
    json_array_foreach(json_object_get(series, "points"), i, point)
    {
        near += fabs(json_real_value(json_array_get(point, 1))) <= 10;
    }
    return near;
}

/* The table with two decimals in the columns of numbers: times as they are published. */
static ek_status show_published(json_t *section, json_t *table)
{
    json_t *columns = json_array(), *shown = json_pack("{s:o, s:O}", "columns", columns, "rows", ek_study_rows(table));
    if (json_object_set_new(section, "table", shown) != 0)
        return ek_fail(EK_NO_MEMORY, "no memory for a table");
    for (size_t i = 0; i < PUBLISHED_COLUMNS; i++)
        EK_TRY(ek_study_add(columns, i < 2 ? json_string(published_columns[i])
                                           : json_pack("{s:s, s:i}", "name", published_columns[i], "digits", 2)));
    return EK_OK;
}

static ek_status add_published(const ek_published *published, const char *job, json_t *table, const chart_parts *chart)
{
    ek_published changed = *published; /* owns nothing */
    ek_perf_time times[2];
    for (int overlap = 0; overlap < 2; overlap++) {
        changed.hardware.overlap = overlap;
        EK_TRY(ek_published_step(&changed, &times[overlap]));
    }
    double measured = published->seconds, off[2];
    for (int overlap = 0; overlap < 2; overlap++)
        off[overlap] = 100 * (times[overlap].total / measured - 1);
    const ek_perf_time *parts = &times[0];
    EK_TRY(ek_study_add(ek_study_rows(table),
                        json_pack("[s, s, f, f, f, f, f, f, f, f, f, f, f]", job, published->source, measured,
                                  times[0].total, off[0], times[1].total, off[1], parts->compute, parts->tensor,
                                  parts->pipeline, parts->bubble, parts->data, parts->optimizer)));
    double place = (double)json_array_size(chart->categories);
    EK_TRY(ek_study_add(chart->categories, json_string(job)));
    EK_TRY(ek_study_point(chart->not_hidden, place, off[0]));
    return ek_study_point(chart->hidden, place, off[1]);
}

static ek_status add_file(const char *folder, const char *name, json_t *table, const chart_parts *chart)
{
    ek_published *published;
    char path[4096], job[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(job, sizeof job, "%.*s", (int)(strlen(name) - strlen(SUFFIX)), name);
    EK_TRY(ek_published_read(&published, path));
    ek_status status = add_published(published, job, table, chart);
    ek_published_destroy(published);
    return status;
}

static ek_status start_bars(json_t *section, const char *y, json_t **chart, json_t **categories)
{
    EK_TRY(ek_study_chart(section, "bar", "", y, chart));
    *categories = json_array();
    if (json_object_set_new(*chart, "categories", *categories) != 0 ||
        json_object_set_new(*chart, "flat", json_true()) != 0)
        return ek_fail(EK_NO_MEMORY, "no memory for a chart");
    return EK_OK;
}

static ek_status add_all_published(ek_study *study)
{
    const char *folder = study->scenario->validation.jobs;
    json_t *table = ek_study_table(study, "published", published_columns, PUBLISHED_COLUMNS), *section, *bars;
    chart_parts chart;
    EK_TRY(ek_study_section(
        study, "Beside published times",
        "Seconds of a step: measured, and the model's with gradient communication not hidden and "
        "hidden behind backward. Inputs come from data sheets and published measurements of parts; none "
        "was chosen to make these times agree. docs/simulator.md explains the differences.",
        &section));
    EK_TRY(start_bars(section, "model against measured, %", &bars, &chart.categories));
    EK_TRY(ek_study_series(bars, "not hidden", &chart.not_hidden));
    EK_TRY(ek_study_series(bars, "hidden", &chart.hidden));

    struct dirent **entries;
    int count = scandir(folder, &entries, is_job, by_name);
    if (count < 0)
        return ek_fail(EK_INVALID, "validation.jobs: %s: %s; the path is taken from the working directory", folder,
                       strerror(errno));
    ek_status status =
        count ? EK_OK : ek_fail(EK_INVALID, "validation.jobs: %s: no file in it ends in " SUFFIX, folder);
    for (int i = 0; i < count; i++) {
        if (status == EK_OK)
            status = add_file(folder, entries[i]->d_name, table, &chart);
        free(entries[i]);
    }
    free(entries);
    EK_TRY(status);
    EK_TRY(ek_study_fact(study, "published times", "%d", count));
    EK_TRY(ek_study_fact(study, "within 10 %", "%zu not hidden, %zu hidden", count_within_ten(chart.not_hidden),
                         count_within_ten(chart.hidden)));
    return show_published(section, table);
}

/* ------------------------------------------------------------------------------------------------ the tornado */

/* The step of the scenario's job when an input of the hardware has another value. */
static ek_status step_with(const ek_scenario *scenario, size_t offset, double value, double *seconds)
{
    ek_published job = {.model = scenario->model, .parallel = scenario->parallel, .hardware = scenario->hardware};
    ek_perf_time time;
    memcpy((char *)&job.hardware + offset, &value, sizeof value);
    EK_TRY(ek_published_step(&job, &time));
    *seconds = time.total;
    return EK_OK;
}

/* An input at the two ends of its range, in order of the step's time. */
typedef struct swing {
    const char *name;
    double fast_value, slow_value; /* of the input */
    double fast_seconds, slow_seconds;
} swing;

/* The widest first; inputs that move the step as far as each other by name. */
static int by_width(const void *left, const void *right)
{
    const swing *a = left, *b = right;
    double wider = (b->slow_seconds - b->fast_seconds) - (a->slow_seconds - a->fast_seconds);
    return wider > 0 ? 1 : wider < 0 ? -1 : strcmp(a->name, b->name);
}

static ek_status find_swing(const ek_scenario *scenario, const ek_perf_range *range, swing *found)
{
    double low, high;
    EK_TRY(step_with(scenario, range->offset, range->low, &low));
    EK_TRY(step_with(scenario, range->offset, range->high, &high));
    *found = high <= low ? (swing){range->name, range->high, range->low, high, low}
                         : (swing){range->name, range->low, range->high, low, high};
    return EK_OK;
}

#define SWINGS (EK_PERF_RANGES + 1)

/* How much of the gradient communication backward hides counts as an input, from none to all that it can. */
static ek_status find_swings(const ek_scenario *scenario, swing swings[SWINGS])
{
    ek_perf_range ranges[SWINGS] = {[EK_PERF_RANGES] = {"overlap", offsetof(ek_perf_hardware, overlap), 0, 1}};
    EK_TRY(ek_perf_ranges_read(scenario->validation.ranges, ranges));
    for (size_t i = 0; i < SWINGS; i++)
        EK_TRY(find_swing(scenario, &ranges[i], &swings[i]));
    qsort(swings, SWINGS, sizeof *swings, by_width);
    return EK_OK;
}

static ek_status add_tornado(ek_study *study)
{
    const ek_scenario *scenario = study->scenario;
    json_t *table = ek_study_table(study, "tornado", tornado_columns, TORNADO_COLUMNS), *section, *bars, *categories;
    json_t *fast, *slow;
    swing swings[SWINGS];
    double seconds;
    EK_TRY(find_swings(scenario, swings));
    EK_TRY(step_with(scenario, offsetof(ek_perf_hardware, overlap), scenario->hardware.overlap, &seconds));
    EK_TRY(
        ek_study_section(study, "How much each input matters",
                         "Seconds of a step of the scenario's own job when one input goes to either end of its range "
                         "and the others stay as they are.",
                         &section));
    EK_TRY(start_bars(section, "step, s", &bars, &categories));
    if (json_object_set_new(bars, "base", json_real(seconds)) != 0)
        return ek_fail(EK_NO_MEMORY, "no memory for a chart");
    EK_TRY(ek_study_fact(study, "step of the scenario's job", "%.2f s", seconds));
    EK_TRY(ek_study_fact(study, "its widest input", "%s, %.2f to %.2f s", swings[0].name, swings[0].fast_seconds,
                         swings[0].slow_seconds));
    EK_TRY(ek_study_series(bars, "fast end", &fast));
    EK_TRY(ek_study_series(bars, "slow end", &slow));
    for (size_t i = 0; i < SWINGS; i++) {
        const swing *one = &swings[i];
        EK_TRY(ek_study_add(ek_study_rows(table),
                            json_pack("[s, f, f, f, f, f]", one->name, one->fast_value, one->slow_value,
                                      one->fast_seconds, seconds, one->slow_seconds)));
        EK_TRY(ek_study_add(categories, json_string(one->name)));
        EK_TRY(ek_study_point(fast, (double)i, one->fast_seconds));
        EK_TRY(ek_study_point(slow, (double)i, one->slow_seconds));
    }
    return ek_study_show(section, table);
}

ek_status ek_study_validation(ek_study *study)
{
    const ek_validation_settings *files = &study->scenario->validation;
    if (!files->jobs || !files->ranges)
        return ek_fail(EK_INVALID, "%s: study.kind validation needs validation.%s", study->scenario->path,
                       files->jobs ? "ranges" : "jobs");
    EK_TRY(add_all_published(study));
    return add_tornado(study);
}
