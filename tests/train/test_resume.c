/* Runs that end before their time and are gone on with, through the command itself: after SIGTERM, SIGUSR1 and SIGKILL
 * of the whole job at random moments, on other layouts, after the loss of what nobody holds any more. The losses are
 * always those of the unbroken run. EK_SOAK_KILLS says how often the whole job is killed; `make chaos` takes 50. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "base/rng.h"
#include "testing.h"

#define SEED 20270203
enum { STEPS = 40, STEPS_MOST = 1000, WORDS_MOST = 40, RANKS_MOST = 16 };

static char directory[] = "/tmp/evenkeel-resume-XXXXXX";
static size_t kills = 10;

static int enter_directory(void **state)
{
    (void)state;
    if (getenv("EK_SOAK_KILLS"))
        kills = strtoul(getenv("EK_SOAK_KILLS"), NULL, 10);
    if (!mkdtemp(directory) || chdir(directory) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        return -1;
    FILE *file = fopen("dense.yaml", "w");
    fprintf(file,
            "model: {layers: 2, hidden: 32, heads: 4, ffn: 64, vocab: 256, sequence: 16}\n"
            "data: {path: %s}\nparallel: {dp: 2, tp: 2}\nbatch: {global: 8}\n"
            "optimizer: {lr: 1.0e-3, warmup_steps: 10}\n"
            "train: {steps: %d}\nengine: {timeout_seconds: 20}\n",
            TEST_TEXT, STEPS);
    int status = fclose(file);
    file = fopen("experts.yaml", "w");
    fprintf(file,
            "model: {layers: 2, hidden: 32, heads: 4, ffn: 64, vocab: 256, sequence: 16, experts: 8, top_k: 2}\n"
            "data: {path: %s}\nparallel: {mode: ep, dp: 2, tp: 2}\nbatch: {global: 8, micro: 2}\n"
            "optimizer: {lr: 1.0e-3, warmup_steps: 10}\n"
            "train: {steps: %d}\nengine: {timeout_seconds: 20}\n",
            TEST_TEXT, STEPS);
    return status | fclose(file);
}

static int leave_directory(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return chdir("/") | system(command);
}

/* --------------------------------------------------------------------------------------------------- runs */

/* `evenkeel train --config CONFIG.yaml --quiet --metrics CONFIG.jsonl` and these words; stderr goes to "errors". */
static pid_t start(const char *config, const char *words)
{
    char *copy = strdup(words), config_path[64], metrics_path[64];
    snprintf(config_path, sizeof config_path, "%s.yaml", config);
    snprintf(metrics_path, sizeof metrics_path, "%s.jsonl", config);
    const char *arguments[WORDS_MOST] = {"evenkeel", "train",     "--config",  config_path,
                                         "--quiet",  "--metrics", metrics_path};
    size_t count = 7;
    for (char *word = strtok(copy, " "); word && count < WORDS_MOST - 1; word = strtok(NULL, " "))
        arguments[count++] = word;
    pid_t run = fork();
    assert_true(run >= 0);
    if (run == 0) {
        int errors = open("errors", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(errors, STDERR_FILENO);
        execv(COMMAND, (char **)arguments);
        _exit(127);
    }
    free(copy);
    return run;
}

static char errors[4096]; /* of the last run that was waited for */

/* The exit status, or 128 and the signal. */
static int finish(pid_t run)
{
    int exit_status;
    assert_int_equal(waitpid(run, &exit_status, 0), run);
    while (WIFSIGNALED(exit_status) && waitpid(-1, NULL, 0) > 0) /* its ranks: they hold the lock until they are gone */
        ;
    memset(errors, 0, sizeof errors);
    FILE *file = fopen("errors", "r");
    assert_non_null(file);
    size_t ignored = fread(errors, 1, sizeof errors - 1, file);
    (void)ignored;
    fclose(file);
    return WIFSIGNALED(exit_status) ? 128 + WTERMSIG(exit_status) : WEXITSTATUS(exit_status);
}

static void finish_well(pid_t run)
{
    int status = finish(run);
    if (status != 0 || errors[0])
        fail_msg("status %d: %s", status, errors);
}

static void sleep_seconds(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * fmod(seconds, 1.0))};
    nanosleep(&time, NULL);
}

