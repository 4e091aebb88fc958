/* Hundreds of failures in one job, through the command itself: every five steps a rank is killed or stopped in a phase
 * drawn from a seed, and started again two steps later. Every step is committed once, the losses are those of an
 * unbroken run, the memory of the supervisor and of a rank that lives through it all does not grow, and nothing is left
 * behind. EK_SOAK_FAILURES says how many failures; `make chaos` takes 2000. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "base/rng.h"
#include "entries.h"
#include "testing.h"
#include "train/train.h"

#define SEED 20270117
enum {
    REPLICAS = 2,
    TP = 4,
    RANKS = REPLICAS * TP,
    SURVIVOR = 3, /* the rank that is left alone */
    FIRST = 20,   /* step of the first failure */
    EVERY = 5,    /* steps from one to the next */
    BACK_AFTER = 2,
    HANG_EVERY = 20,
    REST = 120, /* steps after the last one, for all to be back */
    RECENT = 4, /* failures before a rank is hit again: it takes some steps to come back */
    SETTLED = 50,
    GROWTH_MOST = 512 * 1024, /* bytes, from failure SETTLED on */
};

static char directory[] = "/tmp/evenkeel-soak-XXXXXX";
/* More are planned than wanted: a rank that is not back yet cannot fail. */
static size_t failures_wanted = 200, failures_planned, steps;

