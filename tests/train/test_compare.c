/* Comparing state across ranks finds a single flipped bit, in any plane, and names the tensor, the unit and the ranks.
 * The hash comparison after every step is what the tests of failures rest on. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "testing.h"
#include "train/compare.h"

enum { DEGREE = 3, UNITS = 7, STRAY = 4 }; /* rank 4: replica 1, role 1 */

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

/* One copy is odd, named rightly, and after healing none is. */
static ek_status heal(ek_engine *engine, const flip_plan *flip, ek_group *group, const uint32_t *ranks, ek_store *store,
                      const ek_odd_copy *odd, size_t odd_count)
{
    if (odd_count != 1 || odd->odd != STRAY || odd->good == STRAY || odd->tensor != flip->tensor ||
        odd->unit != (flip->tensor == 0 ? 2 : 0))
        return ek_fail(EK_INVALID, "%zu copies are odd, the first unit %u on rank %u", odd_count, odd->unit, odd->odd);
    EK_TRY(ek_heal_state(odd, odd_count, flip->membership, store, tensors, engine));
    ek_odd_copy *left = NULL;
    EK_TRY(ek_compare_state(group, ranks, flip->membership, store, tensors, 2, engine, 0, &left, &odd_count));
    ek_free(left);
    return odd_count ? ek_fail(EK_INVALID, "still odd") : EK_OK;
}

static ek_status compare(ek_engine *engine, void *user)
{
    const flip_plan *flip = user;
    uint32_t rank = ek_engine_rank(engine), count = ek_engine_ranks(engine), ranks[3 * DEGREE];
    for (uint32_t i = 0; i < count; i++)
        ranks[i] = i;
    ek_store store;
    ek_group *group;
    EK_TRY(ek_store_create(&store, rank, flip->membership, tensors, 2));
    EK_TRY(ek_group_create(&group, engine, EK_LANE_COMPUTE, 0, ranks, count));
    fill(&store, flip->membership, rank);
    if (rank == STRAY && flip->plane >= 0) {
        uint32_t bits;
        float *value = &store.planes[flip->plane][flip->tensor][2];
        memcpy(&bits, value, sizeof bits);
        bits ^= 1;
        memcpy(value, &bits, sizeof bits);
    }
    ek_odd_copy *odd = NULL;
    size_t odd_count = 0;
    ek_status status =
        ek_compare_state(group, ranks, flip->membership, &store, tensors, 2, engine, 0, &odd, &odd_count);
    if (status == EK_OK && flip->plane >= 0)
        status = heal(engine, flip, group, ranks, &store, odd, odd_count);
    else if (odd_count)
        status = ek_fail(EK_INVALID, "%zu copies are odd", odd_count);
    ek_free(odd);
    ek_group_destroy(group);
    ek_store_destroy(&store);
    return status;
}

/* With two replicas a unit's two copies stand against each other; of a replicated tensor six ranks hold copies, and
 * five agree. With three replicas both can be healed. */
static void check(uint32_t replicas)
{
    ek_unit_group group = {.name = "units", .units = UNITS};
    ek_membership *membership;
    assert_ok(ek_membership_create(
        &membership, &(ek_job){.replicas = replicas, .base_degree = DEGREE, .groups = &group, .group_count = 1}));
    for (int plane = -1; plane < EK_PLANES; plane++) {
        for (size_t tensor = 0; tensor < 2; tensor++) {
            flip_plan flip = {.membership = membership, .plane = plane, .tensor = tensor};
            ek_status status = ek_launch(&(ek_launch_options){
                .engine = "shm", .ranks = replicas * DEGREE, .main = compare, .user = &flip, .timeout_seconds = 10});
            if (plane < 0 || tensor == 1 || replicas == 3) {
                assert_ok(status);
                continue;
            }
            assert_int_equal(status, EK_CORRUPT);
            assert_string_equal(ek_error(),
                                "unit 2 of matrix differs between rank 1 and rank 4, and no value has most of "
                                "its 2 copies");
        }
    }
    ek_membership_destroy(membership);
}

static void test_flipped_bits(void **state)
{
    (void)state;
    check(2);
    check(3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_flipped_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
