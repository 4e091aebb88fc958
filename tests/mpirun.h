/* Jobs that mpirun starts, seen from outside. Their programs run in a folder of the test's own, which is also where MPI
 * leaves what it leaves. */
#ifndef TESTS_MPIRUN_H
#define TESTS_MPIRUN_H

#include "testing.h"

#include <sys/types.h>

#define MPIRUN_RANKS_MOST 16
#define MPIRUN_WORDS_MOST 64

/* Ends the program with status 77, which ctest takes for "skipped", and a line that says why, where no such job can be
 * had. Otherwise enters the folder, which leave_mpirun removes. */
void require_mpirun(bool ulfm);
void leave_mpirun(void);

/* mpirun -n RANKS WORDS… (ends with NULL). Its output goes to the files "output" and "errors". */
pid_t start_mpirun(bool ulfm, uint32_t ranks, const char *const *words);
/* Waits until mpirun has ended, at most so many seconds, and then until no process of the job is left. Fails the test
 * if that takes too long. The exit status, or 128 and the signal that ended mpirun. */
int finish_mpirun(pid_t mpirun, double seconds);

/* The processes of a running job of this test program. */
typedef struct mpirun_processes {
    pid_t ranks[MPIRUN_RANKS_MOST], guards[MPIRUN_RANKS_MOST], supervisor; /* 0: not there */
} mpirun_processes;
/* Waits, at most ten seconds, until ranks 0 … ranks-1 and the supervisor are there. */
void find_processes(uint32_t ranks, mpirun_processes *processes);

void sleep_seconds(double seconds);

#endif
