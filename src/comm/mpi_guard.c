/* The guard of a rank of the engine "mpi": the process that mpirun started. It passes messages between its rank and the
 * supervisor, and sees to it that the rank lives no longer than it makes progress, than the supervisor can be heard,
 * and than the job. */
#include "comm/futex.h"
#include "comm/mpi.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* What MPI may take where it takes its time: its beginning, its end, new communicators. */
#define PATIENCE_NS 60000000000u
#define CONNECT_MS 2000
#define FLUSH_NS 2000000000u
#define LAST_WORD_NS 5000000000u

struct guard {
    struct mpi_job *job;
    struct mpi_page *page;
    pid_t pid;
    int pidfd, signal_fd;
    struct wire rank, supervisor;
    uint64_t tick_ns, next_tick_ns;
    uint64_t beats;        /* as last seen */
    uint64_t idle, silent; /* ticks in a row without a beat of the rank, or a word of the supervisor */
    bool timed_out;
    bool alone; /* the leading process cannot be heard: the others take this rank for lost */
    bool over;  /* the job is: with this */
    struct mpi_end end;
};

static void end_rank(struct guard *guard)
{
    pidfd_send_signal(guard->pidfd, SIGKILL, NULL, 0);
}

static void end_job(struct guard *guard, ek_status status, const char *error)
{
    if (guard->over)
        return;
    guard->over = true;
    guard->end = (struct mpi_end){.status = status};
    snprintf(guard->end.error, sizeof guard->end.error, "%s", error);
    if (status == EK_OK) {
        atomic_store(&guard->page->over, 1);
        futex_wake_all(&guard->page->over);
    } else {
        end_rank(guard);
    }
}

static void stay_behind(struct guard *guard, const char *error)
{
    guard->alone = true;
    end_job(guard, EK_PEER_LOST, error);
}

/* --------------------------------------------------------------------------------------------- connecting */

static int connect_to(in_addr_t address, in_port_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    if (fd < 0)
        return -1;
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = address};
    socklen_t size = sizeof error;
    if (connect(fd, (struct sockaddr *)&place, sizeof place) == 0)
        return fd;
    if (errno == EINPROGRESS && poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, CONNECT_MS) > 0 &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)
        return fd;
    close(fd);
    return -1;
}

