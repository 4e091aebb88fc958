/* Runs of `evenkeel train` that mpirun starts: the small jobs of training.h, in the folder of mpirun.h. */
#ifndef TESTS_MPI_RUNS_H
#define TESTS_MPI_RUNS_H

#include "mpirun.h"
#include "train/training.h"

/* For main: as require_mpirun, and writes small.yaml and experts.yaml, then runs the tests. */
#define RUN_MPI_TESTS(ulfm, tests) (enter_runs(ulfm), leave_runs(cmocka_run_group_tests(tests, NULL, NULL)))
void enter_runs(bool ulfm);
int leave_runs(int result);

typedef enum run_launcher { BY_ITSELF, BY_MPIRUN, BY_MPIRUN_WITH_ULFM } run_launcher;

/* `evenkeel train --config BASE.yaml --metrics run.jsonl --quiet WORDS`, words separated by spaces; with
 * engine.name=mpi where mpirun starts it. Its output goes to the files "output" and "errors". */
pid_t start_run(run_launcher by, uint32_t ranks, const char *base, const char *words);
/* Waits for the end, at most so long; reads run.jsonl. The exit status, as finish_mpirun has it. */
int finish_run(pid_t run, double seconds, training_result *result);
/* A whole one. */
int run_whole(run_launcher by, uint32_t ranks, const char *base, const char *words, training_result *result);
/* Waits until the metrics have so many lines. */
void await_lines(size_t lines);

/* The lines of "errors" that are the command's own. */
size_t own_errors(char *text, size_t size);

/* A run that did not come to its end, in steps that an unbroken one has: same losses. Returns the last step. */
uint64_t assert_same_losses(const training_result *unbroken, double tolerance);

#endif
