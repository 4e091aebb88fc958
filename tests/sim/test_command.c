/* `evenkeel sim` from outside: its files, that they are the same bytes every time, and its refusals. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "command.h"
#include "files.h"
#include "report/report.h"
#include "scenarios.h"

#define FOLDER "sim-command-test" /* in the folder where the tests run */

/* Runs `evenkeel sim`. */
#define SIM(...) RUN("sim", __VA_ARGS__)

static void clear(void)
{
    assert_int_equal(system("rm -rf " FOLDER), 0);
    assert_int_equal(mkdir(FOLDER, 0777), 0);
}

static const char *small_scenario(void)
{
    FILE *file = fopen(FOLDER "/scenario.yaml", "w");
    assert_non_null(file);
    fputs(scenario_small, file);
    assert_int_equal(fclose(file), 0);
    return FOLDER "/scenario.yaml";
}

/* The CSV of a table has the lines that its JSON has rows, and no other writing is left. */
static void check_table(const char *name, unsigned lines_least)
{
    char path[200];
    snprintf(path, sizeof path, FOLDER "/one/%s.json", name);
    json_t *table = json_load_file(path, 0, NULL);
    assert_non_null(table);
    snprintf(path, sizeof path, FOLDER "/one/%s.csv", name);
    char *csv = read_file(path);
    size_t lines = 0;
    for (const char *at = csv; (at = strchr(at, '\n')); at++)
        lines++;
    assert_int_equal(lines, json_array_size(json_object_get(table, "rows")) + 1);
    assert_true(lines >= lines_least);
    json_decref(table);
    free(csv);
}

/* A line of what was printed begins so, and does not end there. */
static void check_figure(const char *figure, const char *output)
{
    const char *found = strstr(output, figure);
    if (!found || (found > output && found[-1] != '\n') || strpbrk(found + strlen(figure), "0123456789\n")[0] == '\n')
        fail_msg("no figure \"%s\" in\n%s", figure, output);
}

static const struct {
    const char *kind, *table, *sizes;
    unsigned lines_least;
    const char *figure; /* the beginning of a line that is printed */
} studies[] = {
    {"throughput", "throughput", "study.sizes=[1]", 17 * 8, "ntp, left "},
    {"availability", "availability", "study.sizes=[2, 4]", 2 * 17, "TP4 "},
    {"blast", "blast", "study.sizes=[1, 2]", 2 * 8, "2 devices a failure "},
    {"domains", "domains", "study.sizes=[2, 4]", 2 * 8, "domains of 4 "},
    {"degrees", "degrees", "study.sizes=[1]", 6, "TP3, whole units "},
    {"goodput", "goodput", "study.sizes=[1]", 7 * 8, "ntp-pw-restart "},
    {"goodput", "trace", "study.sizes=[1]", 100, "ntp "},
    {"spares", "spares", "study.sizes=[1]", 3 * 5, "dp-drop "},
};

/* The same seed gives the same bytes, with any number of threads; another seed gives others. */
static void test_same_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof studies / sizeof *studies; i++) {
        char kind[60], paths[3][100];
        char *csv[3], output[sizeof((outcome *)0)->output] = "";
        static const char *const runs[3] = {"one", "two", "three"};
        static const char *const threads[3] = {"1", "3", "2"}, *const seeds[3] = {"7", "7", "8"};
        clear();
        const char *scenario = small_scenario();
        snprintf(kind, sizeof kind, "study.kind=%s", studies[i].kind);
        for (int j = 0; j < 3; j++) {
            snprintf(paths[j], sizeof paths[j], FOLDER "/%s", runs[j]);
            outcome got =
                SIM("--scenario", scenario, "--out", paths[j], "--threads", threads[j], "--seed", seeds[j], "--set",
                    kind, "--set", studies[i].sizes, "--set", "study.spares_most=4", "--set",
                    "failures.per_gpu_hour=1e-3", "--set", "study.fraction_most=0.1", "--set", "study.samples=20000");
            assert_string_equal(got.errors, "");
            assert_int_equal(got.status, 0);
            strcpy(output, got.output);
            snprintf(paths[j], sizeof paths[j], FOLDER "/%s/%s.csv", runs[j], studies[i].table);
            csv[j] = read_file(paths[j]);
        }
        check_figure(studies[i].figure, output);
        check_table(studies[i].table, studies[i].lines_least);
        assert_int_equal(access(FOLDER "/one/report.html", F_OK) == 0, ek_report_included());
        assert_int_equal(system("test -z \"$(find " FOLDER " -name '*.part')\""), 0);
        assert_string_equal(csv[0], csv[1]);
        if (strcmp(studies[i].kind, "degrees") != 0) /* which draws nothing */
            assert_string_not_equal(csv[0], csv[2]);
        for (int j = 0; j < 3; j++)
            free(csv[j]);
    }
}

