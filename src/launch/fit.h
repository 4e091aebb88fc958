/* How a job fits on hosts: which replicas, of which degree, and where. A pure function.
 *
 * The ranks of a replica share every layer, so they lie inside one host. A host with s slots takes floor(s / tp) whole
 * replicas and one reduced one, if at least min_tp slots are left. Whole replicas come first, as many as the job has,
 * then the largest reduced ones. Ranks are numbered host by host, as mpirun --map-by slot places them; spares come
 * last, so they can have what the last used host and those behind it have left. */
#ifndef EK_LAUNCH_FIT_H
#define EK_LAUNCH_FIT_H

#include <evenkeel.h>

#define EK_FIT_REPLICAS_MOST 256

typedef struct ek_fit_job {
    uint32_t dp, tp, min_tp, spares;
} ek_fit_job;

typedef struct ek_fit {
    uint32_t dp;
    uint32_t degrees[EK_FIT_REPLICAS_MOST]; /* [dp] */
    uint32_t spares;
    uint32_t ranks; /* with the spares */
} ek_fit;

/* slots[hosts] are there, 0 on a host that is not; used[hosts] are filled. EK_INVALID: not even one replica fits. */
ek_status ek_fit_make(const ek_fit_job *job, const uint32_t *slots, size_t hosts, ek_fit *fit, uint32_t *used);

/* Whether it is the whole job, as configured. */
bool ek_fit_is_whole(const ek_fit *fit, const ek_fit_job *job);

/* "TP4+TP4+TP3, 1 spare" with parallelism "TP"; cut where it does not fit. */
void ek_fit_describe(const ek_fit *fit, const char *parallelism, char *text, size_t size);

#endif
