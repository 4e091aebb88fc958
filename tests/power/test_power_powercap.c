/* The backend "powercap" against a folder like Linux' /sys/class/powercap of a machine with two CPU packages. */
#include "scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "power/power.h"

static char folder[SCRATCH_BYTES];
static const ek_power_options options = {.backend = "powercap", .path = folder};

static void write_zone(const char *zone, const char *name, const char *limit)
{
    const char *files[][2] = {
        {"name", name},
        {"energy_uj", "1000000\n"},
        {"max_energy_range_uj", "262143328850\n"},
        {"constraint_0_name", "short_term\n"}, /* the order is the platform's */
        {"constraint_0_power_limit_uw", "420000000\n"},
        {"constraint_0_max_power_uw", "450000000\n"},
        {"constraint_1_name", "long_term\n"},
        {"constraint_1_power_limit_uw", limit},
        {"constraint_1_max_power_uw", "350000000\n"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", zone, files[i][0]);
        scratch_write(folder, path, files[i][1]);
    }
}

static int set_up(void **state)
{
    (void)state;
    scratch_create(folder);
    write_zone("intel-rapl:10", "package-1\n", "280500000\n");
    write_zone("intel-rapl:2", "package-0\n", "300000000\n");
    write_zone("intel-rapl:2:0", "dram\n", "1\n");         /* a part of a package */
    write_zone("intel-rapl:1", "psys\n", "1\n");           /* the machine */
    write_zone("intel-rapl-mmio:0", "package-0\n", "1\n"); /* the same package by another way */
    scratch_write(folder, "dtpm/name", "package-7\n");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

static void read_back(const char *name, char text[64])
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, 63, file)] = '\0';
    fclose(file);
}

static void test_limits(void **state)
{
    (void)state;
    ek_power *power;
    ek_power_limits limits;
    char text[64];
    assert_ok(ek_power_create(&power, &options));
    assert_int_equal(ek_power_devices(power), 2);
    assert_string_equal(ek_power_identity(power, 0), "intel-rapl:2");
    assert_string_equal(ek_power_identity(power, 1), "intel-rapl:10");
    assert_true(ek_power_outlives(power));
    assert_ok(ek_power_set(power, 1, 345.678901));
    read_back("intel-rapl:10/constraint_1_power_limit_uw", text);
    assert_string_equal(text, "345678901");
    assert_ok(ek_power_set(power, 1, 99)); /* a shorter number: nothing of the old one stays */
    read_back("intel-rapl:10/constraint_1_power_limit_uw", text);
    assert_string_equal(text, "99000000");
    assert_ok(ek_power_read(power, 1, &limits));
    assert_true(limits.least_watts == 1 && limits.greatest_watts == 350);
    assert_true(limits.default_watts == 280.5 && limits.watts == 99);
    read_back("intel-rapl:2/constraint_1_power_limit_uw", text);
    assert_string_equal(text, "300000000\n");
    assert_int_equal(ek_power_set(power, 0, 351), EK_INVALID);
    assert_string_equal(ek_error(),
                        "powercap: device 0 (intel-rapl:2): a limit of 351 W was asked for; 1 to 350 W are allowed");
    scratch_write(folder, "intel-rapl:2/constraint_1_min_power_uw", "75000000\n");
    assert_ok(ek_power_read(power, 0, &limits));
    assert_true(limits.least_watts == 75);
    ek_power_destroy(power);
}

static void assert_draw(ek_power *power, const char *energy, double joules)
{
    double before = now_seconds(), first, second;
    assert_ok(ek_power_draw(power, 0, &first)); /* begins a new span */
    double from = now_seconds();
    sleep_seconds(0.05);
    scratch_write(folder, "intel-rapl:2/energy_uj", energy);
    double to = now_seconds();
    assert_ok(ek_power_draw(power, 0, &second));
    double after = now_seconds();
    assert_true(second >= joules / (after - before) && second <= joules / (to - from));
    assert_ok(ek_power_draw(power, 0, &first)); /* at once: no new mean */
    assert_true(first == second);
    sleep_seconds(0.02);
}

