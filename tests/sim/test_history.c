/* Histories: rates and repairs as the failure model says, nothing that cannot be, and events as they happened. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios.h"
#include "sim/history.h"

#define COMMON "failures.per_gpu_hour=1e-2", "study.horizon_days=10"

/* What a history comes to. */
typedef struct summary {
    uint64_t failures, returns; /* changes after hour 0 */
    double down_hours;          /* of devices, within the horizon */
} summary;

/* What part of all devices is down in the mean, by the failure model without domain-wide, repeated and following
 * failures. */
static double expected_fraction(const ek_failure_model *failures)
{
    double hardware_hours = (failures->hardware_hours_least + failures->hardware_hours_most) / 2;
    double down_hours =
        failures->per_gpu_hour * failures->blast_radius *
        (failures->hardware_fraction * hardware_hours + (1 - failures->hardware_fraction) * failures->software_hours);
    return down_hours / (1 + down_hours); /* a device that is down cannot fail */
}

/* Walks through a history; devices that are down are never fewer than 0 nor more than there are. */
static summary walk(const ek_scenario *scenario, uint64_t number)
{
    ek_history *history;
    summary sum = {0};
    uint32_t failed[64] = {0}, slots = scenario->hardware.domain_slots;
    double now = -INFINITY, horizon = scenario->study.horizon_days * 24, down = 0;
    assert_ok(ek_history_create(&history, scenario, scenario->domains, number));
    for (size_t i = 0; i <= history->count; i++) {
        const ek_change *change = i < history->count ? &history->changes[i] : NULL;
        double hours = change ? change->hours : horizon;
        assert_true(hours >= now && hours <= horizon);
        sum.down_hours += down > 0 && hours > 0 ? down * (hours - fmax(now, 0)) : 0;
        now = hours;
        if (!change)
            break;
        assert_in_range(change->domain, 0, scenario->domains - 1);
        assert_in_range(change->failed, 0, slots);
        assert_true(change->failure ? change->failed > failed[change->domain]
                                    : change->failed < failed[change->domain]);
        down += (double)change->failed - failed[change->domain];
        failed[change->domain] = change->failed;
        sum.failures += change->failure && hours > 0;
        sum.returns += !change->failure && hours > 0;
    }
    ek_history_destroy(history);
    return sum;
}

static summary walk_all(const ek_scenario *scenario, uint64_t histories)
{
    summary sum = {0};
    for (uint64_t number = 0; number < histories; number++) {
        summary one = walk(scenario, number);
        sum.failures += one.failures;
        sum.returns += one.returns;
        sum.down_hours += one.down_hours;
    }
    return sum;
}

enum { HISTORIES = 400, HOURS = 240, DEVICES = 40 };

/* From hour 0 on as many devices are down as in the long run, and failures come at their rate, per device that works.
 */
static void test_rates(void **state)
{
    (void)state;
    static const char *const blasts[] = {"failures.blast_radius=1", "failures.blast_radius=2"};
    for (int i = 0; i < 2; i++) {
        ek_scenario *scenario = SMALL(COMMON, "failures.hardware_hours_least=5", "failures.hardware_hours_most=15",
                                      "failures.software_hours=2", blasts[i]);
        summary sum = walk_all(scenario, HISTORIES);
        double time = (double)HISTORIES * HOURS, down = sum.down_hours / time / DEVICES;
        double expected = expected_fraction(&scenario->failures);
        assert_true(fabs(down / expected - 1) < (i == 0 ? 0.03 : 0.05));
        double failures = (double)sum.failures / time;
        assert_true(fabs(failures / (DEVICES * 1e-2 * (1 - down)) - 1) < 0.03);
        assert_true(fabs((double)sum.returns / (double)sum.failures - 1) < 0.02);
        ek_scenario_destroy(scenario);
    }
}