/* What metrics say: of a step that was done again the later line counts. */
typedef struct curve {
    double losses[STEPS_MOST + 1];
    size_t steps, checkpoints, failed, resumed;
    uint64_t resumed_step, checkpoint_step;
    char end[16], reason[512];
} curve;

static void read_curve(const char *path, curve *of)
{
    char line[8192];
    *of = (curve){0};
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        json_t *json = json_loads(line, 0, NULL);
        if (!json) { /* the last one is not whole */
            assert_null(fgets(line, sizeof line, file));
            break;
        }
        const char *event = json_string_value(json_object_get(json, "event"));
        uint64_t step = (uint64_t)json_integer_value(json_object_get(json, "step"));
        if (!event) {
            assert_int_equal(step, of->steps + 1);
            of->losses[++of->steps] = json_real_value(json_object_get(json, "loss"));
        } else if (strcmp(event, "checkpoint") == 0) {
            of->checkpoints++;
            of->checkpoint_step = step;
        } else if (strcmp(event, "checkpoint_failed") == 0) {
            of->failed++;
            snprintf(of->reason, sizeof of->reason, "%s", json_string_value(json_object_get(json, "reason")));
        } else if (strcmp(event, "resumed") == 0) {
            of->resumed++;
            of->resumed_step = step;
            of->steps = step;
        } else if (strcmp(event, "end") == 0) {
            snprintf(of->end, sizeof of->end, "%s", json_string_value(json_object_get(json, "status")));
        }
        json_decref(json);
    }
    fclose(file);
}

static void wait_for_step(const char *path, size_t step)
{
    static curve of;
    do {
        sleep_seconds(0.005);
        read_curve(path, &of);
    } while (of.steps < step);
}

static void assert_same(const curve *expected, const curve *actual, size_t steps)
{
    assert_int_equal(actual->steps, steps);
    for (size_t step = 1; step <= steps; step++) {
        double apart = fabs(actual->losses[step] / expected->losses[step] - 1.0);
        if (!(apart <= (step <= 200 ? 1e-5 : 1e-3)))
            fail_msg("step %zu: loss %.9f, expected %.9f: %.1e apart", step, actual->losses[step],
                     expected->losses[step], apart);
    }
}

static curve unbroken, broken;

/* Drawn out without work, so that there is time to strike. */
#define SLOWLY " --emulate-link 100:1500 "
#define SAVED " --set checkpoint.dir=saved --set checkpoint.every=5 "

static void begin(void)
{
    assert_int_equal(system("rm -rf saved dense.jsonl experts.jsonl"), 0);
    if (unbroken.steps)
        return;
    finish_well(start("dense", ""));
    read_curve("dense.jsonl", &unbroken);
    assert_int_equal(unbroken.steps, STEPS);
    assert_int_equal(unlink("dense.jsonl"), 0);
}

static const char *const layouts[] = {
    "--set parallel.dp=2 --set parallel.tp=2",
    "--set parallel.dp=1 --set parallel.tp=4",
    "--set parallel.dp=1 --set parallel.tp=1",
    "--set parallel.dp=2 --set parallel.tp=3 --set parallel.degrees=[3,2] --set checkpoint.async=false",
    "--set parallel.dp=3 --set parallel.tp=2 --set recovery.spares=1",
    "--set parallel.dp=2 --set parallel.tp=4 --set model.ffn_block=8",
};
#define LAYOUTS (sizeof layouts / sizeof *layouts)

static const char *with(const char *more, const char *layout)
{
    static char words[1024];
    snprintf(words, sizeof words, "%s %s", more, layout);
    return words;
}

/* ------------------------------------------------------------------------------------------------ signals */

