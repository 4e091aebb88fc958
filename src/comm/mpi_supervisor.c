/* The supervisor of the engine "mpi", the leading side of a job: hears what all ranks say by way of their guards,
 * decides who is lost, what is committed and what is agreed, and calls the callbacks. It is the only one that decides,
 * and tells every guard in one order, so all ranks see the same. */
#include "comm/mpi.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

/* All must have said hello by then, and have gone when all is over. */
#define HELLO_NS 90000000000u
#define GOODBYE_NS 5000000000u
#define IDLE_TICK_NS 1000000000u
/* Agreements in a row after MPI's errors without a loss, until that is taken for the end. */
#define VAIN_MOST 5

enum seat_state {
    SEAT_ABSENT,
    SEAT_AWAITED, /* has not said hello */
    SEAT_LIVE,
    SEAT_DONE,
    SEAT_LOST
};

/* A rank as the supervisor sees it. */
struct seat {
    enum seat_state state;
    struct wire wire;
    char host[JOB_HOST_BYTES];
    uint64_t silent; /* ticks without a word */
    bool killed;     /* on request */
    bool just_lost;  /* on_lost is still to be called */
    ek_loss loss;
    bool voted;
    struct mpi_ballot ballot;
    bool agreeing;
    struct mpi_consent consent;
};

struct supervisor {
    struct ek_launcher base;
    struct mpi_job *job;
    const ek_launch_options *options;
    struct seat *seats;     /* [ranks] */
    struct wire *visitors;  /* [ranks] connected, but have not said hello; fd -1: free */
    struct pollfd *polled;  /* [2 ranks + 2] */
    uint32_t awaited, live; /* how many seats are */
    int signal_fd;
    uint64_t tick_ns, next_tick_ns, until_ns;
    pthread_mutex_t mutex; /* of what is sent; the main thread has it, but while it waits and in callbacks */
    pthread_cond_t end_of_beats;
    pthread_t beater;
    bool beats, beaten;     /* the beater is there; it shall end */
    uint64_t epoch, step;   /* the current epoch; the open step */
    bool aborted;           /* the open step is */
    uint32_t lost_in_epoch; /* ranks */
    bool disturbed;         /* operations fail in this epoch */
    uint32_t vain;          /* epochs in a row that were disturbed without a loss */
    char trouble[JOB_TROUBLE_BYTES];
    bool any_lost, any_done;
    bool signalled; /* the job has had a signal: what ends then was ended by it */
    bool over;
    struct mpi_end end;
};

static void end_job(struct supervisor *supervisor, ek_status status, const char *error)
{
    if (supervisor->over)
        return;
    supervisor->over = true;
    supervisor->end = (struct mpi_end){.status = status};
    snprintf(supervisor->end.error, sizeof supervisor->end.error, "%s", error);
}

static void obey(struct supervisor *supervisor, ek_status status)
{
    if (status != EK_OK)
        end_job(supervisor, status, ek_error());
}

/* Callbacks may take their time, as where they write to a disk that is busy: beats go on. */
#define CALL_BACK(supervisor, call)                                                                                    \
    do {                                                                                                               \
        pthread_mutex_unlock(&(supervisor)->mutex);                                                                    \
        ek_status called_back = (call);                                                                                \
        pthread_mutex_lock(&(supervisor)->mutex);                                                                      \
        obey(supervisor, called_back);                                                                                 \
    } while (0)

static void tell_live(struct supervisor *supervisor, enum mpi_message_type type, const void *data, size_t bytes)
{
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++)
        if (supervisor->seats[rank].state == SEAT_LIVE)
            wire_send(&supervisor->seats[rank].wire, type, data, bytes);
}

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
    tell_live(supervisor, WIRE_LOSS, &(struct mpi_loss){rank}, sizeof(struct mpi_loss));
}

