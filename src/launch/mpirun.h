/* mpirun of Open MPI as a child process: its beginning, signals to the job that it runs, its end, and whatever of it is
 * still there on this machine after that. */
#ifndef EK_LAUNCH_MPIRUN_H
#define EK_LAUNCH_MPIRUN_H

#include <sys/types.h>

#include <evenkeel.h>

typedef struct ek_mpirun {
    pid_t pid; /* 0: it does not run */
    int exit_status;
} ek_mpirun;

/* The major version of the mpirun in PATH. EK_INVALID: there is none, or it is not Open MPI's. */
ek_status ek_mpirun_version(unsigned *major);

/* From now on processes that outlive mpirun belong to this one, and signals wait until ek_mpirun_await takes them. */
ek_status ek_mpirun_prepare(void);

/* Starts it with words[], which end with NULL; agent, or NULL, starts its daemons on other hosts. */
ek_status ek_mpirun_start(ek_mpirun *mpirun, char *const *words, const char *agent);

/* Waits for a signal, or some milliseconds: the signal or 0. Sees whether mpirun has ended. */
int ek_mpirun_await(ek_mpirun *mpirun, unsigned milliseconds);

void ek_mpirun_signal(const ek_mpirun *mpirun, int signal);

/* Whether processes of it are left, mpirun itself among them. Ended ones are cleared away. */
bool ek_mpirun_has_left(ek_mpirun *mpirun);
/* Kills them all, and waits until they are gone. */
void ek_mpirun_sweep(ek_mpirun *mpirun);

#endif
