/* Steps, losses and recoveries of a run, and the split of its wall time. */
#include "report/goodput.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"

/* Makes room for one element more. */
static ek_status grow(void **list, size_t count, size_t *room, size_t element_bytes)
{
    if (count < *room)
        return EK_OK;
    size_t wanted = *room ? 2 * *room : 256;
    void *larger = realloc(*list, wanted * element_bytes);
    if (!larger)
        return ek_fail(EK_NO_MEMORY, "out of memory for a run of so many steps");
    *list = larger;
    *room = wanted;
    return EK_OK;
}

ek_status ek_goodput_add_step(ek_goodput *goodput, ek_goodput_step step)
{
    EK_TRY(grow((void **)&goodput->steps, goodput->step_count, &goodput->step_room, sizeof *goodput->steps));
    double before = goodput->step_count ? goodput->steps[goodput->step_count - 1].at : 0.0;
    step.seconds = fmin(step.seconds, step.at - before);
    goodput->steps[goodput->step_count++] = step;
    return EK_OK;
}

ek_status ek_goodput_add_loss(ek_goodput *goodput, double noticed)
{
    EK_TRY(grow((void **)&goodput->losses, goodput->loss_count, &goodput->loss_room, sizeof *goodput->losses));
    goodput->losses[goodput->loss_count++] = (ek_goodput_span){noticed, noticed};
    return EK_OK;
}

ek_status ek_goodput_add_recovery(ek_goodput *goodput, double first, double last)
{
    EK_TRY(grow((void **)&goodput->recoveries, goodput->recovery_count, &goodput->recovery_room,
                sizeof *goodput->recoveries));
    goodput->recoveries[goodput->recovery_count++] = (ek_goodput_span){first, last};
    return EK_OK;
}

ek_status ek_goodput_add_launch(ek_goodput *goodput, double at)
{
    EK_TRY(grow((void **)&goodput->launches, goodput->launch_count, &goodput->launch_room, sizeof *goodput->launches));
    goodput->launches[goodput->launch_count++] = at;
    return EK_OK;
}

void ek_goodput_clear(ek_goodput *goodput)
{
    free(goodput->launches);
    free(goodput->steps);
    free(goodput->losses);
    free(goodput->recoveries);
    *goodput = (ek_goodput){0};
}

/* ------------------------------------------------------------------------------------------------- median */

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ek_median(double *values, size_t count)
{
    if (count == 0)
        return 0.0;
    qsort(values, count, sizeof *values, compare_numbers);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

/* --------------------------------------------------------------------------------------------------- steps */

static bool is_whole(const ek_goodput *goodput, const ek_goodput_step *step)
{
    return step->least_tp == goodput->most_tp;
}

/* Divides the time of committed steps into productive and slower. */
static ek_status split_steps(const ek_goodput *goodput, double seconds[EK_GOODPUT_PARTS], bool *has_whole)
{
    double *costs = malloc((goodput->step_count + 1) * sizeof *costs); /* seconds per token of whole steps */
    if (!costs)
        return ek_fail(EK_NO_MEMORY, "out of memory for a run of so many steps");
    size_t whole = 0;
    double reduced_seconds = 0.0, reduced_tokens = 0.0;
    for (size_t i = 0; i < goodput->step_count; i++) {
        const ek_goodput_step *step = &goodput->steps[i];
        if (is_whole(goodput, step)) {
            costs[whole++] = step->seconds / fmax(step->tokens, 1.0);
            seconds[EK_GOODPUT_PRODUCTIVE] += step->seconds;
        } else {
            reduced_seconds += step->seconds;
            reduced_tokens += step->tokens;
        }
    }
    *has_whole = whole > 0;
    double due = whole ? fmin(ek_median(costs, whole) * reduced_tokens, reduced_seconds) : reduced_seconds;
    seconds[EK_GOODPUT_PRODUCTIVE] += due;
    seconds[EK_GOODPUT_SLOWER] += reduced_seconds - due;
    free(costs);
    return EK_OK;
}

/* -------------------------------------------------------------------------------------------------- gaps */

static int compare_spans(const void *a, const void *b)
{
    return compare_numbers(&((const ek_goodput_span *)a)->first, &((const ek_goodput_span *)b)->first);
}

/* Overlapping spans become one: a recovery is told of once for each replica. */
static void unite(ek_goodput_span *spans, size_t *count)
{
    if (*count == 0)
        return;
    qsort(spans, *count, sizeof *spans, compare_spans);
    size_t united = 0;
    for (size_t i = 1; i < *count; i++) {
        if (spans[i].first <= spans[united].last)
            spans[united].last = fmax(spans[united].last, spans[i].last);
        else
            spans[++united] = spans[i];
    }
    *count = united + 1;
}

/* What spans[*next …] cover of the gap; moves *next behind those that end in it. */
static double cover(const ek_goodput_span *spans, size_t count, size_t *next, ek_goodput_span gap, bool *any)
{
    double covered = 0.0;
    *any = false;
    while (*next < count && spans[*next].last < gap.first)
        ++*next;
    for (size_t i = *next; i < count && spans[i].first <= gap.last; i++) {
        covered += fmin(spans[i].last, gap.last) - fmax(spans[i].first, gap.first);
        *any = true;
    }
    return covered;
}

/* What has been looked at of a run's spans and launches, all of which come in order. */
typedef struct place_in_run {
    size_t loss, recovery, launch;
} place_in_run;

static void split_gap(const ek_goodput *goodput, ek_goodput_span gap, bool start, place_in_run *next, double *seconds)
{
    if (gap.last <= gap.first)
        return;
    bool lost, recovered;
    double recovery = cover(goodput->recoveries, goodput->recovery_count, &next->recovery, gap, &recovered);
    cover(goodput->losses, goodput->loss_count, &next->loss, gap, &lost);
    seconds[EK_GOODPUT_RECOVERY] += recovery;
    seconds[start ? EK_GOODPUT_START : lost ? EK_GOODPUT_LOST : EK_GOODPUT_OTHER] += gap.last - gap.first - recovery;
}

/* A gap in which the job was launched again is several: what lies before a launch is not start. */
static void split_at_launches(const ek_goodput *goodput, ek_goodput_span gap, bool start, place_in_run *next,
                              double *seconds)
{
    for (; next->launch < goodput->launch_count && goodput->launches[next->launch] <= gap.last; next->launch++) {
        double launch = goodput->launches[next->launch];
        split_gap(goodput, (ek_goodput_span){gap.first, launch}, false, next, seconds);
        gap.first = fmax(gap.first, launch);
        start = true;
    }
    split_gap(goodput, gap, start, next, seconds);
}

ek_status ek_goodput_split(ek_goodput *goodput, double end, double seconds[EK_GOODPUT_PARTS], bool *has_whole)
{
    for (int part = 0; part < EK_GOODPUT_PARTS; part++)
        seconds[part] = 0.0;
    EK_TRY(split_steps(goodput, seconds, has_whole));
    unite(goodput->losses, &goodput->loss_count);
    unite(goodput->recoveries, &goodput->recovery_count);
    place_in_run next = {0};
    double committed = 0.0; /* the step before */
    for (size_t i = 0; i <= goodput->step_count; i++) {
        const ek_goodput_step *step = i < goodput->step_count ? &goodput->steps[i] : NULL; /* NULL: behind the last */
        ek_goodput_span gap = {committed, step ? step->at - step->seconds : end};
        committed = step ? step->at : end;
        split_at_launches(goodput, gap, i == 0, &next, seconds);
    }
    return EK_OK;
}
