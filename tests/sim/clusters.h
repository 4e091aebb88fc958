/* Random jobs and clusters with made-up step times, for tests of what is built on them. */
#ifndef TESTS_SIM_CLUSTERS_H
#define TESTS_SIM_CLUSTERS_H

#include "sim/sampler.h"
#include "testing.h"

typedef struct test_cluster {
    ek_steps steps;
    uint32_t domains, slots, blast;
    ek_level_step levels[72];
    double rerouted[64];
} test_cluster;

/* Cluster `number`: up to 40 replicas of up to 5 stages, domains of up to 3 cells and odd slots over, blast radii,
 * spares, step times that get worse from level to level. cluster->steps points into *cluster. */
void cluster_make(test_cluster *cluster, uint64_t number);

/* The step times of the published job as a quick model has them: 1,024 domains of 32, TP32 to TP28, 8 samples. */
void cluster_make_published(test_cluster *cluster);

#endif
