/* The life of a rank of the engine "mpi": MPI's beginning and end, communicators, the vote, agreement, beats, reports,
 * faults. */
#include "comm/mpi_rank.h"
#include "comm/futex.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define NAP_NS 1000000
#define SPINS 2000

/* ------------------------------------------------------------------------------------- guard and waiting */

/* One write of at most PIPE_BUF bytes: whole or not at all, whenever the rank dies and whichever thread writes. */
void mpi_tell(const struct mpi_engine *engine, enum mpi_message_type type, const void *data, size_t bytes)
{
    struct wire_header header = {.type = type, .bytes = (uint32_t)bytes};
    unsigned char message[sizeof header + JOB_MESSAGE_BYTES];
    _Static_assert(sizeof message <= PIPE_BUF, "a message to the guard must be written atomically");
    memcpy(message, &header, sizeof header);
    if (bytes)
        memcpy(message + sizeof header, data, bytes);
    while (write(engine->job->pipe[1], message, sizeof header + bytes) < 0 && errno == EINTR)
        ; /* without a guard there is no rank for long */
}

/* Waits until the word is another than `seen`. Peers may still need this rank's MPI to move what they sent. */
static void await_word(const struct mpi_engine *engine, _Atomic uint64_t *word, uint64_t seen)
{
    while (atomic_load(word) == seen) {
        int flag;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
        futex_wait(word, seen, NAP_NS);
        mpi_beat(engine);
    }
}

ek_status mpi_fail_lost(const struct mpi_engine *engine)
{
    uint64_t loss = atomic_load(&engine->page->loss);
    if (loss == 0 || loss == JOB_DISTURBED)
        return ek_fail(EK_PEER_LOST, "a rank was lost");
    return ek_fail(EK_PEER_LOST, "rank %u was lost", (unsigned)(loss - 1));
}

void mpi_break(struct mpi_engine *engine, const char *text)
{
    if (atomic_exchange(&engine->broken, true))
        return;
    struct mpi_trouble trouble = {.epoch = engine->epoch};
    snprintf(trouble.text, sizeof trouble.text, "%s", text);
    mpi_tell(engine, WIRE_TROUBLE, &trouble, sizeof trouble);
    for (int lane = 0; lane < EK_LANES; lane++)
        if (engine->lanes[lane].comm != MPI_COMM_NULL)
            mpi_revoke(engine->lanes[lane].comm);
}

/* ------------------------------------------------------------------------------------------ communicators */

/* Where the live ranks are in a communicator of all of them. False: it is not one of exactly these. */
static bool locate(struct mpi_engine *engine, MPI_Comm comm)
{
    const ek_launch_options *options = engine->job->options;
    MPI_Group all, these;
    int size = 0, place = 0, expected = 0;
    bool right = true;
    MPI_Comm_size(comm, &size);
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Comm_group(comm, &these);
    for (uint32_t rank = 0; rank < engine->base.ranks; rank++) {
        engine->comm_ranks[rank] = MPI_UNDEFINED;
        if (options->absent && options->absent[rank])
            continue;
        MPI_Group_translate_ranks(all, 1, &place, these, &engine->comm_ranks[rank]);
        right = right && (engine->comm_ranks[rank] != MPI_UNDEFINED) == engine->live[rank];
        expected += engine->live[rank];
        place++;
    }
    MPI_Group_free(&all);
    MPI_Group_free(&these);
    return right && size == expected;
}

static void free_lanes(struct mpi_engine *engine)
{
    for (int lane = 0; lane < EK_LANES; lane++)
        if (engine->lanes[lane].comm != MPI_COMM_NULL)
            MPI_Comm_free(&engine->lanes[lane].comm);
}

/* A duplicate of `base` for each lane. A rank that fails here revokes `base`, so that no other waits for it. */
static bool make_lanes(struct mpi_engine *engine, MPI_Comm base)
{
    bool made = locate(engine, base);
    for (int lane = 0; lane < EK_LANES && made; lane++)
        made = MPI_Comm_dup(base, &engine->lanes[lane].comm) == MPI_SUCCESS;
    for (int lane = 0; lane < EK_LANES && made; lane++)
        MPI_Comm_set_errhandler(engine->lanes[lane].comm, MPI_ERRORS_RETURN);
    return made;
}

/* For this epoch. Where that fails, operations do. */
static void renew_communicators(struct mpi_engine *engine)
{
    MPI_Comm base = MPI_COMM_NULL;
    atomic_store(&engine->page->patience, 1);
    free_lanes(engine);
    bool made = mpi_shrink(&base) == MPI_SUCCESS;
    if (made) {
        MPI_Comm_set_errhandler(base, MPI_ERRORS_RETURN);
        made = make_lanes(engine, base);
        if (!made)
            mpi_revoke(base);
        MPI_Comm_free(&base);
    }
    if (!made)
        mpi_break(engine, "communicators cannot be made");
    atomic_store(&engine->page->patience, 0);
}

