/* The launching thread of the engine "shm": starts the ranks, sees them die, stall or finish, tells the others,
 * delivers reports, and leaves nothing behind. It is the only one that decides, so all ranks see losses in one order.
 */
#include "comm/shm_supervisor.h"

#include "comm/futex.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>

static void end_job(struct supervisor *supervisor, ek_status status, const char *error)
{
    if (supervisor->over)
        return;
    supervisor->over = true;
    supervisor->status = status;
    strncpy(supervisor->error, error, sizeof supervisor->error - 1);
}

/* ------------------------------------------------------------------------------------------------- start */

void shm_supervisor_close(struct supervisor *supervisor)
{
    int *held[] = {&supervisor->event_fd, &supervisor->signal_fd, &supervisor->report_fds[0],
                   &supervisor->report_fds[1]};
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++) {
        if (*held[i] >= 0)
            close(*held[i]);
        *held[i] = -1;
    }
    for (uint32_t rank = 0; rank < supervisor->job->ranks; rank++) {
        if (supervisor->workers[rank].pidfd >= 0)
            close(supervisor->workers[rank].pidfd);
        supervisor->workers[rank].pidfd = -1;
    }
}

static ek_status open_all(struct supervisor *supervisor, const sigset_t *signals)
{
    supervisor->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    supervisor->signal_fd = signalfd(-1, signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (supervisor->event_fd < 0 || supervisor->signal_fd < 0 || pipe2(supervisor->report_fds, O_CLOEXEC) < 0)
        return ek_fail(EK_SYSTEM, "ek_launch: cannot open what it needs: %s; see ulimit -n", strerror(errno));
    fcntl(supervisor->report_fds[0], F_SETFL, O_NONBLOCK);
    supervisor->job->event_fd = supervisor->event_fd;
    supervisor->job->report_fd = supervisor->report_fds[1];
    return EK_OK;
}

static ek_status start_ranks(struct supervisor *supervisor)
{
    const ek_launch_options *options = supervisor->options;
    struct shm_job *job = supervisor->job;
    uint32_t present = 0;
    for (uint32_t rank = 0; rank < job->ranks; rank++) {
        job->live[rank] = !options->absent || !options->absent[rank];
        present += job->live[rank];
    }
    struct shm_vote_word first = {.step = options->committed_step + 1, .voters = present, .missing = present};
    atomic_store(&job->vote, shm_vote_pack(first));
    for (uint32_t rank = 0; rank < job->ranks; rank++) {
        if (!job->live[rank])
            continue;
        atomic_store(&job->rank[rank].admitted, atomic_load(&job->epoch));
        EK_TRY(shm_worker_start(supervisor, rank));
        supervisor->workers[rank].state = WORKER_LIVE;
        supervisor->live++;
        supervisor->running++;
    }
    return EK_OK;
}

/* ----------------------------------------------------------------------------------------------- reports */

static bool read_exactly(int fd, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = read(fd, (unsigned char *)to + done, bytes - done);
        if (got <= 0 && !(got < 0 && errno == EINTR))
            return false;
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

void shm_obey(struct supervisor *supervisor, ek_status status)
{
    if (status != EK_OK)
        end_job(supervisor, status, ek_error());
}

/* Delivers what is in the pipe now. Records are written whole, so none is there in part. */
static void deliver_reports(struct supervisor *supervisor)
{
    int pending = 0;
    ioctl(supervisor->report_fds[0], FIONREAD, &pending);
    while (pending > 0) {
        struct shm_report_header header;
        unsigned char record[EK_REPORT_BYTES];
        if (!read_exactly(supervisor->report_fds[0], &header, sizeof header))
            return;
        if (header.rank >= supervisor->job->ranks || header.bytes > sizeof record) { /* no rank's ek_report wrote it */
            ek_fail(EK_CORRUPT, "ek_launch: a report of %u bytes from rank %u", header.bytes, header.rank);
            shm_obey(supervisor, EK_CORRUPT);
            return;
        }
        if (!read_exactly(supervisor->report_fds[0], record, header.bytes))
            return;
        pending -= (int)(sizeof header + header.bytes);
        if (supervisor->options->on_report)
            shm_obey(supervisor,
                     supervisor->options->on_report(supervisor->options->user, header.rank, record, header.bytes));
    }
}

/* -------------------------------------------------------------------------------------- losses and ends */

/* Makes every word that a rank may sleep on change, and wakes the sleepers. Who sleeps later finds job->loss set. */
static void disturb_sleepers(struct shm_job *job)
{
    for (uint64_t i = 0; i < job->block_count; i++) {
        struct shm_block *block = &job->blocks[i];
        if (atomic_load(&block->key) == 0)
            continue;
        atomic_fetch_or(&block->arrivals.value, SHM_POISON);
        atomic_fetch_or(&block->departures.value, SHM_POISON);
        futex_wake_all(&block->arrivals.value);
        futex_wake_all(&block->departures.value);
    }
    for (uint32_t rank = 0; rank < job->ranks; rank++) {
        for (int lane = 0; lane < EK_LANES; lane++) {
            struct shm_counter *bell = &job->rank[rank].doorbells[lane];
            atomic_fetch_add(&bell->value, SHM_ONE);
            if (atomic_load(&bell->sleepers))
                futex_wake_all(&bell->value);
        }
    }
    futex_wake_all(&job->vote);
}

static void abort_vote(struct shm_job *job)
{
    uint64_t word = atomic_load(&job->vote);
    struct shm_vote_word vote;
    do {
        vote = shm_vote_unpack(word);
        vote.aborted = true;
    } while (!atomic_compare_exchange_weak(&job->vote, &word, shm_vote_pack(vote)));
}

/* A rank that is done votes no more. It has not voted for the open step, since a vote lasts until the step is decided.
 * An aborted step stays as it is: the next agreement counts the voters anew. */
static void leave_vote(struct shm_job *job)
{
    uint64_t word = atomic_load(&job->vote);
    struct shm_vote_word vote;
    do {
        vote = shm_vote_unpack(word);
        if (vote.aborted)
            return;
        vote.voters--;
        if (vote.voters == 0)
            vote.missing--;
        else
            shm_vote_count(&vote);
    } while (!atomic_compare_exchange_weak(&job->vote, &word, shm_vote_pack(vote)));
    futex_wake_all(&job->vote);
}

static void lose(struct supervisor *supervisor, uint32_t rank, ek_loss_cause cause, int code)
{
    struct worker *worker = &supervisor->workers[rank];
    struct shm_job *job = supervisor->job;
    bool is_new = worker->state == WORKER_NEW;
    worker->state = WORKER_LOST;
    worker->just_lost = true;
    worker->lost_ns = clock_now_ns();
    worker->settled = is_new;
    worker->loss = (ek_loss){.rank = rank,
                             .cause = worker->timed_out ? EK_LOSS_TIMEOUT : cause,
                             .code = code,
                             .note = atomic_load(&shm_rank_of(supervisor, rank)->note),
                             .is_new = is_new};
    if (is_new)
        return;
    supervisor->any_lost = true;
    supervisor->live--;
    abort_vote(job); /* first: who hears of the loss finds the vote decided */
    uint64_t none = 0;
    atomic_compare_exchange_strong(&job->loss, &none, 1 + (uint64_t)rank);
    disturb_sleepers(job);
}

/* A rank's main has returned. */
static void finish(struct supervisor *supervisor, uint32_t rank)
{
    const struct shm_rank *own = shm_rank_of(supervisor, rank);
    bool was_live = supervisor->workers[rank].state == WORKER_LIVE;
    supervisor->workers[rank].state = WORKER_DONE;
    if (own->status != EK_OK) {
        end_job(supervisor, own->status, own->error);
    } else if (was_live) {
        supervisor->any_done = true;
        leave_vote(supervisor->job);
    }
    supervisor->live -= was_live;
}

/* A rank has ended, or is about to, by returning from main or (processes) otherwise. */
static void note_end(struct supervisor *supervisor, uint32_t rank)
{
    struct shm_rank *own = shm_rank_of(supervisor, rank);
    ek_loss_cause cause;
    int code;
    shm_worker_reap(supervisor, rank, &cause, &code);
    supervisor->running--;
    bool killed = own->killed || supervisor->workers[rank].killed;
    if (!atomic_load(&own->finished))
        lose(supervisor, rank, cause, code);
    else if (own->status == EK_FENCED)
        lose(supervisor, rank, killed ? EK_LOSS_SIGNAL : EK_LOSS_EXIT, killed ? SIGKILL : EK_FENCED);
    else
        finish(supervisor, rank);
}

ek_status shm_kill(ek_launcher *launcher, uint32_t rank)
{
    struct supervisor *supervisor = (struct supervisor *)launcher;
    struct worker *worker = &supervisor->workers[rank];
    if (!is_running(worker))
        return ek_fail(EK_INVALID, "ek_launcher_kill: rank %u is not running", rank);
    worker->killed = true;
    shm_worker_kill(supervisor, rank); /* it is lost when it is gone */
    return EK_OK;
}

void shm_ask(ek_launcher *launcher, uint64_t wish)
{
    atomic_store(&((struct supervisor *)launcher)->job->wish, wish);
}

/* Of all that have ended since the last poll. */
static void take_leave(struct supervisor *supervisor)
{
    for (uint32_t rank = 0; rank < supervisor->job->ranks; rank++)
        if (is_running(&supervisor->workers[rank]) && shm_worker_has_ended(supervisor, rank))
            note_end(supervisor, rank);
}

static void tell_losses(struct supervisor *supervisor)
{
    for (uint32_t rank = 0; rank < supervisor->job->ranks; rank++) {
        struct worker *worker = &supervisor->workers[rank];
        if (worker->just_lost && supervisor->options->on_lost)
            shm_obey(supervisor, supervisor->options->on_lost(supervisor->options->user, &worker->loss));
        worker->just_lost = false;
    }
}

/* Time is counted in ticks seen by this loop, at most one per round: when the whole job was stopped (Ctrl-Z) and goes
 * on, hardly any time has passed. */
static void count_tick(struct supervisor *supervisor)
{
    if (supervisor->job->tick_ns == 0 || clock_now_ns() < supervisor->next_tick_ns)
        return;
    supervisor->next_tick_ns = clock_now_ns() + supervisor->job->tick_ns;
    for (uint32_t rank = 0; rank < supervisor->job->ranks; rank++) {
        struct worker *worker = &supervisor->workers[rank];
        uint64_t beats = atomic_load(&shm_rank_of(supervisor, rank)->beats);
        worker->idle = beats == worker->beats ? worker->idle + 1 : 0;
        worker->beats = beats;
        if (!is_running(worker) || worker->timed_out || worker->idle <= SHM_TICKS_PER_TIMEOUT)
            continue;
        worker->timed_out = true;
        shm_worker_kill(supervisor, rank); /* it is lost when it is gone */
    }
}

/* -------------------------------------------------------------------------------------------------- loop */

/* How long to sleep at most. Nanoseconds; UINT64_MAX: for ever. */
static uint64_t patience_ns(const struct supervisor *supervisor)
{
    uint64_t patience = supervisor->job->tick_ns ? supervisor->job->tick_ns : UINT64_MAX, now = clock_now_ns();
    for (uint32_t rank = 0; rank < supervisor->job->ranks && supervisor->respawn_ns > 0; rank++) {
        uint64_t due = shm_respawn_time(supervisor, &supervisor->workers[rank]);
        uint64_t left = due > now ? due - now : 0;
        patience = left < patience ? left : patience;
    }
    return patience;
}

/* What is to be polled now: open files alone, since more entries than RLIMIT_NOFILE are refused even where they are -1.
 */
static nfds_t list_polled(struct supervisor *supervisor)
{
    int count = 0;
    supervisor->polled[count++] = (struct pollfd){.fd = supervisor->event_fd, .events = POLLIN};
    supervisor->polled[count++] = (struct pollfd){.fd = supervisor->report_fds[0], .events = POLLIN};
    supervisor->polled[count++] = (struct pollfd){.fd = supervisor->signal_fd, .events = POLLIN};
    for (uint32_t rank = 0; rank < supervisor->job->ranks; rank++) {
        struct worker *worker = &supervisor->workers[rank];
        worker->polled = worker->pidfd >= 0 ? count++ : -1;
        if (worker->polled >= 0)
            supervisor->polled[worker->polled] = (struct pollfd){.fd = worker->pidfd, .events = POLLIN};
    }
    return (nfds_t)count;
}

static void wait_for_events(struct supervisor *supervisor)
{
    nfds_t count = list_polled(supervisor);
    uint64_t patience = patience_ns(supervisor);
    struct timespec timeout = clock_timespec(patience);
    if (ppoll(supervisor->polled, count, patience == UINT64_MAX ? NULL : &timeout, NULL) < 0 && errno != EINTR) {
        ek_fail(EK_SYSTEM, "ek_launch: cannot watch the ranks: %s", strerror(errno));
        shm_obey(supervisor, EK_SYSTEM);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* threads that end are looked for all the same */
    }
    uint64_t rings;
    while (read(supervisor->event_fd, &rings, sizeof rings) > 0)
        ;
}

static void attend_to_signals(struct supervisor *supervisor)
{
    const ek_launch_options *options = supervisor->options;
    struct signalfd_siginfo signal_info;
    if (read(supervisor->signal_fd, &signal_info, sizeof signal_info) <= 0)
        return;
    int signal = (int)signal_info.ssi_signo;
    shm_obey(supervisor, options->on_signal ? options->on_signal(options->user, signal)
                                            : ek_fail(EK_INTERRUPTED, "the job was ended by %s", strsignal(signal)));
}

static void supervise(struct supervisor *supervisor)
{
    while (supervisor->live > 0 && !supervisor->over) {
        wait_for_events(supervisor);
        attend_to_signals(supervisor);
        take_leave(supervisor);
        deliver_reports(supervisor); /* also what the dead had to say */
        tell_losses(supervisor);
        count_tick(supervisor);
        shm_try_agreement(supervisor);
        shm_start_newcomers(supervisor);
        shm_mark_vote(supervisor);
    }
}

/* Whoever is still there ends now. A killed process ends whatever it does, so it is simply waited for. For threads
 * reports are read on: one may be waiting for room in the pipe. */
static void end_ranks(struct supervisor *supervisor)
{
    for (uint32_t rank = 0; rank < supervisor->job->ranks; rank++)
        if (is_running(&supervisor->workers[rank]))
            shm_worker_kill(supervisor, rank);
    for (uint32_t rank = 0; rank < supervisor->job->ranks && !supervisor->options->threads; rank++)
        if (is_running(&supervisor->workers[rank]))
            note_end(supervisor, rank);
    deliver_reports(supervisor);
    while (supervisor->running > 0) {
        wait_for_events(supervisor);
        take_leave(supervisor);
        deliver_reports(supervisor);
    }
}

static ek_status run_job(struct supervisor *supervisor, const sigset_t *signals)
{
    ek_status status = open_all(supervisor, signals);
    if (status == EK_OK && supervisor->options->on_start)
        status = supervisor->options->on_start(supervisor->options->user, &supervisor->base);
    if (status == EK_OK)
        status = start_ranks(supervisor);
    if (status == EK_OK)
        supervise(supervisor);
    else
        end_job(supervisor, status, ek_error());
    if (supervisor->any_lost && !supervisor->any_done)
        end_job(supervisor, EK_PEER_LOST, "every rank was lost");
    end_ranks(supervisor);
    shm_supervisor_close(supervisor);
    if (!supervisor->over)
        return EK_OK;
    return ek_fail(supervisor->status, "%s", supervisor->error);
}

static ek_status launch_on(struct shm_job *job, const ek_launch_options *options)
{
    struct supervisor supervisor = {.base = {.operations = &ek_engine_shm, .ranks = job->ranks},
                                    .options = options,
                                    .job = job,
                                    .event_fd = -1,
                                    .signal_fd = -1,
                                    .report_fds = {-1, -1}};
    supervisor.workers = calloc(job->ranks, sizeof *supervisor.workers);
    supervisor.polled = calloc(job->ranks + 3, sizeof *supervisor.polled);
    ek_status status = EK_NO_MEMORY;
    if (!supervisor.workers || !supervisor.polled) {
        ek_fail(status, "ek_launch: out of memory");
    } else {
        for (uint32_t rank = 0; rank < job->ranks; rank++)
            supervisor.workers[rank].pidfd = -1;
        supervisor.respawn_ns = (uint64_t)(options->respawn_seconds * 1e9);
        sigset_t signals;
        sigemptyset(&signals);
        sigaddset(&signals, SIGINT);
        sigaddset(&signals, SIGTERM);
        sigaddset(&signals, SIGHUP);
        if (options->on_signal)
            sigaddset(&signals, SIGUSR1);
        /* If another thread of the program does not block them, the system may give them to that one. */
        pthread_sigmask(SIG_BLOCK, &signals, &supervisor.old_mask);
        /* Where the program ignores SIGCHLD, or waits for whatever child ends, how a rank ended would be lost. */
        sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, &supervisor.old_child_action);
        status = run_job(&supervisor, &signals);
        sigaction(SIGCHLD, &supervisor.old_child_action, NULL);
        pthread_sigmask(SIG_SETMASK, &supervisor.old_mask, NULL);
    }
    free(supervisor.polled);
    free(supervisor.workers);
    return status;
}

void shm_place(ek_place *place)
{
    *place = (ek_place){.processes = 1, .one_machine = true, .threads = true, .links = true, .returns = true};
}

ek_status shm_launch(const ek_launch_options *options)
{
    struct shm_job *job;
    EK_TRY(shm_job_create(&job, options));
    ek_status status = launch_on(job, options);
    shm_job_destroy(job);
    return status;
}
