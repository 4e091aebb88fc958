/* The guardian: whatever ends a job, its limits come back, its state file goes, and the guardian too. Jobs are real
 * processes, killed at random moments; this process adopts what they leave, and so sees everything end. */
#include "scratch.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "power/guardian.h"
#include "power/state.h"

#define DEVICES 4
#define SOON_SECONDS 2.0

/* What a job tells this process. */
struct shared {
    _Atomic int raised; /* limits set so far */
    _Atomic pid_t job, guardian, rank;
};

static char folder[SCRATCH_BYTES], path[SCRATCH_BYTES + 16];
static struct standin *standin;
static struct shared *shared;
static const ek_power_options options = {.backend = "nvml", .path = NVML_LIBRARY};

static int set_up(void **state)
{
    (void)state;
    scratch_create(folder);
    snprintf(path, sizeof path, "%s/state.json", folder);
    standin = standin_create(folder, DEVICES);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    return 0;
}

/* Nothing is left of a test that failed either. */
static int tear_down(void **state)
{
    (void)state;
    const pid_t processes[] = {shared->job, shared->rank, shared->guardian};
    for (int i = 0; i < 3; i++) {
        if (processes[i] == 0 || waitpid(processes[i], NULL, WNOHANG) != 0)
            continue; /* not a child that lives: the id may be another's by now */
        kill(processes[i], SIGKILL);
        waitpid(processes[i], NULL, 0);
    }
    munmap(shared, sizeof *shared);
    standin_destroy(standin);
    scratch_remove(folder);
    return 0;
}

/* Sets limits at random for ever. */
static _Noreturn void raise_limits(const ek_guardian *guardian, uint64_t seed)
{
    for (uint64_t i = 0;; i++) {
        uint32_t device = (uint32_t)(ek_random_u64(seed, 1, i) % DEVICES);
        ek_power_set(ek_guardian_power(guardian), device, 500 + 200 * ek_random_uniform(seed, 2, i));
        shared->raised++;
        usleep(50);
    }
}

/* A job: a guardian, a rank that inherits everything and outlives the job, and limits going up and down. */
static pid_t start_job(uint64_t seed)
{
    shared->raised = 0;
    shared->guardian = shared->rank = 0;
    pid_t job = fork();
    if (job != 0) {
        shared->job = job;
        return job;
    }
    setpgid(0, 0);
    alarm(60);
    signal(SIGSEGV, SIG_DFL); /* cmocka's handler would run the other tests in here */
    ek_guardian *guardian;
    if (ek_guardian_create(&guardian, &options, path) != EK_OK)
        _exit(1);
    shared->guardian = ek_guardian_process(guardian);
    if (fork() == 0) {
        alarm(60);
        shared->rank = getpid();
        for (;;)
            pause();
    }
    raise_limits(guardian, seed);
}

static bool limits_are_back(void)
{
    for (int device = 0; device < DEVICES; device++)
        if (standin->device[device].limit != 500000)
            return false;
    return true;
}

/* Waits until a process is gone, at most so long. */
static bool ends_soon(pid_t process)
{
    for (double start = now_seconds(); now_seconds() - start < SOON_SECONDS; usleep(500))
        if (waitpid(process, NULL, WNOHANG) == process)
            return true;
    return false;
}

/* Limits and file first: the rank still lives, and must not keep the guardian from its work. */
static void assert_all_end(void)
{
    double start = now_seconds();
    while (!(limits_are_back() && access(path, F_OK) != 0) && now_seconds() - start < SOON_SECONDS)
        usleep(500);
    assert_true(limits_are_back());
    assert_int_equal(access(path, F_OK), -1);
    for (pid_t ended; (ended = waitpid(-1, NULL, WNOHANG)) != -1;) {
        assert_true(now_seconds() - start < SOON_SECONDS);
        if (ended == shared->rank && ended != 0)
            shared->rank = 0;
        if (shared->rank != 0) /* it may have been forked just before the end, and not have run yet */
            kill(shared->rank, SIGKILL);
        usleep(500);
    }
    assert_int_equal(errno, ECHILD);
    assert_int_equal(scratch_entries(folder), 1); /* the stand-in's own file */
}

static void wait_for_limits(int count)
{
    double start = now_seconds();
    while (shared->raised < count) {
        assert_true(now_seconds() - start < 10);
        usleep(200);
    }
}

/* At random moments, also before the job has a guardian, and between it and the state file. */
static void test_killed_at_random(void **state)
{
    (void)state;
    int raised = 0;
    for (uint64_t round = 0; round < 60; round++) {
        pid_t job = start_job(round);
        usleep((useconds_t)(ek_random_uniform(7, 0, round) * (round % 2 ? 2000 : 30000)));
        if (round % 3 != 0 || kill(-job, SIGKILL) != 0) /* the whole group, if there is one yet */
            kill(job, SIGKILL);
        assert_int_equal(waitpid(job, NULL, 0), job);
        raised += shared->raised > 0;
        assert_all_end();
    }
    assert_in_range(raised, 10, 60);
}

