/* Keeping the replicas in step, as each rank computes it for itself from the same busy times: the governor's power and
 * samples (power/governor.h), and stragglers (cluster/straggler.h). State begins anew with each membership. */
#ifndef EK_TRAIN_PACE_H
#define EK_TRAIN_PACE_H

#include "power/governor.h"
#include "train/config.h"

typedef struct ek_pace ek_pace;

/* default_watts: of a device. may_raise: limits can be set; otherwise samples alone. EK_INVALID names the key at fault.
 */
ek_status ek_pace_create(ek_pace **pace, const ek_config *config, const ek_job *job, double default_watts,
                         bool may_raise);
void ek_pace_destroy(ek_pace *pace);

/* Whether the configuration asks for any of this. If not, ranks need not tell each other their busy times. */
bool ek_pace_wanted(const ek_config *config);

void ek_pace_reset(ek_pace *pace, const ek_membership *membership);

/* busy_seconds[rank] that the ranks with a role reported for the last step, at the power that they had. The first step
 * after a reset is not judged by: memory is new, caches and predictors are cold, on every rank. */
void ek_pace_observe(ek_pace *pace, const double *busy_seconds);

/* What a replica has been given. Its watts are those of its devices that are no stragglers. */
ek_decision ek_pace_decision(const ek_pace *pace, uint32_t replica);
/* The samples of all replicas together: of the global batch, or fewer under policy shrink. */
uint32_t ek_pace_samples(const ek_pace *pace);

/* A device's limit: its replica's, or more for a straggler. 0 without a role. */
double ek_pace_watts(const ek_pace *pace, uint32_t rank);
/* Its speed at that limit as the curve gives it; 1 at the default. */
double ek_pace_speed(const ek_pace *pace, uint32_t rank);
bool ek_pace_straggles(const ek_pace *pace, uint32_t rank);

#endif