/* ------------------------------------------------------------------------------------ vote and agreement */

static ek_status mpi_vote(ek_engine *base, uint64_t step, const double *values, double *sums, uint32_t count)
{
    struct mpi_engine *engine = (struct mpi_engine *)base;
    struct mpi_ballot ballot = {.step = step};
    for (uint32_t i = 0; i < count; i++)
        ballot.values[i] = values[i];
    uint64_t decisions = atomic_load(&engine->page->decisions);
    mpi_tell(engine, WIRE_VOTE, &ballot, sizeof ballot);
    await_word(engine, &engine->page->decisions, decisions);
    const struct mpi_decision *decision = &engine->page->decision;
    if (decision->status == EK_INVALID)
        return ek_fail(EK_INVALID, "ek_vote: step %llu; the step to vote for is %llu", (unsigned long long)step,
                       (unsigned long long)decision->step);
    if (decision->status != EK_OK)
        return mpi_fail_lost(engine);
    for (uint32_t i = 0; i < count; i++)
        sums[i] = decision->sums[i];
    return EK_OK;
}

static ek_status mpi_agree(ek_engine *base, ek_agreement_kind kind, bool ok, ek_agreement *agreement)
{
    struct mpi_engine *engine = (struct mpi_engine *)base;
    for (int lane = 0; lane < EK_LANES; lane++)
        queue_drain(&engine->lanes[lane].queue);
    struct mpi_consent consent = {.kind = kind, .ok = ok};
    mpi_tell(engine, WIRE_AGREE, &consent, sizeof consent);
    await_word(engine, &engine->page->epoch, engine->epoch);

    const struct mpi_epoch *agreed = &engine->page->agreed;
    engine->epoch = agreed->epoch;
    memcpy(engine->live, agreed->live, sizeof engine->live);
    engine->agreement.ok = agreed->ok;
    engine->agreement.committed_step = agreed->committed_step;
    atomic_store(&engine->broken, false);
    for (int lane = 0; lane < EK_LANES; lane++)
        queue_renew(&engine->lanes[lane].queue);
    if (agreed->renew) {
        engine->has_lost = true;
        renew_communicators(engine);
    }
    heap_free_retired(&engine->heap);
    *agreement = engine->agreement;
    return EK_OK;
}

/* ------------------------------------------------------------------------------- beats, reports, faults */

static void mpi_note(ek_engine *base, uint64_t note)
{
    const struct mpi_engine *engine = (struct mpi_engine *)base;
    atomic_store_explicit(&engine->page->note, note, memory_order_relaxed);
    mpi_beat(engine);
}

static ek_status mpi_report(ek_engine *base, const void *record, size_t bytes)
{
    mpi_tell((struct mpi_engine *)base, WIRE_REPORT, record, bytes);
    return EK_OK;
}

static uint64_t mpi_asked(const ek_engine *base)
{
    return atomic_load(&((const struct mpi_engine *)base)->page->wish);
}

static _Noreturn void inject(ek_fault fault)
{
    for (;;) /* a stopped process may be continued, with the whole job: it stays out of it */
        kill(getpid(), fault == EK_FAULT_KILL ? SIGKILL : SIGSTOP);
}

static ek_status mpi_inject(ek_engine *base, ek_fault fault)
{
    (void)base;
    inject(fault);
}

static ek_status mpi_alloc(ek_engine *engine, size_t bytes, void **memory)
{
    return heap_alloc(&((struct mpi_engine *)engine)->heap, bytes, memory);
}

/* A peer's MPI may still read what an operation that failed was to send. */
static void mpi_free(ek_engine *base, void *memory)
{
    struct mpi_engine *engine = (struct mpi_engine *)base;
    if (atomic_load(&engine->broken) || atomic_load(&engine->page->loss))
        heap_retire(&engine->heap, memory);
    else
        heap_free(&engine->heap, memory);
}

const struct ek_engine_operations ek_engine_mpi = {
    .name = "mpi",
    .place = mpi_place,
    .launch = mpi_launch,
    .alloc = mpi_alloc,
    .free = mpi_free,
    .group_create = mpi_group_create,
    .group_destroy = mpi_group_destroy,
    .submit = mpi_submit,
    .wait = mpi_wait,
    .vote = mpi_vote,
    .agree = mpi_agree,
    .beat = mpi_note,
    .report = mpi_report,
    .asked = mpi_asked,
    .inject = mpi_inject,
    .revive = mpi_revive,
    .kill = mpi_kill,
    .ask = mpi_ask,
};

/* ------------------------------------------------------------------------------------- beginning and end */

/* Spinning only pays while every lane of the machine's ranks can have a core. */
static uint32_t choose_spins(void)
{
    MPI_Comm machine;
    int size = 1;
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine) == MPI_SUCCESS) {
        MPI_Comm_size(machine, &size);
        MPI_Comm_free(&machine);
    }
    return (long)size * EK_LANES <= sysconf(_SC_NPROCESSORS_ONLN) ? SPINS : 0;
}

