/* Recovery on a job of the library alone: small stores that each step changes by a rule, so that every rank can work
 * out what it must hold. Ranks die and come back at random, at any place; after each recovery every unit is bit for bit
 * what the committed steps make of it, on whichever rank it now lies. */
#include "comm/returns.h"

#include "base/hash.h"

#include <unistd.h>

enum { REPLICAS = 3, DEGREE = 3, SPARES = 2, RANKS = REPLICAS * DEGREE + SPARES, TENSORS = 4, STEPS = 600 };

static const ek_unit_group groups[] = {{.name = "attention", .units = 7}, {.name = "ffn", .units = 13}};

static const struct {
    uint32_t group, unit_words;
} tensors[TENSORS] = {{0, 5}, {1, 3}, {EK_REPLICATED, 10}, {1, 8}};

enum place {
    NOWHERE,
    IN_STEP,
    AFTER_VOTE,
    IN_UPDATE,
    BEFORE_BEGIN,
    BEFORE_MOVE,
    BEFORE_END,
    AFTER_END,
    ANY_MOMENT, /* by an alarm; where ranks are threads it lives on */
    PLACES
};

struct job {
    struct returns returns;
    ek_membership *membership;
    uint32_t joined, stepped_in, done;
};

/* What a rank reports. */
enum event { JOINED, STEPPED_IN, DONE };

struct store {
    void *memory;
    uint32_t *words[TENSORS];
};

struct worker {
    ek_engine *engine;
    const struct job *job;
    ek_membership *membership;
    struct store store;
    ek_group *tp; /* NULL: without a role */
    uint64_t committed;
    struct death death;
    bool joined;
};

static ek_status maybe_die(const struct worker *worker, enum place place)
{
    return die_if_due(worker->engine, worker->death, place, worker->committed + 1);
}

static ek_status tell(const struct worker *worker, enum event event)
{
    return ek_report(worker->engine, &event, sizeof event);
}

/* ------------------------------------------------------------------------------------------------- stores */

static uint32_t first_word(uint32_t tensor, uint32_t unit, uint32_t i)
{
    return (uint32_t)ek_random_u64(tensor, unit, i);
}

static uint32_t next_word(uint32_t word, uint64_t step)
{
    return word * 1664525u + 1013904223u + (uint32_t)step;
}

/* The units of a tensor that a rank holds; NULL: unit 0 of a replicated one, or none. */
static const uint32_t *units_of(const ek_membership *membership, uint32_t rank, uint32_t tensor, uint32_t *count)
{
    if (tensors[tensor].group != EK_REPLICATED)
        return ek_membership_units(membership, rank, tensors[tensor].group, count);
    *count = ek_membership_place(membership, rank, NULL, NULL);
    return NULL;
}

static ek_status make_store(const struct worker *worker, const ek_membership *membership, struct store *store)
{
    size_t total = 0, first[TENSORS];
    for (uint32_t t = 0; t < TENSORS; t++) {
        uint32_t count;
        units_of(membership, ek_engine_rank(worker->engine), t, &count);
        first[t] = total;
        total += (size_t)count * tensors[t].unit_words;
    }
    EK_TRY(ek_engine_alloc(worker->engine, total * sizeof(uint32_t), &store->memory));
    for (uint32_t t = 0; t < TENSORS; t++)
        store->words[t] = (uint32_t *)store->memory + first[t];
    return EK_OK;
}

/* Word by word: sets it to what `committed` steps make of it, or compares. */
static ek_status visit_store(const struct worker *worker, bool compare)
{
    ek_engine *engine = worker->engine;
    for (uint32_t t = 0; t < TENSORS; t++) {
        uint32_t count, words = tensors[t].unit_words;
        const uint32_t *units = units_of(worker->membership, ek_engine_rank(engine), t, &count);
        for (uint32_t at = 0; at < count * words; at++) {
            uint32_t expected = first_word(t, units ? units[at / words] : 0, at % words);
            for (uint64_t step = 1; step <= worker->committed; step++)
                expected = next_word(expected, step);
            CHECK(!compare || worker->store.words[t][at] == expected);
            worker->store.words[t][at] = expected;
        }
    }
    return EK_OK;
}

static ek_status update(struct worker *worker)
{
    uint32_t rank = ek_engine_rank(worker->engine), count;
    for (uint32_t t = 0; t < TENSORS; t++) {
        units_of(worker->membership, rank, t, &count);
        for (uint32_t at = 0; at < count * tensors[t].unit_words; at++)
            worker->store.words[t][at] = next_word(worker->store.words[t][at], worker->committed + 1);
        if (t == 1)
            EK_TRY(maybe_die(worker, IN_UPDATE));
    }
    worker->committed++;
    return EK_OK;
}

/* --------------------------------------------------------------------------------------------------- steps */

static ek_status attach(struct worker *worker)
{
    uint32_t replica, ranks[DEGREE];
    if (!ek_membership_place(worker->membership, ek_engine_rank(worker->engine), &replica, NULL))
        return EK_OK;
    uint32_t degree = ek_membership_replica(worker->membership, replica, ranks);
    return ek_group_create(&worker->tp, worker->engine, EK_LANE_COMPUTE, replica, ranks, degree);
}

