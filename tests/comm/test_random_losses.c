/* Ranks that die at random places and at random moments of a job that uses both lanes: all survivors hear the same of
 * every step and every agreement. */
#include "jobs.h"

#include <unistd.h>

enum { STRESS_STEPS = 60, STRESS_RANKS = 6, STRESS_DEATHS = 4, STRESS_FLOATS = 30000 };

/* What a rank reports: its word on a step, or what it was told by an agreement. */
struct outcome {
    uint64_t step;      /* 0: an agreement */
    uint64_t agreement; /* its number */
    uint32_t lost_mask;
    bool committed;
};

struct stress {
    uint64_t seed;
    bool at_any_moment; /* by an alarm, instead of at the places below */
    /* gathered by the launching process */
    uint32_t committed[STRESS_STEPS + 1];
    struct outcome agreed[STRESS_DEATHS + 1];
    bool contradicted;
    uint32_t lost_count;
};

static ek_status compare_outcome(void *user, uint32_t rank, const void *record, size_t bytes)
{
    (void)rank;
    struct stress *stress = user;
    struct outcome outcome;
    assert_int_equal(bytes, sizeof outcome);
    memcpy(&outcome, record, sizeof outcome);
    if (outcome.step == 0) {
        struct outcome *agreed = &stress->agreed[outcome.agreement];
        stress->contradicted |= agreed->agreement && agreed->lost_mask != outcome.lost_mask;
        *agreed = outcome;
    } else if (outcome.committed) {
        stress->committed[outcome.step]++;
    } else {
        stress->contradicted |= stress->committed[outcome.step] > 0; /* aborted for one, committed for another */
    }
    return EK_OK;
}

static ek_status count_loss(void *user, const ek_loss *loss)
{
    (void)loss;
    ((struct stress *)user)->lost_count++;
    return EK_OK;
}

struct stress_rank {
    ek_engine *engine;
    const struct stress *stress;
    ek_group *compute, *gradient;
    float *heap;
    uint32_t ring[2]; /* the neighbours: before, after */
    uint64_t agreements;
    uint32_t lost_mask;
};

static bool is_mortal(const struct stress_rank *self)
{
    return ek_random_permute(self->stress->seed, ek_engine_rank(self->engine), STRESS_RANKS) < STRESS_DEATHS;
}

/* Each mortal dies at one of seven places of one step. */
static ek_status maybe_die(const struct stress_rank *self, uint64_t step, uint64_t place)
{
    uint32_t rank = ek_engine_rank(self->engine);
    uint64_t death_step = 1 + ek_random_u64(self->stress->seed, 1, rank) % STRESS_STEPS;
    uint64_t death_place = ek_random_u64(self->stress->seed, 2, rank) % 7;
    bool in_recovery = death_place == 6 && step >= death_step;
    if (is_mortal(self) && !self->stress->at_any_moment && place == death_place && (step == death_step || in_recovery))
        return ek_inject(self->engine, EK_FAULT_KILL);
    return EK_OK;
}

static ek_status pass_around(const struct stress_rank *self)
{
    ek_engine *engine = self->engine;
    uint64_t out[500], in[500];
    for (size_t i = 0; i < 500; i++)
        out[i] = ek_engine_rank(engine);
    ek_message send = {.peer = self->ring[1], .data = out, .bytes = sizeof out};
    ek_message receive = {.peer = self->ring[0], .data = in, .bytes = sizeof in};
    EK_TRY(ek_exchange(engine, EK_LANE_COMPUTE, &send, 1, &receive, 1, NULL));
    CHECK(in[0] == self->ring[0] && in[499] == self->ring[0]);
    return EK_OK;
}

/* One step of work on both lanes, with places to die in. */
static ek_status work(const struct stress_rank *self, uint64_t step)
{
    ek_engine *engine = self->engine;
    float ordinary[300];
    ek_request request;
    for (size_t i = 0; i < STRESS_FLOATS; i++)
        self->heap[i] = 1;
    EK_TRY(maybe_die(self, step, 0));
    EK_TRY(ek_all_reduce(self->gradient, self->heap, STRESS_FLOATS, EK_SUM, &request));
    for (uint64_t i = 0; i < 3; i++) {
        for (int j = 0; j < 300; j++)
            ordinary[j] = 1;
        EK_TRY(ek_all_reduce(self->compute, ordinary, 300, EK_SUM, NULL));
        CHECK(ordinary[299] == (float)ek_group_size(self->compute));
        EK_TRY(maybe_die(self, step, 1 + i));
        EK_TRY(pass_around(self));
    }
    EK_TRY(ek_wait(engine, EK_LANE_GRADIENT, request));
    CHECK(self->heap[STRESS_FLOATS - 1] == (float)ek_group_size(self->gradient));
    return maybe_die(self, step, 4);
}