/* What MPI gave us, compared with what was said of it. */
static ek_status check_world(const struct mpi_job *job, int provided)
{
    int place = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &place);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (provided < MPI_THREAD_MULTIPLE)
        return ek_fail(EK_SYSTEM, "this MPI does not support MPI_THREAD_MULTIPLE, which the engine \"mpi\" needs");
    if ((uint32_t)place != job->place.process || (uint32_t)size != job->present)
        return ek_fail(EK_INVALID,
                       "MPI has %d processes, and this one is number %d; the job has %u ranks, and this is number %u: "
                       "start it by mpirun -n %u",
                       size, place, job->present, job->place.process, job->present);
    return EK_OK;
}

/* Starts MPI, and tells the guard where the supervisor is, which is what the guards of the others lack. */
static ek_status join_world(struct mpi_engine *engine)
{
    struct mpi_job *job = engine->job;
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided); /* it does not return where it fails */
    ek_status status = check_world(job, provided);
    MPI_Bcast(&job->contact, sizeof job->contact, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    mpi_tell(engine, WIRE_CONTACT, &job->contact, sizeof job->contact);
    engine->spins = choose_spins();
    return status;
}

static ek_status make_heap(struct mpi_engine *engine, size_t heap_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = heap_bytes ? heap_bytes : heap_default_bytes(1);
    bytes = (bytes + page - 1) / page * page;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return ek_fail(EK_NO_MEMORY, "cannot map a heap of %zu bytes: %s; lower the engine's heap_bytes", bytes,
                       strerror(errno));
    return heap_create(&engine->heap, memory, bytes);
}

/* Until the job has begun: then what the launching side shares is there. */
static ek_status await_admission(struct mpi_engine *engine)
{
    const ek_launch_options *options = engine->job->options;
    await_word(engine, &engine->page->admitted, 0);
    engine->epoch = atomic_load(&engine->page->epoch);
    if (engine->page->shared_bytes != options->shared_bytes)
        return ek_fail(EK_INVALID, "ek_launch: process 0 shares %zu bytes, process %u expects %zu",
                       engine->page->shared_bytes, engine->job->place.process, options->shared_bytes);
    if (options->shared_bytes)
        memcpy(options->shared, engine->page->shared, options->shared_bytes);
    return EK_OK;
}

static ek_status run_main(struct mpi_engine *engine)
{
    const ek_launch_options *options = engine->job->options;
    EK_TRY(join_world(engine));
    EK_TRY(make_heap(engine, options->heap_bytes));
    EK_TRY(await_admission(engine));
    for (uint32_t rank = 0; rank < engine->base.ranks; rank++)
        engine->live[rank] = !options->absent || !options->absent[rank];
    for (int lane = 0; lane < EK_LANES; lane++)
        mpi_lane_create(&engine->lanes[lane], engine, (ek_lane)lane);
    if (!make_lanes(engine, MPI_COMM_WORLD))
        mpi_break(engine, "communicators cannot be made");
    atomic_store(&engine->page->patience, 0);
    return options->main(&engine->base, options->user);
}

/* After a recovery MPI_Finalize has been seen to hang; all have come to the end, so nobody misses it. */
static _Noreturn void leave_world(struct mpi_engine *engine)
{
    if (!engine->has_lost) {
        atomic_store(&engine->page->patience, 1);
        for (int lane = 0; lane < EK_LANES; lane++)
            mpi_lane_destroy(&engine->lanes[lane]);
        free_lanes(engine);
        MPI_Finalize();
    }
    _exit(0);
}

_Noreturn void mpi_rank_run(struct mpi_job *job)
{
    char name[16]; /* as ps and top show it */
    snprintf(name, sizeof name, "ek rank %u", job->rank);
    prctl(PR_SET_NAME, name);
    prctl(PR_SET_TIMERSLACK, 1000UL); /* naps are short */
    static struct mpi_engine the_engine;
    struct mpi_engine *engine = &the_engine;
    *engine = (struct mpi_engine){.base = {&ek_engine_mpi, job->rank, job->options->ranks, false, false, engine->live},
                                  .job = job,
                                  .page = job->page};
    engine->agreement = (ek_agreement){.live = engine->live, .newcomers = engine->newcomers};
    engine->comm_ranks = calloc(job->options->ranks, sizeof *engine->comm_ranks);
    struct mpi_end end = {.status = engine->comm_ranks ? run_main(engine)
                                                       : ek_fail(EK_NO_MEMORY, "out of memory for an engine")};
    if (end.status != EK_OK)
        snprintf(end.error, sizeof end.error, "%s", ek_error());
    mpi_tell(engine, WIRE_END, &end, sizeof end);
    await_word(engine, &engine->page->over, 0);
    leave_world(engine);
}