static void lose(struct supervisor *supervisor, uint32_t rank, struct mpi_lost how)
{
    struct seat *seat = &supervisor->seats[rank];
    seat->state = SEAT_LOST;
    seat->just_lost = true;
    seat->loss =
        (ek_loss){.rank = rank, .cause = seat->killed ? EK_LOSS_SIGNAL : how.cause, .code = how.code, .note = how.note};
    supervisor->live--;
    supervisor->any_lost = true;
    supervisor->lost_in_epoch++;
    if (supervisor->signalled)
        ek_fail(EK_INTERRUPTED, "the job was ended from outside");
    else
        ek_fail(EK_PEER_LOST,
                "this MPI does not go on without a rank, which takes ULFM (Open MPI 5: mpirun --with-ft ulfm); rank %u "
                "on host %s was lost",
                rank, seat->host);
    if (!mpi_can_lose() || supervisor->signalled)
        end_job(supervisor, supervisor->signalled ? EK_INTERRUPTED : EK_PEER_LOST, ek_error());
    disturb(supervisor, rank);
}

/* A rank's main has returned. */
static void finish(struct supervisor *supervisor, uint32_t rank, const struct mpi_end *end)
{
    struct seat *seat = &supervisor->seats[rank];
    if (end->status == EK_FENCED) { /* of the engine's own faults only "shm" has it */
        lose(supervisor, rank, (struct mpi_lost){.cause = EK_LOSS_EXIT, .code = EK_FENCED});
        return;
    }
    seat->state = SEAT_DONE;
    supervisor->live--;
    if (end->status != EK_OK) {
        end_job(supervisor, end->status, end->error);
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

static void tell_losses(struct supervisor *supervisor)
{
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++) {
        struct seat *seat = &supervisor->seats[rank];
        if (seat->just_lost && supervisor->options->on_lost)
            CALL_BACK(supervisor, supervisor->options->on_lost(supervisor->options->user, &seat->loss));
        seat->just_lost = false;
    }
}

ek_status mpi_kill(ek_launcher *launcher, uint32_t rank)
{
    struct supervisor *supervisor = (struct supervisor *)launcher;
    struct seat *seat = &supervisor->seats[rank];
    if (seat->state != SEAT_LIVE)
        return ek_fail(EK_INVALID, "ek_launcher_kill: rank %u is not running", rank);
    seat->killed = true;
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
    tell_live(supervisor, WIRE_WISH, &wish, sizeof wish);
    pthread_mutex_unlock(&supervisor->mutex);
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
    ek_fail(EK_SYSTEM, "MPI fails again and again, though no rank is lost: %s", supervisor->trouble);
    obey(supervisor, EK_SYSTEM);
}

static void try_agreement(struct supervisor *supervisor)
{
    const struct mpi_consent *first;
    bool ok;
    if (!all_agreeing(supervisor, &first, &ok))
        return;
    if (!are_alike(supervisor, first)) {
        obey(supervisor, ek_fail(EK_INVALID, "ek_agree: some ranks begin while others end"));
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
    tell_live(supervisor, WIRE_EPOCH, &agreed, sizeof agreed);
}

/* ---------------------------------------------------------------------------------------------- messages */

static void hear(struct supervisor *supervisor, uint32_t rank, const struct wire_message *message)
{
    struct seat *seat = &supervisor->seats[rank];
    const ek_launch_options *options = supervisor->options;
    union {
        struct mpi_ballot ballot;
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
        memcpy(&seat->consent, message->data, sizeof seat->consent);
        break;
    case WIRE_TROUBLE:
        hear_trouble(supervisor, &body.trouble);
        break;
    case WIRE_END:
        finish(supervisor, rank, &body.end);
        break;
    case WIRE_LOST:
        lose(supervisor, rank, body.lost);
        break;
    default: /* a beat */
        break;
    }
}

/* A connection that closes without a word: the guard was killed, and its rank with it. */
static void listen_to_seats(struct supervisor *supervisor)
{
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++) {
        struct seat *seat = &supervisor->seats[rank];
        struct wire_message message;
        if (seat->wire.fd < 0)
            continue;
        bool there = wire_receive(&seat->wire);
        while (wire_next(&seat->wire, JOB_MESSAGE_BYTES, &message)) {
            seat->silent = 0;
            if (seat->state == SEAT_LIVE)
                hear(supervisor, rank, &message);
        }
        wire_flush(&seat->wire);
        if (there)
            continue;
        if (seat->state == SEAT_LIVE)
            lose(supervisor, rank, (struct mpi_lost){.cause = EK_LOSS_SIGNAL, .code = SIGKILL});
        wire_close(&seat->wire);
    }
}

static void welcome_all(struct supervisor *supervisor)
{
    tell_live(supervisor, WIRE_WELCOME, supervisor->options->shared, supervisor->options->shared_bytes);
}

/* Gives a visitor its seat, if it knows the token. */
static void seat_visitor(struct supervisor *supervisor, struct wire *visitor, const struct wire_message *message)
{
    struct mpi_hello hello = {.rank = EK_NONE};
    if (message->type == WIRE_HELLO && message->bytes == sizeof hello)
        memcpy(&hello, message->data, sizeof hello);
    if (hello.rank >= supervisor->base.ranks || supervisor->seats[hello.rank].state != SEAT_AWAITED ||
        memcmp(hello.token, supervisor->job->contact.token, sizeof hello.token) != 0) {
        wire_close(visitor);
        return;
    }
    struct seat *seat = &supervisor->seats[hello.rank];
    seat->state = SEAT_LIVE;
    seat->wire = *visitor; /* with what else has come */
    *visitor = (struct wire){.fd = -1};
    memcpy(seat->host, hello.host, sizeof seat->host);
    seat->host[sizeof seat->host - 1] = '\0';
    supervisor->live++;
    if (--supervisor->awaited == 0)
        welcome_all(supervisor);
}

static void listen_to_visitors(struct supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->base.ranks; i++) {
        struct wire *visitor = &supervisor->visitors[i];
        if (visitor->fd < 0) {
            int fd = accept4(supervisor->job->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (fd < 0)
                continue;
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
            wire_open(visitor, fd);
        }
        struct wire_message message;
        bool there = wire_receive(visitor);
        if (wire_next(visitor, sizeof(struct mpi_hello), &message))
            seat_visitor(supervisor, visitor, &message);
        else if (!there)
            wire_close(visitor);
    }
}

/* ----------------------------------------------------------------------------------------- time and loop */

/* A host is silent as a whole: it is cut off, and what it does is out of reach. */
static void end_silent(struct supervisor *supervisor, uint32_t rank)
{
    struct seat *seat = &supervisor->seats[rank];
    obey(supervisor,
         ek_fail(EK_PEER_LOST,
                 "host %s, with rank %u, is silent: it is down or cut off, which MPI's run-time does not outlive",
                 seat->host, rank));
    supervisor->end.cut_off = true;
    wire_close(&seat->wire); /* nobody waits for its goodbye */
}

static void count_tick(struct supervisor *supervisor)
{
    uint64_t now = clock_now_ns();
    if (now < supervisor->next_tick_ns)
        return;
    supervisor->next_tick_ns = now + supervisor->tick_ns;
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++) {
        struct seat *seat = &supervisor->seats[rank];
        if (seat->wire.fd < 0)
            continue;
        seat->silent++;
        if (supervisor->job->tick_ns && seat->silent > mpi_silent_ticks(supervisor->job))
            end_silent(supervisor, rank);
    }
    if (supervisor->awaited && now > supervisor->until_ns)
        obey(supervisor, ek_fail(EK_SYSTEM, "%u of %u processes have not begun after %u s", supervisor->awaited,
                                 supervisor->job->present, (unsigned)(HELLO_NS / 1000000000u)));
}

