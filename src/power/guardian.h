/* A job's hold on power limits: whatever ends the job, the limits it found come back.
 *
 * Creating one forks the guardian, a small process in a session of its own which waits for the end of this process;
 * then it opens the backend and writes the state file (state.h). On an orderly end this process restores, and the
 * guardian goes. If this process dies instead, the guardian restores. If the guardian is killed too, the state file
 * stays, and `evenkeel power restore` does it by hand.
 *
 * The guardian is forked before the backend is opened, because NVML does not survive a fork. Create a guardian early:
 * before the program starts threads or opens CUDA or NVML itself, and before ek_launch. It holds none of the program's
 * files, ignores every signal that can be ignored and has no terminal. The ranks that ek_launch forks later inherit
 * nothing by which they could keep it waiting: it watches the process, not a pipe. */
#ifndef EK_POWER_GUARDIAN_H
#define EK_POWER_GUARDIAN_H

#include <sys/types.h>

#include "power/power.h"

typedef struct ek_guardian ek_guardian;

/* state_path NULL: one named after this process, in ek_state_folder(). Fails as ek_power_create and ek_state_write do;
 * nothing is left then. */
ek_status ek_guardian_create(ek_guardian **guardian, const ek_power_options *options, const char *state_path);

/* The open backend, to read and set limits with. */
ek_power *ek_guardian_power(const ek_guardian *guardian);
/* The state file; NULL where limits do not outlive the process (ek_power_outlives), and so need no guardian process. */
const char *ek_guardian_state_path(const ek_guardian *guardian);
/* The guardian process; 0 where there is none. */
pid_t ek_guardian_process(const ek_guardian *guardian);

/* Restores the limits, deletes the file, ends the guardian process and closes the backend. On failure (the first
 * device that could not be restored) the state file stays. Only in the process that created it; accepts NULL. */
ek_status ek_guardian_end(ek_guardian *guardian);

#endif
