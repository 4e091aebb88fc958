/* One self-contained HTML page from a description of it: text, tables and interactive charts, readable offline and in
 * print. The page (web/page.html, its style, its script with the chart library) is bundled when evenkeel is built and
 * lies in the program; this part puts the description into it.
 *
 * The description is JSON. All text is plain text, never HTML. What is not marked "needed" may be left out.
 *
 * page      title, subtitle     text
 *           text                [paragraph, …] below them: what must be known before the figures
 *           facts               [{"name": "steps", "value": "60"}, …] the figures at the top
 *           sections            [section, …]
 * section   heading             text; needed
 *           text                [paragraph, …]
 *           chart, or charts    a chart, or a list of them, which share the zoom of x, the names that are hidden, and a
 *                               colour for each name of a series
 *           table               {"columns": [column, …], "rows": [[text, number or null, …], …]}; a column is its name,
 *                               or {"name": "seconds", "digits": 3} with the decimals of its numbers
 *           events              of all its charts but bars: see chart
 *           other_x             {"name": "seconds since the launch", "points": [[x, other], …]}, both rising: a measure
 *                               in which x may be shown instead, straight between the points
 * chart     kind                "line" (default), "step" (a value holds until the next one), "area" (stacked; all
 *                               series need the same x), "scatter", "bar"
 *           series              [series, …]; needed
 *           name                a heading of its own; for where there are several
 *           x                   {"name": "step", "log": false}; needed but for bars that lie
 *           y                   {"name": "throughput lost, %", "log": false, "zero": false}; "zero": begins at 0
 *           events              [{"x": 20, "name": "failure", "text": "replica 1, slot 2", "tone": "bad", "other_x":
 *                               8.3}, …]: marks at x; each name has a shape and can be hidden; "bad" ones are red;
 *                               other_x: of the moment itself, where it is known better than other_x of x
 *           categories          bar: the names of the bars, needed; x of the points is an index in them
 *           flat                bar: true if bars lie; standing ones lie too where the screen is narrow
 *           stacked             bar: true if the series stand on each other and not side by side
 *           base                bar: the value at which bars begin (a tornado: two series in one row, left and right
 *                               of it)
 * series    name, points        [[x, y], …] by rising x; y may be null: a gap; needed
 *           band                [[x, low, high], …]: a band around a line, whiskers on bars
 *           kind                where it differs from the chart's: "scatter" for points beside lines
 *           dashed              true or false
 *
 * Points of a series, and marks of a name, that are more than some thousands are the caller's to thin out (thin.h). */
#ifndef EK_REPORT_REPORT_H
#define EK_REPORT_REPORT_H

#include <stdio.h>

#include <jansson.h>

#include <evenkeel.h>

/* Whether this build carries the page (-DEK_REPORT=ON). */
bool ek_report_included(void);

/* Writes the page to a file (base/whole_file.h opens one). EK_IO: the file takes no more, which may also be seen when
 * it is closed. EK_INVALID: this build has no page (-DEK_REPORT=OFF). EK_NO_MEMORY. */
ek_status ek_report_write(FILE *file, const json_t *page);

#endif