static void test_signals(void **state)
{
    (void)state;
    const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGSEGV};
    for (int i = 0; i < 4; i++) {
        pid_t job = start_job((uint64_t)i);
        wait_for_limits(20);
        kill(-job, signals[i]); /* the whole group, as a terminal or a scheduler would */
        assert_int_equal(waitpid(job, NULL, 0), job);
        assert_all_end();
    }
}

static void test_orderly_end(void **state)
{
    (void)state;
    ek_guardian *guardian;
    for (int round = 0; round < 20; round++) {
        assert_ok(ek_guardian_create(&guardian, &options, path));
        assert_string_equal(ek_guardian_state_path(guardian), path);
        assert_int_equal(access(path, F_OK), 0);
        pid_t process = ek_guardian_process(guardian);
        assert_int_equal(kill(process, 0), 0);
        assert_ok(ek_power_set(ek_guardian_power(guardian), 1, 700));
        assert_ok(ek_guardian_end(guardian));
        assert_true(limits_are_back());
        assert_int_equal(kill(process, 0), -1);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
        assert_int_equal(scratch_entries(folder), 1);
    }
    assert_ok(ek_guardian_end(NULL));
}

static void test_default_path(void **state)
{
    (void)state;
    ek_guardian *guardian;
    char expected[300];
    snprintf(expected, sizeof expected, "%s/evenkeel-power-%d.json", ek_state_folder(), (int)getpid());
    assert_ok(ek_guardian_create(&guardian, &options, NULL));
    assert_string_equal(ek_guardian_state_path(guardian), expected);
    assert_ok(ek_guardian_end(guardian));
    assert_int_equal(access(expected, F_OK), -1);
}

/* Paths mean the same although the guardian works in another folder. */
static void test_relative_paths(void **state)
{
    (void)state;
    char before[300];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    pid_t job = fork();
    if (job == 0) {
        ek_guardian *guardian;
        ek_power_options emulated = {"emulated", "limits", DEVICES, 200, 500, 700};
        if (ek_guardian_create(&guardian, &emulated, "state.json") == EK_OK &&
            ek_power_set(ek_guardian_power(guardian), 2, 600) == EK_OK && access(path, F_OK) == 0)
            kill(getpid(), SIGKILL);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(job, &status, 0), job);
    assert_true(WIFSIGNALED(status));
    double start = now_seconds();
    while (waitpid(-1, NULL, WNOHANG) != -1)
        assert_true(now_seconds() - start < SOON_SECONDS);
    assert_int_equal(chdir(before), 0);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(before, sizeof before, "%s/limits", folder);
    ek_power *power;
    ek_power_limits limits;
    assert_ok(ek_power_create(&power, &(ek_power_options){.backend = "emulated", .path = before}));
    assert_ok(ek_power_read(power, 2, &limits));
    assert_true(limits.watts == 500);
    ek_power_destroy(power);
}

static void assert_link(pid_t process, const char *name, const char *expected)
{
    char link[64], target[256] = "";
    snprintf(link, sizeof link, "/proc/%d/%s", (int)process, name);
    assert_true(readlink(link, target, sizeof target - 1) > 0);
    assert_string_equal(target, expected);
}

/* Its own session, nothing open but what it needs; signals do not move it. */
static void test_detached(void **state)
{
    (void)state;
    pid_t job = start_job(1);
    wait_for_limits(5);
    pid_t guardian = shared->guardian;
    char open_files[64];
    snprintf(open_files, sizeof open_files, "/proc/%d/fd", (int)guardian);
    for (double start = now_seconds(); scratch_entries(open_files) != 4 && now_seconds() - start < SOON_SECONDS;)
        usleep(500);
    assert_int_equal(scratch_entries(open_files), 4);
    assert_link(guardian, "fd/0", "/dev/null");
    assert_link(guardian, "fd/1", "/dev/null");
    assert_link(guardian, "fd/2", "/dev/null");
    assert_link(guardian, "fd/3", "anon_inode:[pidfd]");
    assert_link(guardian, "cwd", "/");
    assert_int_equal(getsid(guardian), guardian);
    const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGPIPE, SIGALRM, SIGTSTP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        kill(guardian, signals[i]);
    usleep(20000);
    assert_int_equal(waitpid(guardian, NULL, WNOHANG), -1); /* a child of the job, and alive */
    assert_int_equal(kill(guardian, 0), 0);
    kill(job, SIGKILL);
    assert_int_equal(waitpid(job, NULL, 0), job);
    assert_all_end();
}

