/* Scenarios: what is derived, and what is refused with which words. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "scenarios.h"

static void test_derived(void **state)
{
    (void)state;
    ek_scenario *scenario = SMALL(NULL);
    assert_int_equal(ek_scenario_needed_domains(scenario), 8);
    assert_int_equal(scenario->domains, 10);
    assert_true(scenario->power.cap_watts == 650 && scenario->power.domain_watts == 2000);
    assert_true(scenario->power.idle_watts == 50);
    ek_scenario_destroy(scenario);
    scenario = READY("throughput", NULL);
    assert_int_equal(scenario->domains, 1024); /* as many as the job needs */
    ek_scenario_destroy(scenario);
    scenario = SMALL("network.domain_slots=18"); /* four groups of four, and two slots over */
    assert_int_equal(ek_scenario_needed_domains(scenario), 2);
    ek_scenario_destroy(scenario);
}

static const struct {
    const char *override, *error; /* behind "--set OVERRIDE: " */
} refusals[] = {
    {"failures.per_gpu_hour=-1e-5", "failures.per_gpu_hour: found \"-1e-5\"; a number from 0 to 1 is needed"},
    {"failures.domain_per_hour=-1", "failures.domain_per_hour: found \"-1\"; a number from 0 to 1 is needed"},
    {"failures.blast_radius=3",
     "failures.blast_radius: found 3; a number that divides network.domain_slots, 4, is needed"},
    {"failures.hardware_hours_least=500",
     "failures.hardware_hours_least: found 500; at most failures.hardware_hours_most, 120, is allowed"},
    {"cluster.domains=7", "cluster.domains: found 7; 4 replicas of 2 stages of TP4 need 8 domains of 4 devices"},
    {"batch.global=30",
     "batch.global: found 30; a multiple of parallel.dp, 4, is needed: each replica takes whole samples"},
    {"power.cap_watts=400",
     "power.cap_watts: found 400; 500, the default limit, to 650, where power.curve ends, is allowed"},
    {"power.domain_watts=1999",
     "power.domain_watts: found 1999; at least 2000, 4 devices at their default limit, is needed"},
    {"study.kind=fortune", "study.kind: found \"fortune\"; "},
    {"study.points=1", "study.points: found \"1\"; a whole number from 2 to 1000 is needed"},
};

static void expect_refusal(const char *path, const char *override, const char *error)
{
    ek_scenario *scenario;
    assert_int_equal(ek_scenario_read(&scenario, path, &override, override ? 1 : 0), EK_INVALID);
    if (strncmp(ek_error(), error, strlen(error)) != 0)
        fail_msg("found    %s\nexpected %s", ek_error(), error);
}

static void test_refusals(void **state)
{
    (void)state;
    const char *path = scenario_file(scenario_small, strlen(scenario_small));
    char error[EK_ALLOWED_BYTES + 400];
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        snprintf(error, sizeof error, "--set %s: %s", refusals[i].override, refusals[i].error);
        expect_refusal(path, refusals[i].override, error);
    }
}

/* What stands in the file is refused with its line, by whichever part knows better. */
static void test_lines(void **state)
{
    (void)state;
    char text[2000], error[200];
    snprintf(text, sizeof text, "%sfailures: {repeat_factor: 0.5}\n", scenario_small);
    const char *path = scenario_file(text, strlen(text));
    snprintf(error, sizeof error, "%s:10: failures.repeat_factor: found \"0.5\"; ", path);
    expect_refusal(path, NULL, error);

    path = scenario_file(scenario_small, strlen(scenario_small));
    snprintf(error, sizeof error, "%s:1: model.layers: found 8; a multiple of 3 is needed", path);
    expect_refusal(path, "parallel.pp=3", error);
    snprintf(error, sizeof error, "--set parallel.tp=8: parallel.tp: ");
    expect_refusal(path, "parallel.tp=8", error); /* above the domain */
}

/* ------------------------------------------------------------------------------------------------------- events */

