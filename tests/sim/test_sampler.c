/* The sampler against a plain reading of the same random numbers, and what must hold in every scenario and in the mean.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cluster/packing.h"
#include "clusters.h"

enum { CLUSTERS = 400, SCENARIOS = 12, SEED = 5, WORD_BLOCKS = 16 };

static uint32_t failures_of(const test_cluster *cluster, uint64_t scenario)
{
    uint32_t most = cluster->domains * (cluster->slots / cluster->blast) / 2;
    return scenario == 0 ? 0 : (uint32_t)(ek_random_u64(7, scenario, cluster->domains) % (most + 1));
}

/* ------------------------------------------------------------------------------------------------ a plain reading */

/* Slots that have failed in each domain, from the same words, block by block. */
static void place(const test_cluster *cluster, uint64_t scenario, uint32_t failures, uint32_t *failed)
{
    uint32_t blocks = cluster->slots / cluster->blast, words[4];
    memset(failed, 0, cluster->domains * sizeof *failed);
    for (uint64_t i = 0; failures > 0; i++) {
        uint64_t block = i % WORD_BLOCKS, word = i / WORD_BLOCKS % 4;
        ek_random_words(SEED, scenario, i / (4 * WORD_BLOCKS) * WORD_BLOCKS + block, words);
        double at = words[word] * 0x1p-32 * cluster->domains;
        uint32_t domain = (uint32_t)at;
        uint32_t failed_blocks = failed[domain] / cluster->blast;
        if ((at - domain) * blocks < failed_blocks)
            continue; /* a block that has failed before */
        failed[domain] += cluster->blast;
        failures--;
    }
}

static uint32_t cells_of(const test_cluster *cluster, uint32_t failed, uint32_t *degrees)
{
    const ek_steps *steps = &cluster->steps;
    return ek_packing_cells(cluster->slots, cluster->slots - failed, steps->base_degree,
                            steps->base_degree - steps->levels, degrees);
}

static void count_packed(const test_cluster *cluster, const uint32_t *failed, uint32_t *replicas_at)
{
    const ek_steps *steps = &cluster->steps;
    uint32_t cells[72] = {0}, degrees[64];
    for (uint32_t domain = 0; domain < cluster->domains; domain++)
        for (uint32_t i = cells_of(cluster, failed[domain], degrees); i > 0; i--)
            cells[degrees[i - 1]]++;
    uint32_t count = ek_packing_degrees(cells, steps->base_degree, steps->stages, steps->replicas, degrees);
    for (uint32_t i = 0; i < count; i++)
        replicas_at[steps->base_degree - degrees[i]]++;
    replicas_at[steps->levels + 1] = steps->replicas - count;
}

static void count_left(const test_cluster *cluster, const uint32_t *failed, uint32_t *replicas_at)
{
    const ek_steps *steps = &cluster->steps;
    uint32_t per_domain = cluster->slots / steps->base_degree, degrees[64];
    for (uint32_t replica = 0; replica < steps->replicas; replica++) {
        uint32_t level = 0;
        for (uint32_t stage = 0; stage < steps->stages; stage++) {
            uint32_t cell = replica * steps->stages + stage, domain = cell / per_domain;
            bool lives = cell % per_domain < cells_of(cluster, failed[domain], degrees);
            uint32_t of_cell = lives ? steps->base_degree - degrees[cell % per_domain] : steps->levels + 1;
            level = of_cell > level ? of_cell : level;
        }
        replicas_at[level]++;
    }
}

static void check_scenario(const test_cluster *cluster, const ek_sampler *sampler, ek_sampler_work *work,
                           uint64_t scenario)
{
    uint32_t failures = failures_of(cluster, scenario), *failed = calloc(cluster->domains, sizeof *failed), damaged = 0;
    ek_sampled sampled;
    ek_sampler_one(sampler, work, SEED, scenario, failures, true, &sampled);
    place(cluster, scenario, failures, failed);
    for (uint32_t domain = 0; domain < cluster->domains; domain++)
        damaged += failed[domain] > 0;
    assert_int_equal(sampled.damaged_domains, damaged);
    for (int arrangement = 0; arrangement < EK_ARRANGEMENTS; arrangement++) {
        uint32_t replicas_at[74] = {0};
        double throughput[EK_POLICIES];
        (arrangement == EK_PACKED ? count_packed : count_left)(cluster, failed, replicas_at);
        ek_steps_throughput(&cluster->steps, replicas_at, cluster->steps.levels + 1, throughput, NULL);
        assert_memory_equal(sampled.throughput[arrangement], throughput, sizeof throughput);
    }
    free(failed);
}

static void test_plain_reading(void **state)
{
    (void)state;
    for (uint64_t number = 0; number < CLUSTERS; number++) {
        test_cluster cluster;
        ek_sampler *sampler;
        ek_sampler_work *work;
        cluster_make(&cluster, number);
        assert_ok(ek_sampler_create(&sampler, &cluster.steps, cluster.domains, cluster.slots, cluster.blast));
        assert_ok(ek_sampler_work_create(&work, sampler));
        for (uint64_t scenario = 0; scenario < SCENARIOS; scenario++)
            check_scenario(&cluster, sampler, work, scenario);
        ek_sampler_work_destroy(work);
        ek_sampler_destroy(sampler);
    }
}

/* ------------------------------------------------------------------------------------------ in every scenario */

static void check_order(const ek_sampled *sampled)
{
    for (int arrangement = 0; arrangement < EK_ARRANGEMENTS; arrangement++) {
        const double *throughput = sampled->throughput[arrangement];
        assert_true(throughput[EK_POLICY_DROP] <= throughput[EK_POLICY_NTP]);
        assert_true(throughput[EK_POLICY_NTP] <= throughput[EK_POLICY_NTP_PW]);
        assert_true(throughput[EK_POLICY_NTP_PW] <= 1);
    }
    for (int policy = 0; policy < EK_POLICIES; policy++)
        assert_true(sampled->throughput[EK_LEFT][policy] <= sampled->throughput[EK_PACKED][policy]);
}

