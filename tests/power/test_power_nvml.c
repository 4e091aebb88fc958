/* The backend "nvml" against a stand-in for the driver's library. */
#include "scratch.h"

#include <math.h>
#include <stdio.h>

#include "power/power.h"

struct fixture {
    char folder[SCRATCH_BYTES];
    struct standin *standin;
};

static int set_up(void **state)
{
    static struct fixture fixture;
    scratch_create(fixture.folder);
    fixture.standin = standin_create(fixture.folder, 3);
    *state = &fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    standin_destroy(fixture->standin);
    scratch_remove(fixture->folder);
    return 0;
}

static const ek_power_options options = {.backend = "nvml", .path = NVML_LIBRARY};

static void test_reads(void **state)
{
    struct standin *standin = ((struct fixture *)*state)->standin;
    standin->device[2].otherwise = 450500;
    standin->device[2].limit = 321123;
    standin->device[2].usage = 300250;
    ek_power *power;
    assert_ok(ek_power_create(&power, &options));
    assert_int_equal(ek_power_devices(power), 3);
    assert_string_equal(ek_power_name(power), "nvml");
    assert_string_equal(ek_power_identity(power, 2), "GPU-00000002-feed-beef-cafe-0123456789ab");
    assert_true(ek_power_outlives(power));
    ek_power_limits limits;
    double draw;
    assert_ok(ek_power_read(power, 2, &limits));
    assert_ok(ek_power_draw(power, 2, &draw));
    assert_true(limits.least_watts == 200 && limits.greatest_watts == 700);
    assert_true(limits.default_watts == 450.5 && limits.watts == 321.123 && draw == 300.25);
    standin->device[2].usage_fault = STANDIN_NOT_SUPPORTED;
    assert_ok(ek_power_draw(power, 2, &draw));
    assert_true(isnan(draw));
    assert_int_equal(ek_power_read(power, 3, &limits), EK_INVALID);
    assert_string_equal(ek_error(), "nvml: there is no device 3; 0 to 2 are there");
    ek_power_destroy(power);
}

static void test_sets(void **state)
{
    struct standin *standin = ((struct fixture *)*state)->standin;
    ek_power *power;
    assert_ok(ek_power_create(&power, &options));
    assert_ok(ek_power_set(power, 1, 612.3456));
    assert_int_equal(standin->device[1].limit, 612346);
    assert_ok(ek_power_set(power, 1, 200));
    assert_ok(ek_power_set(power, 1, 700));
    const double refused[] = {199.999, 700.001, -1, 0, NAN, INFINITY};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_int_equal(ek_power_set(power, 1, refused[i]), EK_INVALID);
    assert_int_equal(ek_power_set(power, 1, 910), EK_INVALID);
    assert_string_equal(ek_error(), "nvml: device 1 (GPU-00000001-feed-beef-cafe-0123456789ab): a limit of 910 W was "
                                    "asked for; 200 to 700 W are allowed");
    assert_int_equal(standin->device[1].limit, 700000);
    assert_int_equal(standin->device[1].sets, 3);
    assert_int_equal(standin->device[0].sets + standin->device[2].sets, 0);
    ek_power_destroy(power);
}

static void test_no_permission(void **state)
{
    struct standin *standin = ((struct fixture *)*state)->standin;
    standin->device[0].set_fault = STANDIN_NO_PERMISSION;
    ek_power *power;
    ek_power_limits limits;
    assert_ok(ek_power_create(&power, &options));
    assert_int_equal(ek_power_set(power, 0, 600), EK_SYSTEM);
    assert_string_equal(ek_error(), "nvml: device 0 (GPU-00000000-feed-beef-cafe-0123456789ab): its power limit cannot "
                                    "be set: Insufficient Permissions; it needs root");
    assert_ok(ek_power_read(power, 0, &limits));
    assert_true(limits.watts == 500);
    ek_power_destroy(power);
}

/* A device may be lost in use, or be lost already: the others go on. */
static void test_lost_device(void **state)
{
    struct standin *standin = ((struct fixture *)*state)->standin;
    ek_power *power;
    ek_power_limits limits;
    ek_power_event event;
    double draw;
    bool any;
    assert_ok(ek_power_create(&power, &options));
    standin->device[1].fault = STANDIN_GPU_IS_LOST;
    assert_int_equal(ek_power_read(power, 1, &limits), EK_PEER_LOST);
    assert_string_equal(ek_error(), "nvml: device 1 (GPU-00000001-feed-beef-cafe-0123456789ab): its power limit cannot "
                                    "be read: GPU is lost");
    assert_int_equal(ek_power_set(power, 1, 600), EK_PEER_LOST);
    assert_int_equal(ek_power_draw(power, 1, &draw), EK_PEER_LOST);
    assert_int_equal(ek_power_wait(power, 1, &event, &any), EK_PEER_LOST);
    assert_ok(ek_power_set(power, 2, 600));
    ek_power_destroy(power);

    assert_ok(ek_power_create(&power, &options));
    assert_int_equal(ek_power_devices(power), 3);
    assert_string_equal(ek_power_identity(power, 1), "");
    assert_int_equal(ek_power_set(power, 1, 600), EK_PEER_LOST);
    assert_ok(ek_power_set(power, 2, 650));
    ek_power_destroy(power);
}

