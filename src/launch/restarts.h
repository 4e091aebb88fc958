/* Runs a training job on hosts by mpirun, and again from its last checkpoint on the hosts that are left, until it is
 * done or there is no sense in another start. */
#ifndef EK_LAUNCH_RESTARTS_H
#define EK_LAUNCH_RESTARTS_H

#include "launch/fit.h"
#include "launch/hosts.h"

typedef struct ek_restarts_options {
    const char *const *first_words, *const *again_words; /* the command until the job has begun, and after that */
    const char *const *mpirun_words;                     /* further options; all three end with NULL */
    const char *metrics_path;
    ek_hosts *hosts;
    const char *agent; /* starts processes on other hosts, "AGENT HOST COMMAND"; NULL: as mpirun does by itself */
    const char *probe; /* the same, to ask which hosts answer */
    ek_fit_job job;
    const char *parallelism; /* "TP" or "EP", for who watches */
    double timeout_seconds;  /* engine.timeout_seconds */
    unsigned restarts_most;  /* in a row, without a step in between that had not been committed before */
} ek_restarts_options;

/* EK_OK: the job's own last record says that it is done. EK_INVALID: it was refused before it had begun.
 * EK_INTERRUPTED: ended from outside. Anything else: it has failed. The text is the reason. No process is left on this
 * machine. Signals are those of docs/cluster.md. */
ek_status ek_restarts_run(const ek_restarts_options *options);

#endif
