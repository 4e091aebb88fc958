/* Ranks that are wrong or slow: a flipped bit in a weight is found, and healed where most copies agree; a straggler is
 * reported, or where that is configured given up. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "power/power.h"
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

/* With exact times: seen after as many steps as are asked for, and given the power that its domain has to spare, which
 * makes its replica faster by what the curve says. */
static void test_straggler_is_boosted(void **state)
{
    (void)state;
    enum { SLOW_FROM = 15, SEEN_AT = SLOW_FROM + 5 };
    training_result result;
    run_training(&(training_spec){.base = "small",
                                  .set = {"power.backend=emulated", "power.emulated_flops_per_second=1e9",
                                          "power.domain_watts=3200", "health.straggler_factor=1.2"},
                                  .slows = {{SLOW_FROM, 1, 2, 1.5}}},
                 &result);
    assert_ok(result.status);
    assert_int_equal(result.stragglers, 1);
    assert_int_equal(result.straggler_step, SEEN_AT);
    for (size_t step = 1; step <= result.steps; step++) {
        const training_replica *other = &result.replicas[step][0], *replica = &result.replicas[step][1];
        assert_true(other->watts == 700.0 && replica->watts == (step < SEEN_AT ? 700.0 : 1.3 * 700.0));
        double times = replica->busy_seconds / other->busy_seconds;
        assert_true(step < SLOW_FROM ? fabs(times - 1) < 1e-9 : times > 1.01);
    }
    double before = result.replicas[SEEN_AT - 1][1].busy_seconds, after = result.replicas[SEEN_AT][1].busy_seconds;
    assert_true(fabs(before / after / 1.16 - 1) < 1e-9);
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

/* Two devices report errors: 79, fallen off the bus, takes its rank along; 13 is the application's and does not. */
static void test_device_errors(void **state)
{
    (void)state;
    static const char path[] = "/tmp/evenkeel-test-health-devices";
    training_result one_rank, result;
    run_training(&(training_spec){.base = "small", .set = {"parallel.dp=1", "parallel.tp=1"}}, &one_rank);
    ek_power *power;
    unlink(path); /* of a test that was ended in the middle */
    assert_ok(ek_power_create(&power, &(ek_power_options){.backend = "emulated",
                                                          .path = path,
                                                          .devices = 8,
                                                          .least_watts = 70,
                                                          .default_watts = 700,
                                                          .greatest_watts = 7000}));
    assert_ok(ek_power_inject(power, (ek_power_event){.device = 1, .xid = 13}));
    assert_ok(ek_power_inject(power, (ek_power_event){.device = 6, .xid = 79}));
    run_training(&(training_spec){.base = "small",
                                  .set = {"power.backend=emulated", "power.path=/tmp/evenkeel-test-health-devices",
                                          "power.state_file=/tmp/evenkeel-test-health-state"}},
                 &result);
    for (uint32_t device = 0; device < 8; device++) {
        ek_power_limits limits;
        assert_ok(ek_power_read(power, device, &limits));
        assert_true(limits.watts == 700.0); /* restored */
    }
    ek_power_destroy(power);
    unlink(path);
    assert_int_not_equal(access("/tmp/evenkeel-test-health-state", F_OK), 0);
    assert_same_curve(&one_rank, &result, 1e-5);
    assert_int_equal(result.failures, 1);
    assert_string_equal(result.degrees, "4 3");
    double most_watts = 0; /* measured times decide from step to step */
    for (size_t step = 1; step <= result.steps; step++)
        most_watts = fmax(most_watts, result.replicas[step][1].watts);
    assert_true(most_watts > 700.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_copies_differ),     cmocka_unit_test(test_most_copies_agree),
        cmocka_unit_test(test_straggler_is_reported), cmocka_unit_test(test_straggler_is_boosted),
        cmocka_unit_test(test_straggler_is_given_up), cmocka_unit_test(test_device_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
