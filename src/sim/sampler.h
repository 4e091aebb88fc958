/* Steady throughput at a number of failures that fall uniformly on the devices of a cluster, sampled: each scenario
 * places the failures anew and yields the throughput of every policy, packed at a restart and left where failures fell.
 *
 * Random numbers belong to (seed, scenario) alone: all policies, both arrangements and any number of threads see the
 * same failures, and a scenario with more failures has those of the one with fewer among them.
 *
 * Within a domain only the number of failed devices matters: any survivors can make up its TP groups (packing.h). */
#ifndef EK_SIM_SAMPLER_H
#define EK_SIM_SAMPLER_H

#include "sim/steps.h"

typedef enum ek_arrangement {
    EK_PACKED, /* damaged domains make up as few replicas as possible, the worst are spare */
    EK_LEFT,   /* domains serve replicas in order, the last are spare, whatever has failed */
    EK_ARRANGEMENTS,
} ek_arrangement;

extern const char *const ek_arrangement_names[EK_ARRANGEMENTS];

/* What the domains of a cluster give a job, by how many of their blocks have failed; blocks of devices fail together.
 */
typedef struct ek_sampler {
    const ek_steps *steps; /* the caller's */
    uint32_t domains;
    uint32_t blocks;  /* of a domain */
    uint32_t cells;   /* TP groups of a domain */
    uint32_t *beyond; /* [blocks + 1][levels + 2]: of a domain's cells those at a level or deeper; none left counts as
                         level levels + 1 */
    uint32_t *cell_levels;  /* [blocks + 1][cells] */
    uint32_t *deepest;      /* [blocks + 1] level of any of its cells */
    uint32_t *replicas_hit; /* [domains * cells + 1]: replicas that so many bad cells spoil when they are packed */
    uint32_t *replica_of;   /* [domains * cells]: the replica a cell serves when left; steps->replicas: none */
} ek_sampler;

/* The cluster has `domains` domains of `slots` devices that fail in aligned groups of `blast`, a divisor of slots. */
ek_status ek_sampler_create(ek_sampler **sampler, const ek_steps *steps, uint32_t domains, uint32_t slots,
                            uint32_t blast);
void ek_sampler_destroy(ek_sampler *sampler);

/* One scenario. */
typedef struct ek_sampled {
    double throughput[EK_ARRANGEMENTS][EK_POLICIES];
    uint32_t damaged_domains;
    uint32_t whole_cells; /* TP groups without a failure */
} ek_sampled;

/* Where scenarios are computed; for one thread. */
typedef struct ek_sampler_work ek_sampler_work;
ek_status ek_sampler_work_create(ek_sampler_work **work, const ek_sampler *sampler);
void ek_sampler_work_destroy(ek_sampler_work *work);

/* Scenario `scenario` of `seed` with `failures` failed blocks, at most half of all. with_left: EK_LEFT, too. */
void ek_sampler_one(const ek_sampler *sampler, ek_sampler_work *work, uint64_t seed, uint64_t scenario,
                    uint32_t failures, bool with_left, ek_sampled *sampled);

/* The mean of a sampled value and the half width of its 95 % confidence interval. */
typedef struct ek_mean {
    double mean, half_width;
} ek_mean;

ek_mean ek_mean_of_sums(double sum, double sum_of_squares, uint64_t count);

typedef struct ek_sampled_means {
    ek_mean lost[EK_ARRANGEMENTS][EK_POLICIES]; /* 1 - throughput */
    double worst[EK_ARRANGEMENTS][EK_POLICIES]; /* the most that was lost */
    ek_mean damaged_domains;
    ek_mean whole_cells; /* the part of all */
} ek_sampled_means;

/* Scenarios 0 … count-1 of the seed, on several threads: the result does not depend on how many. */
ek_status ek_sampler_run(const ek_sampler *sampler, uint64_t seed, uint64_t count, uint32_t failures, bool with_left,
                         uint32_t threads, ek_sampled_means *means);

#endif