static void test_draw(void **state)
{
    (void)state;
    ek_power *power;
    double watts;
    ek_power_event event;
    bool any;
    assert_ok(ek_power_create(&power, &options));
    sleep_seconds(0.02);
    assert_draw(power, "11000000\n", 10);
    scratch_write(folder, "intel-rapl:2/energy_uj", "262143328000\n");
    assert_ok(ek_power_draw(power, 0, &watts));
    sleep_seconds(0.02);
    assert_draw(power, "4000000\n", 4.00085); /* the counter went past its range */
    double start = now_seconds();
    assert_ok(ek_power_wait(power, 0.05, &event, &any));
    assert_true(!any && now_seconds() - start >= 0.05);
    ek_power_destroy(power);
}

static void remove_file(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(unlink(path), 0);
}

/* Counters of energy are often closed to all but root: limits still work. */
static void test_no_meter(void **state)
{
    (void)state;
    remove_file("intel-rapl:2/energy_uj");
    ek_power *power;
    double watts;
    assert_ok(ek_power_create(&power, &options));
    assert_ok(ek_power_draw(power, 0, &watts));
    assert_true(isnan(watts));
    assert_ok(ek_power_set(power, 0, 310));
    ek_power_destroy(power);
}

static void assert_refused(const char *file, const char *content, const char *reason)
{
    char name[128], expected[256];
    snprintf(name, sizeof name, "intel-rapl:2/%s", file);
    if (content)
        scratch_write(folder, name, content);
    else
        remove_file(name);
    ek_power *power;
    assert_int_equal(ek_power_create(&power, &options), EK_IO);
    snprintf(expected, sizeof expected, "powercap: %s/%s", folder, reason);
    assert_string_equal(ek_error(), expected);
    tear_down(NULL);
    set_up(NULL);
}

static void test_odd_files(void **state)
{
    (void)state;
    assert_refused("constraint_1_power_limit_uw", NULL,
                   "intel-rapl:2/constraint_1_power_limit_uw: cannot be read: No such file or directory");
    assert_refused("constraint_1_max_power_uw", NULL,
                   "intel-rapl:2/constraint_1_max_power_uw: cannot be read: No such file or directory");
    assert_refused("constraint_1_name", NULL, "intel-rapl:2: has no constraint \"long_term\"");
    assert_refused("constraint_1_max_power_uw", "0\n",
                   "intel-rapl:2/constraint_1_max_power_uw: is 0, which leaves no range of limits");
    const char *numbers[] = {"", "\n", "-5\n", "many\n", "12 W\n", "99999999999999999999999\n"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        assert_refused("constraint_1_power_limit_uw", numbers[i],
                       "intel-rapl:2/constraint_1_power_limit_uw: cannot be read: Invalid argument");
}

static void test_missing(void **state)
{
    (void)state;
    ek_power *power;
    assert_int_equal(ek_power_create(&power, &(ek_power_options){.backend = "powercap", .path = "/nowhere"}), EK_IO);
    assert_string_equal(ek_error(), "powercap: /nowhere: cannot be opened: No such file or directory");
    assert_int_equal(ek_power_create(&power, &(ek_power_options){.backend = "powercap", .path = "/tmp/.."}), EK_IO);
    assert_string_equal(ek_error(), "powercap: /tmp/..: has no CPU package (intel-rapl:N of name package-…)");
}

/* As another user, who may read but not write. */
static void test_no_permission(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    assert_int_equal(chmod(folder, 0755), 0);
    pid_t child = fork();
    if (child == 0) {
        ek_power *power;
        const char *expected = "constraint_1_power_limit_uw: cannot be written: Permission denied; it needs root";
        bool right = setuid(65534) == 0 && ek_power_create(&power, &options) == EK_OK &&
                     ek_power_set(power, 0, 310) == EK_SYSTEM && strstr(ek_error(), expected);
        if (right)
            ek_power_destroy(power);
        _exit(right ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_show(void **state)
{
    (void)state;
    char text[OUTPUT_BYTES];
    assert_int_equal(RUN_POWER(text, "power", "show", "--backend", "powercap", "--path", folder), 0);
    assert_string_equal(text, "powercap, watts\n"
                              "device     least   default  greatest     limit      draw  identity\n"
                              "     0       1.0     300.0     350.0     300.0       0.0  intel-rapl:2\n"
                              "     1       1.0     280.5     350.0     280.5       0.0  intel-rapl:10\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_limits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_draw, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_meter, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_odd_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_missing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_permission, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_show, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
