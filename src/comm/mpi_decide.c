/* What the supervisor of the engine "mpi" decides: which steps are committed, who is lost, what is agreed. It is the
 * only one that does, and tells every guard in one order, so all ranks see the same. */
#include "comm/mpi_supervisor.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Agreements in a row after MPI's errors without a loss, until that is taken for the end. */
#define VAIN_MOST 5

/* --------------------------------------------------------------------------------------------------- vote */

static void decide(struct seat *seat, ek_status status, uint64_t step, const double *sums)
{
    struct mpi_decision decision = {.status = status, .step = step};
    for (uint32_t i = 0; sums && i < EK_VOTE_VALUES; i++)
        decision.sums[i] = sums[i];
    seat->voted = false;
    wire_send(&seat->wire, WIRE_DECISION, &decision, sizeof decision);
}

static void abort_vote(struct supervisor *supervisor)
{
    supervisor->aborted = true;
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++)
        if (supervisor->seats[rank].state == SEAT_LIVE && supervisor->seats[rank].voted)
            decide(&supervisor->seats[rank], EK_PEER_LOST, supervisor->step, NULL);
}

/* Commits the open step if every live rank has voted for it. */
static void try_commit(struct supervisor *supervisor)
{
    double sums[EK_VOTE_VALUES] = {0};
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++) {
        const struct seat *seat = &supervisor->seats[rank];
        if (seat->state != SEAT_LIVE)
            continue;
        if (!seat->voted)
            return;
        for (uint32_t i = 0; i < EK_VOTE_VALUES; i++)
            sums[i] += seat->ballot.values[i];
    }
    if (supervisor->live == 0)
        return;
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++)
        if (supervisor->seats[rank].state == SEAT_LIVE)
            decide(&supervisor->seats[rank], EK_OK, supervisor->step, sums);
    supervisor->step++;
    supervisor->vain = 0;
}

static void take_vote(struct supervisor *supervisor, struct seat *seat, const struct mpi_ballot *ballot)
{
    if (ballot->step != supervisor->step) {
        decide(seat, EK_INVALID, supervisor->step, NULL);
        return;
    }
    seat->voted = true;
    seat->ballot = *ballot;
    if (supervisor->aborted)
        decide(seat, EK_PEER_LOST, supervisor->step, NULL);
    else
        try_commit(supervisor);
}

/* -------------------------------------------------------------------------------------- losses and ends */

static void disturb(struct supervisor *supervisor, uint32_t rank)
{
    supervisor->disturbed = true;
    abort_vote(supervisor);
    mpi_tell_live(supervisor, WIRE_LOSS, &(struct mpi_loss){rank}, sizeof(struct mpi_loss));
}

void mpi_lose(struct supervisor *supervisor, uint32_t rank, struct mpi_lost how)
{
    struct seat *seat = &supervisor->seats[rank];
    seat->state = SEAT_LOST;
    seat->just_lost = true;
    seat->loss = (ek_loss){.rank = rank, .cause = how.cause, .code = how.code, .note = how.note};
    supervisor->live--;
    supervisor->any_lost = true;
    supervisor->lost_in_epoch++;
    if (supervisor->signalled)
        mpi_obey(supervisor, ek_fail(EK_INTERRUPTED, "the job was ended from outside"));
    else if (!mpi_can_lose())
        mpi_obey(supervisor, ek_fail(EK_PEER_LOST,
                                     "this MPI does not go on without a rank, which takes ULFM (Open MPI 5: mpirun "
                                     "--with-ft ulfm); rank %u on host %s was lost",
                                     rank, seat->host));
    disturb(supervisor, rank);
}

/* A rank's main has returned. */
static void finish(struct supervisor *supervisor, uint32_t rank, const struct mpi_end *end)
{
    struct seat *seat = &supervisor->seats[rank];
    if (end->status == EK_FENCED) { /* of the engine's own faults only "shm" has it */
        mpi_lose(supervisor, rank, (struct mpi_lost){.cause = EK_LOSS_EXIT, .code = EK_FENCED});
        return;
    }
    seat->state = SEAT_DONE;
    supervisor->live--;
    if (end->status != EK_OK) {
        mpi_end_job(supervisor, end->status, end->error);
        return;
    }
    supervisor->any_done = true;
    if (!supervisor->aborted)
        try_commit(supervisor);
}

/* MPI fails somewhere: nobody shall wait for that rank. A loss is likely on its way. */
static void hear_trouble(struct supervisor *supervisor, const struct mpi_trouble *trouble)
{
    if (trouble->epoch != supervisor->epoch || supervisor->disturbed)
        return;
    snprintf(supervisor->trouble, sizeof supervisor->trouble, "%s", trouble->text);
    disturb(supervisor, EK_NONE);
}

void mpi_tell_losses(struct supervisor *supervisor)
{
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++) {
        struct seat *seat = &supervisor->seats[rank];
        if (seat->just_lost && supervisor->options->on_lost)
            CALL_BACK(supervisor, supervisor->options->on_lost(supervisor->options->user, &seat->loss));
        seat->just_lost = false;
    }
}

