/* Step times of a job, tabulated: what a replica can do at each level (base degree less the least degree of its
 * stages), so that the simulator only looks up. Times come from src/perf, the power that speeds a replica up from
 * src/power, the bytes that healthy replicas reshard from src/layout.
 *
 * In mode ep a replica has whole samples on each rank, so it may take fewer only by as many as it has ranks.
 *
 * The pace of the job is that of a whole replica with its whole share of samples. A reduced replica takes as many whole
 * samples as it is done with in that time: at the default power (NTP), or at the power that its devices and its domain
 * allow, in as far as that gains samples (NTP-PW). Every stage of a reduced replica is taken to be at its lowest
 * stage's degree. What resharding adds to a healthy replica's step makes the job's step longer; the reduced replicas
 * then have as much time more, and no more resharding than the healthy ones. */
#ifndef EK_SIM_STEPS_H
#define EK_SIM_STEPS_H

#include "sim/scenario.h"

typedef enum ek_policy {
    EK_POLICY_DROP,    /* DP-DROP: a damaged replica is dropped, its samples are not taken */
    EK_POLICY_REROUTE, /* it is dropped, and the others take its samples: the same batch, a longer step */
    EK_POLICY_NTP,
    EK_POLICY_NTP_PW,
    EK_POLICIES,
} ek_policy;

/* "dp-drop", …; what is ntp in mode tp is nep in mode ep, nonuniform expert parallelism. */
const char *ek_policy_name(const ek_scenario *scenario, ek_policy policy);
/* The same for the name of a conduct or a policy that is called so in mode tp. */
const char *ek_name_in_mode(const ek_scenario *scenario, const char *name);

typedef struct ek_level_step {
    double step_seconds;      /* of the job when this is its deepest level; never less than at the level above */
    double pace;              /* the step with no failure over this one: at most 1 */
    uint32_t samples;         /* of a replica at this level at the default power; never more than at the level above, */
    uint32_t boosted_samples; /* and with raised power; never fewer than `samples` */
    double speed_needed;      /* of its devices for all samples, whatever the power; INFINITY: out of reach */
    double watts;             /* of a device of a boosted stage at this level: the least for boosted_samples */
    double reshard_bytes;     /* the most that one device of a healthy replica sends or receives for this level */
} ek_level_step;

typedef struct ek_steps {
    uint32_t replicas, stages, base_degree;
    uint32_t levels;      /* the deepest level that a replica may be at; beyond it is retired */
    uint32_t samples;     /* of a whole replica */
    ek_level_step *level; /* [levels + 1] */
    double *rerouted;     /* [replicas + 1]: throughput when that many replicas take all samples; all of them: 1 */
} ek_steps;

/* EK_INVALID begins with the key at fault. */
ek_status ek_steps_create(ek_steps **steps, const ek_scenario *scenario);
void ek_steps_destroy(ek_steps *steps);

/* Throughput of the job under each policy, 1 with no failure, from the number of its replicas at each level:
 * replicas_at[1 … levels], and at [levels + 1] those that are retired; the others are whole. Entries beyond `present`
 * are taken to be 0. Under NTP the job also retires what costs it more (by resharding) than it brings: deepest, if not
 * NULL, gets the deepest level that computes. */
void ek_steps_throughput(const ek_steps *steps, const uint32_t *replicas_at, uint32_t present,
                         double throughput[EK_POLICIES], uint32_t deepest[EK_POLICIES]);

/* The power limit of a device at a level, from the device's cap and the domain's budget. */
double ek_steps_limit_watts(const ek_scenario *scenario, uint32_t level);

#endif
