/* Plans of small jobs on clusters with given failures. */
#ifndef TESTS_PLAN_PLANS_H
#define TESTS_PLAN_PLANS_H

#include "testing.h"

#include "plan/plan.h"

typedef struct test_plan {
    ek_inventory *inventory;
    ek_plan *plan;
} test_plan;

/* A cluster of replicas * stages domains of `base` slots in nodes of node_gpus GPUs ("node000", …), in which the slots
 * with '.' in live[replicas * stages * base] have failed, planned for a job of that size. */
void planned_create(test_plan *planned, uint32_t replicas, uint32_t stages, uint32_t base, uint32_t node_gpus,
                    const char *live);
void planned_destroy(test_plan *planned);

#endif
