/* Stretches of steps with the same degrees, power and samples, and the table of them. */
#include "train/phases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define ROWS_MOST 64    /* a job of thousands of failures keeps its memory flat */
#define SHOWN_BYTES 256 /* of the description of the replicas */
#define COLUMNS_MOST 100

typedef struct phase_row {
    uint64_t first, last;
    double predicted_seconds;
    double busy_sum, unfailed_sum; /* seconds of the steps, and of those of a job without failures; 0: not known */
    uint32_t samples_left_out;
    double extra_watts;
    char replicas[SHOWN_BYTES];
} phase_row;

struct ek_phases {
    ek_phase_job job;
    uint32_t largest_share;    /* of the even split over all replicas */
    ek_phase_replica *current; /* [replicas] of the last step */
    phase_row *rows;
    size_t count;
    bool has_row;             /* the current phase has one: the last */
    uint64_t left_out;        /* phases for which there was no room */
    uint64_t whole_steps;     /* steps with a whole replica, */
    double whole_seconds_sum; /* and what it took for a sample in them */
};

ek_status ek_phases_create(ek_phases **phases, const ek_phase_job *job)
{
    ek_phases *made = calloc(1, sizeof *made);
    if (made) {
        made->job = *job;
        made->largest_share = (job->samples + job->replicas - 1) / job->replicas;
        made->current = calloc(job->replicas, sizeof *made->current);
    }
    if (!made || !made->current) {
        free(made);
        return ek_fail(EK_NO_MEMORY, "out of memory for the phases of a run");
    }
    *phases = made;
    return EK_OK;
}

void ek_phases_destroy(ek_phases *phases)
{
    if (!phases)
        return;
    free(phases->current);
    free(phases->rows);
    free(phases);
}

/* --------------------------------------------------------------------------------------------- gathering */

static bool is_alike(const ek_phase_replica *a, const ek_phase_replica *b)
{
    return a->degree == b->degree && a->samples == b->samples && a->watts == b->watts &&
           a->total_watts == b->total_watts;
}

/* "2xTP4 (700 W, 8) + TP3 (910 W, 7)": equal replicas in a row are counted; "…" where there is no room for more. */
static void describe(const ek_phase_job *job, const ek_phase_replica *replicas, char text[SHOWN_BYTES])
{
    size_t length = 0;
    uint32_t count = job->replicas;
    for (uint32_t r = 0, next; r < count; r = next) {
        const ek_phase_replica *replica = &replicas[r];
        for (next = r + 1; next < count && is_alike(&replicas[next], replica); next++)
            ;
        char times[16] = "", watts[32] = "", shown[96] = "retired";
        if (next - r > 1)
            snprintf(times, sizeof times, "%ux", next - r);
        if (replica->watts > 0)
            snprintf(watts, sizeof watts, "%.0f W, ", replica->watts);
        if (replica->degree)
            snprintf(shown, sizeof shown, "%s%u (%s%u)", job->parallelism, replica->degree, watts, replica->samples);
        const char *plus = length ? " + " : "", *end = next < count ? " + …" : "";
        size_t needed = strlen(plus) + strlen(times) + strlen(shown);
        if (length + needed + strlen(end) >= SHOWN_BYTES) {
            snprintf(text + length, SHOWN_BYTES - length, "%s…", plus);
            return;
        }
        length += (size_t)snprintf(text + length, SHOWN_BYTES - length, "%s%s%s", plus, times, shown);
    }
}

static bool begins_phase(const ek_phases *phases, const ek_phase_replica *replicas)
{
    for (uint32_t r = 0; r < phases->job.replicas; r++)
        if (!is_alike(&replicas[r], &phases->current[r]))
            return true;
    return false;
}

static void begin_row(ek_phases *phases, uint64_t step)
{
    const ek_phase_job *job = &phases->job;
    phase_row *rows = NULL;
    if (phases->count < ROWS_MOST)
        rows = realloc(phases->rows, (phases->count + 1) * sizeof *rows);
    phases->has_row = rows != NULL;
    if (!rows) {
        phases->left_out++;
        return;
    }
    phases->rows = rows;
    phase_row *row = &rows[phases->count++];
    *row = (phase_row){.first = step,
                       .samples_left_out = job->samples,
                       .extra_watts = -job->default_watts * job->replicas * job->base_degree};
    for (uint32_t r = 0; r < job->replicas; r++) {
        row->samples_left_out -= phases->current[r].samples;
        row->extra_watts += phases->current[r].total_watts;
    }
    describe(job, phases->current, row->replicas);
}

