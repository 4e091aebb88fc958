/* Ranks that come back: let in between two steps, on all ranks at the same one; settled losses alone; newcomers that
 * die at any stage; nothing left behind by many returns. */
#include "returns.h"

#include "entries.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_STEPS = 1200 };

/* Where a rank dies. The first three: a newcomer before it has joined. */
enum place {
    NOWHERE,
    AT_ONCE,
    WHILE_ASKING, /* by an alarm; where ranks are threads it lives on */
    AFTER_BEGIN,
    AFTER_EXCHANGE,
    AFTER_END,
    IN_STEP,
    AFTER_VOTE,
    PLACES
};

/* What a rank reports. */
struct outcome {
    enum { VOTED, BEGAN, STARTED } kind;
    uint64_t number; /* of the step or of the agreement */
    bool committed, joining;
    uint32_t live, newcomers; /* masks */
};

/* Shared by all processes: so that a newcomer dies while it asks, and the next one does not ask before the others have
 * found nobody. */
struct script {
    _Atomic pid_t dying;
    _Atomic uint32_t began_alone; /* ranks × times */
};

/* One job, its plan and what the launching process gathers. */
struct job {
    struct returns returns;
    uint32_t steps, immortal;
    struct script *script; /* or NULL */
    uint32_t enough;       /* the job stops when a rank has come back so often; 0: after its steps */
    unsigned step_microseconds;
    /* Of life `life` of a rank. */
    struct death (*death)(const struct job *job, uint32_t rank, uint32_t life);

    uint32_t started, joined;
    struct outcome votes[MAX_STEPS + 1];
    struct outcome agreements[20000];
    uint64_t agreement_count;
    bool contradicted;
};

static struct job *make_job(struct job plan)
{
    struct job *job = malloc(sizeof *job);
    assert_non_null(job);
    *job = plan;
    return job;
}

/* All ranks must say the same of one step and of one agreement. */
static ek_status compare_outcome(void *user, uint32_t rank, const void *record, size_t bytes)
{
    (void)rank;
    struct job *job = user;
    struct outcome outcome;
    assert_int_equal(bytes, sizeof outcome);
    memcpy(&outcome, record, sizeof outcome);
    if (outcome.kind == STARTED) {
        job->started++;
    } else if (outcome.kind == VOTED && outcome.committed) {
        struct outcome *vote = &job->votes[outcome.number];
        job->contradicted |= vote->committed && vote->joining != outcome.joining;
        *vote = outcome;
    } else if (outcome.kind == VOTED) {
        job->contradicted |= job->votes[outcome.number].committed; /* aborted for one, committed for another */
    } else {
        struct outcome *agreement = &job->agreements[outcome.number];
        if (outcome.number > job->agreement_count) {
            job->agreement_count = outcome.number;
            job->joined += (uint32_t)__builtin_popcount(outcome.newcomers);
            *agreement = outcome;
        }
        job->contradicted |= agreement->live != outcome.live || agreement->newcomers != outcome.newcomers;
    }
    return EK_OK;
}

static ek_status run(struct job *job, uint32_t ranks, bool threads, ek_status (*main)(ek_engine *, void *))
{
    ek_launch_options options = returning_options(ranks, threads, main, &job->returns);
    options.on_report = compare_outcome;
    return ek_launch(&options);
}

/* ------------------------------------------------------------------------------------------- a rank's life */

enum { DIRTY_BYTES = 200000 };

struct life {
    ek_engine *engine;
    const struct job *job;
    struct death death;
    uint64_t step, agreements;
    bool stops;
    ek_group *group;
};

static ek_status maybe_die(const struct life *life, enum place place)
{
    return die_if_due(life->engine, life->death, place, place < IN_STEP ? UINT64_MAX : life->step);
}

static uint32_t mask(const struct life *life, const bool *ranks)
{
    uint32_t bits = 0;
    for (uint32_t rank = 0; rank < ek_engine_ranks(life->engine); rank++)
        bits |= (uint32_t)ranks[rank] << rank;
    return bits;
}

/* The ranks of the job find each other, and newcomers learn how many agreements there were. */
static ek_status meet(struct life *life, const ek_agreement *agreement, struct outcome *outcome)
{
    ek_engine *engine = life->engine;
    EK_TRY(make_survivors(&life->group, engine, EK_LANE_COMPUTE, 0, agreement));
    float highest[2] = {(float)life->agreements, (float)outcome->newcomers};
    EK_TRY(ek_all_reduce(life->group, highest, 2, EK_MAX, NULL));
    CHECK(highest[1] == (float)outcome->newcomers);
    life->agreements = (uint64_t)highest[0];
    outcome->number = life->agreements;
    EK_TRY(ek_report(engine, outcome, sizeof *outcome));
    EK_TRY(maybe_die(life, AFTER_EXCHANGE));
    return ek_barrier(life->group, NULL);
}

