/* Jobs that end before their time, without ULFM: whichever process is killed, the job ends soon, says why where
 * somebody is left to, leaves no process behind, and goes on from its last checkpoint on the ranks that are left. */
#include "mpi/runs.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define SET "--set parallel.tp=2 --set train.steps=240 --set health.compare_every=0 --set engine.timeout_seconds=2 "
enum { RANKS = 4, ENDS_SECONDS = 15 };

static training_result unbroken;

static int train_unbroken(void **state)
{
    (void)state;
    return run_whole(BY_ITSELF, 0, "small", SET, &unbroken);
}

enum victim { RANK, RANK_0, GUARD, GUARD_0, SUPERVISOR, MPIRUN };

static pid_t find_victim(enum victim victim, pid_t mpirun, const mpirun_processes *processes)
{
    switch (victim) {
    case RANK:
        return processes->ranks[2];
    case RANK_0:
        return processes->ranks[0];
    case GUARD:
        return processes->guards[3];
    case GUARD_0:
        return processes->guards[0];
    case SUPERVISOR:
        return processes->supervisor;
    default:
        return mpirun;
    }
}

static void kill_one(enum victim victim, int signal, training_result *result)
{
    mpirun_processes processes;
    /* steps take their time: no more than are read are done before the end */
    pid_t run = start_run(BY_MPIRUN, RANKS, "small", SET "--set train.steps=100000 --set batch.global=128");
    find_processes(RANKS, &processes);
    await_lines(20);
    kill(find_victim(victim, run, &processes), signal);
    assert_int_not_equal(finish_run(run, ENDS_SECONDS, result), 0);
    assert_true(result->steps > 4);
}

/* What is lost is told by the last record of the metrics, and on stderr unless mpirun closes that first. */
static void test_ranks_and_guards(void **state)
{
    (void)state;
    static const char *const ranks[] = {
        [RANK] = "rank 2 ", [RANK_0] = "rank 0 ", [GUARD] = "rank 3 ", [GUARD_0] = "rank 0 "};
    for (int victim = RANK; victim <= GUARD_0; victim++) {
        training_result result;
        kill_one((enum victim)victim, SIGKILL, &result);
        assert_string_equal(result.end, "failed");
        if (!strstr(result.error, "ULFM") || !strstr(result.error, ranks[victim]))
            fail_msg("victim %d: %s", victim, result.error);
    }
}

static void test_stopped_rank(void **state)
{
    (void)state;
    training_result result;
    kill_one(RANK, SIGSTOP, &result);
    assert_string_equal(result.end, "failed");
    assert_non_null(strstr(result.error, "rank 2 "));
    assert_non_null(strstr(result.error, "no progress"));
}

static void test_supervisor_and_mpirun(void **state)
{
    (void)state;
    training_result result;
    kill_one(SUPERVISOR, SIGKILL, &result);
    assert_string_equal(result.end, "");
    kill_one(MPIRUN, SIGKILL, &result);
    kill_one(MPIRUN, SIGTERM, &result);
}

/* A rank dies, and the job goes on from the last checkpoint on fewer. */
static void test_resume(void **state)
{
    (void)state;
    training_result result;
    char errors[1024];
    assert_int_not_equal(run_whole(BY_MPIRUN, RANKS, "small",
                                   SET "--set checkpoint.dir=ended --set checkpoint.every=20 --kill 50:1.0@backward",
                                   &result),
                         0);
    assert_string_equal(result.end, "failed");
    assert_int_equal(own_errors(errors, sizeof errors), 1);
    assert_non_null(strstr(errors, "rank 2 "));
    assert_int_equal(finish_mpirun(start_run(BY_MPIRUN, 3, "small",
                                             SET "--set checkpoint.dir=ended --set parallel.degrees=[2,1] --resume"),
                                   30),
                     0);
    assert_int_equal(assert_same_losses(&unbroken, 1e-5), 240);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_resume, train_unbroken),
        cmocka_unit_test(test_ranks_and_guards),
        cmocka_unit_test(test_stopped_rank),
        cmocka_unit_test(test_supervisor_and_mpirun),
    };
    return RUN_MPI_TESTS(false, tests);
}
