/* The command itself under fire: ranks killed from outside at random moments; the supervisor ended by SIGTERM, SIGINT
 * and SIGKILL at random moments. Afterwards no process of the run lives, and nothing is left in /dev/shm and in the
 * folder for temporary files. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "base/rng.h"
#include "entries.h"
#include "testing.h"

#define SEED 7
enum { STEPS = 150, RANKS_MOST = 16, RANKS = 8, KILL_RUNS = 20, SUPERVISOR_RUNS = 12 };

static char directory[] = "/tmp/evenkeel-processes-XXXXXX"; /* also the TMPDIR of the runs */

static int enter_directory(void **state)
{
    (void)state;
    if (!mkdtemp(directory) || chdir(directory) != 0 || mkdir("tmp", 0700) != 0 || setenv("TMPDIR", "tmp", 1) != 0)
        return -1;
    FILE *file = fopen("run.yaml", "w");
    fprintf(file,
            "model: {layers: 2, hidden: 64, heads: 8, kv_heads: 4, ffn: 176, vocab: 256, sequence: 32}\n"
            "data: {path: %s}\n"
            "parallel: {dp: 2, tp: 4}\n"
            "batch: {global: 8, micro: 2}\n"
            "train: {steps: 150}\nhealth: {compare_every: 1}\n"
            "engine: {timeout_seconds: 5}\n",
            TEST_TEXT);
    return fclose(file);
}

static int leave_directory(void **state)
{
    (void)state;
    return system("rm -rf tmp run.yaml *.jsonl") | rmdir(directory);
}

static void sleep_seconds(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * fmod(seconds, 1.0))};
    nanosleep(&time, NULL);
}

static pid_t start(const char *metrics, const char *steps)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        execl(COMMAND, "evenkeel", "train", "--config", "run.yaml", "--quiet", "--metrics", metrics, "--set", steps,
              (char *)NULL);
        _exit(127);
    }
    return child;
}

/* The ranks of a run, as far as they have been started. */
static size_t children_of(pid_t supervisor, pid_t ranks[RANKS_MOST])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", supervisor, supervisor);
    FILE *file = fopen(path, "r");
    size_t count = 0;
    while (file && count < RANKS_MOST && fscanf(file, "%d", &ranks[count]) == 1)
        count++;
    if (file)
        fclose(file);
    return count;
}

/* Fails if a rank lives on for more than ten seconds. */
static void assert_gone(const pid_t *ranks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double waited = 0.0;
        for (; kill(ranks[i], 0) == 0 && waited < 10.0; waited += 0.01)
            sleep_seconds(0.01);
        if (waited >= 10.0)
            fail_msg("rank process %d has outlived its run", ranks[i]);
    }
}

static size_t read_losses(const char *path, double *losses, const char **status)
{
    static char end[16];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t steps = 0;
    json_t *line;
    end[0] = '\0';
    while ((line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL))) {
        json_t *step = json_object_get(line, "step"), *event = json_object_get(line, "event");
        if (!event) {
            assert_int_equal(json_integer_value(step), ++steps);
            losses[steps] = json_real_value(json_object_get(line, "loss"));
        } else if (strcmp(json_string_value(event), "end") == 0)
            snprintf(end, sizeof end, "%s", json_string_value(json_object_get(line, "status")));
        json_decref(line);
    }
    fclose(file);
    *status = end;
    return steps;
}

static double losses_undisturbed[STEPS + 1], seconds_undisturbed;

static void test_undisturbed(void **state)
{
    (void)state;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    pid_t run = start("undisturbed.jsonl", "train.steps=150");
    int exit_status;
    assert_int_equal(waitpid(run, &exit_status, 0), run);
    clock_gettime(CLOCK_MONOTONIC, &end);
    assert_int_equal(exit_status, 0);
    const char *status;
    assert_int_equal(read_losses("undisturbed.jsonl", losses_undisturbed, &status), STEPS);
    assert_string_equal(status, "done");
    seconds_undisturbed = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}

/* One to three ranks killed from outside, whatever they are doing. Unless both copies of a unit went, the curve is the
 * same. */
static void test_ranks_killed_at_random_moments(void **state)
{
    (void)state;
    size_t finished = 0;
    for (uint64_t i = 0; i < KILL_RUNS; i++) {
        pid_t run = start("killed.jsonl", "train.steps=150"), ranks[RANKS_MOST];
        uint64_t counter = 0;
        uint64_t kills = 1 + ek_random_u64(SEED, i, counter++) % 3;
        for (uint64_t k = 0; k < kills; k++) {
            sleep_seconds(seconds_undisturbed / 3.0 * ek_random_uniform(SEED, i, counter++));
            size_t count = children_of(run, ranks);
            if (count)
                kill(ranks[ek_random_u64(SEED, i, counter++) % count], SIGKILL);
        }
        int exit_status;
        assert_int_equal(waitpid(run, &exit_status, 0), run);
        assert_true(WIFEXITED(exit_status));
        const char *status;
        double losses[STEPS + 1];
        size_t steps = read_losses("killed.jsonl", losses, &status);
        for (size_t step = 1; step <= steps; step++)
            assert_true(fabs(losses[step] / losses_undisturbed[step] - 1.0) <= 1e-5);
        if (WEXITSTATUS(exit_status) == 0) {
            assert_int_equal(steps, STEPS);
            assert_string_equal(status, "done");
            finished++;
        } else {
            assert_int_equal(WEXITSTATUS(exit_status), 1);
            assert_string_equal(status, "failed");
            assert_true(kills > 1);
        }
    }
    print_message("%zu of %d runs finished\n", finished, KILL_RUNS);
    assert_true(finished > KILL_RUNS / 2);
}

static void test_supervisor_ended_at_random_moments(void **state)
{
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT, SIGKILL};
    size_t shm_entries = entries_of("/dev/shm");
    for (uint64_t i = 0; i < SUPERVISOR_RUNS; i++) {
        int number = signals[i % 3];
        pid_t run = start("ended.jsonl", "train.steps=100000"), ranks[RANKS_MOST];
        sleep_seconds(seconds_undisturbed * ek_random_uniform(SEED, 1000 + i, 0));
        size_t count = children_of(run, ranks);
        kill(run, number);
        int exit_status;
        assert_int_equal(waitpid(run, &exit_status, 0), run);
        if (number == SIGKILL || WIFSIGNALED(exit_status)) /* the others too, if they came before the launch */
            assert_int_equal(WTERMSIG(exit_status), number);
        else
            assert_int_equal(WEXITSTATUS(exit_status), 1);
        assert_gone(ranks, count);
        assert_int_equal(entries_of("/dev/shm"), shm_entries);
        assert_int_equal(entries_of("tmp"), 2); /* . and .. */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_undisturbed),
        cmocka_unit_test(test_ranks_killed_at_random_moments),
        cmocka_unit_test(test_supervisor_ended_at_random_moments),
    };
    return cmocka_run_group_tests(tests, enter_directory, leave_directory);
}