/* What is ntp in mode tp is nep in mode ep, in every table and figure. */
static void test_experts(void **state)
{
    (void)state;
    static const char *const kinds[][3] = {{"throughput", "throughput", "nep-pw, packed "},
                                           {"degrees", "degrees", "EP3, whole units "},
                                           {"goodput", "goodput", "nep-pw-restart "},
                                           {"spares", "spares", "nep "}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        static const char folder[] = FOLDER "/one";
        char kind[60], path[100];
        clear();
        snprintf(kind, sizeof kind, "study.kind=%s", kinds[i][0]);
        outcome got = SIM("--scenario", small_scenario(), "--out", folder, "--set", kind, "--set", "parallel.mode=ep",
                          "--set", "model.experts=13", "--set", "model.top_k=2", "--set", "study.spares_most=4",
                          "--set", "study.samples=2000", "--set", "study.histories=20");
        assert_string_equal(got.errors, "");
        assert_int_equal(got.status, 0);
        check_figure(kinds[i][2], got.output);
        assert_null(strstr(got.output, "ntp"));
        snprintf(path, sizeof path, FOLDER "/one/%s.csv", kinds[i][1]);
        char *csv = read_file(path);
        assert_null(strstr(csv, "ntp"));
        assert_int_equal(strstr(csv, "nep-pw") != NULL, strcmp(kinds[i][0], "degrees") != 0);
        free(csv);
    }
}

static void expect(outcome got, int status, const char *error)
{
    if (strncmp(got.errors, error, strlen(error)) != 0)
        fail_msg("found    %s\nexpected %s", got.errors, error);
    assert_int_equal(got.status, status);
    assert_ptr_equal(strchr(got.errors, '\n'), got.errors + strlen(got.errors) - 1); /* one line */
}

static const char out[] = FOLDER "/out", no_scenario[] = FOLDER "/none.yaml", nowhere[] = FOLDER "/no/where";
static const char nowhere_yet[] = FOLDER "/new";

