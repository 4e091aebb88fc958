/* Thinning: buckets tell the truth about their points, and short series are whole. */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "report/thin.h"
#include "testing.h"

enum { POINTS_MOST = 30000 };

static double ys[POINTS_MOST]; /* x counts from 1 */

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

static double number(const json_t *points, size_t i, size_t column)
{
    return json_number_value(json_array_get(json_array_get(points, i), column));
}

static void check_buckets(const ek_thin *thin, uint64_t count)
{
    json_t *means = ek_thin_means(thin, false), *band = ek_thin_band(thin), *ends = ek_thin_ends(thin);
    size_t buckets = (count + thin->width - 1) / thin->width;
    assert_in_range(buckets, 1, EK_THIN_BUCKETS);
    assert_int_equal(json_array_size(means), buckets);
    assert_int_equal(json_array_size(band), buckets);
    for (size_t b = 0; b < buckets; b++) {
        uint64_t first = b * thin->width, end = first + thin->width < count ? first + thin->width : count;
        double sum = 0.0, least = ys[first], most = ys[first];
        for (uint64_t i = first; i < end; i++) {
            sum += ys[i];
            least = fmin(least, ys[i]);
            most = fmax(most, ys[i]);
        }
        double place = b == 0 ? 1.0 : b + 1 == buckets ? (double)count : floor(0.5 * (double)(first + end + 1));
        assert_true(number(means, b, 0) == place && number(band, b, 0) == place);
        assert_true(fabs(number(means, b, 1) - sum / (double)(end - first)) < 1e-12 * (double)count);
        assert_true(number(band, b, 1) == least && number(band, b, 2) == most);
    }
    for (size_t i = 0; i < json_array_size(ends); i++)
        assert_true(number(ends, i, 1) == ys[(size_t)number(ends, i, 0) - 1]);
    assert_true(number(ends, 0, 0) == 1.0 && number(ends, json_array_size(ends) - 1, 0) == (double)count);
    json_decref(means);
    json_decref(band);
    json_decref(ends);
}

/* Of a whole series, stairs say at each x what the series says, and end with it. */
static void check_stairs(const ek_thin *thin, uint64_t count)
{
    json_t *points = ek_thin_means(thin, true);
    size_t at = 0;
    for (uint64_t i = 0; i < count; i++) {
        while (at + 1 < json_array_size(points) && number(points, at + 1, 0) <= (double)(i + 1))
            at++;
        assert_true(number(points, at, 1) == ys[i]);
    }
    assert_true(number(points, json_array_size(points) - 1, 0) == (double)count);
    json_decref(points);
}

static void test_random_series(void **state)
{
    (void)state;
    ek_thin *thin = malloc(sizeof *thin);
    assert_non_null(thin);
    for (uint64_t seed = 1; seed <= 120; seed++) {
        uint64_t count = 1 + ek_random_u64(seed, 0, 0) % (seed % 2 ? EK_THIN_BUCKETS : POINTS_MOST);
        *thin = (ek_thin){0};
        for (uint64_t i = 0; i < count; i++) {
            ys[i] = draw(seed, i);
            ek_thin_add(thin, (double)(i + 1), ys[i]);
        }
        assert_int_equal(thin->width == 1, count <= EK_THIN_BUCKETS);
        check_buckets(thin, count);
        if (thin->width == 1)
            check_stairs(thin, count);
    }
    free(thin);
}

static void test_constant_stairs_are_two_points(void **state)
{
    (void)state;
    ek_thin *thin = calloc(1, sizeof *thin);
    assert_non_null(thin);
    for (int i = 1; i <= EK_THIN_BUCKETS; i++)
        ek_thin_add(thin, i, 4.0);
    json_t *points = ek_thin_means(thin, true);
    assert_int_equal(json_array_size(points), 2);
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
