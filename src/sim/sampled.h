/* What the studies of sampled scenarios share. */
#ifndef EK_SIM_SAMPLED_H
#define EK_SIM_SAMPLED_H

#include "sim/sampler.h"
#include "sim/study.h"

/* One point: `failures` failures, each of failures.blast_radius devices, in the cluster of `scenario`, which may be a
 * changed copy of the study's. */
ek_status ek_sample_point(ek_study *study, const ek_scenario *scenario, uint32_t failures, bool with_left,
                          ek_sampled_means *means);

/* A copy of the scenario (which owns nothing) on about `devices` devices in domains of `size`: TP takes the domain, DP
 * what there are devices for; samples of a replica, stages and spare domains stay, the least degree and the domain's
 * power go with the size. EK_INVALID if there is no replica. */
ek_status ek_sample_resize(const ek_scenario *scenario, uint32_t size, uint32_t devices, ek_scenario *resized);

/* Devices of the scenario's cluster. */
uint32_t ek_sample_devices(const ek_scenario *scenario);

/* The failed fraction of a study's point 0 … points-1. */
double ek_sample_fraction(const ek_scenario *scenario, uint32_t point);

/* A point of a chart, in percent, with the band of its interval. */
ek_status ek_sample_chart(json_t *series, double x, const ek_mean *part);

/* A fact of the page: the throughput that a point loses under each policy, packed. */
ek_status ek_sample_fact(ek_study *study, const char *name, const ek_sampled_means *means);

/* Adds a row [key…, arrangement, policy, mean, half width, worst] for each of them; `keys` is taken over. */
ek_status ek_sample_rows(const ek_scenario *scenario, json_t *table, json_t *keys, const ek_sampled_means *means,
                         bool with_left);

#endif
