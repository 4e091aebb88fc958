/* Losing ranks: by kill, by hang, by exit, one or several, anywhere. Survivors hear of it, agree, and go on. */
#include "jobs.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

/* What a job did, seen from the launching process. */
struct log {
    uint32_t lost_count;
    ek_loss lost[16];
    uint32_t outcome_count;
    uint64_t seed;
};

static ek_status on_lost(void *user, const ek_loss *loss)
{
    struct log *log = user;
    log->lost[log->lost_count++] = *loss;
    return EK_OK;
}

static ek_status launch_logged(uint32_t ranks, bool threads, ek_status (*main)(ek_engine *, void *), struct log *log)
{
    ek_launch_options options = job_options(ranks, threads, main, log);
    options.on_lost = on_lost;
    options.timeout_seconds = UNDER_TSAN ? 2 : 0.3;
    return ek_launch(&options);
}

/* ---------------------------------------------------------------------------------------- known faults */

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
    if (ek_engine_rank(engine) == 0)
        return ek_inject(engine, EK_FAULT_KILL);
    CHECK_STATUS(ek_all_reduce(group, &value, 1, EK_SUM, NULL), EK_PEER_LOST);
    CHECK_STATUS(ek_barrier(group, NULL), EK_PEER_LOST); /* also later ones */
    ek_message nothing = {.peer = ek_engine_rank(engine) % ranks};
    CHECK_STATUS(ek_exchange(engine, EK_LANE_GRADIENT, &nothing, 1, &nothing, 1, NULL), EK_PEER_LOST);
    CHECK_STATUS(ek_vote(engine, 3, &one, &total, 1), EK_PEER_LOST);

    ek_agreement agreement;
    EK_TRY(ek_agree(engine, true, &agreement));
    CHECK(!agreement.ok && agreement.committed_step == 2);
    CHECK(agreement.lost_count == 1 && agreement.lost[0] == 0 && agreement.lost_before == 0);
    EK_TRY(ek_agree(engine, ek_engine_rank(engine) != 1, &agreement));
    CHECK(!agreement.ok && agreement.lost_count == 1 && agreement.lost_before == 1); /* rank 1 was not ok */
    EK_TRY(ek_agree(engine, true, &agreement));
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
        EK_TRY(ek_agree(engine, true, &agreement));
    while (agreement.lost_count < 2); /* the second may be noticed after the first agreement */
    CHECK(agreement.lost[0] == 1 && agreement.lost[1] == 2);
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
        assert_int_equal(log.lost[i].code, hung ? SIGKILL : 9);
    }
}

static ek_status hang_one(ek_engine *engine, void *user)
{
    (void)user;
    ek_group *group;
    EK_TRY(make_world(&group, engine, EK_LANE_COMPUTE, 0));
    if (ek_engine_rank(engine) == 2)
        return ek_inject(engine, EK_FAULT_HANG);
    double none;
    if (ek_engine_rank(engine) == 0) /* one waits in the vote, one in a collective */
        CHECK_STATUS(ek_vote(engine, 1, NULL, &none, 0), EK_PEER_LOST);
    else
        CHECK_STATUS(ek_barrier(group, NULL), EK_PEER_LOST);
    ek_agreement agreement;
    EK_TRY(ek_agree(engine, true, &agreement));
    CHECK(agreement.lost_count == 1 && agreement.lost[0] == 2);
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

/* Rank 1 dies when the others already wait in ek_agree. */
static ek_status die_during_agreement(ek_engine *engine, void *user)
{
    (void)user;
    if (ek_engine_rank(engine) == 1) {
        usleep(20000);
        return ek_inject(engine, EK_FAULT_KILL);
    }
    ek_agreement agreement;
    EK_TRY(ek_agree(engine, true, &agreement));
    CHECK(!agreement.ok && agreement.lost_count == 1 && agreement.lost[0] == 1);
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
    return ek_barrier(group, NULL); /* never returns in a process */
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

/* ---------------------------------------------------------------------------------------- random faults */

/* What ranks report: their last word on each step, and each agreement. */
struct outcome {
    uint64_t step;
    bool committed;
};

enum { STRESS_STEPS = 60, STRESS_RANKS = 6, STRESS_DEATHS = 4 };

struct stress {
    uint64_t seed;
    uint8_t committed[STRESS_STEPS + 1], aborted[STRESS_STEPS + 1]; /* a step may be aborted, then committed */
    bool contradicted;
    uint32_t lost_count;
};

static ek_status count_outcome(void *user, uint32_t rank, const void *record, size_t bytes)
{
    (void)rank;
    struct stress *stress = user;
    struct outcome outcome;
    assert_int_equal(bytes, sizeof outcome);
    memcpy(&outcome, record, sizeof outcome);
    if (outcome.committed)
        stress->committed[outcome.step]++;
    else if (stress->committed[outcome.step])
        stress->contradicted = true; /* aborted for one, after it was committed for another */
    return EK_OK;
}

static ek_status count_loss(void *user, const ek_loss *loss)
{
    (void)loss;
    ((struct stress *)user)->lost_count++;
    return EK_OK;
}

/* When a rank dies: at one of the places of a step, chosen by the seed; rank STRESS_RANKS-1 and its like stay. */
static ek_status maybe_die(ek_engine *engine, const struct stress *stress, uint64_t step, uint64_t place)
{
    uint32_t rank = ek_engine_rank(engine);
    uint64_t death_step = 1 + ek_random_u64(stress->seed, 1, rank) % STRESS_STEPS;
    uint64_t death_place = ek_random_u64(stress->seed, 2, rank) % 6;
    bool dies = ek_random_permute(stress->seed, rank, STRESS_RANKS) < STRESS_DEATHS;
    if (dies && step == death_step && place == death_place)
        return ek_inject(engine, EK_FAULT_KILL);
    return EK_OK;
}

struct stress_rank {
    ek_engine *engine;
    const struct stress *stress;
    ek_group *compute, *gradient;
    float *heap;
};

/* One step of work on both lanes, with places to die in. */
static ek_status work(struct stress_rank *self, uint64_t step)
{
    ek_engine *engine = self->engine;
    float ordinary[300];
    ek_request request;
    size_t large = 30000;
    for (size_t i = 0; i < large; i++)
        self->heap[i] = 1;
    EK_TRY(maybe_die(engine, self->stress, step, 0));
    EK_TRY(ek_all_reduce(self->gradient, self->heap, large, EK_SUM, &request));
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 300; j++)
            ordinary[j] = 1;
        EK_TRY(ek_all_reduce(self->compute, ordinary, 300, EK_SUM, NULL));
        CHECK(ordinary[299] == (float)ek_group_size(self->compute));
        EK_TRY(maybe_die(engine, self->stress, step, 1 + (uint64_t)i));
    }
    EK_TRY(ek_wait(engine, EK_LANE_GRADIENT, request));
    CHECK(self->heap[large - 1] == (float)ek_group_size(self->gradient));
    return maybe_die(engine, self->stress, step, 4);
}

