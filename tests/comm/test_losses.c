/* Losing ranks: by kill, by hang, by exit, one or several, anywhere. Survivors hear of it, agree, and go on. */
#include "jobs.h"

#include <signal.h>
#include <unistd.h>

/* What a job did, seen from the launching process. */
struct log {
    uint32_t lost_count;
    ek_loss lost[16];
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

/* --------------------------------------------------------------------------------- what the lost leave */

/* Rank 2 dies while rank 0 sends rank 1 what it overwrites as soon as its operation fails, where rank 1 is still to
 * read it: rank 1 first copies OWN_BYTES of its own. Many more groups keep the supervisor busy between making the loss
 * known and poisoning the group of the two. */
enum { WINDOW_RANKS = 256, WINDOW_GROUPS = 14000, OWN_BYTES = 8 << 20, SENT_BYTES = 1 << 20 };

struct window {
    unsigned microseconds; /* until the death */
};

static ek_status fill_table(ek_engine *engine)
{
    uint32_t self = ek_engine_rank(engine);
    for (uint32_t tag = 1; tag <= WINDOW_GROUPS; tag++) {
        ek_group *group;
        EK_TRY(ek_group_create(&group, engine, EK_LANE_COMPUTE, tag, &self, 1));
        ek_group_destroy(group);
    }
    return EK_OK;
}

static ek_status send_until_lost(ek_engine *engine, ek_group *group)
{
    void *data;
    EK_TRY(ek_engine_alloc(engine, SENT_BYTES, &data));
    memset(data, 1, SENT_BYTES);
    const size_t sent[] = {SENT_BYTES, 0}, received[] = {0, 0};
    ek_status status = EK_OK;
    while (status == EK_OK)
        status = ek_all_to_all(group, data, sent, data, received, NULL);
    memset(data, 2, SENT_BYTES);
    return status;
}

static ek_status receive_until_lost(ek_engine *engine, ek_group *group)
{
    const size_t sizes_sent[] = {OWN_BYTES, 0}, sizes_received[] = {OWN_BYTES, SENT_BYTES};
    unsigned char *own = calloc(1, OWN_BYTES), *received = malloc(OWN_BYTES + SENT_BYTES);
    CHECK(own && received);
    ek_status status;
    size_t sound = SENT_BYTES;
    while ((status = ek_all_to_all(group, own, sizes_sent, received, sizes_received, NULL)) == EK_OK &&
           sound == SENT_BYTES)
        for (sound = 0; sound < SENT_BYTES && received[OWN_BYTES + sound] == 1;)
            sound++;
    free(own);
    free(received);
    CHECK(sound == SENT_BYTES);
    return status;
}

static ek_status overwrite_after_loss(ek_engine *engine, void *user)
{
    const struct window *window = user;
    const uint32_t members[] = {1, 0};
    ek_group *group, *all;
    ek_agreement agreement;
    uint32_t rank = ek_engine_rank(engine);
    EK_TRY(ek_group_create(&all, engine, EK_LANE_COMPUTE, 0, (const uint32_t[]){0, 1, 2}, 3));
    if (rank == 1)
        EK_TRY(fill_table(engine));
    ek_status status = ek_barrier(all, NULL);
    ek_group_destroy(all);
    if (rank == 2) {
        usleep(window->microseconds);
        return ek_inject(engine, EK_FAULT_KILL);
    }
    EK_TRY(ek_group_create(&group, engine, EK_LANE_COMPUTE, 0, members, 2));
    if (status == EK_OK) /* else it came too early */
        status = rank == 0 ? send_until_lost(engine, group) : receive_until_lost(engine, group);
    CHECK_STATUS(status, EK_PEER_LOST);
    ek_group_destroy(group);
    return ek_agree(engine, EK_AGREE_BEGIN, true, &agreement);
}

static void test_overwritten_after_loss(void **state)
{
    (void)state;
    if (UNDER_TSAN) /* the race is meant */
        skip();
    bool absent[WINDOW_RANKS];
    for (uint32_t rank = 0; rank < WINDOW_RANKS; rank++)
        absent[rank] = rank > 2;
    for (uint32_t i = 0; i < 40; i++) {
        struct window window = {.microseconds = 5000 + 317 * i};
        ek_launch_options options = job_options(WINDOW_RANKS, false, overwrite_after_loss, &window);
        options.absent = absent;
        assert_ok(ek_launch(&options));
    }
}

enum { FREED_BYTES = 100000 };

/* Whether memory that was freed still holds what it did, and is not given out again. */
static ek_status check_freed(ek_engine *engine, const unsigned char *freed)
{
    void *other;
    EK_TRY(ek_engine_alloc(engine, FREED_BYTES, &other));
    CHECK((unsigned char *)other >= freed + FREED_BYTES || (unsigned char *)other + FREED_BYTES <= freed);
    ek_engine_free(engine, other);
    for (size_t i = 0; i < FREED_BYTES; i++)
        CHECK(freed[i] == 7);
    return EK_OK;
}

/* Rank 0 dies. What the others free, and where it is a thread itself, stays as it is until all agree. */
static ek_status free_after_loss(ek_engine *engine, void *user)
{
    (void)user;
    void *memory, *again;
    double none;
    ek_agreement agreement;
    EK_TRY(ek_engine_alloc(engine, FREED_BYTES, &memory));
    memset(memory, 7, FREED_BYTES);
    if (ek_engine_rank(engine) == 0) {
        CHECK_STATUS(ek_inject(engine, EK_FAULT_KILL), EK_FENCED);
        ek_engine_free(engine, memory);
        EK_TRY(check_freed(engine, memory));
        return ek_vote(engine, 1, NULL, &none, 0); /* still EK_FENCED */
    }
    CHECK_STATUS(ek_vote(engine, 1, NULL, &none, 0), EK_PEER_LOST);
    ek_engine_free(engine, memory);
    EK_TRY(check_freed(engine, memory));
    EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
    EK_TRY(ek_engine_alloc(engine, FREED_BYTES, &again));
    CHECK(again == memory && ((unsigned char *)again)[FREED_BYTES - 1] == 0);
    return EK_OK;
}

static void test_freed_after_loss(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    assert_ok(run_job(3, threads, free_after_loss, NULL));
}

/* ---------------------------------------------------------------------------------------- random faults */

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
            CHECK(2.0 * sums[i] == (double)(step * (i + 1) * ranks * (ranks + 1)));
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
        cmocka_unit_test(test_rank_zero),
        cmocka_unit_test(test_hang_and_exit),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_tiny_timeout),
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_stall),
        cmocka_unit_test(test_death_during_agreement),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_votes),
        cmocka_unit_test(test_overwritten_after_loss),
        cmocka_unit_test(test_freed_after_loss),
        cmocka_unit_test(test_random_places),
        cmocka_unit_test(test_random_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