static void test_domains_fail(void **state)
{
    (void)state;
    ek_scenario *scenario = SMALL("failures.per_gpu_hour=0", "failures.domain_per_hour=1e-2", "failures.domain_hours=7",
                                  "study.horizon_days=10");
    summary sum = walk_all(scenario, HISTORIES);
    double time = (double)HISTORIES * HOURS, down = sum.down_hours / time / DEVICES;
    assert_true(fabs(down / (0.07 / 1.07) - 1) < 0.03);
    ek_scenario_destroy(scenario);
}

/* Devices that have failed once fail three times as often: the rate over a long time goes to three times that at the
 * start. */
static void test_repeats(void **state)
{
    (void)state;
    const char *const repair[] = {"failures.hardware_hours_least=0.01", "failures.hardware_hours_most=0.01",
                                  "failures.software_hours=0.01"};
    ek_scenario *brief = SMALL("failures.per_gpu_hour=1e-3", "study.horizon_days=1", "failures.repeat_factor=3",
                               repair[0], repair[1], repair[2]);
    ek_scenario *lasting = SMALL("failures.per_gpu_hour=1e-3", "study.horizon_days=1000", "failures.repeat_factor=3",
                                 repair[0], repair[1], repair[2]);
    double at_first = (double)walk_all(brief, 4000).failures / 4000 / 24;
    double at_last = (double)walk_all(lasting, 10).failures / 10 / 24000;
    assert_true(at_first > 0.95 * DEVICES * 1e-3 && at_first < 1.2 * DEVICES * 1e-3);
    assert_true(at_last > 2.75 * DEVICES * 1e-3 && at_last < 3.1 * DEVICES * 1e-3);
    ek_scenario_destroy(brief);
    ek_scenario_destroy(lasting);
}

/* Every failure of hardware is followed: twice as many in all, and none without a probability. */
static void test_follow(void **state)
{
    (void)state;
    const char *const common[] = {"failures.per_gpu_hour=1e-3", "study.horizon_days=100",
                                  "failures.hardware_fraction=1", "failures.hardware_hours_least=0.01",
                                  "failures.hardware_hours_most=0.01"};
    ek_scenario *alone = SMALL(common[0], common[1], common[2], common[3], common[4]);
    ek_scenario *followed = SMALL(common[0], common[1], common[2], common[3], common[4],
                                  "failures.follow_probability=0.5", "failures.follow_hours=0.5");
    double ratio = (double)walk_all(followed, 60).failures / (double)walk_all(alone, 60).failures;
    /* a failure that follows may be followed: 1 / (1 - 0.5) */
    assert_true(fabs(ratio - 2) < 0.1);
    ek_scenario_destroy(alone);
    ek_scenario_destroy(followed);
}

static void test_events(void **state)
{
    (void)state;
    static const char text[] = "time_hours,domain,slot,kind,repair_hours\n"
                               "1,2,0,hardware,10\n"
                               "2,2,,domain,4\n"    /* three more; back at 6 */
                               "3,2,0,software,1\n" /* is down already */
                               "20,9,3,software,1000\n"
                               "30,4,0,hardware,10\n"
                               "31,4,,domain,9\n"; /* back at the same time */
    static const ek_change expected[] = {{1, 2, 1, true},   {2, 2, 4, true},   {6, 2, 1, false},
                                         {11, 2, 0, false}, {20, 9, 1, true},  {30, 4, 1, true},
                                         {31, 4, 4, true},  {40, 4, 3, false}, {40, 4, 0, false}};
    char override[100];
    snprintf(override, sizeof override, "failures.events=%s", scenario_file(text, strlen(text)));
    ek_scenario *scenario = SMALL(override);
    ek_history *history;
    assert_ok(ek_history_create(&history, scenario, scenario->domains, 0));
    assert_int_equal(history->count, 9);
    for (size_t i = 0; i < 9; i++) {
        assert_true(history->changes[i].hours == expected[i].hours);
        assert_int_equal(history->changes[i].domain, expected[i].domain);
        assert_int_equal(history->changes[i].failed, expected[i].failed);
        assert_int_equal(history->changes[i].failure, expected[i].failure);
    }
    ek_history_destroy(history);
    ek_scenario_destroy(scenario);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates),  cmocka_unit_test(test_domains_fail), cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_follow), cmocka_unit_test(test_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
