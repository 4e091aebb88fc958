/* The governor: which power limit and which samples each replica gets, so that a replica that has lost devices keeps
 * pace with the healthy ones. docs/governor.md explains it.
 *
 * Power first: the least watts at which the reduced replica's step is no longer than the healthy ones', within the cap
 * of a device and the budget of its domain. Healthy replicas (those at the highest degree there is) stay at the default
 * limit. What power cannot make up is left to the batch policy (cluster/batch.h).
 *
 * It starts from the units that each device holds and corrects itself by measured busy times: after 1, 2, 4, … 64
 * steps, then every 64, and at once when a replica's pace has changed. It moves only by what exceeds the error of its
 * measurements, so it comes to rest, and whenever it decides the limits hold exactly.
 *
 * Pure: decisions depend on the options and on what came since the last reset alone, so all ranks, also one that joined
 * at that reset, decide the same, bit for bit. */
#ifndef EK_POWER_GOVERNOR_H
#define EK_POWER_GOVERNOR_H

#include <evenkeel.h>

#include "cluster/batch.h"
#include "power/curve.h"

typedef struct ek_governor_options {
    uint32_t replicas, base_degree;
    uint32_t samples; /* of the global batch */
    ek_batch_policy policy;
    ek_curve curve;
    double default_watts; /* the default limit of a device */
    double cap_watts; /* of a device; 0: 1.3 x default_watts, or where the curve ends. default_watts: samples alone */
    double domain_watts; /* of a replica's devices together; 0: base_degree x default_watts */
} ek_governor_options;

typedef struct ek_governor ek_governor;

/* Sets what is 0 of cap_watts and domain_watts. EK_INVALID as ek_governor_create, which does this first. */
ek_status ek_governor_complete_options(ek_governor_options *options);

/* The most for each device of a reduced replica of that degree: the cap, or its share of the domain's budget, which
 * rounding does not take it above. */
double ek_governor_limit_watts(double cap_watts, double domain_watts, uint32_t degree);

/* EK_INVALID, beginning with the key at fault ("power.cap_watts: "): a cap below the default or beyond the curve, a
 * domain that cannot carry its devices at the default. Decides nothing before the first reset. */
ek_status ek_governor_create(ek_governor **governor, const ek_governor_options *options);
void ek_governor_destroy(ek_governor *governor);

/* Decides anew, from the membership alone; it is one of the job in the options. */
void ek_governor_reset(ek_governor *governor, const ek_membership *membership);

/* What each replica reported for a step that ran as decided: busy_seconds[replica] of its slowest rank, at the power
 * that it had. Call after each committed step. Values that are not above 0 (a retired replica) say nothing. */
void ek_governor_observe(ek_governor *governor, const double *busy_seconds);

typedef struct ek_decision {
    double watts; /* per device; 0: the replica is retired */
    ek_batch_share share;
    /* Busy, as it was foreseen when the decisions last changed. From a reset to the next observation by what had been
     * measured before the reset; 0: nothing has been measured since the governor was created. */
    double predicted_seconds;
} ek_decision;

ek_decision ek_governor_decision(const ek_governor *governor, uint32_t replica);

/* Watts for each of the `stragglers` devices of a replica that take `slowdown` times as long as their peers: what makes
 * that up, as far as the cap and what the others leave of the domain's budget allow; never below the replica's own. To
 * be asked again whenever decisions may have changed. */
double ek_governor_straggler_watts(const ek_governor *governor, uint32_t replica, double slowdown, uint32_t stragglers);

#endif