static void queue(struct standin *standin, uint32_t device, uint64_t type, uint64_t data)
{
    uint32_t slot = standin->queued % STANDIN_EVENTS;
    standin->event[slot].device = device;
    standin->event[slot].type = type;
    standin->event[slot].data = data;
    standin->queued++;
}

static void test_events(void **state)
{
    struct standin *standin = ((struct fixture *)*state)->standin;
    ek_power *power;
    ek_power_event event;
    bool any;
    assert_ok(ek_power_create(&power, &options));
    double start = now_seconds();
    assert_ok(ek_power_wait(power, 0.05, &event, &any));
    assert_false(any);
    assert_true(now_seconds() - start >= 0.049);
    queue(standin, 2, 8, 79);
    queue(standin, 0, 2, 1); /* no Xid: not registered for */
    queue(standin, 1, 8, 48);
    assert_ok(ek_power_wait(power, 5, &event, &any));
    assert_true(any && event.device == 2 && event.xid == 79);
    assert_ok(ek_power_wait(power, 5, &event, &any));
    assert_true(any && event.device == 1 && event.xid == 48);
    assert_ok(ek_power_wait(power, 0, &event, &any));
    assert_false(any);
    assert_int_equal(ek_power_inject(power, event), EK_INVALID);
    ek_power_destroy(power);
}

static void assert_refused(const char *path, ek_status status, const char *text)
{
    ek_power *power;
    assert_int_equal(ek_power_create(&power, &(ek_power_options){.backend = "nvml", .path = path}), status);
    assert_string_equal(ek_error(), text);
}

static void test_missing(void **state)
{
    struct standin *standin = ((struct fixture *)*state)->standin;
    assert_refused("/nowhere/libnvidia-ml.so.1", EK_IO,
                   "nvml: the driver's library cannot be opened: /nowhere/libnvidia-ml.so.1: cannot open shared object "
                   "file: No such file or directory");
    assert_refused(NVML_OLD_LIBRARY, EK_IO,
                   "nvml: " NVML_OLD_LIBRARY " has no nvmlEventSetWait_v2; a driver of version 450 or later is needed");
    standin->init_fault = STANDIN_DRIVER_NOT_LOADED;
    assert_refused(NVML_LIBRARY, EK_IO, "nvml: cannot be started: Driver Not Loaded");
    standin->init_fault = 0;
    standin->count = 0;
    assert_refused(NVML_LIBRARY, EK_IO, "nvml: there are no devices");
    standin->count = 3;
    standin->device[2].fault = STANDIN_NO_PERMISSION;
    assert_refused(NVML_LIBRARY, EK_SYSTEM,
                   "nvml: device 2 (UUID unknown): cannot be opened: Insufficient Permissions; it needs root");
}

static void test_show(void **state)
{
    struct standin *standin = ((struct fixture *)*state)->standin;
    standin->device[0].usage_fault = STANDIN_NOT_SUPPORTED;
    standin->device[1].fault = STANDIN_GPU_IS_LOST;
    char text[OUTPUT_BYTES];
    assert_int_equal(RUN_POWER(text, "power", "show", "--path", NVML_LIBRARY), 0);
    assert_string_equal(
        text, "nvml, watts\n"
              "device     least   default  greatest     limit      draw  identity\n"
              "     0     200.0     500.0     700.0     500.0         -  GPU-00000000-feed-beef-cafe-0123456789ab\n"
              "     1  lost\n"
              "     2     200.0     500.0     700.0     500.0     432.1  GPU-00000002-feed-beef-cafe-0123456789ab\n");
    assert_int_equal(RUN_POWER(text, "power", "show", "--path", "/nowhere/ml.so"), 1);
    assert_string_equal(text, "evenkeel: nvml: the driver's library cannot be opened: /nowhere/ml.so: cannot open "
                              "shared object file: No such file or directory\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_sets, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_permission, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_lost_device, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_events, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_missing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_show, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