static void detach(struct worker *worker)
{
    ek_group_destroy(worker->tp);
    worker->tp = NULL;
}

/* A number for who serves which role, exact in a double. */
static double fingerprint(const ek_membership *membership)
{
    uint32_t roles[REPLICAS * DEGREE + DEGREE];
    memcpy(roles, ek_membership_drop_order(membership), DEGREE * sizeof *roles);
    for (uint32_t level = ek_membership_sync_level(membership); level < DEGREE; level++)
        roles[level] = EK_NONE;
    for (uint32_t i = 0; i < REPLICAS * DEGREE; i++)
        roles[DEGREE + i] = ek_membership_rank(membership, i / DEGREE, i % DEGREE);
    return (double)(ek_hash(roles, sizeof roles, 0) % 1000000);
}

/* The ranks of a replica hold each unit once; all ranks of the job have the same membership. */
static ek_status step_once(struct worker *worker)
{
    ek_engine *engine = worker->engine;
    ek_beat(engine, worker->committed + 1);
    usleep(200);
    EK_TRY(maybe_die(worker, IN_STEP));
    if (worker->tp) {
        uint32_t rank = ek_engine_rank(engine), counts[2];
        for (uint32_t group = 0; group < 2; group++)
            ek_membership_units(worker->membership, rank, group, &counts[group]);
        float sums[2] = {(float)counts[0], (float)counts[1]};
        EK_TRY(ek_all_reduce(worker->tp, sums, 2, EK_SUM, NULL));
        CHECK(sums[0] == (float)groups[0].units && sums[1] == (float)groups[1].units);
    }
    double values[2] = {1, fingerprint(worker->membership)}, totals[2];
    EK_TRY(ek_vote(engine, worker->committed + 1, values, totals, 2));
    CHECK(totals[1] == totals[0] * values[1]);
    EK_TRY(maybe_die(worker, AFTER_VOTE));
    return update(worker);
}

static ek_status move_state(struct worker *worker, ek_recovery *recovery, struct store *next)
{
    ek_engine *engine = worker->engine;
    CHECK(worker->joined == false || ek_recovery_committed_step(recovery) == worker->committed);
    EK_TRY(maybe_die(worker, BEFORE_MOVE));
    if (ek_recovery_keeps(recovery))
        *next = worker->store;
    else
        EK_TRY(make_store(worker, ek_recovery_membership(recovery), next));
    ek_state states[TENSORS];
    for (uint32_t t = 0; t < TENSORS; t++)
        states[t] = (ek_state){.group = tensors[t].group,
                               .unit_bytes = tensors[t].unit_words * sizeof(uint32_t),
                               .old_data = worker->store.words[t],
                               .new_data = next->words[t]};
    EK_TRY(ek_recovery_move(recovery, states, TENSORS));
    return maybe_die(worker, BEFORE_END);
}

static ek_status try_recovery(struct worker *worker)
{
    ek_engine *engine = worker->engine;
    ek_recovery *recovery;
    struct store next = {.memory = NULL};
    EK_TRY(maybe_die(worker, BEFORE_BEGIN));
    EK_TRY(ek_recovery_begin(&recovery, engine, worker->membership));
    uint64_t committed = ek_recovery_committed_step(recovery);
    ek_membership *membership;
    ek_status status = ek_recovery_end(&recovery, move_state(worker, recovery, &next), &membership);
    bool replaced = next.memory != worker->store.memory;
    if (status != EK_OK) {
        if (replaced)
            ek_engine_free(engine, next.memory);
        return status;
    }
    uint32_t rank = ek_engine_rank(engine);
    if (ek_membership_is_spare(worker->membership, rank) && ek_membership_place(membership, rank, NULL, NULL))
        EK_TRY(tell(worker, STEPPED_IN));
    if (replaced)
        ek_engine_free(engine, worker->store.memory);
    worker->store = next;
    ek_membership_destroy(worker->membership);
    worker->membership = membership;
    worker->committed = committed;
    worker->joined = true;
    return EK_OK;
}

static ek_status recover(struct worker *worker)
{
    ek_status status;
    bool was_new = ek_engine_is_new(worker->engine);
    detach(worker);
    do
        status = try_recovery(worker);
    while (status == EK_PEER_LOST);
    if (status != EK_OK)
        return status;
    EK_TRY(visit_store(worker, true));
    EK_TRY(maybe_die(worker, AFTER_END));
    if (was_new)
        EK_TRY(tell(worker, JOINED));
    return attach(worker);
}

static ek_status enter(struct worker *worker)
{
    EK_TRY(ek_membership_lose(worker->job->membership, NULL, 0, &worker->membership)); /* a copy */
    if (ek_engine_is_new(worker->engine))
        return recover(worker);
    worker->joined = true;
    EK_TRY(make_store(worker, worker->membership, &worker->store));
    EK_TRY(visit_store(worker, false));
    return attach(worker);
}

