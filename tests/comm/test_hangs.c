/* Ranks that make no progress: they are lost too, and who but waits is not. */
#include "losses.h"

#include <signal.h>
#include <unistd.h>

/* Ranks 1 and 2 of 5 go: one hangs, one exits behind the engine's back. */
static ek_status lose_two(ek_engine *engine, void *user)
{
    (void)user;
    ek_group *group;
    EK_TRY(make_world(&group, engine, EK_LANE_GRADIENT, 0));
    if (ek_engine_rank(engine) == 1)
        return ek_inject(engine, EK_FAULT_HANG);
    if (ek_engine_rank(engine) == 2)
        _exit(9);
    CHECK_STATUS(ek_barrier(group, NULL), EK_PEER_LOST);
    ek_agreement agreement = {0};
    do
        EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
    while (count_absent(engine, &agreement) < 2); /* the second may be noticed after the first agreement */
    CHECK(!agreement.live[1] && !agreement.live[2]);
    ek_group_destroy(group);
    return EK_OK;
}

static void test_hang_and_exit(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    struct log log = {0};
    assert_ok(launch_logged(5, false, lose_two, &log));
    assert_int_equal(log.lost_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        bool hung = log.lost[i].rank == 1;
        assert_int_equal(log.lost[i].cause, hung ? EK_LOSS_TIMEOUT : EK_LOSS_EXIT);
        assert_int_equal(log.lost[i].code, SIGKILL);
    }
}

static ek_status hang_one(ek_engine *engine, void *user)
{
    (void)user;
    ek_group *group;
    EK_TRY(make_world(&group, engine, EK_LANE_COMPUTE, 0));
    if (ek_engine_rank(engine) == 2) {
        ek_group_destroy(group);
        return ek_inject(engine, EK_FAULT_HANG);
    }
    double none;
    if (ek_engine_rank(engine) == 0) /* one waits in the vote, one in a collective */
        CHECK_STATUS(ek_vote(engine, 1, NULL, &none, 0), EK_PEER_LOST);
    else
        CHECK_STATUS(ek_barrier(group, NULL), EK_PEER_LOST);
    ek_agreement agreement;
    EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
    CHECK(count_absent(engine, &agreement) == 1 && !agreement.live[2]);
    ek_group_destroy(group);
    return EK_OK;
}

static void test_hang(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        struct log log = {0};
        assert_ok(launch_logged(3, threads, hang_one, &log));
        assert_int_equal(log.lost_count, 1);
        assert_int_equal(log.lost[0].cause, EK_LOSS_TIMEOUT);
    }
}

static ek_status hang(ek_engine *engine, void *user)
{
    (void)user;
    return ek_inject(engine, EK_FAULT_HANG);
}

/* A timeout too short to be kept is still one. */
static void test_tiny_timeout(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        struct log log = {0};
        ek_launch_options options = job_options(1, threads, hang, &log);
        options.on_lost = on_lost;
        options.timeout_seconds = 1e-9;
        assert_int_equal(ek_launch(&options), EK_PEER_LOST);
        assert_int_equal(log.lost_count, 1);
        assert_int_equal(log.lost[0].cause, EK_LOSS_TIMEOUT);
    }
}

/* The compute thread of rank 1 stalls while its gradient lane waits for others: the lane must not beat for it. Rank 0
 * waits for its own gradient lane for longer than the timeout, and is alive. */
static ek_status stall_one(ek_engine *engine, void *user)
{
    (void)user;
    ek_group *group;
    ek_request request;
    float one = 1;
    EK_TRY(make_world(&group, engine, EK_LANE_GRADIENT, 0));
    if (ek_engine_rank(engine) < 2)
        EK_TRY(ek_all_reduce(group, &one, 1, EK_SUM, &request));
    if (ek_engine_rank(engine) == 1)
        for (;;)
            pause();
    if (ek_engine_rank(engine) == 0) {
        CHECK_STATUS(ek_wait(engine, EK_LANE_GRADIENT, request), EK_PEER_LOST);
    } else {
        double none;
        CHECK_STATUS(ek_vote(engine, 1, NULL, &none, 0), EK_PEER_LOST);
    }
    ek_group_destroy(group);
    ek_agreement agreement;
    return ek_agree(engine, EK_AGREE_BEGIN, true, &agreement);
}

static void test_stall(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    struct log log = {0};
    assert_ok(launch_logged(3, false, stall_one, &log));
    assert_int_equal(log.lost_count, 1);
    assert_int_equal(log.lost[0].rank, 1);
    assert_int_equal(log.lost[0].cause, EK_LOSS_TIMEOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hang_and_exit),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_tiny_timeout),
        cmocka_unit_test(test_stall),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
