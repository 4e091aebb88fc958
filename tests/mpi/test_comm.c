/* The engine "mpi" by itself: every operation, against what is computed in another way and against the engine "shm";
 * what the launching side hears and tells. The ranks are those of ranks.c. */
#include "mpirun.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "files.h"

static pid_t start_ranks(bool ulfm, const char *ranks, const char *check, const char *seed)
{
    return start_mpirun(ulfm, (uint32_t)strtoul(ranks, NULL, 10),
                        (const char *const[]){RANKS_PROGRAM, "mpi", ranks, check, seed, NULL});
}

static void assert_contains(const char *path, const char *text)
{
    char *content = read_file(path);
    if (!strstr(content, text))
        fail_msg("%s: \"%s\" does not say \"%s\"", path, content, text);
    free(content);
}

static void assert_well(pid_t mpirun)
{
    int status = finish_mpirun(mpirun, 100);
    char *errors = read_file("errors");
    if (status != 0)
        fail_msg("status %d: %s", status, errors);
    free(errors);
}

static void test_operations(void **state)
{
    (void)state;
    assert_well(start_ranks(false, "4", "operations", NULL));
    assert_well(start_ranks(false, "7", "operations", NULL));
}

/* The hashes of all ranks, as "shm" and as "mpi" have them. */
static void test_random_programs(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 3; seed++) {
        char text[16], command[512];
        snprintf(text, sizeof text, "%u", seed);
        snprintf(command, sizeof command, "%s shm 7 program %u >expected", RANKS_PROGRAM, seed);
        assert_int_equal(system(command), 0);
        assert_well(start_ranks(false, "7", "program", text));
        char *expected = read_file("expected"), *output = read_file("output");
        assert_non_null(strstr(expected, "rank 6: "));
        assert_string_equal(output, expected);
        free(expected);
        free(output);
    }
}

/* Far below, around and far above what MPI sends at once. */
static void test_sizes_that_differ(void **state)
{
    (void)state;
    static const char *const counts[] = {"1", "1000", "3000000"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_not_equal(finish_mpirun(start_ranks(false, "3", "sizes", counts[i]), 60), 0);
        assert_contains("errors", " bytes than the ");
    }
}

static void test_refusals(void **state)
{
    (void)state;
    assert_int_not_equal(finish_mpirun(start_ranks(false, "3", "threads", NULL), 20), 0);
    assert_contains("errors", "the engine \"mpi\" cannot have ranks that are threads");
    pid_t run = start_mpirun(false, 2, (const char *const[]){RANKS_PROGRAM, "mpi", "3", "operations", NULL});
    assert_int_not_equal(finish_mpirun(run, 20), 0);
    assert_contains("errors", "2 processes were started for 3 ranks: the engine \"mpi\" needs mpirun -n 3");
}

static void read_figures(const char *path, double figures[2])
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lf %lf", &figures[0], &figures[1]), 2);
    fclose(file);
}

/* Gradients are summed while the compute thread computes. Where other work holds the cores the communication thread
 * may not get its turn: then it is measured again. */
static void test_overlap(void **state)
{
    (void)state;
    double by_shm[2], by_mpi[2] = {0.0, 1.0};
    assert_int_equal(system(RANKS_PROGRAM " shm 2 overlap >expected"), 0);
    read_figures("expected", by_shm);
    for (int attempt = 0; attempt < 4 && by_mpi[1] >= 0.6 * by_mpi[0]; attempt++) {
        assert_well(start_ranks(false, "2", "overlap", NULL));
        read_figures("output", by_mpi);
    }
    print_message(
        "64 MiB of gradients take %.1f ms by shm, %.1f ms by mpi; beside computation %.1f and %.1f ms of it are "
        "exposed\n",
        1e3 * by_shm[0], 1e3 * by_mpi[0], 1e3 * by_shm[1], 1e3 * by_mpi[1]);
    assert_true(by_mpi[1] < 0.6 * by_mpi[0]);
}

static void await_output(const char *text)
{
    for (double waited = 0.0; waited < 60.0; waited += 0.01) {
        char *output = read_file("output");
        bool there = strstr(output, text);
        free(output);
        if (there)
            return;
        sleep_seconds(0.01);
    }
    fail_msg("no \"%s\" in the output", text);
}

static void test_signals(void **state)
{
    (void)state;
    mpirun_processes processes;
    pid_t run = start_ranks(false, "3", "signals", NULL);
    find_processes(3, &processes);
    sleep_seconds(0.5); /* the ranks are in their first steps */
    kill(processes.guards[0], SIGUSR1);
    await_output("rank 0 reports 0 bytes");
    kill(processes.guards[1], SIGUSR2); /* of no concern */
    kill(processes.guards[0], SIGUSR2);
    assert_well(run);
}

static void test_asked_before_the_start(void **state)
{
    (void)state;
    assert_int_equal(system(RANKS_PROGRAM " shm 3 asked"), 0);
    assert_well(start_ranks(false, "3", "asked", NULL));
}

/* Who connects and is none of the job's. */
static void test_visitor(void **state)
{
    (void)state;
    assert_well(start_ranks(false, "2", "visited", NULL));
}

static void test_kill_without_ulfm(void **state)
{
    (void)state;
    assert_int_not_equal(finish_mpirun(start_ranks(false, "4", "kill", NULL), 20), 0);
    assert_contains("errors", "rank 1 on host ");
    assert_contains("output", "lost: rank 1, cause 1, code 9, note 77");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations),        cmocka_unit_test(test_random_programs),
        cmocka_unit_test(test_sizes_that_differ), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_overlap),           cmocka_unit_test(test_signals),
        cmocka_unit_test(test_kill_without_ulfm), cmocka_unit_test(test_asked_before_the_start),
        cmocka_unit_test(test_visitor),
    };
    require_mpirun(false);
    int result = cmocka_run_group_tests(tests, NULL, NULL);
    leave_mpirun();
    return result;
}
