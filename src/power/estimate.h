/* A running estimate of a quantity that is measured with noise and now and then really changes: how long a replica
 * takes for a sample. Pure; no memory of its own but the struct; all zero is an estimate of nothing.
 *
 * The estimate is the mean of the middle half of the last measurements, so single outliers do not move it. Three
 * measurements in a row far off on the same side are a change: the estimate starts anew from those three. */
#ifndef EK_POWER_ESTIMATE_H
#define EK_POWER_ESTIMATE_H

#include <evenkeel.h>

#define ESTIMATE_WINDOW 128 /* measurements that count */
#define ESTIMATE_RUN 3      /* of them, off on one side, are a change */

typedef struct ek_estimate {
    uint32_t count, next;            /* of window; where the next one goes */
    double window[ESTIMATE_WINDOW];  /* as they came */
    double ordered[ESTIMATE_WINDOW]; /* the same, ascending */
    double value;                    /* 0: nothing is known */
    double noise;                    /* standard deviation of one measurement, relative */
    bool noise_known;                /* from two measurements on */
    uint32_t off_count;              /* held back: measurements in a row that are far off on one side */
    double off[ESTIMATE_RUN];
} ek_estimate;

/* Takes in a measurement above 0. True: the quantity has changed. */
bool ek_estimate_add(ek_estimate *estimate, double measurement);

/* Forgets the measurements but keeps value and noise until there are new ones. */
void ek_estimate_restart(ek_estimate *estimate);

/* The standard error of the value, relative, where one measurement has the deviation `noise` (relative). */
double ek_estimate_error(const ek_estimate *estimate, double noise);

#endif
