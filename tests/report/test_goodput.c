/* The split of wall time, on made-up runs whose parts are known. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "report/goodput.h"
#include "testing.h"

#define TOLERANCE 1e-9 /* of sums in another order */

static void assert_parts(ek_goodput *goodput, double end, const double expected[EK_GOODPUT_PARTS])
{
    double seconds[EK_GOODPUT_PARTS], sum = 0.0;
    bool has_whole;
    assert_ok(ek_goodput_split(goodput, end, seconds, &has_whole));
    for (int part = 0; part < EK_GOODPUT_PARTS; part++) {
        if (fabs(seconds[part] - expected[part]) > TOLERANCE * end)
            fail_msg("part %d: %.12g, expected %.12g", part, seconds[part], expected[part]);
        sum += seconds[part];
    }
    assert_true(fabs(sum - end) <= TOLERANCE * end);
}

/* Two replicas; the second loses a rank in step 3 and is slower until it is whole again in step 5. */
static void test_one_failure(void **state)
{
    (void)state;
    ek_goodput goodput = {.most_tp = 4};
    assert_ok(ek_goodput_add_step(&goodput, (ek_goodput_step){1.5, 1.0, 100, 4}));
    assert_ok(ek_goodput_add_step(&goodput, (ek_goodput_step){2.5, 1.0, 100, 4}));
    assert_ok(ek_goodput_add_loss(&goodput, 3.0));
    assert_ok(ek_goodput_add_recovery(&goodput, 3.0, 3.2));
    assert_ok(ek_goodput_add_step(&goodput, (ek_goodput_step){4.6, 1.4, 100, 3}));
    assert_ok(ek_goodput_add_step(&goodput, (ek_goodput_step){5.8, 1.2, 100, 3}));
    assert_ok(ek_goodput_add_recovery(&goodput, 5.9, 6.0)); /* the return, told of twice */
    assert_ok(ek_goodput_add_recovery(&goodput, 5.9, 6.0));
    assert_ok(ek_goodput_add_step(&goodput, (ek_goodput_step){7.0, 1.0, 100, 4}));
    const double expected[EK_GOODPUT_PARTS] = {
        [EK_GOODPUT_PRODUCTIVE] = 5.0, [EK_GOODPUT_SLOWER] = 0.6, [EK_GOODPUT_LOST] = 0.5,
        [EK_GOODPUT_RECOVERY] = 0.3,   [EK_GOODPUT_START] = 0.5,  [EK_GOODPUT_OTHER] = 0.1 + 0.25,
    };
    assert_parts(&goodput, 7.25, expected);
    ek_goodput_clear(&goodput);
}

/* Under the policy `shrink` a reduced step may take as long as a whole one and do less. */
static void test_fewer_samples_are_slower(void **state)
{
    (void)state;
    ek_goodput goodput = {.most_tp = 4};
    assert_ok(ek_goodput_add_step(&goodput, (ek_goodput_step){1.0, 1.0, 100, 4}));
    assert_ok(ek_goodput_add_step(&goodput, (ek_goodput_step){2.0, 1.0, 75, 3}));
    assert_parts(&goodput, 2.0, (double[EK_GOODPUT_PARTS]){[EK_GOODPUT_PRODUCTIVE] = 1.75, [EK_GOODPUT_SLOWER] = 0.25});
    ek_goodput_clear(&goodput);
}

static void test_no_whole_step(void **state)
{
    (void)state;
    ek_goodput goodput = {.most_tp = 4};
    double seconds[EK_GOODPUT_PARTS];
    bool has_whole = true;
    assert_ok(ek_goodput_add_step(&goodput, (ek_goodput_step){2.0, 2.0, 100, 3}));
    assert_ok(ek_goodput_split(&goodput, 2.0, seconds, &has_whole));
    assert_false(has_whole);
    assert_true(seconds[EK_GOODPUT_PRODUCTIVE] == 2.0 && seconds[EK_GOODPUT_SLOWER] == 0.0);
    ek_goodput_clear(&goodput);
}

/* A run made at random, in which whole steps take one second each, and what its parts are. */
static double make_run(uint64_t seed, ek_goodput *goodput, double expected[EK_GOODPUT_PARTS])
{
    uint64_t draws = 0;
#define DRAW() ek_random_uniform(seed, 7, draws++)
    double now = expected[EK_GOODPUT_START] = DRAW();
    double tp = 4;
    memset(expected, 0, EK_GOODPUT_START * sizeof *expected);
    expected[EK_GOODPUT_OTHER] = 0.0;
    *goodput = (ek_goodput){.most_tp = 4};
    for (unsigned step = 0; step < 300; step++) {
        double took = tp < 4 ? 1.0 + DRAW() : 1.0;
        assert_ok(ek_goodput_add_step(goodput, (ek_goodput_step){now += took, took, 64, tp}));
        expected[EK_GOODPUT_PRODUCTIVE] += 1.0;
        expected[EK_GOODPUT_SLOWER] += took - 1.0;
        if (DRAW() < 0.7)
            continue;
        bool loses = DRAW() < 0.5;
        double lost = loses ? DRAW() : 0.0, recovery = DRAW(), other = loses ? 0.0 : DRAW();
        now += lost + other;
        if (loses)
            assert_ok(ek_goodput_add_loss(goodput, now));
        assert_ok(ek_goodput_add_recovery(goodput, now, now + recovery));
        assert_ok(ek_goodput_add_recovery(goodput, now + 0.25 * recovery, now + 0.75 * recovery)); /* of another one */
        now += recovery;
        tp = loses ? 3 : 4;
        expected[EK_GOODPUT_LOST] += lost;
        expected[EK_GOODPUT_RECOVERY] += recovery;
        expected[EK_GOODPUT_OTHER] += other;
    }
    return now;
#undef DRAW
}

static void test_random_runs(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        ek_goodput goodput;
        double expected[EK_GOODPUT_PARTS], end = make_run(seed, &goodput, expected);
        assert_parts(&goodput, end, expected);
        ek_goodput_clear(&goodput);
    }
}

static void test_median(void **state)
{
    (void)state;
    assert_true(ek_median((double[]){3, 1, 2}, 3) == 2.0);
    assert_true(ek_median((double[]){4, 1, 3, 2}, 4) == 2.5);
    assert_true(ek_median(NULL, 0) == 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_failure),   cmocka_unit_test(test_fewer_samples_are_slower),
        cmocka_unit_test(test_no_whole_step), cmocka_unit_test(test_random_runs),
        cmocka_unit_test(test_median),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
