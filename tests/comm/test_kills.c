/* Ranks that are killed, exit or leave: survivors hear of it, agree, and go on. */
#include "losses.h"

#include <signal.h>
#include <unistd.h>

/* Rank 0 dies before its third vote; all others see the same. */
static ek_status lose_rank_zero(ek_engine *engine, void *user)
{
    (void)user;
    uint32_t ranks = ek_engine_ranks(engine);
    ek_group *group;
    double one = 1, total;
    float value = 1;
    EK_TRY(make_world(&group, engine, EK_LANE_COMPUTE, 0));
    for (uint64_t step = 1; step <= 2; step++) {
        EK_TRY(ek_all_reduce(group, &value, 1, EK_SUM, NULL));
        EK_TRY(ek_vote(engine, step, &one, &total, 1));
        CHECK(total == ranks);
    }
    ek_beat(engine, 4711);
    if (ek_engine_rank(engine) == 0) {
        ek_status status = ek_inject(engine, EK_FAULT_KILL);
        ek_group_destroy(group);
        return status;
    }
    CHECK_STATUS(ek_all_reduce(group, &value, 1, EK_SUM, NULL), EK_PEER_LOST);
    CHECK_STATUS(ek_barrier(group, NULL), EK_PEER_LOST); /* also later ones */
    ek_message nothing = {.peer = ek_engine_rank(engine) % ranks};
    CHECK_STATUS(ek_exchange(engine, EK_LANE_GRADIENT, &nothing, 1, &nothing, 1, NULL), EK_PEER_LOST);
    CHECK_STATUS(ek_vote(engine, 3, &one, &total, 1), EK_PEER_LOST);

    ek_agreement agreement;
    EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
    CHECK(!agreement.ok && agreement.committed_step == 2);
    CHECK(count_absent(engine, &agreement) == 1 && !agreement.live[0]);
    EK_TRY(ek_agree(engine, EK_AGREE_END, ek_engine_rank(engine) != 1, &agreement));
    CHECK(!agreement.ok && count_absent(engine, &agreement) == 1); /* rank 1 was not ok */
    EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
    CHECK(agreement.ok);
    ek_group_destroy(group);
    EK_TRY(make_survivors(&group, engine, EK_LANE_COMPUTE, 0, &agreement));
    value = 1;
    EK_TRY(ek_all_reduce(group, &value, 1, EK_SUM, NULL));
    CHECK(value == (float)(ranks - 1));
    EK_TRY(ek_vote(engine, 3, &one, &total, 1));
    CHECK(total == ranks - 1);
    ek_group_destroy(group);
    return EK_OK;
}

static void test_rank_zero(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        struct log log = {0};
        assert_ok(launch_logged(4, threads, lose_rank_zero, &log));
        assert_int_equal(log.lost_count, 1);
        assert_int_equal(log.lost[0].rank, 0);
        assert_int_equal(log.lost[0].cause, EK_LOSS_SIGNAL);
        assert_int_equal(log.lost[0].code, SIGKILL);
        assert_int_equal(log.lost[0].note, 4711);
    }
}

struct killing {
    struct log log;
    ek_launcher *launcher;
    bool refused;
};

static ek_status keep_launcher(void *user, ek_launcher *launcher)
{
    struct killing *killing = user;
    killing->launcher = launcher;
    killing->refused = ek_launcher_kill(launcher, 1) == EK_INVALID; /* it is not there yet */
    return EK_OK;
}

static ek_status kill_reporter(void *user, uint32_t rank, const void *record, size_t bytes)
{
    (void)record, (void)bytes;
    struct killing *killing = user;
    killing->refused &= ek_launcher_kill(killing->launcher, 3) == EK_INVALID; /* there is no such rank */
    return ek_launcher_kill(killing->launcher, rank);
}

static ek_status refuse_to_kill_again(void *user, const ek_loss *loss)
{
    struct killing *killing = user;
    killing->refused &= ek_launcher_kill(killing->launcher, loss->rank) == EK_INVALID;
    return on_lost(&killing->log, loss);
}

