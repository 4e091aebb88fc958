/* Random jobs and clusters with made-up step times. */
#include "clusters.h"

#include "base/rng.h"

static uint32_t draw(uint64_t number, uint64_t *draws, uint32_t from, uint32_t to)
{
    return from + (uint32_t)(ek_random_u64(99, number, (*draws)++) % (to - from + 1));
}

static void join_tables(test_cluster *cluster)
{
    cluster->steps.level = cluster->levels;
    cluster->steps.rerouted = cluster->rerouted;
}

void cluster_make(test_cluster *cluster, uint64_t number)
{
    uint64_t draws = 0;
    *cluster = (test_cluster){0};
    ek_steps *steps = &cluster->steps;
    steps->base_degree = draw(number, &draws, 1, 24);
    steps->replicas = draw(number, &draws, 1, 40);
    steps->stages = draw(number, &draws, 1, 5);
    steps->levels = draw(number, &draws, 0, steps->base_degree - 1);
    steps->samples = draw(number, &draws, 1, 12);
    cluster->slots = steps->base_degree * draw(number, &draws, 1, 3) + draw(number, &draws, 0, steps->base_degree - 1);
    cluster->blast = draw(number, &draws, 1, cluster->slots);
    while (cluster->slots % cluster->blast != 0)
        cluster->blast--;
    uint32_t cells = cluster->slots / steps->base_degree, used = steps->replicas * steps->stages;
    cluster->domains = (used + cells - 1) / cells + draw(number, &draws, 0, 9);
    cluster->levels[0] = (ek_level_step){1, 1, steps->samples, steps->samples, 1, 1, 0};
    for (uint32_t level = 1; level <= steps->levels; level++) {
        ek_level_step *step = &cluster->levels[level];
        *step = step[-1];
        step->step_seconds += 0.01 * draw(number, &draws, 0, 3);
        step->pace = 1 / step->step_seconds;
        step->samples -= draw(number, &draws, 0, 2) < step->samples ? draw(number, &draws, 0, 1) : 0;
        step->boosted_samples = draw(number, &draws, step->samples, step[-1].boosted_samples);
    }
    for (uint32_t replicas = 0; replicas <= steps->replicas; replicas++)
        cluster->rerouted[replicas] = (double)replicas / steps->replicas;
    join_tables(cluster);
}

void cluster_make_published(test_cluster *cluster)
{
    static const uint32_t samples[] = {8, 7, 7, 6, 6};
    *cluster = (test_cluster){.steps = {.replicas = 63, .stages = 8, .base_degree = 32, .levels = 4, .samples = 8},
                              .domains = 504,
                              .slots = 32,
                              .blast = 1};
    for (uint32_t level = 0; level <= 4; level++)
        cluster->levels[level] = (ek_level_step){1, 1, samples[level], 8, 1, 1, 0};
    join_tables(cluster);
}
