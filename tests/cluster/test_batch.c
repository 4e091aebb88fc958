/* The split of the global batch over the replicas. */
#include "testing.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_are_even_and_complete),
        cmocka_unit_test(whole_job_is_split_by_replica),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