/* One BEGIN and one END, whatever happens in between. */
static ek_status try_agreements(struct life *life, ek_agreement *agreement)
{
    ek_engine *engine = life->engine;
    bool was_new = ek_engine_is_new(engine), was_joining = ek_engine_joining(engine);
    EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, agreement));
    CHECK(!ek_engine_is_new(engine) && !ek_engine_joining(engine));
    CHECK(was_new || agreement->committed_step == life->step - 1);
    struct outcome outcome = {
        .kind = BEGAN, .live = mask(life, agreement->live), .newcomers = mask(life, agreement->newcomers)};
    CHECK((outcome.live & outcome.newcomers) == outcome.newcomers);
    CHECK(!was_new || outcome.newcomers >> ek_engine_rank(engine) & 1);
    if (life->job->script && was_joining && agreement->ok) /* who asked has died before it was let in */
        life->job->script->began_alone++;
    life->step = agreement->committed_step + 1;
    life->agreements++;
    EK_TRY(maybe_die(life, AFTER_BEGIN));
    ek_status status = meet(life, agreement, &outcome);
    if (status != EK_OK && status != EK_PEER_LOST)
        return status;
    ek_group_destroy(life->group);
    life->group = NULL;
    EK_TRY(ek_agree(engine, EK_AGREE_END, status == EK_OK, agreement));
    CHECK(status == EK_OK || !agreement->ok);
    CHECK(!agreement->ok || (mask(life, agreement->live) == outcome.live && mask(life, agreement->newcomers) == 0));
    return EK_OK;
}

static ek_status reconfigure(struct life *life)
{
    ek_agreement agreement;
    do {
        ek_group_destroy(life->group);
        life->group = NULL;
        EK_TRY(try_agreements(life, &agreement));
    } while (!agreement.ok);
    EK_TRY(maybe_die(life, AFTER_END));
    return make_survivors(&life->group, life->engine, EK_LANE_COMPUTE, 0, &agreement);
}

/* Every rank of the job counts one in the vote. */
static ek_status step_once(struct life *life)
{
    ek_engine *engine = life->engine;
    float ones[3] = {1, 1, 1};
    uint32_t enough = life->job->enough;
    double values[2] = {1, enough && life->job->returns.lives[ek_engine_rank(engine)] >= enough}, totals[2];
    ek_beat(engine, life->step);
    if (life->job->step_microseconds)
        usleep((useconds_t)(ek_random_u64(life->job->returns.seed, life->step, ek_engine_rank(engine)) %
                            life->job->step_microseconds));
    EK_TRY(ek_all_reduce(life->group, ones, 3, EK_SUM, NULL));
    CHECK(ones[2] == (float)ek_group_size(life->group));
    EK_TRY(maybe_die(life, IN_STEP));
    struct script *script = life->job->script;
    while (script && script->dying && kill(script->dying, 0) == 0)
        usleep(200);
    EK_TRY(ek_vote(engine, life->step, values, totals, 2));
    CHECK(totals[0] == ek_group_size(life->group));
    life->stops = totals[1] > 0;
    return EK_OK;
}

static ek_status live_on(struct life *life)
{
    ek_engine *engine = life->engine;
    while (life->step <= life->job->steps && !life->stops) {
        ek_status status = step_once(life);
        if (status != EK_OK && status != EK_PEER_LOST)
            return status;
        bool committed = status == EK_OK, joining = committed && ek_engine_joining(engine);
        struct outcome outcome = {.kind = VOTED, .number = life->step, .committed = committed, .joining = joining};
        EK_TRY(ek_report(engine, &outcome, sizeof outcome));
        EK_TRY(maybe_die(life, AFTER_VOTE));
        life->step += committed;
        double none;
        if (joining) /* nobody can vote before all have agreed; a death in between is just a loss */
            CHECK(ek_vote(engine, life->step, NULL, &none, 0) != EK_OK);
        if (life->step <= life->job->steps && !life->stops && (joining || !committed))
            EK_TRY(reconfigure(life));
    }
    return EK_OK;
}

/* A newcomer gets engine memory that is empty, whatever it wrote in its last life. */
static ek_status use_memory(ek_engine *engine)
{
    void *memory;
    EK_TRY(ek_engine_alloc(engine, DIRTY_BYTES, &memory));
    const unsigned char *bytes = memory;
    for (size_t i = 0; i < DIRTY_BYTES; i++)
        CHECK(bytes[i] == 0);
    memset(memory, 7, DIRTY_BYTES);
    return EK_OK;
}

