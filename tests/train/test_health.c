/* Ranks that are wrong or slow: a flipped bit in a weight is found, and healed where most copies agree; a straggler is
 * reported, or where that is configured given up. */
#include <string.h>

#include "testing.h"
#include "train/training.h"

static void test_two_copies_differ(void **state)
{
    (void)state;
    training_result result;
    run_training(&(training_spec){.base = "small", .set = {"health.compare_every=4"}, .flips = {{10, 1, 2}}}, &result);
    assert_int_equal(result.status, EK_CORRUPT);
    assert_int_equal(result.steps, 12);
    assert_string_equal(result.error, "after step 12: unit 2 of layer.1.qkv differs between rank 2 and rank 6, and no "
                                      "value has most of its 2 copies");
}

static void test_most_copies_agree(void **state)
{
    (void)state;
    training_result undisturbed, result;
    run_training(&(training_spec){.base = "small", .set = {"parallel.dp=3"}}, &undisturbed);
    run_training(&(training_spec){.base = "small", .set = {"parallel.dp=3"}, .flips = {{10, 1, 2}}}, &result);
    assert_same_curve(&undisturbed, &result, 0.0); /* healed before it was used; all later comparisons found nothing */
    assert_int_equal(undisturbed.healed, 0);
    assert_int_equal(result.healed, 1);
    assert_int_equal(result.healed_step, 10);
    assert_int_equal(result.failures, 0);
}

/* Busy times are CPU times of a few milliseconds: a factor of 2 is above their noise. */
#define WATCHED "health.straggler_factor=2", "health.straggler_steps=5"

static void test_straggler_is_reported(void **state)
{
    (void)state;
    training_result result;
    run_training(&(training_spec){.base = "small", .set = {WATCHED}}, &result);
    assert_ok(result.status);
    assert_int_equal(result.stragglers, 0);
    run_training(&(training_spec){.base = "small", .set = {WATCHED}, .slows = {{15, 1, 2, 3.0}}}, &result);
    assert_ok(result.status);
    assert_int_equal(result.stragglers, 1);
    assert_int_equal(result.straggler_replica, 1);
    assert_int_equal(result.straggler_slot, 2);
    assert_in_range(result.straggler_step, 15 + 5, 15 + 5 + 2);
    assert_int_equal(result.failures, 0);
}

static void test_straggler_is_given_up(void **state)
{
    (void)state;
    training_result one_rank, result;
    run_training(&(training_spec){.base = "small", .set = {"parallel.dp=1", "parallel.tp=1"}}, &one_rank);
    run_training(
        &(training_spec){.base = "small", .set = {WATCHED, "health.straggler_fails=true"}, .slows = {{15, 1, 2, 3.0}}},
        &result);
    assert_same_curve(&one_rank, &result, 1e-5);
    assert_int_equal(result.failures, 1);
    assert_string_equal(result.degrees, "4 3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_copies_differ),
        cmocka_unit_test(test_most_copies_agree),
        cmocka_unit_test(test_straggler_is_reported),
        cmocka_unit_test(test_straggler_is_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
