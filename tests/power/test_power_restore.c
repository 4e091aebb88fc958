/* State files and `evenkeel power restore`: what is restored, what is refused. */
#include "scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "power/power.h"
#include "power/state.h"

static char folder[SCRATCH_BYTES], path[SCRATCH_BYTES + 16];
static struct standin *standin;
static const ek_power_options options = {.backend = "nvml", .path = NVML_LIBRARY};

static int set_up(void **state)
{
    (void)state;
    scratch_create(folder);
    snprintf(path, sizeof path, "%s/state.json", folder);
    standin = standin_create(folder, 3);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    standin_destroy(standin);
    scratch_remove(folder);
    return 0;
}

/* A state file as a job leaves it that was killed after it had raised limits. */
static void leave_state(void)
{
    ek_power *power;
    int lock;
    assert_ok(ek_power_create(&power, &options));
    assert_ok(ek_state_write(power, path, &lock));
    assert_ok(ek_power_set(power, 0, 650));
    assert_ok(ek_power_set(power, 2, 612.345));
    close(lock);
    ek_power_destroy(power);
}

static void read_state(char text[OUTPUT_BYTES])
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, OUTPUT_BYTES - 1, file)] = '\0';
    fclose(file);
}

static void test_restores(void **state)
{
    (void)state;
    char text[OUTPUT_BYTES], expected[OUTPUT_BYTES];
    standin->device[2].limit = 456789; /* not the default: what was found comes back */
    leave_state();
    struct stat found;
    assert_int_equal(stat(path, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0600);
    assert_int_equal(RUN_POWER(text, "power", "restore", "--state", path), 0);
    snprintf(expected, sizeof expected, "%s: 2 limits set, the rest were as found\n", path);
    assert_string_equal(text, expected);
    assert_int_equal(standin->device[0].limit, 500000);
    assert_int_equal(standin->device[2].limit, 456789);
    assert_int_equal(standin->device[1].sets, 0);
    assert_int_equal(scratch_entries(folder), 1); /* the stand-in's own file */
    assert_int_equal(RUN_POWER(text, "power", "restore", "--state", path), 1);
    snprintf(expected, sizeof expected, "evenkeel: %s: cannot be opened: No such file or directory\n", path);
    assert_string_equal(text, expected);
}

/* Devices are found by what they are, not by where they stand. */
static void test_renumbered(void **state)
{
    (void)state;
    leave_state();
    struct standin_device first = standin->device[0];
    standin->device[0] = standin->device[2];
    standin->device[2] = first;
    standin->device[0].otherwise = 1;
    uint32_t restored;
    assert_ok(ek_state_restore(path, &restored));
    assert_int_equal(restored, 2);
    assert_int_equal(standin->device[0].limit, 500000);
    assert_int_equal(standin->device[2].limit, 500000);
}

/* What fails is written down, the rest is restored, and a later try finishes it. */
static void test_fails_in_part(void **state)
{
    (void)state;
    char text[OUTPUT_BYTES], expected[OUTPUT_BYTES];
    leave_state();
    standin->device[0].fault = STANDIN_GPU_IS_LOST;
    assert_int_equal(RUN_POWER(text, "power", "restore", "--state", path), 1);
    snprintf(expected, sizeof expected,
             "evenkeel: %s: nvml: device GPU-00000000-feed-beef-cafe-0123456789ab is not there\n", path);
    assert_string_equal(text, expected);
    assert_int_equal(standin->device[2].limit, 500000);
    read_state(text);
    assert_non_null(
        strstr(text, "\"failure\": \"nvml: device GPU-00000000-feed-beef-cafe-0123456789ab is not there\""));
    standin->device[0].fault = 0;
    standin->device[0].set_fault = STANDIN_NO_PERMISSION;
    assert_int_equal(ek_state_restore(path, NULL), EK_SYSTEM);
    read_state(text);
    assert_non_null(strstr(text, "Insufficient Permissions; it needs root"));
    standin->device[0].set_fault = 0;
    assert_ok(ek_state_restore(path, NULL));
    assert_int_equal(standin->device[0].limit, 500000);
    assert_int_equal(scratch_entries(folder), 1);
}

static void assert_refused(const char *why)
{
    char expected[OUTPUT_BYTES], text[OUTPUT_BYTES];
    assert_int_equal(RUN_POWER(text, "power", "restore", "--state", path), 2);
    snprintf(expected, sizeof expected, "evenkeel: %s: %s\n", path, why);
    assert_string_equal(text, expected);
    assert_int_equal(access(path, F_OK), 0);
}

#define CLOSED "a state file is needed that is this user's and closed to others (mode 0600)"

static void test_foreign_files(void **state)
{
    (void)state;
    leave_state();
    assert_int_equal(chmod(path, 0640), 0);
    assert_refused(CLOSED);
    assert_int_equal(chmod(path, 0600), 0);
    if (geteuid() == 0) { /* the file names a library: root must not load another user's */
        assert_int_equal(chown(path, 65534, 65534), 0);
        assert_refused(CLOSED);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(ek_state_restore(path, NULL), EK_IO);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(symlink("driver", path), 0);
    assert_int_equal(ek_state_restore(path, NULL), EK_IO);
    assert_int_equal(standin->device[0].limit, 650000);
}

static const struct {
    const char *content, *why;
} corrupt[] = {
    {"", "'[' or '{' expected near end of file"},
    {"#!/bin/sh\n", "'[' or '{' expected near '#'"},
    {"{}", "Object item not found: format"},
    {"[1]", "Expected object, got array"},
    {"{\"format\": \"evenkeel power state 1\", \"backend\": \"nvml\", \"path\": null", "'}' expected near end of file"},
    {"{\"format\": \"evenkeel power state 1\", \"backend\": 4, \"path\": null, \"devices\": []}",
     "Expected string, got integer"},
    {"{\"format\": \"another\", \"backend\": \"nvml\", \"path\": null, \"devices\": []}",
     "\"format\" \"evenkeel power state 1\" and its fields are needed"},
    {"{\"format\": \"evenkeel power state 1\", \"backend\": \"nvml\", \"path\": 7, \"devices\": []}",
     "\"format\" \"evenkeel power state 1\" and its fields are needed"},
    {"{\"format\": \"evenkeel power state 1\", \"backend\": \"nvml\", \"path\": null, \"devices\": {}}",
     "\"format\" \"evenkeel power state 1\" and its fields are needed"},
};

static void test_corrupt_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof corrupt / sizeof *corrupt; i++) {
        char why[300];
        scratch_write(folder, "state.json", corrupt[i].content);
        assert_int_equal(chmod(path, 0600), 0);
        snprintf(why, sizeof why, "not a state file of power limits: %s", corrupt[i].why);
        assert_refused(why);
    }
    const char *head =
        "{\"format\": \"evenkeel power state 1\", \"backend\": \"steam\", \"path\": null, \"devices\": []}";
    scratch_write(folder, "state.json", head);
    assert_refused("unknown power backend \"steam\"; nvml, powercap and emulated are there");
}

