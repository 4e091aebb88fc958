/* Thinning keeps the ends and the extremes of a series, and short series whole. */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "report/thin.h"
#include "testing.h"

enum { POINTS_MOST = 30000 };

static double ys[POINTS_MOST];

/* Values of one kind: noise, stairs, a constant with rare peaks. */
static double draw(uint64_t seed, uint64_t i)
{
    double u = ek_random_uniform(seed, 1, i);
    switch (seed % 3) {
    case 0:
        return u;
    case 1:
        return i > 0 && u < 0.99 ? ys[i - 1] : floor(8 * ek_random_uniform(seed, 2, i));
    default:
        return u < 0.999 ? 1.0 : 10 * u;
    }
}

static double x_of(const json_t *points, size_t i)
{
    return json_number_value(json_array_get(json_array_get(points, i), 0));
}

static double y_of(const json_t *points, size_t i)
{
    return json_number_value(json_array_get(json_array_get(points, i), 1));
}

static void check_kept(const json_t *points, uint64_t count)
{
    size_t kept = json_array_size(points);
    assert_in_range(kept, 1, 4 * EK_THIN_BUCKETS);
    double least = ys[0], most = ys[0], kept_least = INFINITY, kept_most = -INFINITY;
    for (uint64_t i = 0; i < count; i++) {
        least = fmin(least, ys[i]);
        most = fmax(most, ys[i]);
    }
    for (size_t i = 0; i < kept; i++) {
        kept_least = fmin(kept_least, y_of(points, i));
        kept_most = fmax(kept_most, y_of(points, i));
        assert_true(i == 0 || x_of(points, i - 1) < x_of(points, i));
        assert_true(ys[(size_t)x_of(points, i) - 1] == y_of(points, i)); /* x counts from 1 */
    }
    assert_true(least == kept_least && most == kept_most);
    assert_true(x_of(points, 0) == 1.0 && x_of(points, kept - 1) == (double)count);
}

/* If no points were merged, stairs say at each x what the series says. */
static void check_stairs(const json_t *points, uint64_t count)
{
    size_t at = 0;
    for (uint64_t i = 0; i < count; i++) {
        while (at + 1 < json_array_size(points) && x_of(points, at + 1) <= (double)(i + 1))
            at++;
        assert_true(y_of(points, at) == ys[i]);
    }
}

static void test_random_series(void **state)
{
    (void)state;
    ek_thin *thin = malloc(sizeof *thin);
    assert_non_null(thin);
    for (uint64_t seed = 1; seed <= 120; seed++) {
        uint64_t most = seed % 2 ? EK_THIN_BUCKETS : POINTS_MOST;
        uint64_t count = 1 + ek_random_u64(seed, 0, 0) % most;
        *thin = (ek_thin){0};
        for (uint64_t i = 0; i < count; i++) {
            ys[i] = draw(seed, i);
            ek_thin_add(thin, (double)(i + 1), ys[i]);
        }
        json_t *lines = ek_thin_points(thin, false), *stairs = ek_thin_points(thin, true);
        check_kept(lines, count);
        check_kept(stairs, count);
        assert_true(json_array_size(stairs) <= json_array_size(lines));
        if (count <= EK_THIN_BUCKETS) {
            assert_int_equal(json_array_size(lines), count);
            check_stairs(stairs, count);
        }
        json_decref(lines);
        json_decref(stairs);
    }
    free(thin);
}

static void test_constant_stairs_are_two_points(void **state)
{
    (void)state;
    ek_thin *thin = calloc(1, sizeof *thin);
    assert_non_null(thin);
    for (int i = 1; i <= 100000; i++)
        ek_thin_add(thin, i, 4.0);
    json_t *points = ek_thin_points(thin, true);
    assert_int_equal(json_array_size(points), 2);
    assert_true(x_of(points, 1) == 100000.0);
    json_decref(points);
    free(thin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_series),
        cmocka_unit_test(test_constant_stairs_are_two_points),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
