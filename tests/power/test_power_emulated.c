/* The backend "emulated", what all backends refuse, and the table of Xid codes. */
#include "scratch.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "power/power.h"
#include "power/xid.h"

static char folder[SCRATCH_BYTES], path[SCRATCH_BYTES + 16];

static int set_up(void **state)
{
    (void)state;
    scratch_create(folder);
    snprintf(path, sizeof path, "%s/limits", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

static ek_power_options four(const char *file)
{
    return (ek_power_options){.backend = "emulated",
                              .path = file,
                              .devices = 4,
                              .least_watts = 300,
                              .default_watts = 700,
                              .greatest_watts = 910};
}

static int exit_status(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* What a process forked later sets, reads or injects is seen by the others. */
static void test_shared(void **state)
{
    (void)state;
    ek_power *power;
    ek_power_limits limits;
    ek_power_event event;
    double draw;
    bool any;
    ek_power_options options = four(NULL);
    assert_ok(ek_power_create(&power, &options));
    assert_false(ek_power_outlives(power));
    assert_ok(ek_power_set(power, 0, 800));
    pid_t child = fork();
    if (child == 0) {
        bool right = ek_power_read(power, 0, &limits) == EK_OK && limits.watts == 800 &&
                     ek_power_set(power, 3, 910) == EK_OK &&
                     ek_power_inject(power, (ek_power_event){.device = 2, .xid = 79}) == EK_OK;
        _exit(right ? 0 : 1);
    }
    assert_int_equal(exit_status(child), 0);
    assert_ok(ek_power_read(power, 3, &limits));
    assert_true(limits.least_watts == 300 && limits.default_watts == 700 && limits.greatest_watts == 910);
    assert_true(limits.watts == 910);
    assert_ok(ek_power_draw(power, 3, &draw));
    assert_true(draw == 910);
    assert_ok(ek_power_read(power, 1, &limits));
    assert_true(limits.watts == 700);
    assert_ok(ek_power_wait(power, 5, &event, &any));
    assert_true(any && event.device == 2 && event.xid == 79);
    double start = now_seconds();
    assert_ok(ek_power_wait(power, 0.03, &event, &any));
    assert_true(!any && now_seconds() - start >= 0.03);
    assert_int_equal(ek_power_set(power, 1, 911), EK_INVALID);
    assert_string_equal(ek_error(),
                        "emulated: device 1 (emulated-1): a limit of 911 W was asked for; 300 to 910 W are allowed");
    ek_power_destroy(power);
}

static void test_event_room(void **state)
{
    (void)state;
    ek_power *power;
    ek_power_event event;
    bool any;
    ek_power_options options = four(NULL);
    assert_ok(ek_power_create(&power, &options));
    for (uint32_t i = 0; i < 64; i++)
        assert_ok(ek_power_inject(power, (ek_power_event){.device = i % 4, .xid = i}));
    assert_int_equal(ek_power_inject(power, (ek_power_event){.device = 0, .xid = 1}), EK_SYSTEM);
    for (uint32_t i = 0; i < 64; i++) {
        assert_ok(ek_power_wait(power, 0, &event, &any));
        assert_true(any && event.device == event.xid % 4);
    }
    assert_ok(ek_power_wait(power, 0, &event, &any));
    assert_false(any);
    assert_int_equal(ek_power_inject(power, (ek_power_event){.device = 4, .xid = 79}), EK_INVALID);
    ek_power_destroy(power);
}

static void test_file(void **state)
{
    (void)state;
    ek_power *power, *other;
    ek_power_limits limits;
    ek_power_options options = four(path);
    assert_ok(ek_power_create(&power, &options));
    assert_true(ek_power_outlives(power));
    assert_ok(ek_power_create(&other, &options));
    assert_ok(ek_power_set(power, 2, 777));
    assert_ok(ek_power_read(other, 2, &limits));
    assert_true(limits.watts == 777);
    ek_power_destroy(power);
    ek_power_destroy(other);
    assert_ok(ek_power_create(&power, &(ek_power_options){.backend = "emulated", .path = path}));
    assert_int_equal(ek_power_devices(power), 4);
    assert_ok(ek_power_read(power, 2, &limits));
    assert_true(limits.watts == 777 && limits.default_watts == 700);
    ek_power_destroy(power);
    options.greatest_watts = 1000;
    assert_int_equal(ek_power_create(&power, &options), EK_INVALID);
    char expected[256];
    snprintf(expected, sizeof expected,
             "%s: holds 4 emulated devices of 300 to 910 W, default 700 W, which is not what is asked for; remove the "
             "file or name another",
             path);
    assert_string_equal(ek_error(), expected);
}

static void test_foreign_files(void **state)
{
    (void)state;
    ek_power *power;
    char expected[256], zeros[1000] = "";
    for (size_t i = 0; i < sizeof zeros - 1; i++)
        zeros[i] = '0';
    const char *contents[] = {"x", zeros};
    snprintf(expected, sizeof expected, "%s: not a file of emulated power limits", path);
    ek_power_options options = four(path);
    for (int i = 0; i < 2; i++) {
        scratch_write(folder, "limits", contents[i]);
        assert_int_equal(ek_power_create(&power, &options), EK_IO);
        assert_string_equal(ek_error(), expected);
    }
    assert_int_equal(ek_power_create(&power, &(ek_power_options){.backend = "emulated", .path = "/nowhere/limits"}),
                     EK_IO);
    assert_string_equal(ek_error(), "/nowhere/limits: cannot be opened: No such file or directory");
}

static const struct {
    ek_power_options options;
    const char *error;
} refusals[] = {
    {{.backend = "steam"}, "unknown power backend \"steam\"; nvml, powercap and emulated are there"},
    {{.backend = "nvml", .devices = 2},
     "power backend nvml: devices and their range are the hardware's; leave them out"},
    {{.backend = "powercap", .least_watts = 2},
     "power backend powercap: devices and their range are the hardware's; leave them out"},
    {{.backend = "emulated"}, "emulated: 0 devices; 1 to 1048576 are possible"},
    {{.backend = "emulated", .default_watts = 1}, "power backend emulated: a range of limits without devices"},
    {{.backend = "emulated", .devices = 1, .least_watts = 300, .default_watts = 200, .greatest_watts = 400},
     "power backend emulated: least 300 W, default 200 W, greatest 400 W: 0 < least <= default <= greatest is needed"},
    {{.backend = "emulated", .devices = 1, .default_watts = 200, .greatest_watts = 400},
     "power backend emulated: least 0 W, default 200 W, greatest 400 W: 0 < least <= default <= greatest is needed"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        ek_power *power;
        assert_int_equal(ek_power_create(&power, &refusals[i].options), EK_INVALID);
        assert_string_equal(ek_error(), refusals[i].error);
    }
}

static void test_xids(void **state)
{
    (void)state;
    const uint64_t lost[] = {48, 64, 74, 79, 94, 95, 119, 120, 140}, application[] = {13, 31, 43, 45, 68, 109},
                   reported[] = {0, 63, 92, 154, 999, (uint64_t)1 << 32 | 79};
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++)
        assert_int_equal(ek_xid_find(lost[i]).meaning, EK_XID_LOST);
    for (size_t i = 0; i < sizeof application / sizeof *application; i++)
        assert_int_equal(ek_xid_find(application[i]).meaning, EK_XID_APPLICATION);
    for (size_t i = 0; i < sizeof reported / sizeof *reported; i++)
        assert_int_equal(ek_xid_find(reported[i]).meaning, EK_XID_REPORTED);
    assert_string_equal(ek_xid_find(79).text, "the device has fallen off the bus");
    assert_string_equal(ek_xid_find(1000000).text, "not in evenkeel's table");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_event_room),
        cmocka_unit_test_setup_teardown(test_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_foreign_files, set_up, tear_down),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_xids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