static int enter_directory(void **state)
{
    (void)state;
    const char *wanted = getenv("EK_SOAK_FAILURES");
    if (wanted)
        failures_wanted = strtoul(wanted, NULL, 10);
    failures_planned = failures_wanted + failures_wanted / 20;
    steps = FIRST + EVERY * failures_planned + REST;
    /* what outlives the supervisor becomes a child of this process, which then sees it */
    if (!mkdtemp(directory) || chdir(directory) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        return -1;
    FILE *file = fopen("run.yaml", "w");
    fprintf(file,
            "model: {layers: 2, hidden: 32, heads: 4, ffn: 64, vocab: 256, sequence: 16}\n"
            "data: {path: %s}\n"
            "parallel: {dp: %d, tp: %d}\n"
            "batch: {global: 8}\n"
            "optimizer: {lr: 1.0e-3, warmup_steps: 10}\n"
            "train: {steps: %zu}\nhealth: {compare_every: 10}\n"
            "engine: {timeout_seconds: 1}\n",
            TEST_TEXT, REPLICAS, TP, steps);
    return fclose(file);
}

static int leave_directory(void **state)
{
    (void)state;
    return remove("run.yaml") | remove("unbroken.jsonl") | remove("broken.jsonl") | rmdir(directory);
}

/* ------------------------------------------------------------------------------------------- the schedule */

typedef struct command_words {
    char **words;
    size_t count;
    uint64_t counter; /* of draws */
    uint32_t recent[RECENT];
    size_t failures;
} command_words;

static void add_word(command_words *arguments, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    assert_true(vasprintf(&arguments->words[arguments->count++], format, list) >= 0);
    va_end(list);
}

static bool may_fail(const command_words *arguments, uint32_t rank)
{
    for (size_t i = 0; i < RECENT; i++)
        if (arguments->failures > i && arguments->recent[i] == rank)
            return false;
    return rank != SURVIVOR;
}

/* Of one replica, or with REPLICAS of any; RANKS if none may fail. */
static uint32_t draw_rank(command_words *arguments, uint32_t replica)
{
    uint32_t first = (uint32_t)(ek_random_u64(SEED, 0, arguments->counter++) % RANKS);
    for (uint32_t i = 0; i < RANKS; i++) {
        uint32_t rank = (first + i) % RANKS;
        if (may_fail(arguments, rank) && (replica == REPLICAS || rank / TP == replica))
            return rank;
    }
    return RANKS;
}

static void add_failure(command_words *arguments, size_t step, uint32_t rank, ek_phase phase)
{
    bool hang = arguments->failures % HANG_EVERY == HANG_EVERY - 1;
    add_word(arguments, "--%s", hang ? "hang" : "kill");
    add_word(arguments, "%zu:%u.%u@%s", step, rank / TP, rank % TP, ek_phase_name(phase));
    add_word(arguments, "--rejoin");
    add_word(arguments, "%zu:%u.%u", step + BACK_AFTER, rank / TP, rank % TP);
    arguments->recent[arguments->failures++ % RECENT] = rank;
}

/* A rank that dies in recovery needs another's death to recover from: one in its own replica, so that the other replica
 * has all units. */
static void draw_schedule(command_words *arguments)
{
    while (arguments->failures < failures_planned) {
        size_t step = FIRST + EVERY * arguments->failures;
        ek_phase phase = (ek_phase)(ek_random_u64(SEED, 0, arguments->counter++) % EK_PHASES);
        uint32_t rank = draw_rank(arguments, REPLICAS);
        add_failure(arguments, step, rank, phase == EK_PHASE_RECOVERY ? EK_PHASE_BACKWARD : phase);
        uint32_t other = phase == EK_PHASE_RECOVERY ? draw_rank(arguments, rank / TP) : RANKS;
        if (other != RANKS)
            add_failure(arguments, step, other, EK_PHASE_RECOVERY);
    }
}

/* ------------------------------------------------------------------------------------------------- a run */

typedef struct soak_run {
    pid_t supervisor, survivor;
    FILE *metrics;
    double *losses; /* [steps + 1] */
    size_t committed, failures, rejoined;
    char status[16], reason[512]; /* of the end */
    uint32_t degrees[REPLICAS];   /* of the last step */
    long early[2], late[2];       /* most private bytes of supervisor and survivor: until failure SETTLED, and after */
} soak_run;

static void start(soak_run *run, const char *metrics, bool broken)
{
    command_words arguments = {.words = calloc(16 + 4 * (failures_planned + 1), sizeof *arguments.words)};
    assert_non_null(arguments.words);
    const char *const fixed[] = {"evenkeel", "train", "--config", "run.yaml", "--quiet", "--metrics", metrics};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        add_word(&arguments, "%s", fixed[i]);
    if (broken) {
        /* drawn out without work: who is not back when the rank it should die with does, dies in another recovery, with
         * one of the other replica, and units may be lost */
        add_word(&arguments, "--emulate-link");
        add_word(&arguments, "100:200");
        draw_schedule(&arguments);
    }
    fclose(fopen(metrics, "w"));
    run->metrics = fopen(metrics, "r");
    run->losses = calloc(steps + 1, sizeof *run->losses);
    assert_true(run->metrics && run->losses);
    run->supervisor = fork();
    assert_true(run->supervisor >= 0);
    if (run->supervisor == 0) {
        execv(COMMAND, arguments.words);
        _exit(127);
    }
    for (size_t i = 0; i < arguments.count; i++)
        free(arguments.words[i]);
    free(arguments.words);
}

/* Ranks are started in order. 0: not yet. */
static pid_t find_survivor(pid_t supervisor)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", supervisor, supervisor);
    FILE *file = fopen(path, "r");
    pid_t ranks[RANKS], survivor = 0;
    size_t count = 0;
    while (file && count < RANKS && fscanf(file, "%d", &ranks[count]) == 1)
        count++;
    if (count == RANKS)
        survivor = ranks[SURVIVOR];
    if (file)
        fclose(file);
    return survivor;
}

/* Memory that a process shares with none; 0: it has ended. */
static long private_bytes(pid_t process)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/statm", process);
    FILE *file = fopen(path, "r");
    long resident = 0, shared = 0;
    if (file) {
        if (fscanf(file, "%*d %ld %ld", &resident, &shared) != 2)
            resident = shared = 0;
        fclose(file);
    }
    return (resident - shared) * sysconf(_SC_PAGESIZE);
}

