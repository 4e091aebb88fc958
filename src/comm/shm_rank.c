/* The life of a rank of the engine "shm": its engine, waiting, the vote, agreement, beats, reports, faults. */
#include "comm/futex.h"
#include "comm/shm.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------------------- waiting */

void shm_beat(const struct shm_engine *engine)
{
    atomic_fetch_add_explicit(&engine->own->beats, 1, memory_order_relaxed);
}

ek_status shm_fail_lost(const struct shm_job *job)
{
    uint64_t loss = atomic_load(&job->loss);
    if (loss == 0) /* the poison of a counter was seen, so it is set */
        return ek_fail(EK_PEER_LOST, "a rank was lost");
    return ek_fail(EK_PEER_LOST, "rank %u was lost", (unsigned)(loss - 1));
}

ek_status shm_check_fence(const struct shm_engine *engine)
{
    if (atomic_load(&engine->own->fenced) != SHM_FREE)
        return ek_fail(EK_FENCED, "rank %u was declared lost", engine->base.rank);
    return EK_OK;
}

bool shm_is_sound(const struct shm_engine *engine)
{
    return atomic_load(&engine->job->loss) == 0 && atomic_load(&engine->own->fenced) == SHM_FREE;
}

ek_status shm_check(const struct shm_engine *engine)
{
    EK_TRY(shm_check_fence(engine));
    if (atomic_load(&engine->job->loss))
        return shm_fail_lost(engine->job);
    return EK_OK;
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void shm_doze(const struct shm_engine *engine, bool beat, _Atomic uint64_t *word, uint64_t seen)
{
    for (uint32_t spin = 0; spin < engine->job->spins; spin++) {
        if (atomic_load_explicit(word, memory_order_relaxed) != seen)
            return;
        relax();
    }
    futex_wait(word, seen, engine->job->nap_ns);
    if (beat)
        shm_beat(engine);
}

ek_status shm_await(const struct shm_lane *lane, struct shm_counter *counter, uint64_t target)
{
    for (;;) {
        uint64_t value = atomic_load_explicit(&counter->value, memory_order_acquire);
        if (value & SHM_POISON)
            return shm_fail_lost(lane->engine->job);
        if (value / SHM_ONE >= target)
            return EK_OK;
        /* Whoever counts looks for sleepers after counting, and we announce ourselves before we sleep; whoever poisons
         * sets job->loss first, and we look at it after the block was claimed: no wake-up is missed. */
        EK_TRY(shm_check(lane->engine));
        atomic_fetch_add(&counter->sleepers, 1);
        shm_doze(lane->engine, lane->beats, &counter->value, value);
        atomic_fetch_sub(&counter->sleepers, 1);
    }
}

ek_status shm_await_guard(const struct shm_lane *lane, struct shm_guard *guard)
{
    if (guard->counter)
        EK_TRY(shm_await(lane, guard->counter, guard->target));
    guard->counter = NULL;
    return EK_OK;
}

ek_status shm_count(const struct shm_engine *engine, struct shm_counter *counter, uint64_t target)
{
    uint64_t before = atomic_fetch_add(&counter->value, SHM_ONE);
    if (before & SHM_POISON)
        return shm_fail_lost(engine->job);
    if (before / SHM_ONE + 1 >= target && atomic_load(&counter->sleepers))
        futex_wake_all(&counter->value);
    return EK_OK;
}

ek_status shm_await_link(const struct shm_lane *lane)
{
    uint64_t now;
    while (lane->deadline_ns > 0 && (now = clock_now_ns()) < lane->deadline_ns) {
        EK_TRY(shm_check(lane->engine));
        uint64_t nap = lane->deadline_ns - now;
        if (nap > lane->engine->job->nap_ns)
            nap = lane->engine->job->nap_ns;
        nanosleep(&(struct timespec){.tv_nsec = (long)nap}, NULL); /* a nap is far below a second */
        if (lane->beats)
            shm_beat(lane->engine);
    }
    return EK_OK;
}

void shm_copy(const struct shm_lane *lane, void *to, const void *from, size_t bytes)
{
    const size_t piece_bytes = (size_t)1 << 20;
    for (size_t done = 0; done < bytes && to != from; done += piece_bytes) {
        size_t piece = bytes - done < piece_bytes ? bytes - done : piece_bytes;
        memcpy((unsigned char *)to + done, (const unsigned char *)from + done, piece);
        if (lane->beats)
            shm_beat(lane->engine);
    }
}

/* -------------------------------------------------------------------------------------------------- vote */

/* Bits from the lowest: aborted, marked, joining, 11 missing, 11 voters, 39 step. */
uint64_t shm_vote_pack(struct shm_vote_word vote)
{
    return vote.step << 25 | (uint64_t)vote.voters << 14 | (uint64_t)vote.missing << 3 | (vote.joining ? 4u : 0u) |
           (vote.marked ? 2u : 0u) | vote.aborted;
}

struct shm_vote_word shm_vote_unpack(uint64_t word)
{
    return (struct shm_vote_word){.step = word >> 25,
                                  .voters = word >> 14 & 0x7FF,
                                  .missing = word >> 3 & 0x7FF,
                                  .joining = word >> 2 & 1,
                                  .marked = word >> 1 & 1,
                                  .aborted = word & 1};
}

void shm_vote_count(struct shm_vote_word *vote)
{
    if (--vote->missing > 0)
        return;
    vote->step++;
    vote->missing = vote->voters;
    vote->joining = vote->marked;
    vote->marked = false;
}

/* Counts this rank's vote; the last one opens the next step in the same swap, which is what commits this one. */
static ek_status cast_vote(struct shm_job *job, uint64_t step)
{
    uint64_t word = atomic_load(&job->vote);
    for (;;) {
        struct shm_vote_word vote = shm_vote_unpack(word);
        if (vote.step != step)
            return ek_fail(EK_INVALID, "ek_vote: step %llu; the step to vote for is %llu", (unsigned long long)step,
                           (unsigned long long)vote.step);
        if (vote.aborted)
            return shm_fail_lost(job);
        if (vote.joining)
            return ek_fail(EK_INVALID, "ek_vote: step %llu; newcomers wait to join before it: ek_agree comes first",
                           (unsigned long long)step);
        shm_vote_count(&vote);
        if (!atomic_compare_exchange_weak(&job->vote, &word, shm_vote_pack(vote)))
            continue;
        if (vote.step > step)
            futex_wake_all(&job->vote);
        return EK_OK;
    }
}

static ek_status await_vote(struct shm_engine *engine, uint64_t step)
{
    struct shm_job *job = engine->job;
    for (;;) {
        uint64_t word = atomic_load(&job->vote);
        struct shm_vote_word vote = shm_vote_unpack(word);
        if (vote.step > step) { /* by one: the next step waits for this rank */
            engine->base.joining = vote.joining;
            return EK_OK;
        }
        if (vote.aborted)
            return shm_fail_lost(job);
        EK_TRY(shm_check_fence(engine));
        shm_doze(engine, true, &job->vote, word);
    }
}

static ek_status shm_vote(ek_engine *base, uint64_t step, const double *values, double *sums, uint32_t count)
{
    struct shm_engine *engine = (struct shm_engine *)base;
    struct shm_job *job = engine->job;
    EK_TRY(shm_check_fence(engine));
    struct shm_vote_word open = shm_vote_unpack(atomic_load(&job->vote));
    if (step != open.step)
        return ek_fail(EK_INVALID, "ek_vote: step %llu; the step to vote for is %llu", (unsigned long long)step,
                       (unsigned long long)open.step);
    struct shm_ballot *ballot = &engine->own->ballots[step & 1];
    for (uint32_t i = 0; i < count; i++)
        ballot->values[i] = values[i];
    ballot->step = step;
    EK_TRY(cast_vote(job, step));
    EK_TRY(await_vote(engine, step));

    double totals[EK_VOTE_VALUES] = {0};
    for (uint32_t rank = 0; rank < job->ranks; rank++) {
        ballot = &job->rank[rank].ballots[step & 1];
        for (uint32_t i = 0; job->live[rank] && i < count && ballot->step == step; i++)
            totals[i] += ballot->values[i];
    }
    for (uint32_t i = 0; i < count; i++)
        sums[i] = totals[i];
    return EK_OK;
}

/* --------------------------------------------------------------------------------------------- agreement */

static void ring_supervisor(const struct shm_job *job)
{
    uint64_t one = 1;
    while (write(job->event_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* A newcomer waits to be let in, the others until their epoch is over. Then a new one has begun. */
static ek_status await_epoch(struct shm_engine *engine)
{
    bool is_new = engine->base.is_new;
    _Atomic uint64_t *word = is_new ? &engine->own->admitted : &engine->job->epoch;
    uint64_t before = is_new ? 0 : engine->epoch, now;
    while ((now = atomic_load(word)) == before) {
        EK_TRY(shm_check_fence(engine));
        shm_doze(engine, true, word, before);
    }
    engine->epoch = now;
    return EK_OK;
}

static ek_status shm_agree(ek_engine *base, ek_agreement_kind kind, bool ok, ek_agreement *agreement)
{
    struct shm_engine *engine = (struct shm_engine *)base;
    struct shm_job *job = engine->job;
    for (int lane = 0; lane < EK_LANES; lane++)
        queue_drain(&engine->lanes[lane].queue);
    EK_TRY(shm_check_fence(engine));
    engine->own->kind = kind;
    engine->own->agrees = ok;
    atomic_store(&engine->own->agreeing, engine->epoch);
    ring_supervisor(job);
    EK_TRY(await_epoch(engine));
    heap_free_retired(&engine->heap);
    base->is_new = base->joining = false;
    for (int lane = 0; lane < EK_LANES; lane++)
        shm_lane_renew(&engine->lanes[lane]);
    *agreement = job->agreement;
    return EK_OK;
}

/* ------------------------------------------------------------------------------------ beats and reports */

static void shm_note(ek_engine *base, uint64_t note)
{
    struct shm_engine *engine = (struct shm_engine *)base;
    atomic_store_explicit(&engine->own->note, note, memory_order_relaxed);
    shm_beat(engine);
}

/* One write of at most PIPE_BUF bytes: it goes into the pipe whole or not at all, whenever the rank dies. */
static ek_status shm_report(ek_engine *base, const void *record, size_t bytes)
{
    struct shm_engine *engine = (struct shm_engine *)base;
    struct shm_report_header header = {.rank = base->rank, .bytes = (uint32_t)bytes};
    unsigned char message[sizeof header + EK_REPORT_BYTES];
    _Static_assert(sizeof message <= PIPE_BUF, "a report must be written atomically");
    EK_TRY(shm_check_fence(engine));
    memcpy(message, &header, sizeof header);
    if (bytes)
        memcpy(message + sizeof header, record, bytes);
    while (write(engine->job->report_fd, message, sizeof header + bytes) < 0)
        if (errno != EINTR)
            return ek_fail(EK_SYSTEM, "cannot report to the launching process: %s", strerror(errno));
    return EK_OK;
}

static uint64_t shm_asked(const ek_engine *base)
{
    return atomic_load(&((const struct shm_engine *)base)->job->wish);
}

/* ------------------------------------------------------------------------------------------------ faults */

static _Noreturn void inject_in_process(ek_fault fault)
{
    for (;;) /* a stopped process may be continued, with the whole job: it stays out of it */
        kill(getpid(), fault == EK_FAULT_KILL ? SIGKILL : SIGSTOP);
}

static ek_status shm_inject(ek_engine *base, ek_fault fault)
{
    struct shm_engine *engine = (struct shm_engine *)base;
    if (!engine->job->threads)
        inject_in_process(fault);
    uint32_t free = SHM_FREE;
    atomic_compare_exchange_strong(&engine->own->fenced, &free, SHM_FENCED_ITSELF);
    for (int lane = 0; lane < EK_LANES; lane++)
        while (queue_busy(&engine->lanes[lane].queue))
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); /* no drain: that would beat */
    if (fault == EK_FAULT_KILL)
        engine->own->killed = true;
    else
        while (atomic_load(&engine->own->fenced) != SHM_FENCED_BY_SUPERVISOR)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return shm_check_fence(engine);
}

/* -------------------------------------------------------------------------------------------------- life */

static ek_status shm_alloc(ek_engine *engine, size_t bytes, void **memory)
{
    return heap_alloc(&((struct shm_engine *)engine)->heap, bytes, memory);
}

/* An operation that a loss has ended here may go on elsewhere for a while, and read this rank's memory. So nothing is
 * taken from under the others until all have come to ek_agree. What a fenced rank has goes with the job. */
static void shm_free(ek_engine *base, void *memory)
{
    struct shm_engine *engine = (struct shm_engine *)base;
    if (shm_is_sound(engine))
        heap_free(&engine->heap, memory);
    else
        heap_retire(&engine->heap, memory);
}

const struct ek_engine_operations ek_engine_shm = {
    .name = "shm",
    .place = shm_place,
    .launch = shm_launch,
    .alloc = shm_alloc,
    .free = shm_free,
    .group_create = shm_group_create,
    .group_destroy = shm_group_destroy,
    .submit = shm_submit,
    .wait = shm_wait,
    .vote = shm_vote,
    .agree = shm_agree,
    .beat = shm_note,
    .report = shm_report,
    .asked = shm_asked,
    .inject = shm_inject,
    .revive = shm_revive,
    .kill = shm_kill,
    .ask = shm_ask,
};

static void keep_error(struct shm_rank *own)
{
    memcpy(own->error, ek_error(), strlen(ek_error()) + 1);
}

/* Runs main on an engine whose heap is there. */
static ek_status run_main(struct shm_engine *engine, const ek_launch_options *options)
{
    int created = 0;
    ek_status status = EK_OK;
    while (status == EK_OK && created < EK_LANES) {
        status = shm_lane_create(&engine->lanes[created], engine, (ek_lane)created);
        created += status == EK_OK;
    }
    if (status == EK_OK)
        status = options->main(&engine->base, options->user);
    if (status != EK_OK) {
        keep_error(engine->own);
        atomic_store(&engine->own->fenced, SHM_FENCED_BY_SUPERVISOR); /* what is still queued has no chance */
    }
    while (created > 0)
        queue_destroy(&engine->lanes[--created].queue);
    return status;
}

void shm_rank_run(struct shm_job *job, uint32_t rank, const ek_launch_options *options)
{
    struct shm_rank *own = &job->rank[rank];
    struct shm_engine *engine = calloc(1, sizeof *engine);
    ek_status status = EK_NO_MEMORY;
    if (!engine) {
        ek_fail(status, "out of memory for an engine");
    } else {
        uint64_t admitted = atomic_load(&own->admitted);
        *engine = (struct shm_engine){.base = {.operations = &ek_engine_shm,
                                               .rank = rank,
                                               .ranks = job->ranks,
                                               .is_new = admitted == 0,
                                               .live = job->live},
                                      .job = job,
                                      .own = own,
                                      .epoch = admitted ? admitted : SHM_NO_EPOCH};
        status = heap_create(&engine->heap, job->heaps + rank * job->heap_bytes, job->heap_bytes);
    }
    if (status == EK_OK) {
        status = run_main(engine, options);
        heap_destroy(&engine->heap);
    } else {
        keep_error(own);
    }
    free(engine);
    own->status = status;
    atomic_store(&own->finished, 1);
    ring_supervisor(job);
}
