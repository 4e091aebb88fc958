/* Who is in the job: the supervisor's part of agreements, by which ranks leave it and join it, and the start of those
 * that come back. See "Losses" and "Returns" in shm.h. */
#include "comm/futex.h"
#include "comm/shm_supervisor.h"

#include <string.h>
#include <sys/mman.h>

/* --------------------------------------------------------------------------------------------- agreement */

/* Tells all that a new epoch begins, those first admitted to it as well. */
static void begin_epoch(struct supervisor *supervisor, uint64_t epoch)
{
    struct shm_job *job = supervisor->job;
    atomic_store(&job->epoch, epoch);
    futex_wake_all(&job->epoch);
    for (uint32_t rank = 0; rank < job->ranks; rank++) {
        struct shm_rank *own = shm_rank_of(supervisor, rank);
        if (supervisor->workers[rank].state != WORKER_LIVE || atomic_load(&own->admitted))
            continue;
        atomic_store(&own->admitted, epoch); /* last: it may be in the next agreement at once */
        futex_wake_all(&own->admitted);
    }
}

/* Whether every rank of the job asks for this epoch to end: then *kind says by what, and *ok is what they agree on. */
static bool all_agreeing(struct supervisor *supervisor, uint64_t epoch, ek_agreement_kind *kind, bool *ok)
{
    const struct shm_rank *first = NULL;
    *ok = true;
    for (uint32_t rank = 0; rank < supervisor->job->ranks; rank++) {
        const struct shm_rank *own = shm_rank_of(supervisor, rank);
        if (supervisor->workers[rank].state != WORKER_LIVE)
            continue;
        if (atomic_load(&own->agreeing) != epoch)
            return false;
        first = first ? first : own;
        *ok &= own->agrees;
        if (own->kind != first->kind) {
            ek_fail(EK_INVALID, "ek_agree: some ranks begin while others end");
            shm_obey(supervisor, EK_INVALID);
            return false;
        }
    }
    if (!first)
        return false;
    *kind = first->kind;
    return true;
}

static bool asks_to_join(const struct supervisor *supervisor, uint32_t rank)
{
    return supervisor->workers[rank].state == WORKER_NEW &&
           atomic_load(&shm_rank_of(supervisor, rank)->agreeing) == SHM_NO_EPOCH;
}

/* Lets in all that ask. */
static bool admit(struct supervisor *supervisor)
{
    bool any = false;
    for (uint32_t rank = 0; rank < supervisor->job->ranks; rank++) {
        if (!asks_to_join(supervisor, rank))
            continue;
        supervisor->workers[rank].state = WORKER_LIVE;
        supervisor->live++;
        supervisor->job->newcomers[rank] = true;
        any = true;
    }
    return any;
}

/* All hold what they need, and no lost rank is in anybody's membership. */
static void settle(struct supervisor *supervisor)
{
    for (uint32_t rank = 0; rank < supervisor->job->ranks; rank++) {
        supervisor->job->newcomers[rank] = false;
        supervisor->workers[rank].settled = true;
    }
}

/* When every rank of the job waits in ek_agree, nobody uses what is wiped here. */
void shm_try_agreement(struct supervisor *supervisor)
{
    struct shm_job *job = supervisor->job;
    uint64_t epoch = atomic_load(&job->epoch);
    ek_agreement_kind kind;
    bool ok;
    if (!all_agreeing(supervisor, epoch, &kind, &ok))
        return;
    ok &= atomic_load(&job->loss) == 0;
    if (kind == EK_AGREE_BEGIN)
        ok &= !admit(supervisor);
    else if (ok)
        settle(supervisor);
    for (uint32_t rank = 0; rank < job->ranks; rank++) {
        struct shm_rank *own = shm_rank_of(supervisor, rank);
        job->live[rank] = supervisor->workers[rank].state == WORKER_LIVE;
        job->newcomers[rank] &= job->live[rank];
        own->ballots[0].step = own->ballots[1].step = 0; /* an aborted step is voted for again */
    }
    struct shm_vote_word vote = shm_vote_unpack(atomic_load(&job->vote));
    job->agreement.ok = ok;
    job->agreement.committed_step = vote.step - 1;
    vote = (struct shm_vote_word){.step = vote.step, .voters = supervisor->live, .missing = supervisor->live};
    atomic_store(&job->vote, shm_vote_pack(vote));
    if (madvise(job->blocks, job->wiped_bytes, MADV_REMOVE) != 0)
        memset(job->blocks, 0, job->wiped_bytes);
    atomic_store(&job->loss, 0);
    begin_epoch(supervisor, epoch + 1);
}

/* ----------------------------------------------------------------------------------------------- returns */

ek_status shm_revive(ek_launcher *launcher, uint32_t rank)
{
    struct worker *worker = &((struct supervisor *)launcher)->workers[rank];
    if (worker->state != WORKER_LOST)
        return ek_fail(EK_INVALID, "ek_launcher_revive: rank %u is not lost", rank);
    if (worker->revived)
        return ek_fail(EK_INVALID, "ek_launcher_revive: rank %u is already to be started again", rank);
    worker->revived = true;
    return EK_OK;
}

/* Starts a rank whose loss is settled as a newcomer, with nothing left of what it was. */
static bool start_again(struct supervisor *supervisor, uint32_t rank)
{
    struct shm_job *job = supervisor->job;
    struct worker *worker = &supervisor->workers[rank];
    if (madvise(job->heaps + rank * job->heap_bytes, job->heap_bytes, MADV_REMOVE) < 0)
        return false;
    memset(shm_rank_of(supervisor, rank), 0, sizeof(struct shm_rank));
    if (shm_worker_start(supervisor, rank) != EK_OK)
        return false;
    worker->state = WORKER_NEW;
    worker->beats = worker->idle = 0;
    worker->timed_out = worker->revived = worker->killed = false;
    supervisor->running++;
    return true;
}

uint64_t shm_respawn_time(const struct supervisor *supervisor, const struct worker *worker)
{
    bool waits = supervisor->respawn_ns > 0 && worker->state == WORKER_LOST && worker->settled;
    return waits ? worker->lost_ns + supervisor->respawn_ns : UINT64_MAX;
}

void shm_start_newcomers(struct supervisor *supervisor)
{
    for (uint32_t rank = 0; rank < supervisor->job->ranks; rank++) {
        struct worker *worker = &supervisor->workers[rank];
        bool asked = worker->state == WORKER_LOST && worker->settled && worker->revived;
        if (!asked && clock_now_ns() < shm_respawn_time(supervisor, worker))
            continue;
        if (!start_again(supervisor, rank))   /* the system lacks something: the job goes on as it is, */
            worker->lost_ns = clock_now_ns(); /* and it is tried again */
    }
}

void shm_mark_vote(struct supervisor *supervisor)
{
    bool any = false;
    for (uint32_t rank = 0; rank < supervisor->job->ranks; rank++)
        any |= asks_to_join(supervisor, rank);
    uint64_t word = atomic_load(&supervisor->job->vote);
    struct shm_vote_word vote;
    do {
        vote = shm_vote_unpack(word);
        if (!any || vote.marked || vote.joining)
            return;
        vote.marked = true;
    } while (!atomic_compare_exchange_weak(&supervisor->job->vote, &word, shm_vote_pack(vote)));
}
