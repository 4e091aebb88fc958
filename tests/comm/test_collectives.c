/* Every collective, as processes and threads, with 1 to 9 ranks; and what is refused. */
#include "checks.h"

static void test_everything(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    for (uint32_t ranks = 1; ranks <= 9; ranks += UNDER_TSAN ? 3 : 1)
        assert_ok(run_job(ranks, threads, try_everything, NULL));
}

static void test_large(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    assert_ok(run_job(3, threads, try_large, NULL));
}

static void test_both_lanes(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    for (uint32_t ranks = 1; ranks <= 8; ranks *= 2)
        assert_ok(run_job(ranks, threads, run_both_lanes, NULL));
}

static void test_large_ordinary_memory(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    assert_ok(run_job(3, threads, stage_much, NULL));
}

static void test_remade_groups(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    assert_ok(run_job(4, threads, remake_groups, NULL));
}

static void test_alternating_groups(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    assert_ok(run_job(5, threads, alternate_groups, NULL));
}

static ek_status misuse(ek_engine *engine, void *user)
{
    (void)user;
    ek_group *group;
    uint32_t twice[] = {0, 0}, absent[] = {0, 1, 2}, far[] = {0, 9}, others[] = {1 - ek_engine_rank(engine)};
    CHECK_STATUS(ek_group_create(&group, engine, EK_LANE_COMPUTE, 0, twice, 2), EK_INVALID);
    CHECK_STATUS(ek_group_create(&group, engine, EK_LANE_COMPUTE, 0, absent, 3), EK_INVALID);
    CHECK_STATUS(ek_group_create(&group, engine, EK_LANE_COMPUTE, 0, far, 2), EK_INVALID);
    CHECK_STATUS(ek_group_create(&group, engine, EK_LANE_COMPUTE, 0, others, 1), EK_INVALID);
    CHECK_STATUS(ek_group_create(&group, engine, (ek_lane)2, 0, others, 1), EK_INVALID);
    EK_TRY(ek_group_create(&group, engine, EK_LANE_COMPUTE, 0, absent, 2));
    float buffer[8] = {0};
    CHECK_STATUS(ek_all_reduce(group, buffer, ek_engine_rank(engine) + 1, EK_SUM, NULL), EK_INVALID); /* unequal */
    CHECK_STATUS(ek_all_reduce(group, buffer, 1, (ek_reduction)5, NULL), EK_INVALID);
    CHECK_STATUS(ek_broadcast(group, buffer, 1, 2, NULL), EK_INVALID);
    ek_message message = {.peer = 2, .data = buffer, .bytes = 4};
    CHECK_STATUS(ek_exchange(engine, EK_LANE_COMPUTE, &message, 1, NULL, 0, NULL), EK_INVALID); /* absent */
    message.peer = 3;
    CHECK_STATUS(ek_exchange(engine, EK_LANE_COMPUTE, &message, 1, NULL, 0, NULL), EK_INVALID);
    message.peer = ek_engine_rank(engine);
    CHECK_STATUS(ek_exchange(engine, EK_LANE_COMPUTE, &message, 1, NULL, 0, NULL), EK_INVALID); /* nobody receives */
    double values[EK_VOTE_VALUES + 1] = {0};
    CHECK_STATUS(ek_vote(engine, 2, values, values, 1), EK_INVALID);
    CHECK_STATUS(ek_vote(engine, 1, values, values, EK_VOTE_VALUES + 1), EK_INVALID);
    void *memory;
    CHECK_STATUS(ek_engine_alloc(engine, (size_t)1 << 40, &memory), EK_NO_MEMORY);
    CHECK_STATUS(ek_report(engine, values, EK_REPORT_BYTES + 1), EK_INVALID);
    ek_agreement agreement;
    CHECK_STATUS(ek_agree(engine, (ek_agreement_kind)2, true, &agreement), EK_INVALID);
    EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
    CHECK(agreement.ok && agreement.live[0] && agreement.live[1] && !agreement.live[2] && !agreement.newcomers[0] &&
          agreement.committed_step == 0);
    CHECK_STATUS(ek_barrier(group, NULL), EK_INVALID); /* the group is of the last epoch */
    ek_group_destroy(group);
    return EK_OK;
}

static void test_misuse(void **state)
{
    (void)state;
    bool absent[] = {false, false, true};
    FOR_EACH_MODE(threads)
    {
        ek_launch_options options = job_options(3, threads, misuse, NULL);
        options.absent = absent;
        assert_ok(ek_launch(&options));
    }
    ek_launch_options options = job_options(3, true, misuse, NULL);
    options.engine = "none";
    assert_int_equal(ek_launch(&options), EK_INVALID);
    options.engine = "shm";
    options.ranks = 0;
    assert_int_equal(ek_launch(&options), EK_INVALID);
    options.ranks = 2;
    options.timeout_seconds = -1;
    assert_int_equal(ek_launch(&options), EK_INVALID);
    options.timeout_seconds = 1;
    options.heap_bytes = SIZE_MAX / 4;
    assert_int_not_equal(ek_launch(&options), EK_OK);
}

static void test_votes(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    assert_ok(run_job(5, threads, race_votes, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything),    cmocka_unit_test(test_large),
        cmocka_unit_test(test_both_lanes),    cmocka_unit_test(test_large_ordinary_memory),
        cmocka_unit_test(test_remade_groups), cmocka_unit_test(test_alternating_groups),
        cmocka_unit_test(test_misuse),        cmocka_unit_test(test_votes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
