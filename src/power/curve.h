/* A device's speed as a function of its power limit, both relative to the default limit: straight lines between points.
 * Pure. */
#ifndef EK_POWER_CURVE_H
#define EK_POWER_CURVE_H

#include <evenkeel.h>

#define EK_CURVE_POINTS_MOST 32

typedef struct ek_curve_point {
    double power, speed; /* at the default limit both are 1 */
} ek_curve_point;

typedef struct ek_curve {
    uint32_t count;
    ek_curve_point points[EK_CURVE_POINTS_MOST];
} ek_curve;

/* The published points for training on large GPUs (arXiv 2504.06095): performance per watt falls by 2.8 % at 1.1 times
 * the default power and by 6.5 % at 1.2 times; 1.3 times is the authors' extrapolation. */
ek_curve ek_curve_default(void);

/* 2 to EK_CURVE_POINTS_MOST points, power and speed above 0 and at most 10, both increasing from point to point,
 * [1, 1] among them, the last one above it. Between two points speed rises by 0.01 to 100 times what power does: so
 * power and speed are each other's inverse to 1e-12. EK_INVALID begins with "power.curve: ". */
ek_status ek_curve_create(ek_curve *curve, const ek_curve_point *points, size_t count);

/* From a list of `count` pairs power, speed, as settings hold it; NULL: the default one. As ek_curve_create. */
ek_status ek_curve_from_pairs(ek_curve *curve, const double *pairs, size_t count);

/* Speed at a power and power at a speed. What lies outside the points is taken as the nearest of them. */
double ek_curve_speed(const ek_curve *curve, double power);
double ek_curve_power(const ek_curve *curve, double speed);

/* The power of the last point: what the curve says nothing about lies beyond. */
double ek_curve_most_power(const ek_curve *curve);

#endif
