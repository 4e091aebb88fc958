/* Losses on the engine "mpi" with ULFM, from outside: ranks and guards killed at random moments, guards cut off from
 * the leading side, slow and stopped. The losses of training stay those of an unbroken run, or the job ends, soon, and
 * says why; nothing is left behind. How a rank is lost in each phase is tested by mpi_failures. EK_SOAK_MPI says how
 * many jobs are struck at random. */
#include "mpi/runs.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rng.h"
#include "files.h"

#define SEED 20270310
#define SET "--set train.steps=150 --set engine.timeout_seconds=1 "
enum { RANKS = 8, DP = 2, TP = 4, FILES_MOST = 64 };

static training_result unbroken;

static int train_unbroken(void **state)
{
    (void)state;
    return run_whole(BY_ITSELF, 0, "small", SET, &unbroken);
}

/* Judged by the record that ends the metrics, for mpirun has its own view of a job that has lost processes. */
static void assert_unbroken(pid_t run, size_t failures)
{
    training_result result;
    finish_run(run, 40, &result);
    assert_same_curve(&unbroken, &result, 1e-5);
    assert_int_equal(result.failures, failures);
}

static pid_t start_and_find(mpirun_processes *processes)
{
    pid_t run = start_run(BY_MPIRUN_WITH_ULFM, RANKS, "small", SET);
    find_processes(RANKS, processes);
    await_lines(10);
    return run;
}

/* ------------------------------------------------------------------------------------------ at random moments */

/* One or two victims, ranks or their guards; at most one replica is hit, so that the other has all units. */
static void strike(uint64_t job, const mpirun_processes *processes)
{
    uint64_t counter = 0, replica = ek_random_u64(SEED, job, counter++) % DP;
    uint64_t victims = 1 + ek_random_u64(SEED, job, counter++) % 2;
    for (uint64_t i = 0; i < victims; i++) {
        uint64_t rank = replica * TP + (ek_random_u64(SEED, job, counter++) + i) % TP;
        bool guard = ek_random_u64(SEED, job, counter++) % 2;
        sleep_seconds(0.3 * ek_random_uniform(SEED, job, counter++));
        kill(guard ? processes->guards[rank] : processes->ranks[rank], SIGKILL);
    }
}

static void test_random_moments(void **state)
{
    (void)state;
    uint64_t jobs = getenv("EK_SOAK_MPI") ? strtoul(getenv("EK_SOAK_MPI"), NULL, 10) : 12;
    size_t failures = 0;
    for (uint64_t job = 0; job < jobs; job++) {
        mpirun_processes processes;
        pid_t run = start_run(BY_MPIRUN_WITH_ULFM, RANKS, "small", SET);
        find_processes(RANKS, &processes);
        await_lines(1);
        strike(job, &processes);
        training_result result;
        finish_run(run, 40, &result);
        if (result.status != EK_OK)
            print_message("job %u: %s\n", (unsigned)job, result.error);
        assert_same_curve(&unbroken, &result, 1e-5);
        failures += result.failures;
    }
    print_message("%u jobs, %zu ranks lost\n", (unsigned)jobs, failures);
    assert_true(failures > 0);
}

/* A rank that exits, and one that the launching side kills: the others go on (ranks.c). */
static void test_other_ends(void **state)
{
    (void)state;
    static const char *const checks[][2] = {{"exit", "lost: rank 1, cause 0, code 3, note 77"},
                                            {"kill", "lost: rank 1, cause 1, code 9, note 77"}};
    for (size_t i = 0; i < 2; i++) {
        finish_mpirun(start_mpirun(true, 4, (const char *const[]){RANKS_PROGRAM, "mpi", "4", checks[i][0], NULL}), 30);
        char *output = read_file("output"), *errors = read_file("errors");
        if (!strstr(output, checks[i][1]) || strstr(errors, "ranks: "))
            fail_msg("%s: %s%s", checks[i][0], output, errors);
        free(output);
        free(errors);
    }
}

/* ---------------------------------------------------------------------------------------------- the guards */

/* Its connection to the leading side, as a descriptor of this process; -1 if there is none. */
static int take_connection(pid_t guard)
{
    int pidfd = pidfd_open(guard, 0), connection = -1;
    for (int fd = 3; fd < FILES_MOST && connection < 0; fd++) {
        int copy = pidfd_getfd(pidfd, fd, 0), listens = 0;
        struct sockaddr_in peer = {0};
        socklen_t size = sizeof peer, listens_size = sizeof listens;
        if (copy >= 0 && getpeername(copy, (struct sockaddr *)&peer, &size) == 0 && peer.sin_family == AF_INET &&
            getsockopt(copy, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_size) == 0 && !listens)
            connection = copy;
        else if (copy >= 0)
            close(copy);
    }
    close(pidfd);
    return connection;
}

static void test_cut_connection(void **state)
{
    (void)state;
    mpirun_processes processes;
    pid_t run = start_and_find(&processes);
    int connection = take_connection(processes.guards[5]);
    if (connection < 0) { /* where processes may not look into others */
        kill(run, SIGTERM);
        finish_mpirun(run, 20);
        skip();
    }
    shutdown(connection, SHUT_RDWR);
    close(connection);
    assert_unbroken(run, 1);
}

static void test_slow_guard(void **state)
{
    (void)state;
    mpirun_processes processes;
    pid_t run = start_and_find(&processes);
    for (int i = 0; i < 5; i++) {
        kill(processes.guards[6], SIGSTOP);
        sleep_seconds(0.2);
        kill(processes.guards[6], SIGCONT);
        sleep_seconds(0.02);
    }
    assert_unbroken(run, 0);
}

/* Its host might as well be cut off: MPI's run-time does not outlive that. When it goes on, there is no job any more.
 */
static void test_stopped_guard(void **state)
{
    (void)state;
    mpirun_processes processes;
    training_result result;
    pid_t run = start_and_find(&processes);
    kill(processes.guards[6], SIGSTOP);
    sleep_seconds(5);
    kill(processes.guards[6], SIGCONT); /* Open MPI's run-time does not end what is stopped */
    finish_run(run, 20, &result);
    assert_string_equal(result.end, "failed");
    assert_non_null(strstr(result.error, "with rank 6, is silent"));
}

/* ------------------------------------------------------------------------------------------- how long it takes */

static void test_recovery_time(void **state)
{
    (void)state;
    static const char *const faults[] = {"--kill 20:1.2@backward", "--kill 20:0.0@sync --kill 40:1.1@forward"};
    for (size_t i = 0; i < 2; i++) {
        training_result by_shm, by_mpi;
        char words[256];
        snprintf(words, sizeof words, SET "%s", faults[i]);
        run_whole(BY_ITSELF, 0, "small", words, &by_shm);
        run_whole(BY_MPIRUN_WITH_ULFM, RANKS, "small", words, &by_mpi);
        assert_same_curve(&unbroken, &by_shm, 1e-5);
        assert_same_curve(&unbroken, &by_mpi, 1e-5);
        assert_int_equal(by_mpi.recoveries, i + 1);
        print_message("%s: recovery takes %.1f ms by shm, %.1f ms by mpi\n", faults[i],
                      1e3 * by_shm.recovery_seconds / (double)(i + 1), 1e3 * by_mpi.recovery_seconds / (double)(i + 1));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_recovery_time, train_unbroken),
        cmocka_unit_test(test_random_moments),
        cmocka_unit_test(test_other_ends),
        cmocka_unit_test(test_cut_connection),
        cmocka_unit_test(test_slow_guard),
        cmocka_unit_test(test_stopped_guard),
    };
    return RUN_MPI_TESTS(true, tests);
}
