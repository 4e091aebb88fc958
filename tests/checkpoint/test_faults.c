/* Every call by which a checkpoint is written fails once, or is the last that the process makes: what was complete
 * before is found and whole, what is being made becomes complete as a whole or not at all, and a fault is told. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "states.h"

/* The linker puts these in the place of the C library's functions (--wrap). */
static size_t calls, faulty; /* the faulty-th call fails; 0: none */
static int fault_errno;      /* 0: the process dies instead */

static bool fails(void)
{
    if (++calls != faulty)
        return false;
    if (fault_errno == 0)
        raise(SIGKILL);
    errno = fault_errno;
    return true;
}

#define WRAP(type, name, parameters, arguments, failure)                                                               \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters                                                                                      \
    {                                                                                                                  \
        return fails() ? (failure) : __real_##name arguments;                                                          \
    }

WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), -1)
WRAP(int, open, (const char *path, int flags, mode_t mode), (path, flags, mode), -1)
WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode), NULL)
WRAP(DIR *, opendir, (const char *path), (path), NULL)
WRAP(ssize_t, pwrite, (int file, const void *data, size_t bytes, off_t offset), (file, data, bytes, offset), -1)
WRAP(int, fallocate, (int file, int mode, off_t offset, off_t bytes), (file, mode, offset, bytes), -1)
WRAP(int, fflush, (FILE * file), (file), EOF)
WRAP(int, rename, (const char *from, const char *to), (from, to), -1)
WRAP(int, renameat2, (int from_at, const char *from, int to_at, const char *to, unsigned flags),
     (from_at, from, to_at, to, flags), -1)
WRAP(int, unlink, (const char *path), (path), -1)
WRAP(int, rmdir, (const char *path), (path), -1)

/* Nothing here dies with the machine: what is written need not reach the disk, which others may keep busy for minutes.
 */
int __wrap_fsync(int file);
int __wrap_fsync(int file)
{
    (void)file;
    return fails() ? -1 : 0;
}

static ek_model_config config;

/* Two ranks' parts and the completion, as in a run: a rank's trouble ends it. */
static ek_status make_one(const ek_checkpoint_dir *dir, uint64_t step)
{
    ek_membership *membership = states_membership(&config, 2, 1, 0);
    char folder[EK_CHECKPOINT_PATH_BYTES];
    ek_checkpoint_partial("faults", ek_checkpoint_identity(dir), step, folder);
    ek_status status = EK_OK;
    for (uint32_t rank = 0; rank < 2; rank++) {
        states of;
        ek_snapshot *snapshot;
        states_make(&of, membership, rank, &config);
        states_fill(&of);
        assert_ok(ek_snapshot_create(&snapshot, &of.share, of.planes));
        if (status == EK_OK)
            status = ek_snapshot_write(snapshot, folder, step);
        ek_snapshot_destroy(snapshot);
        states_free(&of);
    }
    if (status == EK_OK)
        status = states_complete(dir, step, 1);
    if (status != EK_OK) {
        char text[512];
        snprintf(text, sizeof text, "%s", ek_error());
        ek_checkpoint_abandon(dir, step);
        faulty = 0;
        if (status != EK_IO || !strstr(text, fault_errno ? strerror(fault_errno) : ""))
            fail_msg("%s: %s", ek_status_text(status), text);
    }
    ek_membership_destroy(membership);
    return status;
}

static ek_checkpoint_dir *open_dir(void)
{
    ek_checkpoint_dir *dir;
    assert_ok(ek_checkpoint_dir_open(&dir, "faults", &(ek_checkpoint_run){&config, 7, 8}));
    return dir;
}

/* The last one that is found, whole; nothing is passed over. */
static uint64_t look(void)
{
    faulty = 0;
    ek_checkpoint_dir *dir = open_dir();
    uint64_t step;
    char path[EK_CHECKPOINT_PATH_BYTES];
    assert_ok(states_find(dir, &step, path));
    assert_string_equal(states_refused, "");
    assert_int_not_equal(step, 0);
    ek_membership *membership = states_membership(&config, 1, 1, 0);
    states_load(path, membership, &config);
    ek_membership_destroy(membership);
    ek_checkpoint_dir_close(dir);
    return step;
}