/* Signals that have come, as bits. */
static uint64_t take_signals(struct supervisor *supervisor)
{
    struct signalfd_siginfo info;
    uint64_t signals = 0;
    while (read(supervisor->signal_fd, &info, sizeof info) > 0)
        signals |= UINT64_C(1) << info.ssi_signo;
    return signals;
}

static void act_on_signals(struct supervisor *supervisor, uint64_t signals)
{
    const ek_launch_options *options = supervisor->options;
    for (int signal = 1; signal < 64 && !supervisor->over; signal++) {
        if (!(signals >> signal & 1) || (signal == SIGUSR1 && !options->on_signal))
            continue;
        supervisor->signalled |= signal != SIGUSR1;
        if (options->on_signal)
            CALL_BACK(supervisor, options->on_signal(options->user, signal));
        else
            obey(supervisor, ek_fail(EK_INTERRUPTED, "the job was ended by %s", strsignal(signal)));
    }
}

static void wait_for_events(struct supervisor *supervisor)
{
    nfds_t count = 0;
    supervisor->polled[count++] = (struct pollfd){.fd = supervisor->signal_fd, .events = POLLIN};
    if (supervisor->awaited)
        supervisor->polled[count++] = (struct pollfd){.fd = supervisor->job->listener, .events = POLLIN};
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++) {
        const struct wire *wires[] = {&supervisor->seats[rank].wire, &supervisor->visitors[rank]};
        for (int i = 0; i < 2; i++)
            if (wires[i]->fd >= 0 && !wires[i]->broken)
                supervisor->polled[count++] = (struct pollfd){
                    .fd = wires[i]->fd, .events = (short)(POLLIN | (wire_is_sending(wires[i]) ? POLLOUT : 0))};
    }
    uint64_t now = clock_now_ns();
    struct timespec left = clock_timespec(supervisor->next_tick_ns > now ? supervisor->next_tick_ns - now : 0);
    pthread_mutex_unlock(&supervisor->mutex);
    ppoll(supervisor->polled, count, &left, NULL);
    pthread_mutex_lock(&supervisor->mutex);
}

