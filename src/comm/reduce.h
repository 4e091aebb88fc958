/* The arithmetic of reductions, the same in every engine: so sums have the same bits. */
#ifndef EK_COMM_REDUCE_H
#define EK_COMM_REDUCE_H

#include <evenkeel.h>

/* Floats reduced at a time: the accumulator stays in the first-level cache. */
#define REDUCE_BLOCK 2048

/* total[] takes in values[], the next member's. */
static inline void reduce_into(float *restrict total, const float *restrict values, size_t count,
                               ek_reduction reduction)
{
    if (reduction == EK_SUM)
        for (size_t i = 0; i < count; i++)
            total[i] += values[i];
    else
        for (size_t i = 0; i < count; i++)
            total[i] = values[i] > total[i] ? values[i] : total[i];
}

#endif