#define HEAD "time_hours,domain,slot,kind,repair_hours\n"
#define WHOLE_LINE "a whole line time_hours,domain,slot,kind,repair_hours is needed, as in 12.5,3,7,hardware,96"

static const struct {
    const char *text;
    unsigned line;
    const char *error;
} torn[] = {
    {"", 1, "found \"\"; the first line must be time_hours,domain,slot,kind,repair_hours"},
    {"time,domain\n", 1, "found \"time,domain\"; the first line must be time_hours,domain,slot,kind,repair_hours"},
    {HEAD "1,2,3,hardware,96\n2,3", 3, "found \"2,3\"; " WHOLE_LINE},
    {HEAD "1,2,3,hardware,96\n2,3,1,hardware,9", 3, "found \"2,3,1,hardware,9\"; " WHOLE_LINE}, /* no end of line */
    {HEAD "1,2,3,hardware\n", 2, "found \"1,2,3,hardware\"; " WHOLE_LINE},
    {HEAD "1,2,3,hardware,96,\n", 2, "found \"1,2,3,hardware,96,\"; " WHOLE_LINE},
    {HEAD "-1,2,3,hardware,96\n", 2, "found \"-1,2,3,hardware,96\"; " WHOLE_LINE},
    {HEAD "1,2,3,hardware,nan\n", 2, "found \"1,2,3,hardware,nan\"; " WHOLE_LINE},
    {HEAD "1,10,3,hardware,96\n", 2, "domain: found \"10\"; 0 to 9 is allowed (cluster.domains)"},
    {HEAD "1,2,4,hardware,96\n", 2, "slot: found \"4\"; 0 to 3 is allowed (network.domain_slots)"},
    {HEAD "1,2,1,domain,96\n", 2,
     "slot: found \"1\"; nothing is needed for a domain; for a device 0 to 3 is allowed (network.domain_slots)"},
    {HEAD "1,2,1,magic,96\n", 2, "kind: found \"magic\"; hardware, software or domain is needed"},
    {HEAD "2,2,1,hardware,96\n1,2,1,hardware,96\n", 3, "time_hours: found 1 after 2; lines must be in order of time"},
};

static void test_torn_events(void **state)
{
    (void)state;
    const char *path = scenario_file(scenario_small, strlen(scenario_small));
    char name[] = "/tmp/evenkeel-events-XXXXXX", override[100], error[400];
    int made = mkstemp(name);
    assert_true(made >= 0);
    snprintf(override, sizeof override, "failures.events=%s", name);
    for (size_t i = 0; i < sizeof torn / sizeof *torn; i++) {
        FILE *file = fopen(name, "w");
        assert_non_null(file);
        fputs(torn[i].text, file);
        assert_int_equal(fclose(file), 0);
        snprintf(error, sizeof error, "%s:%u: %s", name, torn[i].line, torn[i].error);
        expect_refusal(path, override, error);
    }
    assert_int_equal(remove(name), 0);
    close(made);
    snprintf(error, sizeof error, "%s: cannot be opened (No such file or directory)", name);
    expect_refusal(path, override, error);
}

static void test_events(void **state)
{
    (void)state;
    static const char text[] = HEAD "0.5,2,3,hardware,96\r\n0.5,9,,domain,24\n1e2,0,0,software,3\n";
    char override[100];
    snprintf(override, sizeof override, "failures.events=%s", scenario_file(text, strlen(text)));
    ek_scenario *scenario = SMALL(override);
    const ek_failure_event *events = scenario->failures.events;
    assert_int_equal(scenario->failures.event_count, 3);
    assert_true(events[0].hours == 0.5 && events[0].repair_hours == 96 && events[0].hardware);
    assert_int_equal(events[0].domain, 2);
    assert_int_equal(events[0].slot, 3);
    assert_int_equal(events[1].slots, 4);
    assert_true(events[2].hours == 100 && !events[2].hardware);
    ek_scenario_destroy(scenario);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_derived),     cmocka_unit_test(test_refusals), cmocka_unit_test(test_lines),
        cmocka_unit_test(test_torn_events), cmocka_unit_test(test_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