static ek_status say(ek_engine *engine, uint64_t step, bool committed)
{
    struct outcome outcome = {.step = step, .committed = committed};
    return ek_report(engine, &outcome, sizeof outcome);
}

static ek_status recover(struct stress_rank *self, uint64_t step, uint64_t *next_step)
{
    ek_engine *engine = self->engine;
    ek_agreement agreement = {.lost_count = 0};
    ek_group_destroy(self->compute);
    ek_group_destroy(self->gradient);
    self->compute = self->gradient = NULL;
    EK_TRY(ek_agree(engine, true, &agreement));
    CHECK(agreement.committed_step == step || agreement.committed_step + 1 == step);
    *next_step = agreement.committed_step + 1;
    EK_TRY(make_survivors(&self->compute, engine, EK_LANE_COMPUTE, 1, &agreement));
    return make_survivors(&self->gradient, engine, EK_LANE_GRADIENT, 1, &agreement);
}

static ek_status stress_steps(struct stress_rank *self)
{
    ek_engine *engine = self->engine;
    for (uint64_t step = 1; step <= STRESS_STEPS;) {
        double one = 1, total = 0;
        uint64_t next = step + 1;
        ek_status status = work(self, step);
        if (status == EK_OK)
            status = ek_vote(engine, step, &one, &total, 1);
        if (status != EK_OK && status != EK_PEER_LOST)
            return status;
        if (status == EK_OK) {
            EK_TRY(say(engine, step, true));
            CHECK(total == ek_group_size(self->compute));
            EK_TRY(maybe_die(engine, self->stress, step, 5));
        }
        if (status == EK_PEER_LOST) {
            EK_TRY(say(engine, step, false));
            EK_TRY(recover(self, step, &next));
            CHECK(next == step); /* the others do not know better: this rank was told the truth */
        }
        step = next;
    }
    return EK_OK;
}

static ek_status stress_main(ek_engine *engine, void *user)
{
    struct stress_rank self = {.engine = engine, .stress = user};
    void *memory;
    EK_TRY(ek_engine_alloc(engine, 30000 * sizeof(float), &memory));
    self.heap = memory;
    EK_TRY(make_world(&self.compute, engine, EK_LANE_COMPUTE, 0));
    EK_TRY(make_world(&self.gradient, engine, EK_LANE_GRADIENT, 0));
    ek_status status = stress_steps(&self);
    ek_group_destroy(self.compute);
    ek_group_destroy(self.gradient);
    return status;
}

static void test_random_deaths(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        for (uint64_t seed = 1; seed <= (UNDER_TSAN ? 3 : 15); seed++) {
            struct stress stress = {.seed = seed};
            ek_launch_options options = job_options(STRESS_RANKS, threads, stress_main, &stress);
            options.on_report = count_outcome;
            options.on_lost = count_loss;
            assert_ok(ek_launch(&options));
            assert_int_equal(stress.lost_count, STRESS_DEATHS);
            assert_false(stress.contradicted);
            for (int step = 1; step <= STRESS_STEPS; step++)
                assert_true(stress.committed[step] >= STRESS_RANKS - STRESS_DEATHS);
        }
    }
}

/* Thousands of votes in a row: sums never mix steps. */
static ek_status race_votes(ek_engine *engine, void *user)
{
    (void)user;
    uint32_t rank = ek_engine_rank(engine), ranks = ek_engine_ranks(engine);
    for (uint64_t step = 1; step <= 3000; step++) {
        double values[EK_VOTE_VALUES], sums[EK_VOTE_VALUES];
        for (uint32_t i = 0; i < EK_VOTE_VALUES; i++)
            values[i] = (double)(step * (rank + 1) * (i + 1));
        EK_TRY(ek_vote(engine, step, values, sums, EK_VOTE_VALUES));
        for (uint32_t i = 0; i < EK_VOTE_VALUES; i++)
            CHECK(sums[i] == (double)(step * (i + 1) * ranks * (ranks + 1) / 2));
    }
    return EK_OK;
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
        cmocka_unit_test(test_rank_zero), cmocka_unit_test(test_hang_and_exit),
        cmocka_unit_test(test_hang),      cmocka_unit_test(test_death_during_agreement),
        cmocka_unit_test(test_ends),      cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_votes),     cmocka_unit_test(test_random_deaths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