static ek_status enter(struct life *life)
{
    ek_engine *engine = life->engine;
    EK_TRY(use_memory(engine));
    if (!ek_engine_is_new(engine))
        return make_world(&life->group, engine, EK_LANE_COMPUTE, 0);
    double none;
    ek_agreement agreement;
    ek_message message = {.peer = life->job->immortal};
    CHECK_STATUS(make_world(&life->group, engine, EK_LANE_COMPUTE, 0), EK_INVALID);
    CHECK_STATUS(ek_exchange(engine, EK_LANE_COMPUTE, &message, 1, NULL, 0, NULL), EK_INVALID);
    CHECK_STATUS(ek_vote(engine, 1, NULL, &none, 0), EK_INVALID);
    CHECK_STATUS(ek_agree(engine, EK_AGREE_END, true, &agreement), EK_INVALID);
    EK_TRY(ek_report(engine, &(struct outcome){.kind = STARTED}, sizeof(struct outcome)));
    EK_TRY(maybe_die(life, AT_ONCE));
    struct script *script = life->job->script;
    while (script && script->began_alone < 2 * (life->job->returns.lives[ek_engine_rank(engine)] - 1))
        usleep(200);
    if (life->death.place == WHILE_ASKING && !life->job->returns.threads) {
        if (script)
            script->dying = getpid();
        usleep(10000); /* the others come to wait for its end */
        ualarm(20000, 0);
    }
    return reconfigure(life);
}

static ek_status main_of_life(ek_engine *engine, void *user)
{
    const struct job *job = user;
    uint32_t rank = ek_engine_rank(engine);
    struct life life = {.engine = engine, .job = job, .step = 1};
    if (rank != job->immortal)
        life.death = job->death(job, rank, job->returns.lives[rank]);
    ek_status status = enter(&life);
    if (status == EK_OK)
        status = live_on(&life);
    ek_group_destroy(life.group);
    return status;
}

/* --------------------------------------------------------------------------------------- deaths as planned */

/* The last rank dies in step 5 and then, as a newcomer, at the place that the seed says, twice. */
static struct death die_as_newcomer(const struct job *job, uint32_t rank, uint32_t life)
{
    if (rank != 2 || life > 2)
        return (struct death){NOWHERE, 0};
    return life == 0 ? (struct death){IN_STEP, 5} : (struct death){(uint32_t)job->returns.seed, 0};
}