/* What a step of a job without failures would take now; 0: no replica has been whole so far. */
static double unfailed_seconds(ek_phases *phases)
{
    const ek_phase_job *job = &phases->job;
    double whole = 0.0;
    for (uint32_t r = 0; r < job->replicas; r++) {
        const ek_phase_replica *replica = &phases->current[r];
        if (replica->degree == job->base_degree && replica->samples)
            whole = fmax(whole, replica->busy_seconds / replica->samples);
    }
    if (whole > 0.0) {
        phases->whole_steps++;
        phases->whole_seconds_sum += whole;
    } else if (phases->whole_steps) {
        whole = phases->whole_seconds_sum / (double)phases->whole_steps;
    }
    return whole * phases->largest_share;
}

bool ek_phases_add(ek_phases *phases, uint64_t step, const ek_phase_replica *replicas)
{
    bool begins = begins_phase(phases, replicas);
    memcpy(phases->current, replicas, phases->job.replicas * sizeof *replicas);
    if (begins)
        begin_row(phases, step);
    double predicted = 0.0, busy = 0.0, unfailed = unfailed_seconds(phases);
    for (uint32_t r = 0; r < phases->job.replicas; r++) {
        predicted = fmax(predicted, replicas[r].predicted_seconds);
        busy = fmax(busy, replicas[r].busy_seconds);
    }
    if (phases->has_row) {
        phase_row *row = &phases->rows[phases->count - 1];
        row->last = step;
        row->busy_sum += busy;
        row->unfailed_sum += unfailed;
        if (row->predicted_seconds == 0.0)
            row->predicted_seconds = predicted;
    }
    return begins;
}

/* ---------------------------------------------------------------------------------------------- printing */

enum { CELL_BYTES = 32 };

/* "+12.5", "-3", but "0.0". */
static const char *signed_cell(double value, int decimals, char cell[CELL_BYTES])
{
    bool zero = fabs(value) < 0.5 * pow(10, -decimals);
    snprintf(cell, CELL_BYTES, zero ? "%.*f" : "%+.*f", decimals, zero ? 0.0 : value);
    return cell;
}

/* Beginning in a column; what would go beyond the last one goes to the next line, whole replicas each. */
static void print_replicas(const char *text, int column, FILE *out)
{
    int at = column;
    for (const char *next; *text; text = next) {
        const char *plus = strstr(text, " + ");
        next = plus ? plus + 3 : text + strlen(text);
        int length = (int)(plus ? plus + 2 - text : next - text);
        if (at > column && at + length > COLUMNS_MOST) {
            fprintf(out, "\n%*s", column, "");
            at = column;
        }
        fprintf(out, "%.*s%s", length, text, plus ? " " : "");
        at += length + 1;
    }
    fputc('\n', out);
}

static void print_row(const ek_phases *phases, const phase_row *row, const char *steps, int width, FILE *out)
{
    double count = (double)(row->last - row->first + 1);
    char predicted[CELL_BYTES] = "", time[CELL_BYTES] = "", samples[CELL_BYTES], power[CELL_BYTES] = "";
    if (row->predicted_seconds > 0.0)
        snprintf(predicted, sizeof predicted, "%.1f", 1e3 * row->predicted_seconds);
    if (row->unfailed_sum > 0.0)
        signed_cell(100.0 * (row->busy_sum / row->unfailed_sum - 1.0), 1, time);
    signed_cell(-(double)row->samples_left_out, 0, samples);
    if (phases->job.default_watts > 0.0)
        signed_cell(row->extra_watts, 0, power);
    int column = fprintf(out, "%*s  %9s  %8.1f  %8s  %7s  %8s  ", width, steps, predicted, 1e3 * row->busy_sum / count,
                         time, samples, power);
    print_replicas(row->replicas, column, out);
}

void ek_phases_print(const ek_phases *phases, FILE *out)
{
    if (!phases->count)
        return;
    char steps[48];
    const phase_row *last = &phases->rows[phases->count - 1];
    int width =
        snprintf(steps, sizeof steps, "%llu-%llu", (unsigned long long)last->first, (unsigned long long)last->last);
    if (width < (int)strlen("steps"))
        width = (int)strlen("steps");
    fprintf(out, "%*s  %19s  %27s\n", width, "", "busy, ms", "against no failures");
    fprintf(out, "%*s  %9s  %8s  %8s  %7s  %8s  %s\n", width, "steps", "predicted", "reported", "time, %", "samples",
            "power, W", phases->job.default_watts > 0.0 ? "replicas (W of a device, samples)" : "replicas (samples)");
    for (size_t i = 0; i < phases->count; i++) {
        const phase_row *row = &phases->rows[i];
        snprintf(steps, sizeof steps, "%llu-%llu", (unsigned long long)row->first, (unsigned long long)row->last);
        print_row(phases, row, steps, width, out);
    }
    if (phases->left_out)
        fprintf(out, "… and %llu changes more\n", (unsigned long long)phases->left_out);
    fputc('\n', out);
}
