/* The state file: the limits that a job found, written before it changes the first one, so that they can be put back
 * whatever becomes of the job. A JSON object: backend, its path, the job's process, and per device its identity and
 * limit. Mode 0600; who reads it must own it, since it names a library to load.
 *
 * The job holds a lock on its file for as long as it lives, and so does whoever restores from it. */
#ifndef EK_POWER_STATE_H
#define EK_POWER_STATE_H

#include <sys/types.h>

#include "power/power.h"

/* Where state files go unless the user says otherwise: /run if it can be written to, else $XDG_RUNTIME_DIR, else /tmp.
 * Raising a limit mostly takes root, so mostly it is /run: files there last until the machine is started anew, as
 * limits do, while $XDG_RUNTIME_DIR goes when the user logs out. */
const char *ek_state_folder(void);
/* Their names there are EK_STATE_PREFIX, the job's process id, EK_STATE_SUFFIX. */
#define EK_STATE_PREFIX "evenkeel-power-"
#define EK_STATE_SUFFIX ".json"

/* Writes the limits of all devices as they are now, and locks the file: *lock is the open file. EK_INVALID if there is
 * a file already: it is of a job whose limits were not restored. */
ek_status ek_state_write(ek_power *power, const char *path, int *lock);

/* Puts back the limits, where they differ, and deletes the file. On failure the file stays and says why under
 * "failure"; limits of other devices are restored all the same. *restored (may be NULL): how many were set. EK_INVALID:
 * not a state file, not this user's, or in use by a job that lives. EK_IO: there is no such file. */
ek_status ek_state_restore(const char *path, uint32_t *restored);
/* The same by the job itself, which holds the lock; it is let go. The file may have been deleted meanwhile. */
ek_status ek_state_restore_held(const char *path, int lock);

/* Deletes what a process that died in ek_state_write left beside the file. */
void ek_state_sweep(const char *path, pid_t process);

/* The process that holds the file's lock, or 0. */
pid_t ek_state_holder(const char *path);

#endif
