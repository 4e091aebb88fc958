/* A job through histories: worked examples to the second, and the books of random ones. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "scenarios.h"
#include "sim/timeline.h"

#define HEAD "time_hours,domain,slot,kind,repair_hours\n"

/* One day; 36 s = 0.01 h to detect, 72 s to recover, 18 s to return, 360 s to restart. */
#define TIMES                                                                                                          \
    "study.horizon_days=1", "policies.detect_seconds=36", "policies.recover_seconds=72", "policies.return_seconds=18", \
        "policies.restart_seconds=360", "policies.checkpoint_hours=1", "policies.checkpoint_seconds=0"

typedef struct example {
    ek_scenario *scenario;
    ek_steps *steps;
    ek_sampler *tables;
} example;

static example set_up(ek_scenario *scenario)
{
    example made = {.scenario = scenario};
    assert_ok(ek_steps_create(&made.steps, scenario));
    assert_ok(ek_sampler_create(&made.tables, made.steps, scenario->domains, scenario->hardware.domain_slots, 1));
    return made;
}

static example set_up_events(const char *events)
{
    char override[100];
    snprintf(override, sizeof override, "failures.events=%s", scenario_file(events, strlen(events)));
    return set_up(SMALL(TIMES, override));
}

static void tear_down(example *made)
{
    ek_sampler_destroy(made->tables);
    ek_steps_destroy(made->steps);
    ek_scenario_destroy(made->scenario);
}

static ek_goodput live(const example *made, const char *conduct)
{
    ek_history *history;
    ek_goodput goodput;
    size_t i = 0;
    while (strcmp(ek_conducts[i].name, conduct) != 0)
        i++;
    assert_ok(ek_history_create(&history, made->scenario, made->scenario->domains, 0));
    assert_ok(ek_timeline_run(made->scenario, made->tables, history, &ek_conducts[i], NULL, &goodput));
    ek_history_destroy(history);
    return goodput;
}

#define assert_hours(value, hours) assert_true(fabs((value)*24 - (hours)) < 1e-9)

/* No failure: nothing is lost but checkpoints, and spares count. */
static void test_no_failure(void **state)
{
    (void)state;
    example made =
        set_up(SMALL("failures.per_gpu_hour=0", "policies.checkpoint_hours=1", "policies.checkpoint_seconds=36"));
    for (size_t i = 0; i < EK_CONDUCTS; i++) {
        ek_goodput goodput = live(&made, ek_conducts[i].name);
        assert_true(fabs(goodput.done - 1 / 1.01) < 1e-12);
        assert_true(goodput.reduced == 0 && goodput.stalled == 0 && goodput.redone == 0 && goodput.stops == 0);
        assert_true(fabs(goodput.per_gpu - goodput.done * 0.8) < 1e-12);
        assert_true(fabs(goodput.energy - 1.01 * (1 + 0.1 * 8 / 32)) < 1e-12); /* eight devices idle at a tenth */
    }
    tear_down(&made);
}

/* A device of domain 2, which serves stage 0 of replica 1, is away from 10.5 h to 15.5 h. */
static void test_one_failure(void **state)
{
    (void)state;
    example made = set_up_events(HEAD "10.5,2,0,hardware,5\n");
    const ek_level_step *level = made.steps->level;
    double half_step = level[0].step_seconds / 2 / 3600;

    ek_goodput goodput = live(&made, "restart"); /* spares take over: whole again, half an hour is done again */
    assert_hours(goodput.redone, 0.5);
    assert_hours(goodput.stalled, 0.01 + 0.1);
    assert_hours(goodput.done, 24 - 0.5 - 0.11);
    assert_true(goodput.stops == 1 && goodput.reduced == 0);

    goodput = live(&made, "dp-drop"); /* three of four replicas until the device is back */
    assert_hours(goodput.redone, half_step);
    assert_hours(goodput.stalled, 0.03 + 0.005);
    assert_hours(goodput.reduced, 0.25 * (5 - 0.03));
    assert_hours(goodput.done, 24 - 0.035 - 0.25 * 4.97 - half_step);
    assert_true(goodput.stops == 2);

    goodput = live(&made, "ntp");
    double reduced = 1 - (24.0 + level[1].samples) / 32 * level[1].pace;
    assert_true(level[1].samples > 0 && level[1].samples < 8);
    assert_hours(goodput.redone, half_step); /* of the step that was running */
    assert_hours(goodput.reduced, reduced * (5 - 0.03));
    assert_hours(goodput.done, 24 - 0.035 - reduced * 4.97 - half_step);
    tear_down(&made);
}

/* Failures of what is not in use cost nothing: a spare domain, and a device of a replica that is dropped already. */
static void test_unused(void **state)
{
    (void)state;
    example made = set_up_events(HEAD "3,9,0,hardware,5\n4,8,,domain,2\n");
    for (size_t i = 0; i < EK_CONDUCTS; i++) {
        ek_goodput goodput = live(&made, ek_conducts[i].name);
        assert_true(goodput.done == 1 && goodput.stops == 0);
    }
    tear_down(&made);
    made = set_up_events(HEAD "10.5,2,0,hardware,100\n12,3,0,hardware,100\n");
    assert_true(live(&made, "dp-drop").stops == 1); /* domains 2 and 3 are one replica's */
    assert_true(live(&made, "ntp").stops == 2);
    tear_down(&made);
}

