/* Comparing state across ranks finds a single flipped bit, in any plane, and names the tensor, the unit and the ranks.
 * The hash comparison after every step is what the tests of failures rest on. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "testing.h"
#include "train/compare.h"

enum { REPLICAS = 2, DEGREE = 3, UNITS = 7, STRAY = 4 }; /* rank 4: replica 1, role 1 */

static const ek_tensor tensors[] = {
    {.name = "matrix", .group = 0, .unit_elements = 5},
    {.name = "norm", .group = EK_REPLICATED, .unit_elements = 3},
};

typedef struct flip_plan {
    const ek_membership *membership;
    int plane; /* -1: nothing is flipped */
    size_t tensor;
} flip_plan;

static void fill(const ek_store *store, const ek_membership *membership, uint32_t rank)
{
    uint32_t count;
    const uint32_t *units = ek_membership_units(membership, rank, 0, &count);
    for (int plane = 0; plane < EK_PLANES; plane++) {
        for (uint32_t unit = 0; unit < count; unit++)
            for (uint32_t i = 0; i < 5; i++)
                store->planes[plane][0][unit * 5 + i] = (float)(units[unit] * 10 + i);
        for (uint32_t i = 0; i < 3; i++)
            store->planes[plane][1][i] = (float)i;
    }
}

static ek_status compare(ek_engine *engine, void *user)
{
    const flip_plan *flip = user;
    uint32_t rank = ek_engine_rank(engine), ranks[REPLICAS * DEGREE];
    for (uint32_t i = 0; i < REPLICAS * DEGREE; i++)
        ranks[i] = i;
    ek_store store;
    ek_group *group;
    EK_TRY(ek_store_create(&store, engine, flip->membership, tensors, 2));
    EK_TRY(ek_group_create(&group, engine, EK_LANE_COMPUTE, 0, ranks, REPLICAS * DEGREE));
    fill(&store, flip->membership, rank);
    if (rank == STRAY && flip->plane >= 0) {
        uint32_t bits;
        float *value = &store.planes[flip->plane][flip->tensor][2];
        memcpy(&bits, value, sizeof bits);
        bits ^= 1;
        memcpy(value, &bits, sizeof bits);
    }
    ek_status status = ek_compare_state(group, ranks, flip->membership, &store, tensors, 2, engine, 0);
    ek_group_destroy(group);
    ek_store_destroy(&store, engine);
    return status;
}

static void test_flipped_bits(void **state)
{
    (void)state;
    ek_unit_group group = {.name = "units", .units = UNITS};
    ek_membership *membership;
    assert_ok(ek_membership_create(
        &membership, &(ek_job){.replicas = REPLICAS, .base_degree = DEGREE, .groups = &group, .group_count = 1}));
    for (int plane = -1; plane < EK_PLANES; plane++) {
        for (size_t tensor = 0; tensor < 2; tensor++) {
            flip_plan flip = {.membership = membership, .plane = plane, .tensor = tensor};
            ek_status status = ek_launch(&(ek_launch_options){
                .engine = "shm", .ranks = REPLICAS * DEGREE, .main = compare, .user = &flip, .timeout_seconds = 10});
            if (plane < 0) {
                assert_ok(status);
                continue;
            }
            assert_int_equal(status, EK_CORRUPT);
            assert_string_equal(ek_error(), tensor == 0 ? "unit 2 of matrix differs between rank 1 and rank 4"
                                                        : "unit 0 of norm differs between rank 0 and rank 4");
        }
    }
    ek_membership_destroy(membership);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_flipped_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
