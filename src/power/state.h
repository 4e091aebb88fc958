/* The state file: the limits that a job found, written before it changes the first one, so that they can be put back
 * whatever becomes of the job. A JSON object: backend, its path, the job's process, and per device its identity and
 * limit. Mode 0600; who reads it must own it, since it names a library to load.
 *
 * The job holds a lock on its file for as long as it lives, and so does whoever restores from it. */
#ifndef EK_POWER_STATE_H
#define EK_POWER_STATE_H

#include "power/power.h"

/* Where state files go unless the user says otherwise: /run if it can be written to, else $XDG_RUNTIME_DIR, else /tmp.
 * Only root may raise most limits, so it is mostly /run: it lasts until the machine is started again, as limits do,
 * while $XDG_RUNTIME_DIR goes when the user logs out. */
const char *ek_state_folder(void);
/* "FOLDER/evenkeel-power-PID.json" for this process; EK_NO_MEMORY. Released with free. */
ek_status ek_state_default_path(char **path);

/* Writes the file and locks it. EK_INVALID if the file exists: it is of a job whose limits are not yet restored. The
 * lock is let go with close(*lock), or by the end of this process. */
ek_status ek_state_write(ek_power *power, const char *path, int *lock);

/* Puts back the limits in the file, where they differ, and deletes it. restored (may be NULL): how many were set. On
 * failure the file stays and says why under "failure"; limits of the other devices are restored all the same.
 * EK_INVALID: not a state file, not this user's, or in use by a job that lives. EK_IO: the file cannot be read, or
 * there is none. */
ek_status ek_state_restore(const char *path, uint32_t *restored);

#endif
