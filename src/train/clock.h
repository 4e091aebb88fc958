/* Clocks: seconds as double. The monotonic clock is one for all processes of a machine, so its readings can be compared
 * across ranks. */
#ifndef EK_TRAIN_CLOCK_H
#define EK_TRAIN_CLOCK_H

#include <time.h>

static inline double ek_clock(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static inline double ek_wall_seconds(void)
{
    return ek_clock(CLOCK_MONOTONIC);
}

/* CPU time of the calling thread: waiting is not in it. */
static inline double ek_busy_seconds(void)
{
    return ek_clock(CLOCK_THREAD_CPUTIME_ID);
}

#endif