static void test_dying_newcomers(void **state)
{
    (void)state;
    struct script *script = mmap(NULL, sizeof *script, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(script != MAP_FAILED);
    FOR_EACH_MODE(threads)
    for (enum place place = NOWHERE; place < PLACES; place++) {
        if (place == WHILE_ASKING && threads)
            continue;
        uint32_t losses = place == NOWHERE ? 1 : 3;
        struct job *job = make_job(
            (struct job){.returns.seed = place, .steps = MAX_STEPS, .enough = losses, .death = die_as_newcomer});
        job->step_microseconds = 1000;
        job->script = place == WHILE_ASKING ? script : NULL;
        assert_ok(run(job, 3, threads, main_of_life));
        assert_false(job->contradicted);
        assert_int_equal(job->returns.lost, losses);
        assert_int_equal(job->started, job->returns.lost);
        assert_int_equal(job->returns.lost_new, place == AT_ONCE || place == WHILE_ASKING ? 2 : 0);
        assert_int_equal(job->agreements[job->agreement_count].live, 7);
        assert_false(job->votes[job->steps].committed); /* all three voted, long before */
        free(job);
    }
    assert_int_equal(script->began_alone, UNDER_TSAN ? 0 : 4); /* twice, on both of the others */
    munmap(script, sizeof *script);
}

/* --------------------------------------------------------------------------------------- deaths at random */

static struct death die_at_random(const struct job *job, uint32_t rank, uint32_t life)
{
    (void)life;
    return draw_death(&job->returns, rank, PLACES, job->steps);
}

static void run_history(uint64_t seed, bool threads, struct history_totals *totals)
{
    struct job *job =
        make_job((struct job){.returns.seed = seed, .steps = UNDER_TSAN ? 300 : MAX_STEPS, .death = die_at_random});
    job->immortal = (uint32_t)seed % 5;
    job->step_microseconds = seed % 2 ? 300 : 0;
    assert_ok(run(job, 5, threads, main_of_life));
    assert_false(job->contradicted);
    for (uint32_t step = 1; step <= job->steps; step++)
        assert_true(job->votes[step].committed);
    totals->lost += job->returns.lost;
    totals->joined += job->joined;
    free(job);
}

static void test_random_histories(void **state)
{
    (void)state;
    assert_true(run_histories(UNDER_TSAN ? 3 : 6, run_history).joined > (UNDER_TSAN ? 10 : 100));
}

/* --------------------------------------------------------------------------------------------- the launcher */

/* Rank 1 dies. Its revival waits for an END with ok, however long the others take. */
static ek_status settle_late(ek_engine *engine, void *user)
{
    (void)user;
    ek_agreement agreement;
    if (ek_engine_rank(engine) == 1 && !ek_engine_is_new(engine))
        return ek_inject(engine, EK_FAULT_KILL);
    EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
    if (ek_engine_rank(engine) == 1) {
        CHECK(!agreement.ok && agreement.live[0] && agreement.live[1]);
        CHECK(!agreement.newcomers[0] && agreement.newcomers[1]);
        EK_TRY(ek_agree(engine, EK_AGREE_END, true, &agreement));
        CHECK(agreement.ok && !agreement.newcomers[1]);
        return EK_OK;
    }
    while (agreement.live[1]) /* not yet noticed */
        EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
    for (int i = 0; i < 3; i++) {
        EK_TRY(ek_agree(engine, EK_AGREE_END, false, &agreement));
        CHECK(!agreement.ok);
        usleep(20000);
        EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
        CHECK(agreement.ok && !agreement.live[1]);
    }
    EK_TRY(ek_agree(engine, EK_AGREE_END, true, &agreement));
    CHECK(agreement.ok);
    double none;
    uint64_t step = 1;
    do {
        EK_TRY(ek_vote(engine, step++, NULL, &none, 0));
        usleep(200);
    } while (!ek_engine_joining(engine));
    CHECK_STATUS(ek_vote(engine, step, NULL, &none, 0), EK_INVALID);
    EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
    CHECK(!agreement.ok && agreement.live[1] && agreement.newcomers[1] && agreement.committed_step == step - 1);
    return ek_agree(engine, EK_AGREE_END, true, &agreement);
}

/* What the launcher is refused. */
static ek_status start_strictly(void *user, ek_launcher *launcher)
{
    assert_int_equal(ek_launcher_revive(launcher, 1), EK_INVALID);
    assert_string_equal(ek_error(), "ek_launcher_revive: rank 1 is not lost");
    assert_int_equal(ek_launcher_revive(launcher, 2), EK_INVALID);
    return keep_launcher(user, launcher);
}

static ek_status revive_strictly(void *user, const ek_loss *loss)
{
    const struct returns *job = user;
    assert_int_equal(ek_launcher_revive(job->launcher, 0), EK_INVALID);
    EK_TRY(revive(user, loss));
    assert_int_equal(ek_launcher_revive(job->launcher, loss->rank), EK_INVALID);
    assert_string_equal(ek_error(), "ek_launcher_revive: rank 1 is already to be started again");
    return EK_OK;
}

static void test_settling(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        struct returns job = {.seed = 0};
        ek_launch_options options = returning_options(2, threads, settle_late, &job);
        options.on_start = start_strictly;
        options.on_lost = revive_strictly;
        assert_ok(ek_launch(&options));
        assert_int_equal(job.lost, 1);
    }
}

/* Rank 1 dies three times in step 3 of each of its lives, and is started again without being asked for. */
static struct death die_thrice(const struct job *job, uint32_t rank, uint32_t life)
{
    (void)job;
    return (struct death){rank == 1 && life < 3 ? IN_STEP : NOWHERE, 3};
}

struct respawn {
    struct job job;
    double lost_at, shortest;
};

static ek_status note_loss(void *user, const ek_loss *loss)
{
    struct respawn *respawn = user;
    respawn->lost_at = now_seconds();
    count_loss(&respawn->job.returns, loss);
    return EK_OK;
}

static ek_status note_start(void *user, uint32_t rank, const void *record, size_t bytes)
{
    struct respawn *respawn = user;
    if (((const struct outcome *)record)->kind == STARTED && now_seconds() - respawn->lost_at < respawn->shortest)
        respawn->shortest = now_seconds() - respawn->lost_at;
    return compare_outcome(user, rank, record, bytes);
}