static void take_in(soak_run *run, json_t *line)
{
    const char *event = json_string_value(json_object_get(line, "event"));
    if (!event) {
        assert_int_equal(json_integer_value(json_object_get(line, "step")), ++run->committed);
        run->losses[run->committed] = json_real_value(json_object_get(line, "loss"));
        for (size_t r = 0; r < REPLICAS; r++)
            run->degrees[r] = (uint32_t)json_integer_value(
                json_object_get(json_array_get(json_object_get(line, "replicas"), r), "tp"));
    } else if (strcmp(event, "failure") == 0) {
        run->failures++;
    } else if (strcmp(event, "rejoined") == 0) {
        run->rejoined++;
    } else if (strcmp(event, "end") == 0) {
        snprintf(run->status, sizeof run->status, "%s", json_string_value(json_object_get(line, "status")));
        if (strcmp(run->status, "done") != 0)
            snprintf(run->reason, sizeof run->reason, "%s", json_string_value(json_object_get(line, "reason")));
    }
}

/* The lines that have been written since the last call. */
static void follow_metrics(soak_run *run)
{
    static char text[4096];
    clearerr(run->metrics);
    for (long place = ftell(run->metrics); fgets(text, sizeof text, run->metrics); place = ftell(run->metrics)) {
        json_t *line = json_loads(text, 0, NULL);
        if (!line) { /* not yet written to its end */
            fseek(run->metrics, place, SEEK_SET);
            return;
        }
        take_in(run, line);
        json_decref(line);
    }
}

static void watch_memory(soak_run *run)
{
    if (run->committed && !run->survivor)
        run->survivor = find_survivor(run->supervisor);
    const pid_t processes[2] = {run->supervisor, run->survivor};
    long *most = run->failures < SETTLED ? run->early : run->late;
    for (size_t i = 0; run->survivor && i < 2; i++) {
        long bytes = private_bytes(processes[i]);
        most[i] = bytes > most[i] ? bytes : most[i];
    }
}

static void finish(soak_run *run)
{
    int exit_status;
    pid_t ended;
    while ((ended = waitpid(run->supervisor, &exit_status, WNOHANG)) == 0) {
        follow_metrics(run);
        watch_memory(run);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    assert_int_equal(ended, run->supervisor);
    follow_metrics(run);
    fclose(run->metrics);
    if (exit_status != 0 || strcmp(run->status, "done") != 0)
        fail_msg("wait status %d after %zu steps and %zu failures: %s", exit_status, run->committed, run->failures,
                 run->reason);
    assert_int_equal(run->committed, steps);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no process is left */
    assert_int_equal(errno, ECHILD);
}

static void test_soak(void **state)
{
    (void)state;
    size_t shm_entries = entries_of("/dev/shm");
    soak_run unbroken = {0}, broken = {0};
    start(&unbroken, "unbroken.jsonl", false);
    finish(&unbroken);
    start(&broken, "broken.jsonl", true);
    finish(&broken);
    print_message("%zu failures, %zu returns in %zu steps; last loss %.6f, unbroken %.6f; private memory: supervisor "
                  "%ld to %ld KiB, rank %ld to %ld KiB\n",
                  broken.failures, broken.rejoined, steps, broken.losses[steps], unbroken.losses[steps],
                  broken.early[0] / 1024, broken.late[0] / 1024, broken.early[1] / 1024, broken.late[1] / 1024);
    assert_int_equal(unbroken.failures, 0);
    assert_in_range(broken.failures, failures_wanted, failures_planned + 1);
    for (size_t r = 0; r < REPLICAS; r++)
        assert_int_equal(broken.degrees[r], TP);
    for (size_t step = 1; step <= 200 && step <= steps; step++)
        assert_true(fabs(broken.losses[step] / unbroken.losses[step] - 1.0) <= 1e-5);
    assert_true(fabs(broken.losses[steps] / unbroken.losses[steps] - 1.0) <= 1e-3);
    for (size_t i = 0; i < 2; i++) {
        assert_true(broken.early[i] > 0 && broken.late[i] > 0);
        assert_true(broken.late[i] - broken.early[i] <= GROWTH_MOST);
    }
    assert_int_equal(entries_of("/dev/shm"), shm_entries);
    free(unbroken.losses);
    free(broken.losses);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_soak)};
    return cmocka_run_group_tests(tests, enter_directory, leave_directory);
}