/* --------------------------------------------------------------------------------------------- agreement */

/* Whether every live rank asks for this epoch to end; then *first is one of them, and *ok what they agree on. */
static bool all_agreeing(const struct supervisor *supervisor, const struct mpi_consent **first, bool *ok)
{
    *first = NULL;
    *ok = true;
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++) {
        const struct seat *seat = &supervisor->seats[rank];
        if (seat->state != SEAT_LIVE)
            continue;
        if (!seat->agreeing)
            return false;
        *first = *first ? *first : &seat->consent;
        *ok &= seat->consent.ok;
    }
    return *first != NULL;
}

static bool are_alike(const struct supervisor *supervisor, const struct mpi_consent *first)
{
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++)
        if (supervisor->seats[rank].state == SEAT_LIVE && supervisor->seats[rank].consent.kind != first->kind)
            return false;
    return true;
}

static void count_vain(struct supervisor *supervisor)
{
    supervisor->vain = supervisor->disturbed && !supervisor->lost_in_epoch ? supervisor->vain + 1 : 0;
    if (supervisor->vain <= VAIN_MOST)
        return;
    mpi_obey(supervisor,
             ek_fail(EK_SYSTEM, "MPI fails again and again, though no rank is lost: %s", supervisor->trouble));
}

void mpi_try_agreement(struct supervisor *supervisor)
{
    const struct mpi_consent *first;
    bool ok;
    if (!all_agreeing(supervisor, &first, &ok))
        return;
    if (!are_alike(supervisor, first)) {
        mpi_obey(supervisor, ek_fail(EK_INVALID, "ek_agree: some ranks begin while others end"));
        return;
    }
    count_vain(supervisor);
    struct mpi_epoch agreed = {.epoch = ++supervisor->epoch,
                               .committed_step = supervisor->step - 1,
                               .ok = ok && !supervisor->disturbed,
                               .renew = supervisor->disturbed};
    supervisor->disturbed = supervisor->aborted = false;
    supervisor->lost_in_epoch = 0;
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++) {
        agreed.live[rank] = supervisor->seats[rank].state == SEAT_LIVE;
        supervisor->seats[rank].agreeing = supervisor->seats[rank].voted = false;
    }
    mpi_tell_live(supervisor, WIRE_EPOCH, &agreed, sizeof agreed);
}

/* ----------------------------------------------------------------------------------------------- messages */

void mpi_hear(struct supervisor *supervisor, uint32_t rank, const struct wire_message *message)
{
    struct seat *seat = &supervisor->seats[rank];
    const ek_launch_options *options = supervisor->options;
    union {
        struct mpi_ballot ballot;
        struct mpi_consent consent;
        struct mpi_trouble trouble;
        struct mpi_end end;
        struct mpi_lost lost;
    } body;
    memcpy(&body, message->data, message->bytes < sizeof body ? message->bytes : sizeof body);
    switch (message->type) {
    case WIRE_REPORT:
        if (options->on_report)
            CALL_BACK(supervisor, options->on_report(options->user, rank, message->data, message->bytes));
        break;
    case WIRE_VOTE:
        take_vote(supervisor, seat, &body.ballot);
        break;
    case WIRE_AGREE:
        seat->agreeing = true;
        seat->consent = body.consent;
        break;
    case WIRE_TROUBLE:
        hear_trouble(supervisor, &body.trouble);
        break;
    case WIRE_END:
        finish(supervisor, rank, &body.end);
        break;
    case WIRE_LOST:
        mpi_lose(supervisor, rank, body.lost);
        break;
    default: /* a beat */
        break;
    }
}

/* ------------------------------------------------------------------------------------ what callbacks want */

ek_status mpi_kill(ek_launcher *launcher, uint32_t rank)
{
    struct supervisor *supervisor = (struct supervisor *)launcher;
    struct seat *seat = &supervisor->seats[rank];
    if (seat->state != SEAT_LIVE)
        return ek_fail(EK_INVALID, "ek_launcher_kill: rank %u is not running", rank);
    pthread_mutex_lock(&supervisor->mutex);
    wire_send(&seat->wire, WIRE_KILL, NULL, 0);
    pthread_mutex_unlock(&supervisor->mutex);
    return EK_OK;
}

ek_status mpi_revive(ek_launcher *launcher, uint32_t rank)
{
    (void)launcher;
    return ek_fail(EK_INVALID, "ek_launcher_revive: rank %u: the engine \"mpi\" does not start lost ranks again", rank);
}

void mpi_ask(ek_launcher *launcher, uint64_t wish)
{
    struct supervisor *supervisor = (struct supervisor *)launcher;
    pthread_mutex_lock(&supervisor->mutex);
    supervisor->wish = wish;
    mpi_tell_live(supervisor, WIRE_WISH, &wish, sizeof wish);
    pthread_mutex_unlock(&supervisor->mutex);
}