/* Rank 1 is healthy, and killed by the launching side. */
static ek_status report_and_go_on(ek_engine *engine, void *user)
{
    (void)user;
    double none;
    ek_agreement agreement;
    if (ek_engine_rank(engine) == 1) {
        EK_TRY(ek_report(engine, "", 1));
        return ek_agree(engine, EK_AGREE_BEGIN, true, &agreement);
    }
    CHECK_STATUS(ek_vote(engine, 1, NULL, &none, 0), EK_PEER_LOST);
    EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
    CHECK(count_absent(engine, &agreement) == 1 && !agreement.live[1]);
    return EK_OK;
}

static void test_kill(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        struct killing killing = {.refused = false};
        ek_launch_options options = job_options(3, threads, report_and_go_on, &killing);
        options.on_start = keep_launcher;
        options.on_report = kill_reporter;
        options.on_lost = refuse_to_kill_again;
        assert_ok(ek_launch(&options));
        assert_true(killing.refused);
        assert_int_equal(killing.log.lost_count, 1);
        assert_int_equal(killing.log.lost[0].rank, 1);
        assert_int_equal(killing.log.lost[0].cause, EK_LOSS_SIGNAL);
        assert_int_equal(killing.log.lost[0].code, SIGKILL);
    }
}

/* Rank 1 dies when the others already wait in ek_agree. */
static ek_status die_during_agreement(ek_engine *engine, void *user)
{
    (void)user;
    if (ek_engine_rank(engine) == 1) {
        usleep(20000);
        return ek_inject(engine, EK_FAULT_KILL);
    }
    ek_agreement agreement;
    EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
    CHECK(!agreement.ok && count_absent(engine, &agreement) == 1 && !agreement.live[1]);
    return EK_OK;
}

static void test_death_during_agreement(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        struct log log = {0};
        assert_ok(launch_logged(3, threads, die_during_agreement, &log));
        assert_int_equal(log.lost_count, 1);
    }
}

static ek_status die(ek_engine *engine, void *user)
{
    (void)user;
    return ek_inject(engine, EK_FAULT_KILL);
}

static ek_status fail_on_rank_one(ek_engine *engine, void *user)
{
    (void)user;
    ek_group *group;
    if (ek_engine_rank(engine) == 1)
        return ek_fail(EK_IO, "the disk of rank %d is full", 1);
    EK_TRY(make_world(&group, engine, EK_LANE_COMPUTE, 0));
    ek_status status = ek_barrier(group, NULL); /* never returns in a process */
    ek_group_destroy(group);
    return status;
}

static void test_ends(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        struct log log = {0};
        assert_int_equal(launch_logged(3, threads, die, &log), EK_PEER_LOST);
        assert_string_equal(ek_error(), "every rank was lost");
        assert_int_equal(log.lost_count, 3);
        log.lost_count = 0;
        assert_int_equal(launch_logged(3, threads, fail_on_rank_one, &log), EK_IO);
        assert_string_equal(ek_error(), "the disk of rank 1 is full");
        assert_int_equal(log.lost_count, 0);
    }
}

/* A rank that has returned is neither lost nor waited for. */
static ek_status leave_early(ek_engine *engine, void *user)
{
    (void)user;
    double one = 1, total;
    uint32_t rank = ek_engine_rank(engine), ranks = ek_engine_ranks(engine);
    for (uint64_t step = 1; step <= ranks - rank; step++) {
        EK_TRY(ek_vote(engine, step, &one, &total, 1));
        CHECK(total == (double)(ranks + 1 - step));
    }
    return EK_OK;
}

static void test_leaving(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        struct log log = {0};
        assert_ok(launch_logged(5, threads, leave_early, &log));
        assert_int_equal(log.lost_count, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_zero), cmocka_unit_test(test_kill),    cmocka_unit_test(test_death_during_agreement),
        cmocka_unit_test(test_ends),      cmocka_unit_test(test_leaving),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