static void test_corrupt_devices(void **state)
{
    (void)state;
    const char *devices[] = {"7", "{\"watts\": 500}", "{\"identity\": \"a\", \"watts\": \"many\"}",
                             "{\"identity\": \"GPU-00000000-feed-beef-cafe-0123456789ab\", \"watts\": 1e300}"};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        char content[1000];
        snprintf(content, sizeof content,
                 "{\"format\": \"evenkeel power state 1\", \"backend\": \"nvml\", \"path\": \"%s\", \"devices\": [%s]}",
                 NVML_LIBRARY, devices[i]);
        scratch_write(folder, "state.json", content);
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(ek_state_restore(path, NULL), EK_INVALID);
        assert_int_equal(standin->device[0].sets, 0);
    }
}

/* While the job lives, nobody else restores, and no second job takes the file. */
static void test_in_use(void **state)
{
    (void)state;
    ek_power *power;
    int lock, other;
    assert_ok(ek_power_create(&power, &options));
    assert_ok(ek_state_write(power, path, &lock));
    char why[200];
    snprintf(why, sizeof why, "in use by process %d, which restores the limits when it ends", (int)getpid());
    assert_refused(why);
    assert_int_equal(ek_state_write(power, path, &other), EK_INVALID);
    assert_int_equal(scratch_entries(folder), 2);
    assert_ok(ek_power_set(power, 1, 700));
    assert_int_equal(unlink(path), 0); /* somebody cleaned up: the job still knows */
    assert_ok(ek_state_restore_held(path, lock));
    assert_int_equal(standin->device[1].limit, 500000);
    ek_power_destroy(power);
}

/* All that dead jobs left in a folder, and nothing else there. */
static void test_folder(void **state)
{
    (void)state;
    char text[OUTPUT_BYTES], expected[OUTPUT_BYTES], dead[200], live[200], corrupted[200];
    snprintf(dead, sizeof dead, "%s/" EK_STATE_PREFIX "1" EK_STATE_SUFFIX, folder);
    snprintf(corrupted, sizeof corrupted, "%s/" EK_STATE_PREFIX "2" EK_STATE_SUFFIX, folder);
    snprintf(live, sizeof live, "%s/" EK_STATE_PREFIX "3" EK_STATE_SUFFIX, folder);
    assert_int_equal(RUN_POWER(text, "power", "restore", "--state", folder), 0);
    snprintf(expected, sizeof expected, "nothing to restore in %s\n", folder);
    assert_string_equal(text, expected);

    ek_power *power;
    int lock;
    assert_ok(ek_power_create(&power, &options));
    assert_ok(ek_state_write(power, live, &lock));
    leave_state();
    assert_int_equal(rename(path, dead), 0);
    assert_int_equal(RUN_POWER(text, "power", "restore", "--state", folder), 0);
    snprintf(expected, sizeof expected,
             "%s: 2 limits set, the rest were as found\n%s: left alone, its job lives (process %d)\n", dead, live,
             (int)getpid());
    assert_string_equal(text, expected);
    assert_int_equal(standin->device[0].limit, 500000);
    assert_int_equal(scratch_entries(folder), 2);

    scratch_write(folder, EK_STATE_PREFIX "2" EK_STATE_SUFFIX, "");
    leave_state();
    assert_int_equal(rename(path, dead), 0);
    assert_int_equal(RUN_POWER(text, "power", "restore", "--state", folder), 1);
    snprintf(expected, sizeof expected,
             "evenkeel: %s: " CLOSED "\nevenkeel: 1 of 3 state files could not be restored from\n", corrupted);
    assert_non_null(strstr(text, expected));
    assert_int_equal(standin->device[0].limit, 500000);
    assert_int_equal(access(dead, F_OK), -1);
    close(lock);
    ek_power_destroy(power);
}

static void test_usual_folder(void **state)
{
    (void)state;
    assert_int_equal(strcmp(ek_state_folder(), "/run") == 0, access("/run", W_OK) == 0);
    assert_int_equal(access(ek_state_folder(), W_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_restores, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_renumbered, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_fails_in_part, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_foreign_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_corrupt_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_corrupt_devices, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_in_use, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_folder, set_up, tear_down),
        cmocka_unit_test(test_usual_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