static void test_unbroken(void **state)
{
    (void)state;
    begin();
    finish_well(start("dense", SAVED)); /* checkpoints change nothing */
    read_curve("dense.jsonl", &broken);
    assert_same(&unbroken, &broken, STEPS);
    assert_int_equal(broken.checkpoints, STEPS / 5);
    assert_int_equal(access("saved/step-0000000040", F_OK), 0);
    /* all steps are done already: ends at once */
    finish_well(start("dense", SAVED "--resume"));
    read_curve("dense.jsonl", &broken);
    assert_string_equal(broken.end, "done");
    assert_int_equal(broken.resumed_step, STEPS);
    assert_same(&unbroken, &broken, STEPS);
}

static void test_sigterm(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++) {
        begin();
        pid_t run = start("dense", "--set checkpoint.dir=saved" SLOWLY);
        wait_for_step("dense.jsonl", 7 + layout);
        kill(run, SIGTERM);
        assert_int_equal(finish(run), 1);
        assert_non_null(strstr(errors, "; --resume goes on from there"));
        read_curve("dense.jsonl", &broken);
        assert_string_equal(broken.end, "failed");
        assert_int_equal(broken.checkpoints, 1);
        assert_int_equal(broken.checkpoint_step, broken.steps);
        assert_in_range(broken.steps, 7 + layout, STEPS - 1);
        FILE *torn = fopen("dense.jsonl", "a");
        fputs("{\"step\": 9", torn);
        fclose(torn);
        finish_well(start("dense", with("--set checkpoint.dir=saved --resume", layouts[layout])));
        read_curve("dense.jsonl", &broken);
        assert_int_equal(broken.resumed, 1);
        assert_string_equal(broken.end, "done");
        assert_same(&unbroken, &broken, STEPS);
    }
}

static void test_sigusr1(void **state)
{
    (void)state;
    begin();
    pid_t run = start("dense", "--set checkpoint.dir=saved" SLOWLY "--kill 3:0.0"); /* rank 0 is not needed for it */
    wait_for_step("dense.jsonl", 7);
    kill(run, SIGUSR1);
    do {
        sleep_seconds(0.005);
        read_curve("dense.jsonl", &broken);
    } while (!broken.checkpoints);
    size_t saved = broken.checkpoint_step;
    assert_in_range(saved, 7, STEPS - 1);
    wait_for_step("dense.jsonl", saved + 4);
    read_curve("dense.jsonl", &broken);
    assert_int_equal(broken.checkpoints, 1); /* one, not one a step from now on */
    kill(run, SIGKILL);
    assert_int_equal(finish(run), 128 + SIGKILL);
    finish_well(start("dense", "--set checkpoint.dir=saved --resume --set parallel.dp=1"));
    read_curve("dense.jsonl", &broken);
    assert_int_equal(broken.resumed_step, saved);
    assert_same(&unbroken, &broken, STEPS);
}

static void test_signals_without_checkpoints(void **state)
{
    (void)state;
    begin();
    pid_t run = start("dense", SLOWLY);
    wait_for_step("dense.jsonl", 3);
    kill(run, SIGUSR1);
    wait_for_step("dense.jsonl", 6);
    kill(run, SIGTERM);
    assert_int_equal(finish(run), 1);
    assert_non_null(strstr(errors, "the job was ended by"));
}

/* -------------------------------------------------------------------------------------- the whole job killed */

static size_t ranks_of(pid_t launcher, pid_t ranks[RANKS_MOST])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", launcher, launcher);
    FILE *file = fopen(path, "r");
    size_t count = 0;
    while (file && count < RANKS_MOST && fscanf(file, "%d", &ranks[count]) == 1)
        count++;
    if (file)
        fclose(file);
    return count;
}

/* At a random moment, the launching process first or the ranks. Every run goes on on another layout, and finds no
 * checkpoint that is torn. */
