/* The supervisor of the engine "mpi", the leading side of a job: its beginning and end, time, signals, and the loop in
 * which it hears what all ranks say by way of their guards. See mpi_supervisor.h. */
#include "comm/mpi_supervisor.h"

#include "comm/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

/* All must have said hello by then, and have gone when all is over. */
#define HELLO_NS 90000000000u
#define GOODBYE_NS 5000000000u
/* What mpirun may take to end after the job. */
#define RUN_TIME_MS 15000

void mpi_end_job(struct supervisor *supervisor, ek_status status, const char *error)
{
    if (supervisor->over)
        return;
    supervisor->over = true;
    supervisor->end = (struct mpi_end){.status = status};
    snprintf(supervisor->end.error, sizeof supervisor->end.error, "%s", error);
}

void mpi_obey(struct supervisor *supervisor, ek_status status)
{
    if (status != EK_OK)
        mpi_end_job(supervisor, status, ek_error());
}

/* ----------------------------------------------------------------------------------------- time and loop */

/* A host is silent as a whole: it is cut off, and what it does is out of reach. */
static void end_silent(struct supervisor *supervisor, uint32_t rank)
{
    struct seat *seat = &supervisor->seats[rank];
    mpi_obey(supervisor,
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
        mpi_obey(supervisor, ek_fail(EK_SYSTEM, "%u of %u processes have not begun after %u s", supervisor->awaited,
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
            mpi_obey(supervisor, ek_fail(EK_INTERRUPTED, "the job was ended by %s", strsignal(signal)));
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
        mpi_listen_to_visitors(supervisor);
    mpi_listen_to_seats(supervisor);
    act_on_signals(supervisor, signals);
    mpi_tell_losses(supervisor);
    count_tick(supervisor);
    mpi_try_agreement(supervisor);
}

/* Tells all that it is over, and waits a while until their ranks have gone. */
static void say_goodbye(struct supervisor *supervisor)
{
    bool any = true;
    mpi_turn_away_visitors(supervisor);
    mpi_tell_connected(supervisor, WIRE_OVER, &supervisor->end, sizeof supervisor->end);
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

/* Lets the guards know that this host is there, whatever callbacks wait for. */
static void *beat(void *argument)
{
    struct supervisor *supervisor = argument;
    pthread_mutex_lock(&supervisor->mutex);
    while (!supervisor->beaten) {
        struct timespec until = clock_timespec(clock_now_ns() + supervisor->tick_ns);
        if (pthread_cond_clockwait(&supervisor->end_of_beats, &supervisor->mutex, CLOCK_MONOTONIC, &until) == ETIMEDOUT)
            mpi_tell_connected(supervisor, WIRE_BEAT, NULL, 0);
    }
    pthread_mutex_unlock(&supervisor->mutex);
    return NULL;
}

static ek_status start_beater(struct supervisor *supervisor)
{
    int error = thread_start(&supervisor->beater, beat, supervisor);
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
    mpi_tell_losses(supervisor);
    if (supervisor->any_lost && !supervisor->any_done)
        mpi_end_job(supervisor, EK_PEER_LOST, "every rank was lost");
    say_goodbye(supervisor);
}

/* With ULFM mpirun has been seen to stay when all that it had started was gone. A process that nobody waits for ends it
 * then; usually it ends at once, and so does that process. */
static void see_run_time_end(const struct mpi_job *job)
{
    if (job->run_time < 0 || !mpi_can_lose())
        return;
    pid_t child = fork();
    if (child == 0 && fork() == 0) {
        setsid();
        dup2(job->run_time, STDIN_FILENO); /* all else is closed: pipes to mpirun, locks */
        close_range(STDIN_FILENO + 1, ~0U, 0);
        if (poll(&(struct pollfd){.fd = STDIN_FILENO, .events = POLLIN}, 1, RUN_TIME_MS) == 0)
            pidfd_send_signal(STDIN_FILENO, SIGKILL, NULL, 0);
    }
    if (child == 0)
        _exit(0);
    if (child > 0)
        waitpid(child, NULL, 0);
}

/* ------------------------------------------------------------------------------------------------- whole */

ek_status mpi_supervise(struct mpi_job *job)
{
    struct supervisor supervisor = {.base = {&ek_engine_mpi, job->options->ranks},
                                    .job = job,
                                    .options = job->options,
                                    .tick_ns = mpi_beat_ns(job),
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
                           ? mpi_take_seats(&supervisor)
                           : ek_fail(EK_SYSTEM, "ek_launch: cannot watch signals: %s", strerror(errno));
    pthread_mutex_init(&supervisor.mutex, NULL);
    pthread_cond_init(&supervisor.end_of_beats, NULL);
    if (status == EK_OK)
        status = start_beater(&supervisor);
    pthread_mutex_lock(&supervisor.mutex);
    if (status == EK_OK) {
        supervise(&supervisor);
        see_run_time_end(job);
        status = supervisor.end.status == EK_OK ? EK_OK : ek_fail(supervisor.end.status, "%s", supervisor.end.error);
    }
    supervisor.beaten = true;
    pthread_cond_signal(&supervisor.end_of_beats);
    pthread_mutex_unlock(&supervisor.mutex);
    if (supervisor.beats)
        pthread_join(supervisor.beater, NULL);
    pthread_cond_destroy(&supervisor.end_of_beats);
    pthread_mutex_destroy(&supervisor.mutex);
    mpi_leave_seats(&supervisor);
    if (supervisor.signal_fd >= 0)
        close(supervisor.signal_fd);
    return status;
}
