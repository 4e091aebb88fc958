/* Curves: the published points, the inverse, what is refused. */
#include "testing.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "power/curve.h"

#define assert_near(found, wanted, tolerance) assert_true(fabs((found) - (wanted)) <= (tolerance))

static void default_gives_the_published_figures(void **state)
{
    (void)state;
    ek_curve curve = ek_curve_default(), checked;
    assert_ok(ek_curve_create(&checked, curve.points, curve.count));
    assert_true(ek_curve_speed(&curve, 1) == 1);
    assert_near(ek_curve_speed(&curve, 1.1) / 1.1, 1 - 0.028, 1e-12);
    assert_near(ek_curve_speed(&curve, 1.2) / 1.2, 1 - 0.065, 1e-12);
    assert_near(ek_curve_speed(&curve, 1.3), 1.16, 1e-12);
    /* TP30 and TP28 of 32, with units that divide freely: "about 1.10" and "about 1.25" */
    assert_near(ek_curve_power(&curve, 32.0 / 30), 1.10, 0.005);
    assert_near(ek_curve_power(&curve, 32.0 / 28), 1.25, 0.006);
}

static void curves_end_at_their_last_points(void **state)
{
    (void)state;
    ek_curve curve;
    assert_ok(ek_curve_create(&curve, (ek_curve_point[]){{0.5, 0.7}, {1, 1}, {1.5, 1.2}}, 3));
    assert_true(ek_curve_most_power(&curve) == 1.5);
    assert_true(ek_curve_speed(&curve, 0.1) == 0.7 && ek_curve_speed(&curve, 9) == 1.2);
    assert_true(ek_curve_power(&curve, 0.1) == 0.5 && ek_curve_power(&curve, 9) == 1.5);
    /* at an inner point nothing is lost to rounding: the default limit is the default limit */
    assert_true(ek_curve_speed(&curve, 1) == 1 && ek_curve_power(&curve, 1) == 1);
}

/* Random curves, with segments as flat and as steep as is allowed: both ways increasing, and inverse to 1e-12. */
static void power_and_speed_are_inverse(void **state)
{
    (void)state;
    for (uint64_t trial = 0; trial < 2000; trial++) {
        ek_curve_point points[EK_CURVE_POINTS_MOST] = {{1, 1}};
        size_t wanted = 2 + ek_random_u64(1, trial, 0) % (EK_CURVE_POINTS_MOST - 1), count = 1;
        for (; count < wanted; count++) {
            double run = 0.001 + 0.01 * ek_random_uniform(2, trial, count);
            double slope = 0.0101 * pow(10, 3.99 * ek_random_uniform(3, trial, count)); /* up to 98.7 */
            points[count] = (ek_curve_point){points[count - 1].power + run, points[count - 1].speed + run * slope};
            if (points[count].speed > 10)
                break;
        }
        ek_curve curve;
        assert_ok(ek_curve_create(&curve, points, count));
        double last_speed = 0, most = ek_curve_most_power(&curve);
        for (int i = 0; i <= 50; i++) {
            double power = 1 + (most - 1) * i / 50, speed = ek_curve_speed(&curve, power);
            assert_true(speed > last_speed);
            assert_near(ek_curve_power(&curve, speed), power, 1e-12);
            assert_near(ek_curve_speed(&curve, ek_curve_power(&curve, speed)), speed, 1e-12);
            last_speed = speed;
        }
    }
}

static void assert_refused(const ek_curve_point *points, size_t count, const char *why)
{
    ek_curve curve = {.count = 77};
    assert_int_equal(ek_curve_create(&curve, points, count), EK_INVALID);
    assert_int_equal(curve.count, 77);
    assert_non_null(strstr(ek_error(), "power.curve: "));
    if (!strstr(ek_error(), why))
        fail_msg("\"%s\" does not say \"%s\"", ek_error(), why);
}

static void pairs_make_a_curve(void **state)
{
    (void)state;
    const double pairs[] = {0.5, 0.6, 1, 1, 1.25, 1.2}, many[2 * (EK_CURVE_POINTS_MOST + 1)] = {1, 1};
    ek_curve curve;
    assert_ok(ek_curve_from_pairs(&curve, pairs, 3));
    assert_int_equal(curve.count, 3);
    assert_true(ek_curve_speed(&curve, 0.5) == 0.6 && ek_curve_power(&curve, 1.2) == 1.25);
    assert_ok(ek_curve_from_pairs(&curve, NULL, 0));
    assert_true(ek_curve_most_power(&curve) == 1.3);
    assert_int_equal(ek_curve_from_pairs(&curve, many, EK_CURVE_POINTS_MOST + 1), EK_INVALID);
    assert_string_equal(ek_error(), "power.curve: found 33 points; 2 to 32 are needed");
}

static void bad_curves_are_refused(void **state)
{
    (void)state;
    ek_curve_point many[EK_CURVE_POINTS_MOST + 1] = {{1, 1}};
    assert_refused(many, EK_CURVE_POINTS_MOST + 1, "2 to 32 are needed");
    assert_refused(many, 1, "found 1 points");
    assert_refused((ek_curve_point[]){{1, 1}, {1.1, 1.05}, {1.1, 1.1}}, 3,
                   "found [1.1, 1.1] after [1.1, 1.05]; power and speed must both increase");
    assert_refused((ek_curve_point[]){{1, 1}, {1.1, 1.05}, {1.2, 1.04}}, 3, "must both increase");
    assert_refused((ek_curve_point[]){{1, 1}, {2, 1.001}}, 2, "by 0.01 to 100 times");
    assert_refused((ek_curve_point[]){{1, 1}, {1.001, 2}}, 2, "by 0.01 to 100 times");
    assert_refused((ek_curve_point[]){{1, 1}, {1.1, NAN}}, 2, "[1.1, nan]");
    assert_refused((ek_curve_point[]){{1, 1}, {INFINITY, 2}}, 2, "at most 10");
    assert_refused((ek_curve_point[]){{0, 0.5}, {1, 1}, {1.1, 1.1}}, 3, "above 0");
    assert_refused((ek_curve_point[]){{0.9, 0.9}, {1.1, 1.1}}, 2, "[1, 1], the default limit, is not among");
    assert_refused((ek_curve_point[]){{0.9, 0.9}, {1, 1}}, 2, "a point above it");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_gives_the_published_figures),
        cmocka_unit_test(curves_end_at_their_last_points),
        cmocka_unit_test(power_and_speed_are_inverse),
        cmocka_unit_test(pairs_make_a_curve),
        cmocka_unit_test(bad_curves_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