/* The guardian killed too: the file stays, and the command restores. */
static void test_guardian_killed(void **state)
{
    (void)state;
    pid_t job = start_job(3);
    wait_for_limits(50);
    kill(shared->guardian, SIGKILL);
    usleep(20000);
    kill(job, SIGKILL);
    assert_int_equal(waitpid(job, NULL, 0), job);
    assert_true(ends_soon(shared->guardian));
    assert_false(limits_are_back());
    assert_int_equal(access(path, F_OK), 0);
    /* A job started now would take raised limits for those it found: it is refused the file. */
    ek_guardian *guardian;
    char text[OUTPUT_BYTES];
    assert_int_equal(ek_guardian_create(&guardian, &options, path), EK_INVALID);
    snprintf(text, sizeof text,
             "%s is of a job whose power limits are not restored; if that job is gone: evenkeel power restore --state "
             "%s",
             path, path);
    assert_string_equal(ek_error(), text);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(RUN_POWER(text, "power", "restore", "--state", path), 0);
    assert_all_end();
}

/* A device that cannot be restored: the guardian writes why, and goes. */
static void test_guardian_fails(void **state)
{
    (void)state;
    pid_t job = start_job(4);
    wait_for_limits(50);
    standin->device[1].set_fault = STANDIN_NO_PERMISSION;
    standin->device[1].limit = 600000;
    kill(job, SIGKILL);
    assert_int_equal(waitpid(job, NULL, 0), job);
    assert_true(ends_soon(shared->guardian));
    char text[OUTPUT_BYTES] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    assert_non_null(strstr(text, "\"failure\": \"nvml: device 1 (GPU-00000001-feed-beef-cafe-0123456789ab): its power "
                                 "limit cannot be set: Insufficient Permissions; it needs root\""));
    for (int device = 0; device < DEVICES; device++)
        assert_int_equal(standin->device[device].limit, device == 1 ? 600000 : 500000);
    standin->device[1].set_fault = 0;
    assert_ok(ek_state_restore(path, NULL));
    assert_all_end();
}

/* What cannot be begun leaves nothing, and no limit is touched. */
static void test_refused(void **state)
{
    (void)state;
    ek_guardian *guardian;
    assert_int_equal(ek_guardian_create(&guardian, &options, "/nowhere/state.json"), EK_IO);
    char expected[100];
    snprintf(expected, sizeof expected, "/nowhere/state.json.%d: cannot be created: No such file or directory",
             (int)getpid());
    assert_string_equal(ek_error(), expected);
    assert_int_equal(
        ek_guardian_create(&guardian, &(ek_power_options){.backend = "nvml", .path = "/nowhere/ml.so"}, path), EK_IO);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(scratch_entries(folder), 1);
}

/* Limits that end with the job need no guardian. */
static void test_emulated(void **state)
{
    (void)state;
    ek_guardian *guardian;
    ek_power_options emulated = {"emulated", NULL, DEVICES, 200, 500, 700};
    assert_ok(ek_guardian_create(&guardian, &emulated, path));
    assert_null(ek_guardian_state_path(guardian));
    assert_int_equal(ek_guardian_process(guardian), 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(access(path, F_OK), -1);
    assert_ok(ek_power_set(ek_guardian_power(guardian), 1, 650));
    assert_ok(ek_guardian_end(guardian));
}

/* ------------------------------------------------------------------------------------- with ek_launch */

static ek_status wait_for_ever(ek_engine *engine, void *user)
{
    (void)user;
    do {
        if (ek_engine_rank(engine) == 0)
            shared->raised++;
        ek_beat(engine, 0);
    } while (usleep(1000) == 0);
    return EK_SYSTEM;
}

/* A whole job whose supervisor is killed, or told to end. */
static void test_launched_job(void **state)
{
    (void)state;
    const int signals[] = {SIGKILL, SIGTERM};
    for (int i = 0; i < 2; i++) {
        shared->raised = 0;
        shared->rank = 0;
        pid_t job = fork();
        if (job == 0) {
            ek_guardian *guardian;
            ek_launch_options launch = {
                .engine = "shm", .ranks = 3, .timeout_seconds = 5, .main = wait_for_ever, .heap_bytes = 1 << 20};
            bool right = ek_guardian_create(&guardian, &options, path) == EK_OK &&
                         ek_power_set(ek_guardian_power(guardian), 3, 700) == EK_OK &&
                         ek_launch(&launch) == EK_INTERRUPTED && ek_guardian_end(guardian) == EK_OK;
            _exit(right ? 0 : 1);
        }
        shared->job = job;
        wait_for_limits(5);
        assert_int_equal(standin->device[3].limit, 700000);
        kill(job, signals[i]);
        int status;
        assert_int_equal(waitpid(job, &status, 0), job);
        assert_int_equal(WIFEXITED(status) && WEXITSTATUS(status) == 0, signals[i] == SIGTERM);
        assert_all_end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_killed_at_random, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_signals, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_orderly_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_default_path, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_relative_paths, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_detached, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_guardian_killed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_guardian_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_emulated, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_launched_job, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
