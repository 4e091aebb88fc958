/* One self-contained HTML page from a description of it: text, tables and interactive charts, readable offline and in
 * print. The page (web/page.html, its style, its script with the chart library) is bundled when evenkeel is built and
 * lies in the program; this part puts the description into it.
 *
 * The description, as JSON (all text is plain text, never HTML):
 *   {"title": "…", "subtitle": "…",
 *    "facts": [{"name": "steps", "value": "60"}, …],                     the figures at the top
 *    "sections": [{"heading": "…", "text": ["a paragraph", …],
 *       "chart": {"x": {"name": "failed fraction", "log": false}, "y": {"name": "throughput lost, %", "log": false},
 *                 "kind": "line" | "bar" | "area" | "step" | "scatter",   area is stacked
 *                 "categories": ["…"],                                    bar: names along x; or horizontally, see
 * "flat" "flat": true,                                           horizontal bars (a tornado) "series": [{"name": "NTP",
 * "points": [[x, y], …], "band": [[x, low, high], …], "dashed": true}, …], "events": [{"x": 20, "name": "failure",
 * "text": "replica 1, slot 2"}, …]},   marked on the x axis "table": {"columns": ["…"], "rows": [["…", 1.5, …], …]}},
 * …]} "points" of more than 5,000 are the caller's to thin out. A section may have several charts: "charts": […]; they
 * then share the x axis' zoom. */
#ifndef EK_REPORT_REPORT_H
#define EK_REPORT_REPORT_H

#include <jansson.h>

#include <evenkeel.h>

/* Writes the page to `path` (under another name first, then renamed). EK_IO. EK_INVALID: this build has no page
 * (-DEK_REPORT=OFF). */
ek_status ek_report_write(const char *path, const json_t *page);

#endif