static void test_whole_job_killed(void **state)
{
    (void)state;
    static curve whole;
    char steps[160];
    size_t count = 10 + 6 * kills, resumed = 0;
    assert_true(count <= STEPS_MOST);
    begin();
    snprintf(steps, sizeof steps, "--set train.steps=%zu", count);
    finish_well(start("dense", steps));
    read_curve("dense.jsonl", &whole);
    assert_int_equal(unlink("dense.jsonl"), 0);
    snprintf(steps, sizeof steps, "--set train.steps=%zu --set checkpoint.dir=saved --set checkpoint.every=3 --resume",
             count);
    for (size_t i = 0; i < kills; i++) {
        char words[300];
        snprintf(words, sizeof words, "%s" SLOWLY, steps);
        pid_t run = start("dense", with(words, layouts[ek_random_u64(SEED, i, 0) % LAYOUTS])), ranks[RANKS_MOST];
        size_t before = broken.steps;
        /* mostly once it has got somewhere, on a machine of any speed; sometimes before it has begun */
        for (double waited = 0.0; ek_random_u64(SEED, i, 3) % 4 && waited < 20.0; waited += 0.005) {
            sleep_seconds(0.005);
            read_curve("dense.jsonl", &broken);
            if (broken.steps >= before + 2 || broken.end[0])
                break;
        }
        sleep_seconds(0.15 * ek_random_uniform(SEED, i, 1));
        size_t rank_count = ranks_of(run, ranks);
        if (ek_random_u64(SEED, i, 2) % 2)
            kill(run, SIGKILL);
        for (size_t rank = 0; rank < rank_count; rank++)
            kill(ranks[rank], SIGKILL);
        kill(run, SIGKILL);
        finish(run);
        if (errors[0] && !strstr(errors, "lost")) /* it may have lived to see its ranks die */
            fail_msg("kill %zu: %s", i, errors);
    }
    finish_well(start("dense", steps));
    read_curve("dense.jsonl", &broken);
    resumed = broken.resumed;
    print_message("killed %zu times, gone on %zu times, %zu steps\n", kills, resumed, count);
    assert_string_equal(broken.end, "done");
    assert_true(resumed >= kills / 2);
    assert_same(&whole, &broken, count);
}

static void test_experts(void **state)
{
    (void)state;
    static curve whole;
    begin();
    finish_well(start("experts", "--routes record:routes"));
    read_curve("experts.jsonl", &whole);
    assert_int_equal(unlink("experts.jsonl"), 0);
    static const char *const others[] = {"", "--set parallel.mode=tp --set parallel.tp=4",
                                         "--set parallel.dp=1 --set parallel.tp=4",
                                         "--set parallel.dp=3 --set parallel.degrees=[2,1,2]"};
    pid_t run;
    for (size_t i = 0; i < 4; i++) {
        run = start("experts", with(SAVED SLOWLY "--resume --routes replay:routes", others[i]));
        wait_for_step("experts.jsonl", 8 * (i + 1));
        kill(run, i % 2 ? SIGKILL : SIGTERM);
        finish(run);
    }
    finish_well(start("experts", SAVED "--resume --routes replay:routes --set parallel.dp=1 --set parallel.tp=1"));
    read_curve("experts.jsonl", &broken);
    assert_true(broken.resumed >= 4);
    assert_same(&whole, &broken, STEPS);
}

/* ------------------------------------------------------------------------------------------------- losses */

/* One replica: what a rank held is gone. */
static void test_goes_back(void **state)
{
    (void)state;
    begin();
    finish_well(start("dense", SAVED "--set parallel.dp=1 --set parallel.tp=3 --kill 18:0.1 --kill 33:0.2@commit"));
    read_curve("dense.jsonl", &broken);
    assert_int_equal(broken.resumed, 2);
    assert_in_range(broken.resumed_step, 25, 33); /* a checkpoint may have been in the making */
    assert_string_equal(broken.end, "done");
    assert_same(&unbroken, &broken, STEPS);
    /* both replicas lose the same role; the run itself was gone on with */
    begin();
    finish_well(start("dense", SAVED "--set train.steps=40 --kill 18:0.1 --kill 18:1.1"));
    read_curve("dense.jsonl", &broken);
    assert_in_range(broken.resumed, 0, 1); /* 0: the first loss was recovered before the second */
    assert_same(&unbroken, &broken, STEPS);
}