/* One round. Losses are told after what the lost had to report, and before any agreement on them. They come before
 * signals that were there no sooner: mpirun ends a job that has lost a process by SIGTERM. */
static void attend(struct supervisor *supervisor)
{
    wait_for_events(supervisor);
    uint64_t signals = take_signals(supervisor);
    if (supervisor->awaited)
        listen_to_visitors(supervisor);
    listen_to_seats(supervisor);
    act_on_signals(supervisor, signals);
    tell_losses(supervisor);
    count_tick(supervisor);
    try_agreement(supervisor);
}

/* Tells all that it is over, and waits a while until their ranks have gone. */
static void say_goodbye(struct supervisor *supervisor)
{
    bool any = true;
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++)
        if (supervisor->seats[rank].wire.fd >= 0)
            wire_send(&supervisor->seats[rank].wire, WIRE_OVER, &supervisor->end, sizeof supervisor->end);
    supervisor->until_ns = clock_now_ns() + GOODBYE_NS;
    while (any && clock_now_ns() < supervisor->until_ns) {
        any = false;
        wait_for_events(supervisor);
        for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++) {
            struct wire *wire = &supervisor->seats[rank].wire;
            if (wire->broken)
                continue;
            struct wire_message message;
            bool there = wire_receive(wire);
            while (wire_next(wire, JOB_MESSAGE_BYTES, &message))
                ;
            wire_flush(wire);
            any |= there;
        }
        supervisor->next_tick_ns = clock_now_ns() + supervisor->tick_ns / 8 + 1;
    }
    take_signals(supervisor); /* they shall not end this process before it has written how the job ended */
}

static void beat_once(struct supervisor *supervisor)
{
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++)
        if (supervisor->seats[rank].wire.fd >= 0)
            wire_send(&supervisor->seats[rank].wire, WIRE_BEAT, NULL, 0);
}

/* Lets the guards know that this host is there, whatever callbacks wait for. */
static void *beat(void *argument)
{
    struct supervisor *supervisor = argument;
    pthread_mutex_lock(&supervisor->mutex);
    while (!supervisor->beaten) {
        struct timespec until = clock_timespec(clock_now_ns() + supervisor->tick_ns);
        if (pthread_cond_clockwait(&supervisor->end_of_beats, &supervisor->mutex, CLOCK_MONOTONIC, &until) == ETIMEDOUT)
            beat_once(supervisor);
    }
    pthread_mutex_unlock(&supervisor->mutex);
    return NULL;
}

static ek_status start_beater(struct supervisor *supervisor)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&supervisor->beater, NULL, beat, supervisor);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    supervisor->beats = error == 0;
    return error == 0 ? EK_OK : ek_fail(EK_SYSTEM, "ek_launch: cannot start a thread: %s", strerror(error));
}

/* A job that on_start has refused goes on until all know it: MPI's beginning has no other end for them. */
static bool goes_on(const struct supervisor *supervisor, bool refused)
{
    if (refused)
        return supervisor->awaited > 0 && !supervisor->signalled && clock_now_ns() < supervisor->until_ns;
    return (supervisor->live > 0 || supervisor->awaited > 0) && !supervisor->over;
}

