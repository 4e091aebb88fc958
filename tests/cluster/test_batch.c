/* The split of the global batch over the replicas. */
#include "testing.h"

#include <math.h>

#include "base/rng.h"
#include "cluster/batch.h"

/* Every set of active replicas out of up to six, every batch size up to 40. */
static void splits_are_even_and_complete(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 6; replicas++)
        for (uint32_t set = 1; set < 1u << replicas; set++)
            for (uint32_t samples = 0; samples <= 40; samples++) {
                bool active[6];
                uint32_t active_count = 0, next = 0;
                ek_batch_share shares[6];
                for (uint32_t replica = 0; replica < replicas; replica++)
                    active_count += active[replica] = set >> replica & 1;
                ek_batch_split(samples, active, replicas, shares);
                for (uint32_t replica = 0; replica < replicas; replica++) {
                    uint32_t even = samples / active_count;
                    if (!active[replica]) {
                        assert_int_equal(shares[replica].count, 0);
                        continue;
                    }
                    assert_int_equal(shares[replica].first, next);
                    assert_in_range(shares[replica].count, even, even + (samples % active_count > 0));
                    next += shares[replica].count;
                }
                assert_int_equal(next, samples);
            }
}

static void whole_job_is_split_by_replica(void **state)
{
    (void)state;
    ek_batch_share shares[3];
    ek_batch_split(16, (bool[]){true, true, true}, 3, shares);
    for (uint32_t replica = 0; replica < 3; replica++)
        assert_int_equal(shares[replica].first, replica * 16 / 3);
    ek_batch_split(16, (bool[]){false, false, false}, 3, shares);
    for (uint32_t replica = 0; replica < 3; replica++)
        assert_int_equal(shares[replica].count, 0);
}

/* Every range of the even split, cut where a replica cannot finish it: in whole seconds, so that nothing is rounded. */
static void shrink_leaves_out_what_does_not_fit(void **state)
{
    (void)state;
    const double seconds[4] = {2, 3, INFINITY, 5};
    for (uint32_t samples = 0; samples <= 40; samples++)
        for (uint32_t step_seconds = 0; step_seconds <= 30; step_seconds++) {
            ek_batch_share shares[4], even[4];
            ek_batch_split(samples, (bool[]){true, true, true, true}, 4, even);
            ek_batch_shrink(samples, seconds, step_seconds, 4, shares);
            assert_int_equal(shares[2].count, 0);
            for (uint32_t replica = 0; replica < 4; replica++) {
                assert_int_equal(shares[replica].first, even[replica].first);
                if (replica == 2)
                    continue;
                assert_true(shares[replica].count * seconds[replica] <= step_seconds);
                if (shares[replica].count < even[replica].count)
                    assert_true((shares[replica].count + 1) * seconds[replica] > step_seconds);
                else
                    assert_int_equal(shares[replica].count, even[replica].count);
            }
        }
}

/* The shortest step over every way to split `samples` over the replicas from `first` on. */
static double best_by_search(uint32_t samples, const double *seconds, uint32_t first, uint32_t replicas)
{
    if (first + 1 == replicas)
        return samples ? samples * seconds[first] : 0;
    double best = INFINITY;
    for (uint32_t taken = 0; taken <= samples; taken++) {
        double rest = best_by_search(samples - taken, seconds, first + 1, replicas);
        best = fmin(best, fmax(taken ? taken * seconds[first] : 0, rest));
    }
    return best;
}

static double check_and_time(uint32_t samples, const double *seconds, uint32_t replicas, const ek_batch_share *shares)
{
    double slowest = 0;
    uint32_t next = 0;
    for (uint32_t replica = 0; replica < replicas; replica++) {
        if (seconds[replica] == INFINITY) {
            assert_int_equal(shares[replica].count, 0);
            continue;
        }
        assert_int_equal(shares[replica].first, next);
        next += shares[replica].count;
        slowest = fmax(slowest, shares[replica].count * seconds[replica]);
    }
    assert_int_equal(next, samples);
    return slowest;
}

/* Up to 4 replicas, up to 12 samples; seconds that tie often, and seconds that hardly do; some retired. */
static void rebalance_is_optimal(void **state)
{
    (void)state;
    for (uint64_t trial = 0; trial < 4000; trial++) {
        uint32_t replicas = 1 + ek_random_u64(1, trial, 0) % 4, samples = ek_random_u64(1, trial, 1) % 13;
        double seconds[4];
        for (uint32_t i = 0; i < replicas; i++) {
            uint64_t draw = ek_random_u64(2, trial, i);
            seconds[i] = trial % 2 ? 0.01 + ek_random_uniform(3, trial, i) : 1 + draw % 4;
            if (i && draw % 7 == 0)
                seconds[i] = INFINITY;
        }
        ek_batch_share shares[4];
        ek_batch_rebalance(samples, seconds, replicas, shares);
        double found = check_and_time(samples, seconds, replicas, shares);
        assert_true(found == best_by_search(samples, seconds, 0, replicas));
    }
}

/* Where no search reaches: no sample could go elsewhere and make the slowest replica faster. */
static void rebalance_is_optimal_at_scale(void **state)
{
    (void)state;
    static double seconds[256];
    static ek_batch_share shares[256];
    for (uint64_t trial = 0; trial < 50; trial++) {
        for (uint32_t i = 0; i < 256; i++)
            seconds[i] = 0.5 + ek_random_uniform(4, trial, i);
        ek_batch_rebalance(1048576, seconds, 256, shares);
        double slowest = check_and_time(1048576, seconds, 256, shares);
        for (uint32_t i = 0; i < 256; i++)
            assert_true((shares[i].count + 1) * seconds[i] >= slowest);
    }
}

static void rebalance_of_equals_is_the_even_split(void **state)
{
    (void)state;
    for (uint32_t set = 0; set < 64; set++)
        for (uint32_t samples = 0; samples <= 40; samples++) {
            bool active[6];
            double seconds[6];
            ek_batch_share even[6], shares[6];
            for (uint32_t i = 0; i < 6; i++) {
                active[i] = set >> i & 1;
                seconds[i] = active[i] ? 0.1 : INFINITY;
            }
            ek_batch_split(samples, active, 6, even);
            ek_batch_rebalance(samples, seconds, 6, shares);
            assert_memory_equal(shares, even, sizeof shares);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_are_even_and_complete),        cmocka_unit_test(whole_job_is_split_by_replica),
        cmocka_unit_test(shrink_leaves_out_what_does_not_fit), cmocka_unit_test(rebalance_is_optimal),
        cmocka_unit_test(rebalance_is_optimal_at_scale),       cmocka_unit_test(rebalance_of_equals_is_the_even_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
