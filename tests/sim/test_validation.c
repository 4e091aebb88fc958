/* The study that stands the performance model beside published times. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "perf/published.h"
#include "sim/study.h"
#include "testing.h"

#define SCENARIO "examples/sim/validation.yaml"

static json_t *rows_of(const ek_study *study, const char *table)
{
    return json_object_get(json_object_get(study->tables, table), "rows");
}

static double number(const json_t *row, size_t column)
{
    return json_number_value(json_array_get(row, column));
}

/* The scenario has a job and a device of its own: those that it says it has. */
static void the_scenario_repeats_its_sources(void **state)
{
    (void)state;
    ek_scenario *scenario;
    ek_published *published;
    assert_ok(ek_scenario_read(&scenario, SCENARIO, NULL, 0));
    assert_ok(ek_published_read(&published, "examples/published/530b-selective-dp8.yaml"));
    assert_memory_equal(&scenario->model, &published->model, sizeof published->model);
    assert_memory_equal(&scenario->parallel, &published->parallel, sizeof published->parallel);
    assert_memory_equal(&scenario->hardware, &published->hardware, sizeof published->hardware);
    ek_published_destroy(published);
    ek_scenario_destroy(scenario);
}

static size_t count_published(void)
{
    size_t count = 0;
    DIR *folder = opendir("examples/published");
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder));)
        count += strstr(entry->d_name, ".yaml") != NULL;
    closedir(folder);
    return count;
}

static void every_published_time_is_in_the_table(void **state)
{
    (void)state;
    ek_scenario *scenario;
    assert_ok(ek_scenario_read(&scenario, SCENARIO, NULL, 0));
    ek_study study = {.scenario = scenario};
    assert_ok(ek_study_run(&study));
    json_t *rows = rows_of(&study, "published"), *row;
    size_t i;
    assert_int_equal(json_array_size(rows), count_published());
    json_array_foreach(rows, i, row)
    {
        double measured = number(row, 2), not_hidden = number(row, 3), parts = 0;
        for (size_t column = 7; column < 13; column++)
            parts += number(row, column);
        assert_true(measured > 0 && fabs(parts / not_hidden - 1) < 1e-12);
        assert_true(fabs(number(row, 4) - 100 * (not_hidden / measured - 1)) < 1e-9);
        assert_true(number(row, 5) <= not_hidden);
    }
    ek_study_release(&study);
    ek_scenario_destroy(scenario);
}

static void the_tornado_has_the_widest_input_first(void **state)
{
    (void)state;
    ek_scenario *scenario;
    assert_ok(ek_scenario_read(&scenario, SCENARIO, NULL, 0));
    ek_study study = {.scenario = scenario};
    assert_ok(ek_study_run(&study));
    json_t *rows = rows_of(&study, "tornado"), *row;
    size_t i;
    double before = INFINITY;
    assert_int_equal(json_array_size(rows), EK_PERF_RANGES + 1);
    assert_string_equal(json_string_value(json_array_get(json_array_get(rows, 0), 0)), "matmul_efficiency");
    json_array_foreach(rows, i, row)
    {
        double fast = number(row, 3), as_given = number(row, 4), slow = number(row, 5);
        assert_true(fast <= as_given && as_given <= slow && slow - fast <= before);
        before = slow - fast;
    }
    ek_study_release(&study);
    ek_scenario_destroy(scenario);
}

static void refuse(const char *override, const char *text)
{
    ek_scenario *scenario;
    assert_ok(ek_scenario_read(&scenario, SCENARIO, &override, 1));
    ek_study study = {.scenario = scenario};
    assert_int_equal(ek_study_run(&study), EK_INVALID);
    if (strcmp(ek_error(), text) != 0)
        fail_msg("\"%s\" instead of \"%s\"", ek_error(), text);
    ek_study_release(&study);
    ek_scenario_destroy(scenario);
}

static void missing_and_foreign_files_are_refused(void **state)
{
    (void)state;
    refuse(
        "validation.jobs=/nowhere",
        "--set validation.jobs=/nowhere: validation.jobs: /nowhere: No such file or directory; the path is taken from "
        "the working directory");
    refuse("validation.jobs=docs", "--set validation.jobs=docs: validation.jobs: docs: no file in it ends in .yaml");
    refuse("validation.ranges=nowhere", "nowhere: cannot be opened (No such file or directory); a YAML file is needed");
    refuse("validation.ranges=examples/published/175b-full.yaml",
           "examples/published/175b-full.yaml:2: unknown section \"published\"; the sections are ranges");
}

static void both_files_must_be_named(void **state)
{
    (void)state;
    ek_scenario *scenario;
    static const char *const overrides[] = {"study.kind=validation"};
    assert_ok(ek_scenario_read(&scenario, "examples/sim/throughput.yaml", overrides, 1));
    ek_study study = {.scenario = scenario};
    assert_int_equal(ek_study_run(&study), EK_INVALID);
    assert_string_equal(ek_error(), "examples/sim/throughput.yaml: study.kind validation needs validation.jobs");
    ek_study_release(&study);
    ek_scenario_destroy(scenario);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_scenario_repeats_its_sources),
        cmocka_unit_test(every_published_time_is_in_the_table),
        cmocka_unit_test(the_tornado_has_the_widest_input_first),
        cmocka_unit_test(missing_and_foreign_files_are_refused),
        cmocka_unit_test(both_files_must_be_named),
    };
    if (chdir(SOURCE_FOLDER) != 0) /* paths in examples/ are from there */
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