/* To the first of the supervisor's addresses that answers. */
static void greet(struct guard *guard, const struct mpi_contact *contact)
{
    int fd = -1;
    for (uint32_t i = 0; i < contact->count && i < JOB_ADDRESSES_MOST && fd < 0; i++)
        fd = connect_to(contact->addresses[i], contact->port);
    if (fd < 0) {
        char text[EK_ERROR_BYTES], host[JOB_HOST_BYTES] = "";
        gethostname(host, sizeof host - 1);
        snprintf(text, sizeof text, "host %s cannot reach port %u of the host of rank 0, by none of its %u addresses",
                 host, ntohs(contact->port), contact->count);
        end_job(guard, EK_SYSTEM, text);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    wire_open(&guard->supervisor, fd);
    struct mpi_hello hello = {.rank = guard->job->rank};
    memcpy(hello.token, contact->token, sizeof hello.token);
    gethostname(hello.host, sizeof hello.host - 1);
    wire_send(&guard->supervisor, WIRE_HELLO, &hello, sizeof hello);
}

/* ---------------------------------------------------------------------------------------------- messages */

static void hear_rank(struct guard *guard)
{
    struct wire_message message;
    wire_receive(&guard->rank);
    while (wire_next(&guard->rank, JOB_MESSAGE_BYTES, &message)) {
        if (message.type == WIRE_CONTACT) {
            struct mpi_contact contact;
            memcpy(&contact, message.data, sizeof contact);
            if (guard->supervisor.fd < 0) /* process 0 has known it from the beginning */
                greet(guard, &contact);
        } else {
            wire_send(&guard->supervisor, message.type, message.data, message.bytes);
        }
    }
}

static void ring(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store(word, value);
    futex_wake_all(word);
}

/* Puts what the supervisor says where the rank finds it. */
static void obey(struct guard *guard, const struct wire_message *message)
{
    struct mpi_page *page = guard->page;
    struct mpi_loss loss;
    struct mpi_end end;
    uint64_t wish;
    switch (message->type) {
    case WIRE_WELCOME:
        page->shared_bytes = message->bytes;
        memcpy(page->shared, message->data, message->bytes);
        atomic_store(&page->epoch, 1);
        ring(&page->admitted, 1);
        break;
    case WIRE_DECISION:
        memcpy(&page->decision, message->data, sizeof page->decision);
        ring(&page->decisions, atomic_load(&page->decisions) + 1);
        break;
    case WIRE_EPOCH:
        memcpy(&page->agreed, message->data, sizeof page->agreed);
        atomic_store(&page->loss, 0);
        ring(&page->epoch, page->agreed.epoch);
        break;
    case WIRE_LOSS:
        memcpy(&loss, message->data, sizeof loss);
        if (!atomic_load(&page->loss))
            atomic_store(&page->loss, loss.rank == EK_NONE ? JOB_DISTURBED : 1 + (uint64_t)loss.rank);
        break;
    case WIRE_WISH:
        memcpy(&wish, message->data, sizeof wish);
        atomic_store(&page->wish, wish);
        break;
    case WIRE_KILL:
        end_rank(guard);
        break;
    case WIRE_OVER:
        memcpy(&end, message->data, sizeof end);
        end_job(guard, end.status, end.error);
        guard->end.cut_off = end.cut_off;
        break;
    default: /* a beat */
        break;
    }
}

static void hear_supervisor(struct guard *guard)
{
    struct wire_message message;
    bool there = guard->supervisor.fd < 0 || wire_receive(&guard->supervisor);
    while (wire_next(&guard->supervisor, EK_SHARED_BYTES, &message)) {
        guard->silent = 0;
        obey(guard, &message);
    }
    if (!there && !guard->over)
        stay_behind(guard, "the leading process is gone");
}

/* What reaches the process that mpirun started: for the leading side, if it is this one's and has not ended the job. */
static void hear_signals(struct guard *guard)
{
    struct signalfd_siginfo info;
    while (read(guard->signal_fd, &info, sizeof info) > 0)
        if (guard->job->supervisor > 0 && !guard->over)
            kill(guard->job->supervisor, info.ssi_signo == SIGUSR2 ? SIGTERM : (int)info.ssi_signo);
}

/* For so many ticks in a row the rank may make no progress. */
static uint64_t most_idle(const struct guard *guard)
{
    if (atomic_load(&guard->page->patience) && PATIENCE_NS / guard->tick_ns > JOB_TICKS_PER_TIMEOUT)
        return PATIENCE_NS / guard->tick_ns;
    return guard->job->tick_ns ? JOB_TICKS_PER_TIMEOUT : UINT64_MAX;
}

static void cut_off(struct guard *guard)
{
    stay_behind(guard, "the host of the leading process is silent: this one is cut off, or that one is");
    guard->end.cut_off = true;
}

/* Time is counted in ticks seen by this loop, at most one per round: when all processes were stopped together and go
 * on, hardly any time has passed. */
static void count_tick(struct guard *guard)
{
    if (clock_now_ns() < guard->next_tick_ns)
        return;
    guard->next_tick_ns = clock_now_ns() + guard->tick_ns;
    if (guard->supervisor.fd >= 0) /* opening it would forget what waits to be sent */
        wire_send(&guard->supervisor, WIRE_BEAT, NULL, 0);
    uint64_t beats = atomic_load(&guard->page->beats);
    guard->idle = beats == guard->beats ? guard->idle + 1 : 0;
    guard->beats = beats;
    if (guard->idle > most_idle(guard) && !guard->timed_out) {
        guard->timed_out = true;
        end_rank(guard);
    }
    if (guard->supervisor.fd >= 0 && guard->job->tick_ns && ++guard->silent > mpi_silent_ticks(guard->job))
        cut_off(guard);
}

/* ------------------------------------------------------------------------------------------------- whole */

/* One round. True once the rank has ended. */
static bool watch(struct guard *guard)
{
    struct pollfd polled[] = {
        {.fd = guard->pidfd, .events = POLLIN},
        {.fd = guard->signal_fd, .events = POLLIN},
        {.fd = guard->rank.broken ? -1 : guard->rank.fd, .events = POLLIN},
        {.fd = guard->supervisor.broken ? -1 : guard->supervisor.fd,
         .events = (short)(POLLIN | (wire_is_sending(&guard->supervisor) ? POLLOUT : 0))},
    };
    uint64_t now = clock_now_ns();
    struct timespec left = clock_timespec(guard->next_tick_ns > now ? guard->next_tick_ns - now : 0);
    ppoll(polled, sizeof polled / sizeof polled[0], &left, NULL);
    bool ended = polled[0].revents != 0;
    hear_signals(guard);
    hear_rank(guard);
    hear_supervisor(guard);
    wire_flush(&guard->supervisor);
    count_tick(guard);
    return ended;
}

/* Sends what is still to be sent. */
static void flush(struct guard *guard)
{
    uint64_t until_ns = clock_now_ns() + FLUSH_NS;
    while (wire_is_sending(&guard->supervisor) && clock_now_ns() < until_ns) {
        poll(&(struct pollfd){.fd = guard->supervisor.fd, .events = POLLOUT}, 1, 10);
        wire_flush(&guard->supervisor);
    }
}

/* Waits a while until the leading process has ended: it shall have told what happened before mpirun, which sees this
 * process end, ends everything. */
static void await_last_word(struct guard *guard)
{
    struct wire_message message;
    uint64_t until_ns = clock_now_ns() + LAST_WORD_NS;
    if (guard->supervisor.fd < 0)
        return;
    shutdown(guard->supervisor.fd, SHUT_WR);
    while (wire_receive(&guard->supervisor) && clock_now_ns() < until_ns) {
        while (wire_next(&guard->supervisor, EK_SHARED_BYTES, &message))
            ;
        poll(&(struct pollfd){.fd = guard->supervisor.fd, .events = POLLIN}, 1, 100);
    }
}

/* Tells how the rank ended, unless the job is over. */
static void tell_end(struct guard *guard, const siginfo_t *info)
{
    struct mpi_lost lost = {.cause = guard->timed_out              ? EK_LOSS_TIMEOUT
                                     : info->si_code == CLD_EXITED ? EK_LOSS_EXIT
                                                                   : EK_LOSS_SIGNAL,
                            .code = info->si_status,
                            .note = atomic_load(&guard->page->note)};
    if (!guard->over) {
        hear_rank(guard); /* also what the dead had to say */
        wire_send(&guard->supervisor, WIRE_LOST, &lost, sizeof lost);
    }
    flush(guard);
    if (guard->over ? guard->end.status != EK_OK && !guard->alone : !mpi_can_lose())
        await_last_word(guard);
}

/* mpirun, and so MPI, shall see the rank's own end. But where others go on it must be one by a signal: of a process
 * that has exited, with whatever status, Open MPI does not tell the others, and they would wait for it. */
static _Noreturn void end_alike(const siginfo_t *info)
{
    int number = info->si_code != CLD_EXITED ? info->si_status : mpi_can_lose() ? SIGKILL : 0;
    if (number) {
        signal(number, SIG_DFL);
        prctl(PR_SET_DUMPABLE, 0); /* one core is enough */
        kill(getpid(), number);
    }
    _exit(info->si_status ? info->si_status : 1);
}

/* Where a host is cut off MPI's run-time waits for it, and puts off SIGTERM meanwhile. */
static void end_run_time(const struct mpi_job *job)
{
    if (job->run_time >= 0)
        pidfd_send_signal(job->run_time, SIGKILL, NULL, 0);
}

/* The leading process goes on a while: its exit status is this one's. mpirun passes on what it says, until then. */
static _Noreturn void end_with_supervisor(const struct guard *guard)
{
    int status = 0;
    while (waitpid(guard->job->supervisor, &status, 0) < 0 && errno == EINTR)
        ;
    if (guard->end.cut_off)
        end_run_time(guard->job);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static ek_status open_guard(struct guard *guard)
{
    sigset_t signals;
    sigemptyset(&signals);
    for (size_t i = 0; i < JOB_SIGNALS; i++)
        sigaddset(&signals, mpi_signals[i]);
    guard->pidfd = pidfd_open(guard->pid, 0);
    guard->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (guard->pidfd < 0 || guard->signal_fd < 0)
        return ek_fail(EK_SYSTEM, "cannot watch over rank %u: %s", guard->job->rank, strerror(errno));
    fcntl(guard->job->pipe[0], F_SETFL, O_NONBLOCK);
    wire_open(&guard->rank, guard->job->pipe[0]);
    wire_open(&guard->supervisor, -1);
    return EK_OK;
}

ek_status mpi_guard_run(struct mpi_job *job, pid_t rank)
{
    struct guard guard = {.job = job, .page = job->page, .pid = rank};
    guard.tick_ns = mpi_beat_ns(job);
    EK_TRY(open_guard(&guard));
    if (job->place.process == 0)
        greet(&guard, &job->contact);
    while (!watch(&guard))
        ;
    siginfo_t info = {0};
    while (waitid(P_PIDFD, (id_t)guard.pidfd, &info, WEXITED) < 0 && errno == EINTR)
        ;
    tell_end(&guard, &info);
    wire_close(&guard.supervisor);
    if (guard.end.cut_off && job->run_time_is_daemon)
        end_run_time(job);
    if (!guard.over || guard.alone)
        end_alike(&info);
    wire_close(&guard.rank);
    close(guard.pidfd);
    close(guard.signal_fd);
    if (job->supervisor > 0)
        end_with_supervisor(&guard);
    return guard.end.status == EK_OK ? EK_OK : ek_fail(guard.end.status, "%s", guard.end.error);
}
