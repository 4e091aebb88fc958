/* The events of a run, in words: a row of a table and marks on charts. */
#ifndef EK_REPORT_EVENTS_H
#define EK_REPORT_EVENTS_H

#include <jansson.h>

#include <evenkeel.h>

typedef struct ek_report_events {
    struct ek_report_event *events; /* in the order of the file */
    size_t count, room;
} ek_report_events;

/* An event's line of metrics (docs/metrics.md), of any kind; one that has no step gets `step`. Its time counts from
 * `launched`. */
ek_status ek_report_events_add(ek_report_events *events, const json_t *line, double step, double launched);
void ek_report_events_clear(ek_report_events *events);

/* {"columns", "rows"} of the first rows_most events. */
json_t *ek_report_events_table(const ek_report_events *events, size_t rows_most);

/* [{"x", "other_x", "name", "tone", "text"}, …]: one for all events of a name in one step, in seconds `other_x` where
 * known; of each name at most `marks_most` or so, evenly chosen: the number of those left out is in *left_out. */
json_t *ek_report_events_marks(const ek_report_events *events, size_t marks_most, size_t *left_out);

#endif