static void test_order(void **state)
{
    (void)state;
    for (uint64_t number = 0; number < CLUSTERS; number++) {
        test_cluster cluster;
        ek_sampler *sampler;
        ek_sampler_work *work;
        ek_sampled sampled;
        cluster_make(&cluster, number);
        assert_ok(ek_sampler_create(&sampler, &cluster.steps, cluster.domains, cluster.slots, cluster.blast));
        assert_ok(ek_sampler_work_create(&work, sampler));
        ek_sampler_one(sampler, work, SEED, 0, 0, true, &sampled);
        for (int i = 0; i < EK_ARRANGEMENTS * EK_POLICIES; i++) /* no failure loses exactly nothing */
            assert_true(sampled.throughput[i / EK_POLICIES][i % EK_POLICIES] == 1);
        for (uint64_t scenario = 1; scenario < SCENARIOS; scenario++) {
            ek_sampler_one(sampler, work, SEED, scenario, failures_of(&cluster, scenario), true, &sampled);
            check_order(&sampled);
        }
        ek_sampler_work_destroy(work);
        ek_sampler_destroy(sampler);
    }
}

/* With more failures a scenario keeps those that it had, so it never gains. */
static void test_nested(void **state)
{
    (void)state;
    test_cluster cluster;
    ek_sampler *sampler;
    ek_sampler_work *work;
    cluster_make_published(&cluster);
    assert_ok(ek_sampler_create(&sampler, &cluster.steps, cluster.domains, cluster.slots, 1));
    assert_ok(ek_sampler_work_create(&work, sampler));
    for (uint64_t scenario = 0; scenario < 20; scenario++) {
        ek_sampled before, after;
        ek_sampler_one(sampler, work, SEED, scenario, 0, true, &before);
        for (uint32_t failures = 1; failures < 300; failures++, before = after) {
            ek_sampler_one(sampler, work, SEED, scenario, failures, true, &after);
            assert_in_range(after.damaged_domains, before.damaged_domains, before.damaged_domains + 1);
            for (int i = 0; i < EK_ARRANGEMENTS * EK_POLICIES; i++)
                assert_true(after.throughput[i / EK_POLICIES][i % EK_POLICIES] <=
                            before.throughput[i / EK_POLICIES][i % EK_POLICIES]);
        }
    }
    ek_sampler_work_destroy(work);
    ek_sampler_destroy(sampler);
}

/* ------------------------------------------------------------------------------------------------- in the mean */

/* The probability that none of `failures` of `all` blocks is among `own` of them. */
static double none_of(uint32_t all, uint32_t own, uint32_t failures)
{
    return exp(lgamma(all - own + 1.0) - lgamma(all - own - failures + 1.0) - lgamma(all + 1.0) +
               lgamma(all - failures + 1.0));
}

static void check_means(uint32_t domains, uint32_t slots, uint32_t failures)
{
    enum { COUNT = 40000 };
    ek_level_step levels[1] = {{1, 1, 1, 1, 1, 1, 0}};
    double rerouted[2] = {0, 1};
    const ek_steps steps = {1, 1, slots, 0, 1, levels, rerouted};
    ek_sampler *sampler;
    ek_sampled_means means;
    assert_ok(ek_sampler_create(&sampler, &steps, domains, slots, 1));
    const ek_sampling sampling = {.seed = SEED, .count = COUNT, .failures = failures, .threads = 1};
    assert_ok(ek_sampler_run(sampler, &sampling, &means));
    double whole = none_of(domains * slots, slots, failures), fraction = (double)failures / (domains * slots);
    /* half_width is 1.96 standard errors; 4 of them */
    double allowed = 4 / 1.96;
    assert_true(fabs(means.damaged_domains.mean - domains * (1 - whole)) < allowed * means.damaged_domains.half_width);
    assert_true(fabs(means.whole_cells.mean - whole) < allowed * means.whole_cells.half_width);
    /* failures that are independent: within what drawing an exact number of devices makes of it */
    assert_true(fabs(means.whole_cells.mean - pow(1 - fraction, slots)) <
                allowed * means.whole_cells.half_width + 1.0 * fraction * slots / domains);
    ek_sampler_destroy(sampler);
}

static void test_means(void **state)
{
    (void)state;
    check_means(1024, 32, 131);
    check_means(455, 72, 131); /* no power of two anywhere */
    check_means(4096, 8, 300);
    check_means(10, 7, 30);
}

/* ------------------------------------------------------------------------------------------------------ threads */

static void test_threads(void **state)
{
    (void)state;
    test_cluster cluster;
    ek_sampler *sampler;
    ek_sampled_means one, several;
    cluster_make_published(&cluster);
    assert_ok(ek_sampler_create(&sampler, &cluster.steps, cluster.domains, cluster.slots, 1));
    memset(&one, 0, sizeof one);
    ek_sampling sampling = {.seed = SEED, .count = 50000, .failures = 66, .with_left = true, .threads = 1};
    assert_ok(ek_sampler_run(sampler, &sampling, &one));
    for (sampling.threads = 2; sampling.threads < 6; sampling.threads++) {
        memset(&several, 0, sizeof several);
        assert_ok(ek_sampler_run(sampler, &sampling, &several));
        assert_memory_equal(&one, &several, sizeof one);
    }
    ek_sampler_destroy(sampler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_reading), cmocka_unit_test(test_order),   cmocka_unit_test(test_nested),
        cmocka_unit_test(test_means),         cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
