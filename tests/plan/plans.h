/* Plans of small jobs on clusters with given failures. */
#ifndef TESTS_PLAN_PLANS_H
#define TESTS_PLAN_PLANS_H

#include "testing.h"

#include "plan/plan.h"

typedef struct test_cluster {
    uint32_t domains, domain_slots, node_gpus;
    const char *live; /* [domains * domain_slots] '.': the slot has failed */
} test_cluster;

typedef struct test_plan {
    ek_inventory *inventory;
    ek_perf_model model;
    ek_perf_parallel parallel;
    ek_perf_hardware hardware;
    ek_perf *perf;
    ek_plan_options options; /* of what is above */
    ek_plan *plan;
} test_plan;

/* Domains "domain000", … of nodes "node000", …; a job of dp replicas of pp stages of TP tp. model NULL: a small one
 * that can be cut in 2, 3 and 4. */
void planned_create(test_plan *planned, const test_cluster *cluster, uint32_t dp, uint32_t pp, uint32_t tp,
                    const ek_perf_model *model);
/* The same without the plan. */
void planned_prepare(test_plan *planned, const test_cluster *cluster, uint32_t dp, uint32_t pp, uint32_t tp,
                     const ek_perf_model *model);
void planned_destroy(test_plan *planned);

#endif