/* A failure during a restart begins it anew, with nothing more to be done again; a return in it changes nothing. */
static void test_failure_in_restart(void **state)
{
    (void)state;
    example made = set_up_events(HEAD "10.5,2,0,software,0.02\n10.55,0,0,hardware,100\n");
    ek_goodput goodput = live(&made, "restart");
    assert_hours(goodput.redone, 0.5);
    assert_hours(goodput.stalled, 0.05 + 0.11);
    assert_hours(goodput.done, 24 - 0.5 - 0.16);
    tear_down(&made);
}

/* More is lost than there are spares for: what is down at a restart stays out until the next one. */
static void test_restart_packs(void **state)
{
    (void)state;
    example made = set_up_events(HEAD "1.5,0,0,hardware,0.05\n2.5,2,0,hardware,90\n3.5,4,0,hardware,90\n"
                                      "4.5,6,0,hardware,90\n");
    ek_goodput goodput = live(&made, "restart");
    /* the first is back before the second fails, but its domain comes into use only with the fourth's restart; the
     * third finds a spare domain in it, the fourth none: three damaged domains, two spares, one replica is dropped */
    assert_true(goodput.stops == 4);
    assert_hours(goodput.reduced, 0.25 * (24 - 4.5 - 0.11));
    tear_down(&made);
}

/* Daily packing brings a job that was left in pieces together. */
static void test_repack(void **state)
{
    (void)state;
    static const char events[] = HEAD "1,0,0,hardware,900\n2,2,0,hardware,900\n";
    char override[100];
    snprintf(override, sizeof override, "failures.events=%s", scenario_file(events, strlen(events)));
    example made = set_up(SMALL(TIMES, override, "policies.repack_hours=6"));
    ek_goodput goodput = live(&made, "dp-drop");
    /* two spare domains take over at 6 h; later there is nothing to gain */
    assert_true(goodput.stops == 3);
    assert_hours(goodput.stalled, 0.03 + 0.03 + 0.1);
    assert_hours(goodput.reduced, 0.25 * (1 - 0.03) + 0.5 * (4 - 0.03));
    tear_down(&made);
}

/* -------------------------------------------------------------------------------------------------- the books */

typedef struct trace_sum {
    double hours, throughput, sum;
} trace_sum;

static ek_status integrate(void *context, double hours, double throughput)
{
    trace_sum *integral = context;
    assert_true(hours >= integral->hours);
    integral->sum += (hours - integral->hours) * integral->throughput;
    integral->hours = hours;
    integral->throughput = throughput;
    return EK_OK;
}

static void check_books(const example *made, const ek_history *history, const ek_conduct *conduct)
{
    double checkpoints = 1 / (1 + 10.0 / 3600), horizon = made->scenario->study.horizon_days * 24;
    trace_sum integral = {0};
    const ek_trace trace = {integrate, &integral};
    ek_goodput goodput;
    assert_ok(ek_timeline_run(made->scenario, made->tables, history, conduct, &trace, &goodput));
    assert_ok(integrate(&integral, horizon, 0));
    double parts = goodput.done + goodput.reduced + goodput.stalled + goodput.redone + goodput.checkpoints;
    assert_true(fabs(parts - 1) < 1e-9);
    assert_true(goodput.reduced >= 0 && goodput.redone >= 0 && goodput.stalled >= 0);
    assert_true(fabs(integral.sum * checkpoints / horizon - goodput.redone - goodput.done) < 1e-9);
}

/* With failures all the time the parts make up the whole, and the trace shows what was done; also where a domain
 * carries several groups. */
static void test_books(void **state)
{
    (void)state;
    static const char *const slots[] = {"network.domain_slots=4", "network.domain_slots=9"};
    for (int i = 0; i < 2; i++) {
        example made =
            set_up(SMALL("failures.per_gpu_hour=3e-3", "study.horizon_days=5", "failures.follow_probability=0.3",
                         "failures.domain_per_hour=1e-3", "policies.repack_hours=30", "failures.repeat_factor=2",
                         "policies.checkpoint_hours=1", slots[i]));
        for (uint64_t number = 0; number < 150; number++) {
            ek_history *history;
            assert_ok(ek_history_create(&history, made.scenario, made.scenario->domains, number));
            for (size_t conduct = 0; conduct < EK_CONDUCTS; conduct++)
                check_books(&made, history, &ek_conducts[conduct]);
            ek_history_destroy(history);
        }
        tear_down(&made);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_failure),    cmocka_unit_test(test_one_failure),
        cmocka_unit_test(test_unused),        cmocka_unit_test(test_failure_in_restart),
        cmocka_unit_test(test_restart_packs), cmocka_unit_test(test_repack),
        cmocka_unit_test(test_books),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