static void supervise(struct supervisor *supervisor)
{
    if (supervisor->options->on_start)
        CALL_BACK(supervisor, supervisor->options->on_start(supervisor->options->user, &supervisor->base));
    bool refused = supervisor->over;
    while (goes_on(supervisor, refused))
        attend(supervisor);
    tell_losses(supervisor);
    if (supervisor->any_lost && !supervisor->any_done)
        end_job(supervisor, EK_PEER_LOST, "every rank was lost");
    say_goodbye(supervisor);
}

/* ------------------------------------------------------------------------------------------------- whole */

static ek_status take_seats(struct supervisor *supervisor)
{
    uint32_t ranks = supervisor->base.ranks;
    const bool *absent = supervisor->options->absent;
    supervisor->seats = calloc(ranks, sizeof *supervisor->seats);
    supervisor->visitors = calloc(ranks, sizeof *supervisor->visitors);
    supervisor->polled = calloc(2 * (size_t)ranks + 2, sizeof *supervisor->polled);
    if (!supervisor->seats || !supervisor->visitors || !supervisor->polled)
        return ek_fail(EK_NO_MEMORY, "ek_launch: out of memory");
    for (uint32_t rank = 0; rank < ranks; rank++) {
        supervisor->seats[rank].wire.fd = supervisor->visitors[rank].fd = -1;
        supervisor->seats[rank].state = absent && absent[rank] ? SEAT_ABSENT : SEAT_AWAITED;
    }
    supervisor->awaited = supervisor->job->present;
    return EK_OK;
}

/* After a failure the connections stay open until this process ends: see await_last_word in mpi_guard.c. */
static void leave_seats(struct supervisor *supervisor)
{
    for (uint32_t rank = 0; supervisor->seats && supervisor->visitors && rank < supervisor->base.ranks; rank++) {
        if (supervisor->end.status != EK_OK)
            supervisor->seats[rank].wire.fd = -1;
        wire_close(&supervisor->seats[rank].wire);
        wire_close(&supervisor->visitors[rank]);
    }
    free(supervisor->seats);
    free(supervisor->visitors);
    free(supervisor->polled);
}

ek_status mpi_supervise(struct mpi_job *job)
{
    struct supervisor supervisor = {.base = {&ek_engine_mpi, job->options->ranks},
                                    .job = job,
                                    .options = job->options,
                                    .tick_ns = job->tick_ns ? job->tick_ns : IDLE_TICK_NS,
                                    .until_ns = clock_now_ns() + HELLO_NS,
                                    .epoch = 1,
                                    .step = job->options->committed_step + 1};
    sigset_t signals;
    sigemptyset(&signals);
    for (size_t i = 0; i < JOB_SIGNALS && mpi_signals[i] != SIGUSR2; i++)
        sigaddset(&signals, mpi_signals[i]);
    setpgid(0, 0); /* mpirun ends the group of the process that it started, when that is lost */
    supervisor.signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    ek_status status = supervisor.signal_fd >= 0
                           ? take_seats(&supervisor)
                           : ek_fail(EK_SYSTEM, "ek_launch: cannot watch signals: %s", strerror(errno));
    pthread_mutex_init(&supervisor.mutex, NULL);
    pthread_cond_init(&supervisor.end_of_beats, NULL);
    if (status == EK_OK)
        status = start_beater(&supervisor);
    pthread_mutex_lock(&supervisor.mutex);
    if (status == EK_OK) {
        supervise(&supervisor);
        status = supervisor.end.status == EK_OK ? EK_OK : ek_fail(supervisor.end.status, "%s", supervisor.end.error);
    }
    supervisor.beaten = true;
    pthread_cond_signal(&supervisor.end_of_beats);
    pthread_mutex_unlock(&supervisor.mutex);
    if (supervisor.beats)
        pthread_join(supervisor.beater, NULL);
    pthread_cond_destroy(&supervisor.end_of_beats);
    pthread_mutex_destroy(&supervisor.mutex);
    leave_seats(&supervisor);
    if (supervisor.signal_fd >= 0)
        close(supervisor.signal_fd);
    return status;
}
