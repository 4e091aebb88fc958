/* The hosts of a job and their slots, as mpirun counts them: where they are named, and which of them answer. */
#ifndef EK_LAUNCH_HOSTS_H
#define EK_LAUNCH_HOSTS_H

#include <evenkeel.h>

typedef struct ek_host {
    char *name;
    uint32_t slots;
    bool answers;
} ek_host;

typedef struct ek_hosts {
    ek_host *list; /* [count] each name once, in the order of their first mention */
    size_t count;
} ek_hosts;

/* All add to a list that begins zeroed, and expect them to answer. A host that is named again gets more slots. */

/* "HOST:SLOTS,…"; without :SLOTS one. `option` is named in a refusal. */
ek_status ek_hosts_add_list(ek_hosts *hosts, const char *option, const char *text);
/* Open MPI's hostfile: a host a line, "HOST slots=N", behind # a comment. */
ek_status ek_hosts_add_file(ek_hosts *hosts, const char *path);
/* Slurm's: SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE, as in "node[1-3]" and "4(x2),3". */
ek_status ek_hosts_add_slurm(ek_hosts *hosts, const char *nodes, const char *tasks);
ek_status ek_hosts_add(ek_hosts *hosts, const char *name, uint32_t slots);
void ek_hosts_free(ek_hosts *hosts);

/* Sets `answers` of the hosts from `first` on, `count` of them: this one does; others do where the command
 * "AGENT HOST true" ends with status 0 within `seconds`. AGENT is words of shell. All are asked at once. */
ek_status ek_hosts_probe(ek_hosts *hosts, size_t first, size_t count, const char *agent, double seconds);

/* Whether the name is of this machine. */
bool ek_host_is_here(const char *name);

#endif
