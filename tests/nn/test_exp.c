/* ek_exp against the C library's exp in double precision. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>

#include "nn/simd.h"

static double ulps(float got, double expected)
{
    float nearest = (float)expected;
    return fabs((double)got - expected) / ((double)nextafterf(nearest, INFINITY) - (double)nearest);
}

static void is_accurate_to_one_ulp(void **state)
{
    (void)state;
    double worst = 0.0;
    for (int i = 0; i <= 4000000; i++) {
        float x = -87.33f + (88.72f + 87.33f) * (float)i / 4000000.0f;
        worst = fmax(worst, ulps(ek_exp(x), exp((double)x)));
    }
    for (int i = 0; i < 100000; i++) { /* near 0, down to 1e-30 */
        float x = powf(10.0f, -3e-4f * (float)i);
        worst = fmax(worst, fmax(ulps(ek_exp(x), exp((double)x)), ulps(ek_exp(-x), exp(-(double)x))));
    }
    if (worst > 1.0)
        fail_msg("the worst error is %g ulp", worst);
}

static void ends_are_exact(void **state)
{
    (void)state;
    assert_true(ek_exp(0.0f) == 1.0f);
    assert_true(ek_exp(-88.0f) == 0.0f);
    assert_true(ek_exp(-1e30f) == 0.0f);
    assert_true(ek_exp(-INFINITY) == 0.0f);
    assert_true(isinf(ek_exp(88.8f)));
    assert_true(isinf(ek_exp(INFINITY)));
    assert_true(isnan(ek_exp(NAN)));
    assert_true(ek_sigmoid(-1000.0f) == 0.0f);
    assert_true(ek_sigmoid(1000.0f) == 1.0f);
    assert_true(ek_sigmoid(0.0f) == 0.5f);
}

/* The vector body and the scalar tail of a loop must agree, or results would depend on where an element lies. */
static void does_not_depend_on_the_position(void **state)
{
    (void)state;
    enum { COUNT = 67 };
    float shifted[COUNT + 16];
    for (size_t offset = 0; offset < 16; offset++) {
        for (size_t i = 0; i < COUNT; i++)
            shifted[offset + i] = ek_exp(0.37f * (float)i - 12.0f);
        for (size_t i = 0; i < COUNT; i++) {
            volatile float x = 0.37f * (float)i - 12.0f;
            assert_true(shifted[offset + i] == ek_exp(x));
        }
    }
}

static void sums_do_not_depend_on_the_alignment(void **state)
{
    (void)state;
    enum { COUNT = 133 };
    float memory[COUNT + 16], first_sum = 0.0f, first_dot = 0.0f;
    for (size_t offset = 0; offset < 16; offset++) {
        double sum = 0.0, square = 0.0;
        for (size_t i = 0; i < COUNT; i++) {
            memory[offset + i] = sinf((float)i) + (i == 130 ? 3.0f : 0.0f);
            sum += (double)memory[offset + i];
            square += (double)memory[offset + i] * (double)memory[offset + i];
        }
        float got_sum = ek_sum(memory + offset, COUNT), got_dot = ek_dot(memory + offset, memory + offset, COUNT);
        if (offset == 0) {
            first_sum = got_sum;
            first_dot = got_dot;
        }
        assert_true(got_sum == first_sum && got_dot == first_dot);
        assert_true(fabs((double)got_sum - sum) < 1e-5 && fabs((double)got_dot - square) < 1e-4);
        assert_true(ek_max(memory + offset, COUNT) == memory[offset + 130]);
        assert_true(ek_max(memory + offset, 7) == memory[offset + 2]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_accurate_to_one_ulp),
        cmocka_unit_test(ends_are_exact),
        cmocka_unit_test(does_not_depend_on_the_position),
        cmocka_unit_test(sums_do_not_depend_on_the_alignment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
