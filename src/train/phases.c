/* Stretches of steps with the same degrees, power and samples. */
#include "train/phases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MOST 64    /* a job of thousands of failures keeps its memory flat */
#define SHOWN_BYTES 200 /* of the description */

struct ek_phase_row {
    uint64_t first, last;
    double predicted, busy_sum; /* seconds */
    char replicas[SHOWN_BYTES];
};

static bool is_alike(const ek_phase_replica *a, const ek_phase_replica *b)
{
    return a->degree == b->degree && a->samples == b->samples && a->watts == b->watts;
}

/* "TP4 700 W 8 + TP3 910 W 7": equal replicas in a row are counted. */
static void describe(const char *parallelism, const ek_phase_replica *replicas, uint32_t count, char text[SHOWN_BYTES])
{
    size_t length = 0;
    text[0] = '\0';
    for (uint32_t r = 0, next; r < count && length < SHOWN_BYTES; r = next) {
        const ek_phase_replica *replica = &replicas[r];
        for (next = r + 1; next < count && is_alike(&replicas[next], replica); next++)
            ;
        char times[16] = "", watts[32] = "";
        if (next - r > 1)
            snprintf(times, sizeof times, "%ux", next - r);
        if (replica->watts > 0)
            snprintf(watts, sizeof watts, " %.0f W", replica->watts);
        length += (size_t)snprintf(text + length, SHOWN_BYTES - length, "%s%s%s%u%s, %u samples", length ? " + " : "",
                                   times, parallelism, replica->degree, watts, replica->samples);
    }
}

bool ek_phases_add(ek_phases *phases, uint64_t step, const ek_phase_replica *replicas, uint32_t replica_count,
                   double predicted_seconds, double busy_seconds)
{
    char text[SHOWN_BYTES];
    describe(phases->parallelism, replicas, replica_count, text);
    struct ek_phase_row *last = phases->count ? &phases->rows[phases->count - 1] : NULL;
    if (last && strcmp(last->replicas, text) == 0) {
        last->last = step;
        last->busy_sum += busy_seconds;
        if (last->predicted == 0.0)
            last->predicted = predicted_seconds;
        return false;
    }
    struct ek_phase_row *rows = NULL;
    if (phases->count < ROWS_MOST)
        rows = realloc(phases->rows, (phases->count + 1) * sizeof *rows);
    if (!rows) {
        phases->left_out++;
        return true;
    }
    phases->rows = rows;
    last = &rows[phases->count++];
    *last =
        (struct ek_phase_row){.first = step, .last = step, .predicted = predicted_seconds, .busy_sum = busy_seconds};
    memcpy(last->replicas, text, sizeof text);
    return true;
}

void ek_phases_print(const ek_phases *phases, FILE *out)
{
    if (!phases->count)
        return;
    fprintf(out, "%11s  %9s  %9s  %s\n", "steps", "predicted", "busy", "replicas");
    for (size_t i = 0; i < phases->count; i++) {
        const struct ek_phase_row *row = &phases->rows[i];
        char steps[48], predicted[24] = "";
        snprintf(steps, sizeof steps, "%llu-%llu", (unsigned long long)row->first, (unsigned long long)row->last);
        if (row->predicted > 0)
            snprintf(predicted, sizeof predicted, "%.1f ms", 1e3 * row->predicted);
        fprintf(out, "%11s  %9s  %6.1f ms  %s\n", steps, predicted,
                1e3 * row->busy_sum / (double)(row->last - row->first + 1), row->replicas);
    }
    if (phases->left_out)
        fprintf(out, "… and %llu changes more\n", (unsigned long long)phases->left_out);
    fputc('\n', out);
}

void ek_phases_clear(ek_phases *phases)
{
    free(phases->rows);
    *phases = (ek_phases){.parallelism = phases->parallelism};
}
