/* A study: a scenario goes in, tables and the sections of a page of charts come out. What `evenkeel sim` does with them
 * (CSV, JSON, report.html) is not a study's business, nor are terminals.
 *
 * A new kind of study is a function of the type below, a member of ek_study_kind (scenario.h) and a line in the table
 * in study.c. */
#ifndef EK_SIM_STUDY_H
#define EK_SIM_STUDY_H

#include <jansson.h>

#include "sim/scenario.h"

typedef struct ek_study {
    const ek_scenario *scenario;
    uint32_t threads; /* results do not depend on it */
    /* Called from the study's own thread now and then with the part that is done, 0 to 1. NULL: nobody asks. */
    void (*progress)(void *context, double done);
    void *progress_context;
    double part_from, part_size; /* what ek_study_progress counts in: see ek_study_part */
    /* What the study fills in. All are made by ek_study_run and released with ek_study_release. */
    json_t *tables; /* an object: NAME → {"columns": ["…"], "rows": [[…], …]}; each becomes NAME.csv and NAME.json */
    json_t *facts;    /* an array of facts of the page, and */
    json_t *sections; /* of its sections; the form of both stands in report/report.h */
} ek_study;

typedef ek_status ek_study_function(ek_study *study);

/* Runs the scenario's study into empty tables, facts and sections. The same scenario gives the same bytes. On failure
 * too what has been made is to be released. */
ek_status ek_study_run(ek_study *study);
void ek_study_release(ek_study *study);

/* The whole page (report/report.h): facts and sections under a title. */
json_t *ek_study_page(const ek_study *study);

/* The names of the kinds in a scenario file, ending with NULL. */
extern const char *const ek_study_names[EK_STUDY_KINDS + 1];

/* ------------------------------------------------------------------------------------------- for studies themselves */

/* A new table in study->tables; owned by the study. NULL where there is no memory, which ek_study_add then reports. */
json_t *ek_study_table(ek_study *study, const char *name, const char *const *columns, size_t column_count);
/* Appends a row, section, point, … to an array and takes it over: ek_study_add(array, json_pack(…)). EK_NO_MEMORY if
 * either is NULL. */
ek_status ek_study_add(json_t *array, json_t *item);
/* The rows of a table, to be added to. */
json_t *ek_study_rows(json_t *table);

/* The study is in part `part` of `parts`, alike in length, and `done` of that part is done. */
void ek_study_part(ek_study *study, uint32_t part, uint32_t parts);
void ek_study_progress(const ek_study *study, double done);

/* The page: a section with a paragraph, in it a chart with its series, in it points with the bands of their 95 %
 * confidence intervals. Values are owned by what they are put into. */
ek_status ek_study_fact(ek_study *study, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
ek_status ek_study_section(ek_study *study, const char *heading, const char *text, json_t **section);
ek_status ek_study_chart(json_t *section, const char *kind, const char *x, const char *y, json_t **chart);
ek_status ek_study_series(json_t *chart, const char *name, json_t **series);
ek_status ek_study_point(json_t *series, double x, double y);
ek_status ek_study_band(json_t *series, double x, double y, double low, double high);
/* Shows a table in a section, too. */
ek_status ek_study_show(json_t *section, json_t *table);

ek_study_function ek_study_throughput, ek_study_availability, ek_study_goodput, ek_study_spares, ek_study_blast,
    ek_study_domains, ek_study_degrees, ek_study_validation;

#endif