/* Memory, groups and neighbours for those who are not in the mask. */
static ek_status regroup(struct stress_rank *self, uint32_t lost_mask)
{
    uint32_t ranks[STRESS_RANKS], count = 0, place = 0;
    for (uint32_t rank = 0; rank < STRESS_RANKS; rank++) {
        if (rank == ek_engine_rank(self->engine))
            place = count;
        if (!(lost_mask >> rank & 1))
            ranks[count++] = rank;
    }
    self->ring[0] = ranks[(place + count - 1) % count];
    self->ring[1] = ranks[(place + 1) % count];
    void *memory;
    EK_TRY(ek_engine_alloc(self->engine, STRESS_FLOATS * sizeof(float), &memory));
    self->heap = memory;
    EK_TRY(ek_group_create(&self->compute, self->engine, EK_LANE_COMPUTE, 0, ranks, count));
    return ek_group_create(&self->gradient, self->engine, EK_LANE_GRADIENT, 0, ranks, count);
}

static void leave_groups(struct stress_rank *self)
{
    ek_group_destroy(self->compute);
    ek_group_destroy(self->gradient);
    self->compute = self->gradient = NULL;
    ek_engine_free(self->engine, self->heap); /* while others may still read it */
    self->heap = NULL;
}

static ek_status recover(struct stress_rank *self, uint64_t step)
{
    ek_engine *engine = self->engine;
    ek_agreement agreement;
    leave_groups(self);
    EK_TRY(maybe_die(self, step, 6));
    EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
    CHECK(agreement.committed_step == step - 1); /* this rank was told the truth about its last vote */
    struct outcome outcome = {.agreement = ++self->agreements};
    for (uint32_t rank = 0; rank < STRESS_RANKS; rank++)
        outcome.lost_mask |= (uint32_t)!agreement.live[rank] << rank;
    CHECK(outcome.lost_mask & ~self->lost_mask);
    self->lost_mask = outcome.lost_mask;
    EK_TRY(ek_report(engine, &outcome, sizeof outcome));
    return regroup(self, outcome.lost_mask);
}

static ek_status stress_steps(struct stress_rank *self)
{
    ek_engine *engine = self->engine;
    for (uint64_t step = 1; step <= STRESS_STEPS;) {
        double one = 1, total = 0;
        ek_status status = work(self, step);
        if (status == EK_OK)
            status = ek_vote(engine, step, &one, &total, 1);
        if (status != EK_OK && status != EK_PEER_LOST)
            return status;
        struct outcome outcome = {.step = step, .committed = status == EK_OK};
        EK_TRY(ek_report(engine, &outcome, sizeof outcome));
        if (status == EK_OK) {
            CHECK(total == ek_group_size(self->compute));
            EK_TRY(maybe_die(self, step, 5));
            step++;
        } else {
            EK_TRY(recover(self, step));
        }
    }
    return is_mortal(self) && !self->stress->at_any_moment ? ek_inject(engine, EK_FAULT_KILL) : EK_OK;
}

static ek_status stress_main(ek_engine *engine, void *user)
{
    struct stress_rank self = {.engine = engine, .stress = user};
    EK_TRY(regroup(&self, 0));
    if (self.stress->at_any_moment && is_mortal(&self))
        ualarm((useconds_t)(1000 + ek_random_u64(self.stress->seed, 3, ek_engine_rank(engine)) % 20000), 0);
    ek_status status = stress_steps(&self);
    leave_groups(&self);
    ualarm(0, 0);
    return status;
}

static uint32_t run_stress(uint64_t seed, bool threads, bool at_any_moment)
{
    struct stress stress = {.seed = seed, .at_any_moment = at_any_moment};
    ek_launch_options options = job_options(STRESS_RANKS, threads, stress_main, &stress);
    options.on_report = compare_outcome;
    options.on_lost = count_loss;
    assert_ok(ek_launch(&options));
    assert_false(stress.contradicted);
    for (int step = 1; step <= STRESS_STEPS; step++)
        assert_true(stress.committed[step] >= STRESS_RANKS - STRESS_DEATHS);
    return stress.lost_count;
}

static void test_random_places(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    for (uint64_t seed = 1; seed <= (UNDER_TSAN ? 4 : 15); seed++)
        assert_int_equal(run_stress(seed, threads, false), STRESS_DEATHS);
}

static void test_random_moments(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    uint32_t lost = 0;
    for (uint64_t seed = 1; seed <= 30; seed++)
        lost += run_stress(seed, false, true);
    assert_true(lost > 30); /* most alarms came in time */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_places),
        cmocka_unit_test(test_random_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