static void test_refusals(void **state)
{
    (void)state;
    clear();
    const char *scenario = small_scenario();
    expect(SIM("--out", out), 2, "evenkeel: --scenario FILE is needed; see evenkeel sim --help");
    expect(SIM("--scenario", scenario), 2, "evenkeel: --out DIR is needed; see evenkeel sim --help");
    expect(SIM("--scenario", no_scenario, "--out", out), 2,
           "evenkeel: " FOLDER "/none.yaml: cannot be opened (No such file or directory); a YAML file is needed");
    expect(SIM("--scenario", scenario, "--out", out, "--threads", "0"), 2,
           "evenkeel: --threads 0: a whole number from 1 to 1024 is needed");
    expect(SIM("--scenario", scenario, "--out", out, "--seed", "-1"), 2,
           "evenkeel: --set study.seed=-1: study.seed: found \"-1\"");
    expect(SIM("--scenario", scenario, "--out", out, "--set", "cluster.domains=3"), 2,
           "evenkeel: --set cluster.domains=3: cluster.domains: found 3; 4 replicas of 2 stages of TP4 need 8 domains");
    /* what only the study sees has its place, too */
    expect(SIM("--scenario", scenario, "--out", out, "--set", "device.memory_bytes=1e8"), 2,
           "evenkeel: --set device.memory_bytes=1e8: device.memory_bytes: found 1e+08; a rank of this job needs ");
    expect(SIM("--scenario", scenario, "--out", out, "--set", "study.kind=blast", "--set", "study.sizes=[8]"), 2,
           "evenkeel: --set study.sizes=[8]: study.sizes: found 8; numbers that divide network.domain_slots, 4, ");
    expect(SIM("--scenario", scenario, "--out", out, "--set", "study.kind=domains", "--set", "study.sizes=[16]"), 2,
           "evenkeel: --set study.sizes=[16]: study.sizes: 40 devices are no replica of 2 stages of TP16; ");
    assert_int_equal(access(FOLDER "/out", F_OK), -1); /* nothing has been begun, or is left */
    expect(SIM("--scenario", scenario, "--out", scenario), 2, "evenkeel: --out " FOLDER "/scenario.yaml: is no folder");
    expect(SIM("--scenario", scenario, "--out", nowhere), 1,
           "evenkeel: --out " FOLDER "/no/where: the folder cannot be made (No such file or directory)");
}

static void test_overwrite(void **state)
{
    (void)state;
    clear();
    const char *scenario = small_scenario();
    assert_int_equal(SIM("--scenario", scenario, "--out", out, "--seed", "1").status, 0);
    char *first = read_file(FOLDER "/out/throughput.csv");
    expect(SIM("--scenario", scenario, "--out", out, "--seed", "2"), 2,
           "evenkeel: --out " FOLDER "/out: holds the results of a study; name another folder, or add --overwrite");
    unlink(FOLDER "/out/report.html"); /* tables alone, as a build without the page leaves them */
    expect(SIM("--scenario", scenario, "--out", out, "--seed", "2"), 2,
           "evenkeel: --out " FOLDER "/out: holds the results of a study; name another folder, or add --overwrite");
    char *second = read_file(FOLDER "/out/throughput.csv");
    assert_string_equal(first, second);
    assert_int_equal(
        SIM("--scenario", scenario, "--out", out, "--seed", "2", "--set", "study.fraction_most=0.2", "--overwrite")
            .status,
        0);
    char *third = read_file(FOLDER "/out/throughput.csv");
    assert_string_not_equal(first, third);
    free(first);
    free(second);
    free(third);
}

/* A disk that is full half-way: nothing is left of the new results, and the old ones are whole. */
static void test_full_disk(void **state)
{
    (void)state;
    clear();
    const char *scenario = small_scenario();
    const struct rlimit little = {4096, RLIM_INFINITY};
    struct rlimit before;
    assert_int_equal(SIM("--scenario", scenario, "--out", out).status, 0);
    char *first = read_file(FOLDER "/out/throughput.csv");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0); /* the CSV fits, the JSON does not */
    outcome again = SIM("--scenario", scenario, "--out", out, "--overwrite", "--seed", "9");
    outcome anew = SIM("--scenario", scenario, "--out", nowhere_yet);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect(again, 1, "evenkeel: " FOLDER "/out/throughput.json: cannot be written (File too large)");
    expect(anew, 1, "evenkeel: " FOLDER "/new/throughput.json: cannot be written (File too large)");
    char *second = read_file(FOLDER "/out/throughput.csv");
    assert_string_equal(first, second);
    assert_int_equal(system("test -z \"$(find " FOLDER " -name '*.part')\""), 0);
    assert_int_equal(access(nowhere_yet, F_OK), -1);
    free(first);
    free(second);
}

static int remove_files(void **state)
{
    (void)state;
    return system("rm -rf " FOLDER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes), cmocka_unit_test(test_experts),   cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_overwrite),  cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, remove_files);
}
