/* The kinds of studies, and what they share: tables and the page. */
#include "sim/study.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"

/* In the order of ek_study_kind. */
const char *const ek_study_names[EK_STUDY_KINDS + 1] = {"throughput", "availability", "goodput",    "spares", "blast",
                                                        "domains",    "degrees",      "validation", NULL};

#define POLICIES                                                                                                       \
    "dp-drop: a replica with a failed device is dropped, and its samples with it. reroute: it is dropped, and the "    \
    "others take its samples. ntp: it goes on at a lower TP degree, with as many samples as it is done with in time. " \
    "ntp-pw: likewise, with raised power. docs/simulator.md has every assumption."

#define EXPERTS                                                                                                        \
    "Replicas are expert-parallel here (mode ep): nep and nep-pw are what ntp and ntp-pw are, at a lower EP degree."

static const struct {
    ek_study_function *run;
    const char *title, *text; /* NULL: the page needs no words before its figures */
} kinds[EK_STUDY_KINDS] = {
    {ek_study_throughput, "Throughput against the failed fraction", POLICIES},
    {ek_study_availability, "Availability of parallel groups", NULL},
    {ek_study_goodput, "Goodput over time",
     POLICIES " restart, ntp-restart and ntp-pw-restart restart from a checkpoint after a failure (dp-drop, ntp, "
              "ntp-pw, packed anew); the others recover in place."},
    {ek_study_spares, "Spare domains at a fixed global batch", POLICIES},
    {ek_study_blast, "Blast radius of a failure", POLICIES},
    {ek_study_domains, "Size of scale-up domains", POLICIES},
    {ek_study_degrees, "Reduced degrees: samples and power", NULL},
    {ek_study_validation, "The performance model beside published times", NULL},
};

ek_status ek_study_run(ek_study *study)
{
    study->tables = json_object();
    study->facts = json_array();
    study->sections = json_array();
    if (!study->tables || !study->facts || !study->sections)
        return ek_fail(EK_NO_MEMORY, "no memory for the tables of a study");
    ek_study_part(study, 0, 1);
    ek_status status = kinds[study->scenario->study.kind].run(study);
    if (status == EK_IO) /* a study writes nothing: the scenario names a file that cannot be read */
        status = EK_INVALID;
    return status == EK_INVALID ? ek_scenario_locate(study->scenario, status) : status;
}

void ek_study_release(ek_study *study)
{
    json_decref(study->tables);
    json_decref(study->facts);
    json_decref(study->sections);
    study->tables = study->facts = study->sections = NULL;
}

static json_t *texts_of(const ek_study *study)
{
    const char *text = kinds[study->scenario->study.kind].text;
    if (!text)
        return json_array();
    return study->scenario->parallel.mode == EK_PERF_EP ? json_pack("[s, s]", text, EXPERTS) : json_pack("[s]", text);
}

json_t *ek_study_page(const ek_study *study)
{
    return json_pack("{s:s, s:s, s:o, s:O, s:O}", "title", kinds[study->scenario->study.kind].title, "subtitle",
                     study->scenario->path, "text", texts_of(study), "facts", study->facts, "sections",
                     study->sections);
}

json_t *ek_study_table(ek_study *study, const char *name, const char *const *columns, size_t column_count)
{
    json_t *table = json_pack("{s:[], s:[]}", "columns", "rows");
    for (size_t i = 0; i < column_count; i++)
        if (json_array_append_new(json_object_get(table, "columns"), json_string(columns[i])) != 0)
            goto no_memory;
    if (json_object_set_new(study->tables, name, table) == 0)
        return table;
    table = NULL; /* set_new has released it */
no_memory:
    json_decref(table);
    return NULL;
}

ek_status ek_study_add(json_t *array, json_t *item)
{
    if (json_array_append_new(array, item) != 0)
        return ek_fail(EK_NO_MEMORY, "no memory for the results of a study");
    return EK_OK;
}

json_t *ek_study_rows(json_t *table)
{
    return json_object_get(table, "rows");
}

void ek_study_part(ek_study *study, uint32_t part, uint32_t parts)
{
    study->part_from = (double)part / parts;
    study->part_size = 1.0 / parts;
}

void ek_study_progress(const ek_study *study, double done)
{
    if (study->progress)
        study->progress(study->progress_context, study->part_from + study->part_size * done);
}

/* -------------------------------------------------------------------------------------------------------- the page */

static ek_status no_memory(void)
{
    return ek_fail(EK_NO_MEMORY, "no memory for the page of a study");
}

ek_status ek_study_fact(ek_study *study, const char *name, const char *format, ...)
{
    char value[120];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    return ek_study_add(study->facts, json_pack("{s:s, s:s}", "name", name, "value", value));
}

ek_status ek_study_section(ek_study *study, const char *heading, const char *text, json_t **section)
{
    *section = json_pack("{s:s, s:[s], s:[]}", "heading", heading, "text", text, "charts");
    return ek_study_add(study->sections, *section);
}

ek_status ek_study_chart(json_t *section, const char *kind, const char *x, const char *y, json_t **chart)
{
    *chart = json_pack("{s:s, s:{s:s, s:b}, s:{s:s, s:b}, s:[]}", "kind", kind, "x", "name", x, "log", 0, "y", "name",
                       y, "log", 0, "series");
    return ek_study_add(json_object_get(section, "charts"), *chart);
}

ek_status ek_study_series(json_t *chart, const char *name, json_t **series)
{
    *series = json_pack("{s:s, s:[]}", "name", name, "points");
    return ek_study_add(json_object_get(chart, "series"), *series);
}

ek_status ek_study_point(json_t *series, double x, double y)
{
    return ek_study_add(json_object_get(series, "points"), json_pack("[f, f]", x, y));
}

ek_status ek_study_band(json_t *series, double x, double y, double low, double high)
{
    json_t *band = json_object_get(series, "band");
    if (!band) {
        band = json_array();
        if (json_object_set_new(series, "band", band) != 0)
            return no_memory();
    }
    EK_TRY(ek_study_point(series, x, y));
    return ek_study_add(band, json_pack("[f, f, f]", x, low, high));
}

ek_status ek_study_show(json_t *section, json_t *table)
{
    return json_object_set(section, "table", table) == 0 ? EK_OK : no_memory();
}
