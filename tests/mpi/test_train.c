/* Training by mpirun: the losses are those of the engine "shm", to the bit, in every layout; checkpoints go from one
 * engine to the other; what the engine cannot do is refused, by one line. */
#include "mpi/runs.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static void test_same_losses(void **state)
{
    (void)state;
    static const struct {
        uint32_t ranks;
        const char *base, *words;
    } jobs[] = {
        {4, "small", "--set parallel.tp=2"},
        {7, "small", "--set parallel.degrees=[4,3]"},
        {5, "small", "--set parallel.tp=2 --set recovery.spares=1"},
        {6, "experts", "--set parallel.mode=tp --set parallel.dp=3 --set parallel.tp=2"},
        {5, "experts", "--set parallel.mode=ep --set parallel.tp=3 --set parallel.degrees=[3,2]"},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        char words[256];
        training_result expected, result;
        snprintf(words, sizeof words, "--set train.steps=15 --set engine.timeout_seconds=20 %s", jobs[i].words);
        assert_int_equal(run_whole(BY_ITSELF, 0, jobs[i].base, words, &expected), 0);
        assert_int_equal(expected.steps, 15);
        assert_int_equal(run_whole(BY_MPIRUN, jobs[i].ranks, jobs[i].base, words, &result), 0);
        assert_same_curve(&expected, &result, 0.0);
        assert_string_equal(result.degrees, expected.degrees);
    }
}

/* --------------------------------------------------------------------------------------------- checkpoints */

#define LONG "--set train.steps=200 --set health.compare_every=0 --set engine.timeout_seconds=20 "
#define SAVED "--set checkpoint.dir=saved --set checkpoint.every=25 "

static void assert_stopped(pid_t run, const training_result *unbroken)
{
    char errors[1024];
    assert_int_not_equal(finish_mpirun(run, 20), 0);
    assert_int_equal(own_errors(errors, sizeof errors), 1);
    if (!strstr(errors, "--resume goes on from there"))
        fail_msg("%s", errors);
    assert_true(assert_same_losses(unbroken, 1e-5) < 200);
}

/* Begun by "shm", gone on with by "mpi" on another layout, ended by "shm". */
static void test_from_engine_to_engine(void **state)
{
    (void)state;
    training_result unbroken;
    assert_int_equal(run_whole(BY_ITSELF, 0, "small", LONG "--set parallel.tp=2", &unbroken), 0);

    pid_t run = start_run(BY_ITSELF, 0, "small", LONG SAVED "--set parallel.tp=2");
    await_lines(30);
    kill(run, SIGTERM);
    assert_stopped(run, &unbroken);

    mpirun_processes processes;
    run = start_run(BY_MPIRUN, 3, "small", LONG SAVED "--set parallel.tp=2 --set parallel.degrees=[2,1] --resume");
    find_processes(3, &processes);
    await_lines(30);
    kill(processes.guards[0], SIGUSR2);
    assert_stopped(run, &unbroken);

    run = start_run(BY_ITSELF, 0, "small", LONG SAVED "--set parallel.tp=3 --resume");
    assert_int_equal(finish_mpirun(run, 20), 0);
    assert_int_equal(assert_same_losses(&unbroken, 1e-5), 200);
}

/* ------------------------------------------------------------------------------------------------ refusals */

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        uint32_t ranks;
        const char *words, *text;
    } jobs[] = {
        {4, "--set engine.threads=true", "engine.threads: not with engine.name mpi"},
        {4, "--emulate-link 1:1", "an emulated link: not with engine.name mpi"},
        {4, "--set recovery.respawn_seconds=1", "recovery.respawn_seconds: not with engine.name mpi"},
        {4, "--kill 2:1.1 --rejoin 4:1.1", "--rejoin: not with engine.name mpi"},
        {4, "--set power.backend=powercap", "power.backend for real devices: not with engine.name mpi"},
        {4, "--set engine.name=shm", "4 processes were started, as by mpirun, but engine.name is shm"},
        {3, "", "3 processes were started for 4 ranks"},
        {4, "--set recovery.spares=1", "mpirun -n 5 is needed"},
        {4, "--set data.path=/nowhere", "/nowhere: cannot be opened"},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        char words[256], errors[2048];
        training_result result;
        snprintf(words, sizeof words, "--set parallel.tp=2 %s", jobs[i].words);
        assert_int_equal(run_whole(BY_MPIRUN, jobs[i].ranks, "small", words, &result), 2);
        size_t lines = own_errors(errors, sizeof errors);
        if (lines != 1 || !strstr(errors, jobs[i].text))
            fail_msg("\"%s\" is not one line that says \"%s\"", errors, jobs[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_losses),
        cmocka_unit_test(test_from_engine_to_engine),
        cmocka_unit_test(test_refusals),
    };
    return RUN_MPI_TESTS(false, tests);
}
