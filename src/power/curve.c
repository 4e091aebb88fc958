/* A device's speed as a function of its power limit. */
#include "power/curve.h"

#include <math.h>

#include "base/error.h"

#define VALUE_MOST 10.0
#define SLOPE_LEAST 0.01
#define SLOPE_MOST 100.0

ek_curve ek_curve_default(void)
{
    return (ek_curve){4, {{1, 1}, {1.1, 1.1 * (1 - 0.028)}, {1.2, 1.2 * (1 - 0.065)}, {1.3, 1.16}}};
}

static double slope(ek_curve_point from, ek_curve_point to)
{
    return (to.speed - from.speed) / (to.power - from.power);
}

/* points[at], whose predecessors have passed. */
static ek_status check_point(const ek_curve_point *points, size_t at)
{
    ek_curve_point point = points[at];
    /* written so that NaN fails */
    if (!(point.power > 0 && point.power <= VALUE_MOST && point.speed > 0 && point.speed <= VALUE_MOST))
        return ek_fail(EK_INVALID,
                       "power.curve: found [%g, %g]; [power, speed], both above 0 and at most %g, is needed",
                       point.power, point.speed, VALUE_MOST);
    if (at == 0)
        return EK_OK;
    ek_curve_point before = points[at - 1];
    if (point.power <= before.power || point.speed <= before.speed)
        return ek_fail(EK_INVALID, "power.curve: found [%g, %g] after [%g, %g]; power and speed must both increase",
                       point.power, point.speed, before.power, before.speed);
    if (slope(before, point) < SLOPE_LEAST || slope(before, point) > SLOPE_MOST)
        return ek_fail(EK_INVALID,
                       "power.curve: found [%g, %g] after [%g, %g]; speed must rise by %g to %g times what power does",
                       point.power, point.speed, before.power, before.speed, SLOPE_LEAST, SLOPE_MOST);
    return EK_OK;
}

ek_status ek_curve_create(ek_curve *curve, const ek_curve_point *points, size_t count)
{
    if (count < 2 || count > EK_CURVE_POINTS_MOST)
        return ek_fail(EK_INVALID, "power.curve: found %zu points; 2 to %d are needed", count, EK_CURVE_POINTS_MOST);
    bool has_default = false;
    for (size_t i = 0; i < count; i++) {
        EK_TRY(check_point(points, i));
        has_default = has_default || (points[i].power == 1 && points[i].speed == 1);
    }
    if (!has_default)
        return ek_fail(EK_INVALID, "power.curve: [1, 1], the default limit, is not among the %zu points; it must be",
                       count);
    if (points[count - 1].power == 1)
        return ek_fail(EK_INVALID, "power.curve: ends at [1, 1]; a point above it is needed");
    curve->count = (uint32_t)count;
    for (size_t i = 0; i < count; i++)
        curve->points[i] = points[i];
    return EK_OK;
}

ek_status ek_curve_from_pairs(ek_curve *curve, const double *pairs, size_t count)
{
    if (!pairs) {
        *curve = ek_curve_default();
        return EK_OK;
    }
    ek_curve_point points[EK_CURVE_POINTS_MOST] = {{0, 0}};
    for (size_t i = 0; i < count && i < EK_CURVE_POINTS_MOST; i++)
        points[i] = (ek_curve_point){pairs[2 * i], pairs[2 * i + 1]};
    return ek_curve_create(curve, points, count);
}

/* The value at x on the line from (x0, y0) to (x1, y1), exact at both ends. */
static double on_line(double x, double x0, double y0, double x1, double y1)
{
    double part = (fmin(fmax(x, x0), x1) - x0) / (x1 - x0);
    return y0 * (1 - part) + y1 * part;
}

double ek_curve_speed(const ek_curve *curve, double power)
{
    const ek_curve_point *to = curve->points + 1;
    while (to + 1 < curve->points + curve->count && power > to->power)
        to++;
    return on_line(power, to[-1].power, to[-1].speed, to->power, to->speed);
}

double ek_curve_power(const ek_curve *curve, double speed)
{
    const ek_curve_point *to = curve->points + 1;
    while (to + 1 < curve->points + curve->count && speed > to->speed)
        to++;
    return on_line(speed, to[-1].speed, to[-1].power, to->speed, to->power);
}

double ek_curve_most_power(const ek_curve *curve)
{
    return curve->points[curve->count - 1].power;
}