static void test_respawn(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        struct respawn *respawn = calloc(1, sizeof *respawn);
        assert_non_null(respawn);
        respawn->job = (struct job){.steps = 400, .step_microseconds = 2000, .death = die_thrice};
        respawn->shortest = 100;
        ek_launch_options options = returning_options(3, threads, main_of_life, &respawn->job.returns);
        options.on_lost = note_loss;
        options.on_report = note_start;
        options.timeout_seconds = 0; /* no ticks: the supervisor wakes up for this alone */
        options.respawn_seconds = 0.05;
        assert_ok(ek_launch(&options));
        assert_int_equal(respawn->job.started, 3);
        assert_int_equal(respawn->job.joined, 3);
        assert_true(respawn->shortest > 0.049 && respawn->shortest < 1.0);
        free(respawn);
    }
}

static ek_status begin_and_end(ek_engine *engine, void *user)
{
    (void)user;
    ek_agreement agreement;
    return ek_agree(engine, ek_engine_rank(engine) ? EK_AGREE_BEGIN : EK_AGREE_END, true, &agreement);
}

static void test_mixed_agreement(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    assert_int_equal(run_job(2, threads, begin_and_end, NULL), EK_INVALID);
}

/* ----------------------------------------------------------------------------------------- nothing is left */

#ifdef EK_SANITIZE /* sanitizers keep freed memory for a while */
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

enum { CYCLES = UNDER_TSAN ? 60 : 300 };

/* Rank 1 dies as soon as it has joined. */
static struct death die_on_arrival(const struct job *job, uint32_t rank, uint32_t life)
{
    if (rank != 1 || (job->enough && life >= job->enough))
        return (struct death){NOWHERE, 0};
    return (struct death){life == 0 ? IN_STEP : AFTER_END, 0};
}

/* Ordinary memory and shared memory in pages. */
static void measure_memory(size_t *private, size_t *shared)
{
    size_t size, resident;
    FILE *file = fopen("/proc/self/statm", "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%zu %zu %zu", &size, &resident, shared), 3);
    fclose(file);
    *private = resident - *shared;
}

struct cycles {
    struct job job;
    size_t descriptors[2], tasks[2], private_pages[2], shared_pages[2]; /* early and late */
};

static ek_status measure_and_revive(void *user, const ek_loss *loss)
{
    struct cycles *cycles = user;
    int late = cycles->job.returns.lost > CYCLES / 2;
    if (cycles->job.returns.lost == CYCLES / 4 || cycles->job.returns.lost == CYCLES - 1) {
        cycles->descriptors[late] = entries_of("/proc/self/fd");
        cycles->tasks[late] = entries_of("/proc/self/task");
        measure_memory(&cycles->private_pages[late], &cycles->shared_pages[late]);
    }
    return revive(user, loss);
}

static void test_many_returns(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        struct cycles *cycles = calloc(1, sizeof *cycles);
        assert_non_null(cycles);
        cycles->job = (struct job){.steps = UINT32_MAX, .enough = CYCLES, .death = die_on_arrival};
        ek_launch_options options = returning_options(3, threads, main_of_life, &cycles->job.returns);
        options.on_lost = measure_and_revive;
        options.heap_bytes = (size_t)1 << 20;
        assert_ok(ek_launch(&options));
        assert_int_equal(cycles->job.returns.lost, CYCLES);
        assert_int_equal(cycles->descriptors[1], cycles->descriptors[0]);
        assert_true(threads || cycles->tasks[1] == cycles->tasks[0]);
        assert_true(cycles->tasks[1] <= cycles->tasks[0] + 1);
        if (!SANITIZED) {
            assert_true(cycles->private_pages[1] < cycles->private_pages[0] + 64);
            assert_true(cycles->shared_pages[1] < cycles->shared_pages[0] + 64);
        }
        free(cycles);
    }
}

/* The launching process is killed while ranks come and go: all of them end with it. */
static void test_launcher_killed(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphans come to this process, which sees them end */
    for (uint64_t i = 0; i < 15; i++) {
        pid_t launcher = fork();
        if (launcher == 0) {
            struct job *job = make_job((struct job){.steps = MAX_STEPS, .death = die_on_arrival});
            job->step_microseconds = 100000;
            _exit(run(job, 3, false, main_of_life));
        }
        usleep((useconds_t)(2000 + ek_random_u64(5, 0, i) % 20000));
        kill(launcher, SIGKILL);
        double deadline = now_seconds() + 5;
        pid_t ended;
        int status;
        while ((ended = waitpid(-1, &status, WNOHANG)) >= 0 && now_seconds() < deadline)
            if (ended == 0)
                usleep(500);
        assert_int_equal(ended, -1);
        assert_int_equal(errno, ECHILD);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settling),         cmocka_unit_test(test_mixed_agreement),
        cmocka_unit_test(test_respawn),          cmocka_unit_test(test_dying_newcomers),
        cmocka_unit_test(test_random_histories), cmocka_unit_test(test_many_returns),
        cmocka_unit_test(test_launcher_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
