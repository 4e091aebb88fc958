/* A running estimate of a quantity that is measured with noise and now and then really changes. */
#include "power/estimate.h"

#include <math.h>
#include <string.h>

/* A measurement is far off beyond both of these, relative to the value. The first keeps a quantity without noise from
 * being taken to change all the time. */
#define OFF_LEAST 0.03
#define OFF_DEVIATIONS 3.0
#define OFF_COUNT_LEAST 4 /* with fewer measurements nobody knows what is far off */

/* How much too small a deviation found in so few measurements, two or more, may well be. */
static double allowance(uint32_t count)
{
    return 1 + 1.0 / (count - 1);
}

/* Sets value and noise. */
static void evaluate(ek_estimate *estimate)
{
    uint32_t count = estimate->count, dropped = (count + 1) / 4;
    double sum = 0, deviations = 0;
    for (uint32_t i = dropped; i < count - dropped; i++)
        sum += estimate->ordered[i];
    estimate->value = sum / (count - 2 * dropped);
    for (uint32_t i = 0; i < count; i++)
        deviations += fabs(estimate->ordered[i] - estimate->value);
    double mean_deviation = deviations / count / estimate->value;
    /* of a normal variable: its mean absolute deviation is sqrt(2/pi) of its standard deviation */
    if (count < 2)
        return;
    estimate->noise = 1.2533 * mean_deviation * sqrt(count / (count - 1.0));
    estimate->noise_known = true;
}

static void insert(ek_estimate *estimate, double measurement)
{
    double *ordered = estimate->ordered;
    if (estimate->count == ESTIMATE_WINDOW) { /* the oldest makes room */
        uint32_t at = 0;
        while (ordered[at] != estimate->window[estimate->next])
            at++;
        memmove(ordered + at, ordered + at + 1, (ESTIMATE_WINDOW - at - 1) * sizeof *ordered);
        estimate->count--;
    }
    uint32_t at = estimate->count;
    for (; at > 0 && ordered[at - 1] > measurement; at--)
        ordered[at] = ordered[at - 1];
    ordered[at] = measurement;
    estimate->window[estimate->next] = measurement;
    estimate->next = (estimate->next + 1) % ESTIMATE_WINDOW;
    estimate->count++;
}

/* -1, 0 or 1: far below, near, far above. */
static int side(const ek_estimate *estimate, double measurement)
{
    if (estimate->count < OFF_COUNT_LEAST)
        return 0;
    double off = measurement / estimate->value - 1;
    double far = fmax(OFF_LEAST, OFF_DEVIATIONS * estimate->noise * allowance(estimate->count));
    return (off > far) - (off < -far);
}

static void take_in_held_back(ek_estimate *estimate)
{
    for (uint32_t i = 0; i < estimate->off_count; i++)
        insert(estimate, estimate->off[i]);
    estimate->off_count = 0;
}

bool ek_estimate_add(ek_estimate *estimate, double measurement)
{
    int off = side(estimate, measurement);
    bool changed = false;
    if (off == 0 || (estimate->off_count && off != side(estimate, estimate->off[0])))
        take_in_held_back(estimate); /* they were outliers */
    if (off == 0) {
        insert(estimate, measurement);
    } else {
        estimate->off[estimate->off_count++] = measurement;
        changed = estimate->off_count == ESTIMATE_RUN;
        if (changed) {
            estimate->count = estimate->next = 0;
            take_in_held_back(estimate);
        }
    }
    evaluate(estimate);
    return changed;
}

void ek_estimate_restart(ek_estimate *estimate)
{
    estimate->count = estimate->next = 0;
    estimate->off_count = 0;
}

double ek_estimate_error(const ek_estimate *estimate, double noise)
{
    uint32_t count = estimate->count > 1 ? estimate->count : 1;
    return noise * allowance(count > 1 ? count : 2) / sqrt(count);
}
