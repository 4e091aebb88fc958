/* The closing table, bounded: a job of thousands of failures keeps its memory flat. */
#include "train/table.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_MOST 400 /* a job of thousands of failures keeps its memory flat */

struct ek_table_line {
    uint64_t step;
    double seconds;
    char event[96];
    char columns[4][24]; /* phase, recovery, moved, redone */
};

static const char *const titles[4] = {"phase", "recovery", "moved", "redone"};

void ek_table_add(ek_table *table, ek_table_row row)
{
    struct ek_table_line *lines = NULL;
    if (table->count < ROWS_MOST)
        lines = realloc(table->lines, (table->count + 1) * sizeof *lines);
    if (!lines) {
        table->left_out++;
        return;
    }
    table->lines = lines;
    struct ek_table_line *line = &lines[table->count++];
    *line = (struct ek_table_line){.step = row.step, .seconds = row.seconds};
    snprintf(line->event, sizeof line->event, "%s", row.event);
    if (row.detail)
        snprintf(line->columns[0], sizeof line->columns[0], "%s", row.detail);
    if (row.recovered) {
        snprintf(line->columns[1], sizeof line->columns[1], "%.1f ms", 1e3 * row.recovery_seconds);
        snprintf(line->columns[2], sizeof line->columns[2], "%.2f MB", 1e-6 * (double)row.bytes);
        snprintf(line->columns[3], sizeof line->columns[3], "%u %s", row.redone_steps,
                 row.redone_steps == 1 ? "step" : "steps");
    }
}

void ek_table_print(const ek_table *table, FILE *out)
{
    if (!table->count)
        return;
    size_t widths[4], event_width = strlen("event");
    for (size_t c = 0; c < 4; c++)
        widths[c] = strlen(titles[c]);
    for (size_t i = 0; i < table->count; i++) {
        size_t length = strlen(table->lines[i].event);
        event_width = length > event_width ? length : event_width;
        for (size_t c = 0; c < 4; c++) {
            length = strlen(table->lines[i].columns[c]);
            widths[c] = length > widths[c] ? length : widths[c];
        }
    }
    fprintf(out, "%8s  %9s  %-*s", "step", "at", (int)event_width, "event");
    for (size_t c = 0; c < 4; c++)
        fprintf(out, "  %*s", (int)widths[c], titles[c]);
    fputc('\n', out);
    for (size_t i = 0; i < table->count; i++) {
        const struct ek_table_line *line = &table->lines[i];
        size_t filled = 4; /* no line ends with spaces */
        while (filled > 0 && !line->columns[filled - 1][0])
            filled--;
        fprintf(out, "%8llu  %7.2f s  %-*s", (unsigned long long)line->step, line->seconds,
                filled > 0 ? (int)event_width : 0, line->event);
        for (size_t c = 0; c < filled; c++)
            fprintf(out, "  %*s", (int)widths[c], line->columns[c]);
        fputc('\n', out);
    }
    if (table->left_out)
        fprintf(out, "… and %llu events more\n", (unsigned long long)table->left_out);
    fputc('\n', out);
}

void ek_table_clear(ek_table *table)
{
    free(table->lines);
    *table = (ek_table){0};
}