static void test_without_a_checkpoint_the_loss_stays(void **state)
{
    (void)state;
    begin();
    assert_int_equal(finish(start("dense", "--set checkpoint.dir=saved --set parallel.dp=1 --kill 18:0.1")), 1);
    assert_non_null(strstr(errors, "unit"));
    read_curve("dense.jsonl", &broken);
    assert_string_equal(broken.end, "failed");
    assert_int_equal(broken.steps, 17);
}

/* Whatever becomes of the checkpoint, the run goes on. */
static void test_rank_lost_while_it_writes(void **state)
{
    (void)state;
    static const char *const phases[] = {"forward", "backward", "sync", "commit", "optimizer"};
    for (size_t i = 0; i < 5; i++) {
        char words[300];
        begin();
        snprintf(words, sizeof words, SAVED "--set recovery.spares=%zu --kill %zu:1.1@%s --kill %zu:0.0@%s", i % 2,
                 i < 3 ? (size_t)11 : 10, phases[i], i < 3 ? (size_t)21 : 20, phases[i]);
        finish_well(start("dense", words));
        read_curve("dense.jsonl", &broken);
        assert_same(&unbroken, &broken, STEPS);
        assert_int_equal(broken.checkpoints + broken.failed, STEPS / 5);
        if (broken.failed > 4) /* of each of the two it may have been at one, and due to begin the next */
            fail_msg("%zu checkpoints failed, the last one: %s", broken.failed, broken.reason);
        assert_int_equal(system("test $(ls saved | grep -c partial) = 0"), 0);
    }
}

/* A disk with room for two or three of four: what does not fit does not become one, the others stay, the run goes on.
 */
static void test_full_disk(void **state)
{
    (void)state;
    begin();
    assert_true(mkdir("full", 0777) == 0 || errno == EEXIST);
    if (mount("tmpfs", "full", "tmpfs", 0, "size=1500k") != 0)
        skip(); /* not root */
    pid_t run = start("dense", "--set checkpoint.dir=full/saved --set checkpoint.every=10 --set checkpoint.keep=0");
    int status = finish(run);
    read_curve("dense.jsonl", &broken);
    assert_int_equal(status, 0);
    int resumed = finish(start("dense", "--set checkpoint.dir=full/saved --resume"));
    static curve after;
    read_curve("dense.jsonl", &after);
    assert_int_equal(umount("full"), 0);
    assert_same(&unbroken, &broken, STEPS);
    assert_in_range(broken.checkpoints, 2, 3);
    assert_int_equal(broken.checkpoints + broken.failed, 4);
    assert_non_null(strstr(broken.reason, "No space left on device"));
    assert_int_equal(resumed, 0);
    assert_int_equal(after.resumed_step, broken.checkpoint_step);
    assert_same(&unbroken, &after, STEPS);
}

/* ---------------------------------------------------------------------------------------------- refusals */

static void assert_refused(const char *words, const char *what)
{
    assert_int_equal(finish(start("dense", words)), 2);
    if (!strstr(errors, what))
        fail_msg("\"%s\" says nothing of \"%s\"", errors, what);
    assert_int_equal(errors[strlen(errors) - 1], '\n');
}