static void begin(void)
{
    faulty = 0;
    assert_int_equal(system("rm -rf faults"), 0);
    ek_checkpoint_dir *dir = open_dir();
    assert_ok(make_one(dir, 10));
    ek_checkpoint_dir_close(dir);
}

/* Strikes at every call of making the checkpoint `step` beside the one of step 10. */
static void strike_everywhere(uint64_t step, int error)
{
    size_t at = 1, old = 0, new = 0;
    for (bool struck = true; struck; at++) {
        begin();
        ek_checkpoint_dir *dir = open_dir();
        calls = 0;
        faulty = at;
        fault_errno = error;
        ek_status status = make_one(dir, step);
        struck = calls >= at;
        faulty = 0;
        ek_checkpoint_dir_close(dir);
        uint64_t found = look();
        assert_true(found == 10 || found == step);
        assert_true(status != EK_OK || found == step);
        old += found != step;
        new += found == step;
        dir = open_dir();
        assert_ok(make_one(dir, 30)); /* the fault is gone: the next one is made */
        ek_checkpoint_dir_close(dir);
        assert_int_equal(look(), 30);
    }
    print_message("%zu calls fail with %s: step 10 stays %zu times, the new one is there %zu times\n", at - 2,
                  strerror(error), old, new);
    assert_in_range(at, 60, 2000);
}

static void test_every_call_fails(void **state)
{
    (void)state;
    strike_everywhere(20, ENOSPC);
    strike_everywhere(20, EIO);
    strike_everywhere(10, EIO); /* the one that is there is replaced */
}

static void die_everywhere(uint64_t step)
{
    size_t at = 1, old = 0, new = 0;
    for (bool struck = true; struck; at++) {
        begin();
        pid_t run = fork();
        assert_true(run >= 0);
        if (run == 0) {
            ek_checkpoint_dir *dir = open_dir();
            calls = 0;
            faulty = at;
            fault_errno = 0;
            _exit(make_one(dir, step) == EK_OK ? 0 : 1);
        }
        int exit_status;
        assert_int_equal(waitpid(run, &exit_status, 0), run);
        struck = WIFSIGNALED(exit_status);
        assert_true(struck || exit_status == 0);
        uint64_t found = look();
        assert_true(found == 10 || found == step);
        assert_true(struck || found == step);
        old += found != step;
        new += found == step;
        assert_int_equal(system("test $(ls faults | grep -c partial) = 0"), 0);
    }
    print_message("killed at each of %zu calls: step 10 is there %zu times, the new one %zu times\n", at - 2, old, new);
    assert_in_range(at, 60, 2000);
}

static void test_killed_at_every_call(void **state)
{
    (void)state;
    die_everywhere(20);
    die_everywhere(10);
}

/* File systems that cannot take room beforehand (EOPNOTSUPP) are good enough. */
static void test_without_fallocate(void **state)
{
    (void)state;
    begin();
    size_t without = 0;
    for (faulty = 1; faulty < 40; faulty++) { /* one of the calls is it */
        size_t at = faulty;
        faulty = 0;
        ek_checkpoint_dir *dir = open_dir();
        faulty = at;
        calls = 0;
        fault_errno = EOPNOTSUPP;
        ek_status status = make_one(dir, 20 + at);
        ek_checkpoint_dir_close(dir);
        without += status == EK_OK && calls > at;
        if (status == EK_OK)
            assert_int_equal(look(), 20 + at);
        faulty = at;
    }
    assert_int_not_equal(without, 0);
}

static int enter(void **state)
{
    config = (ek_model_config){.layers = 1,
                               .hidden = 4,
                               .heads = 2,
                               .kv_heads = 2,
                               .ffn = 4,
                               .vocab = 4,
                               .sequence = 4,
                               .rope_theta = 1e4f,
                               .norm_eps = 1e-5f};
    return ek_model_config_finish(&config, 2) == EK_OK ? states_enter(state) : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_call_fails),
        cmocka_unit_test(test_killed_at_every_call),
        cmocka_unit_test(test_without_fallocate),
    };
    return cmocka_run_group_tests(tests, enter, states_leave);
}
