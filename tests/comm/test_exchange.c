/* Point-to-point, as processes and threads. */
#include "checks.h"

static void test_random_patterns(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    for (uint32_t ranks = 1; ranks <= 9; ranks += 2)
        assert_ok(run_job(ranks, threads, exchange_randomly, NULL));
}

/* Three messages sent in one call, received in two; and started calls in both directions that overlap. */
static ek_status split_calls(ek_engine *engine, void *user)
{
    (void)user;
    uint32_t rank = ek_engine_rank(engine), peer = 1 - rank;
    int64_t out[3] = {rank, rank + 10, rank + 20}, in[3] = {-1, -1, -1};
    ek_message sends[3], receives[3];
    for (int i = 0; i < 3; i++) {
        sends[i] = (ek_message){.peer = peer, .data = &out[i], .bytes = sizeof out[i]};
        receives[i] = (ek_message){.peer = peer, .data = &in[i], .bytes = sizeof in[i]};
    }
    for (int turn = 0; turn < 100; turn++) {
        if (rank == 0) {
            EK_TRY(ek_exchange(engine, EK_LANE_COMPUTE, sends, 3, NULL, 0, NULL));
        } else {
            EK_TRY(ek_exchange(engine, EK_LANE_COMPUTE, NULL, 0, receives, 1, NULL));
            EK_TRY(ek_exchange(engine, EK_LANE_COMPUTE, NULL, 0, receives + 1, 2, NULL));
            CHECK(in[0] == 0 && in[1] == 10 && in[2] == 20);
        }
        ek_request request;
        for (int i = 0; i < 3; i++)
            EK_TRY(ek_exchange(engine, EK_LANE_GRADIENT, sends + i, 1, receives + i, 1, &request));
        EK_TRY(ek_wait(engine, EK_LANE_GRADIENT, request));
        for (int i = 0; i < 3; i++) {
            CHECK(in[i] == peer + 10 * i);
            in[i] = -1;
        }
    }
    out[0] = 5;
    sends[0].bytes = rank == 0 ? 8 : 4; /* sizes that do not agree */
    ek_status status = rank == 0 ? ek_exchange(engine, EK_LANE_COMPUTE, sends, 1, NULL, 0, NULL)
                                 : ek_exchange(engine, EK_LANE_COMPUTE, NULL, 0, &(ek_message){0, in, 4}, 1, NULL);
    CHECK(rank == 1 && status == EK_INVALID); /* the sender is still waiting when this ends the job */
    return ek_fail(EK_INVALID, "sizes differ, as they should");
}

static void test_split_calls(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        assert_int_equal(run_job(2, threads, split_calls, NULL), EK_INVALID);
        assert_string_equal(ek_error(), "sizes differ, as they should");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_patterns),
        cmocka_unit_test(test_split_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