static void test_refusals(void **state)
{
    (void)state;
    begin();
    finish_well(start("dense", SAVED "--set train.steps=5"));
    assert_refused(SAVED, "--resume goes on from them");
    assert_refused(SAVED "--resume --set train.steps=4", "train.steps is 4");
    assert_refused(SAVED "--resume --set train.seed=5", "train.seed");
    assert_refused(SAVED "--resume --set batch.global=4", "batch.global");
    assert_refused(SAVED "--resume --set model.ffn=96", "intermediate_size");
    assert_refused(SAVED "--resume --set model.sequence=8", "model.sequence");
    assert_refused("--set checkpoint.dir=no/such", "checkpoint.dir: no/such: cannot be made");
    assert_refused("--set checkpoint.dir=dense.yaml", "checkpoint.dir: dense.yaml");
    assert_refused("--set checkpoint.weights=no/such", "checkpoint.weights: no/such");
    assert_refused("--set checkpoint.weights=saved/step-0000000005 --set model.layers=3", "num_hidden_layers");
    assert_refused("--resume", "checkpoint.dir is needed");
    assert_int_equal(system("rm -r saved"), 0);
    unlink("dense.jsonl"); /* of the run before */
    pid_t run = start("dense", SAVED SLOWLY);
    wait_for_step("dense.jsonl", 2);
    kill(run, SIGSTOP); /* it does not end meanwhile, however busy the machine is */
    int second = finish(start("dense", "--set checkpoint.dir=saved --resume --metrics other.jsonl"));
    bool says_why = strstr(errors, "another run writes there");
    kill(run, SIGKILL); /* before anything is asserted: a stopped process would outlive the test */
    finish(run);
    assert_int_equal(second, 2);
    assert_true(says_why);
}

/* A bit in the newest one flips: the one before it is used, and what is wrong is said. */
static void test_damaged(void **state)
{
    (void)state;
    begin();
    finish_well(start("dense", SAVED "--set train.steps=20 --set optimizer.min_lr=1e-3"));
    assert_int_equal(
        system("printf x | dd of=saved/step-0000000020/optimizer.safetensors bs=1 seek=20000 conv=notrunc 2>/dev/null"),
        0);
    finish_well(start("dense", "--set train.steps=30 --set optimizer.min_lr=1e-3"));
    read_curve("dense.jsonl", &broken);
    curve *expected = malloc(sizeof *expected);
    *expected = broken;
    assert_int_equal(finish(start("dense", SAVED "--resume --set train.steps=30 --set optimizer.min_lr=1e-3")), 0);
    assert_non_null(strstr(errors, "a checkpoint is passed over: saved/step-0000000020: the "));
    read_curve("dense.jsonl", &broken);
    assert_int_equal(broken.resumed_step, 15);
    for (size_t step = 16; step <= 30; step++)
        assert_true(fabs(broken.losses[step] / expected->losses[step] - 1.0) <= 1e-5);
    free(expected);
    finish_well(start("dense", SAVED "--resume --set train.steps=30")); /* it was replaced */
}

/* A run may begin with the weights of another. */
static void test_initial_weights(void **state)
{
    (void)state;
    begin();
    finish_well(start("dense", SAVED));
    finish_well(start("dense", "--set checkpoint.weights=saved/step-0000000040 --set train.steps=3"));
    read_curve("dense.jsonl", &broken);
    if (!(broken.losses[1] < (unbroken.losses[STEPS] + unbroken.losses[1]) / 2))
        fail_msg("%g, after a run from %g to %g", broken.losses[1], unbroken.losses[1], unbroken.losses[STEPS]);
    double first = broken.losses[1];
    finish_well(
        start("dense", "--set checkpoint.weights=saved/step-0000000040 --set train.steps=3 --set parallel.tp=4"));
    read_curve("dense.jsonl", &broken);
    assert_true(fabs(broken.losses[1] / first - 1.0) <= 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unbroken),
        cmocka_unit_test(test_sigterm),
        cmocka_unit_test(test_sigusr1),
        cmocka_unit_test(test_signals_without_checkpoints),
        cmocka_unit_test(test_whole_job_killed),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_goes_back),
        cmocka_unit_test(test_without_a_checkpoint_the_loss_stays),
        cmocka_unit_test(test_rank_lost_while_it_writes),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_initial_weights),
    };
    return cmocka_run_group_tests(tests, enter_directory, leave_directory);
}