/* The home ranks of one replica never die, so that no unit is lost. */
static void plan_death(struct worker *worker)
{
    uint32_t rank = ek_engine_rank(worker->engine);
    if (rank / DEGREE == worker->job->returns.seed % REPLICAS)
        return;
    worker->death = draw_death(&worker->job->returns, rank, PLACES, STEPS);
    if (worker->death.place == ANY_MOMENT && !worker->job->returns.threads)
        ualarm((useconds_t)(500 + worker->death.step * 80), 0);
}

static ek_status worker_main(ek_engine *engine, void *user)
{
    struct worker worker = {.engine = engine, .job = user};
    plan_death(&worker);
    ek_status status = enter(&worker);
    while (status == EK_OK && worker.committed < STEPS) {
        status = step_once(&worker);
        if ((status == EK_PEER_LOST || ek_engine_joining(engine)) && worker.committed < STEPS)
            status = status == EK_OK || status == EK_PEER_LOST ? recover(&worker) : status;
    }
    if (status == EK_OK)
        status = visit_store(&worker, true);
    if (status == EK_OK)
        status = tell(&worker, DONE);
    detach(&worker);
    ek_membership_destroy(worker.membership);
    return status;
}

/* ------------------------------------------------------------------------------------------------ launcher */

static ek_status count(void *user, uint32_t rank, const void *record, size_t bytes)
{
    struct job *job = user;
    enum event event;
    (void)rank;
    assert_int_equal(bytes, sizeof event);
    memcpy(&event, record, sizeof event);
    job->joined += event == JOINED;
    job->stepped_in += event == STEPPED_IN;
    job->done += event == DONE;
    return EK_OK;
}

static void run_history(uint64_t seed, bool threads, struct history_totals *totals)
{
    ek_job shape = {.replicas = REPLICAS,
                    .base_degree = DEGREE,
                    .min_degree = 2,
                    .spares = SPARES,
                    .groups = groups,
                    .group_count = 2};
    struct job job = {.returns.seed = seed};
    assert_ok(ek_membership_create(&job.membership, &shape));
    ek_launch_options options = returning_options(RANKS, threads, worker_main, &job.returns);
    options.heap_bytes = (size_t)1 << 20; /* attempts that failed leave nothing behind */
    options.on_report = count;
    assert_ok(ek_launch(&options));
    assert_true(job.done >= DEGREE);
    ek_membership_destroy(job.membership);
    totals->lost += job.returns.lost;
    totals->joined += job.joined;
    totals->stepped_in += job.stepped_in;
}

static void random_histories(void **state)
{
    (void)state;
    struct history_totals totals = run_histories(UNDER_TSAN ? 2 : 4, run_history);
    assert_true(totals.joined > (UNDER_TSAN ? 10 : 100) && totals.stepped_in > (UNDER_TSAN ? 2 : 20));
}

/* Rank 1 comes back, and rank 0, which holds all there is, dies before it has handed anything over. */
static ek_status lose_the_holder(ek_engine *engine, void *user)
{
    const ek_membership *membership = ((const struct job *)user)->membership;
    double none;
    bool newcomer = ek_engine_is_new(engine);
    if (ek_engine_rank(engine) == 1 && !newcomer)
        return ek_inject(engine, EK_FAULT_KILL);
    ek_status status = newcomer ? EK_PEER_LOST : ek_vote(engine, 1, NULL, &none, 0);
    ek_membership *alone = NULL;
    for (uint64_t step = 1; status == EK_OK || status == EK_PEER_LOST;) {
        bool joining = status == EK_OK;
        ek_recovery *recovery;
        status = ek_recovery_begin(&recovery, engine, alone ? alone : membership);
        if (status != EK_OK)
            break;
        float unit = 0;
        ek_state state = {.group = 0, .unit_bytes = sizeof unit, .old_data = &unit, .new_data = &unit};
        status = joining ? ek_inject(engine, EK_FAULT_KILL) : ek_recovery_move(recovery, &state, 1);
        ek_membership *next;
        status = ek_recovery_end(&recovery, status, &next);
        CHECK(!newcomer || status != EK_OK);
        if (status == EK_OK)
            alone = next;
        while (status == EK_OK && !ek_engine_joining(engine))
            status = ek_vote(engine, step++, NULL, &none, 0);
    }
    ek_membership_destroy(alone);
    return status;
}

static void holders_lost(void **state)
{
    (void)state;
    ek_unit_group unit = {.name = "ffn", .units = 1};
    ek_job shape = {.replicas = 2, .base_degree = 1, .groups = &unit, .group_count = 1};
    FOR_EACH_MODE(threads)
    {
        struct job job = {.membership = NULL};
        assert_ok(ek_membership_create(&job.membership, &shape));
        ek_launch_options options = returning_options(2, threads, lose_the_holder, &job.returns);
        assert_int_equal(ek_launch(&options), EK_UNIT_LOST);
        assert_string_equal(ek_error(), "no survivor holds any state: all that did were lost before newcomers had it");
        ek_membership_destroy(job.membership);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holders_lost),
        cmocka_unit_test(random_histories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
