/* Ranks as processes or threads: how they are started, watched, killed and reaped. */
#include "comm/shm_supervisor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The child's whole life. Nothing of the parent's is flushed or torn down: _exit. */
static _Noreturn void live_as_child(struct supervisor *supervisor, uint32_t rank, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before the line above */
        _exit(1);
    /* Ctrl-C reaches the whole foreground group: the supervisor acts on it for all. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    if (supervisor->options->on_signal)
        signal(SIGUSR1, SIG_IGN);
    char name[16]; /* as ps and top show it */
    snprintf(name, sizeof name, "ek rank %u", rank);
    prctl(PR_SET_NAME, name);
    sigaction(SIGCHLD, &supervisor->old_child_action, NULL);
    pthread_sigmask(SIG_SETMASK, &supervisor->old_mask, NULL);
    supervisor->event_fd = supervisor->report_fds[1] = -1; /* kept */
    shm_supervisor_close(supervisor);
    shm_rank_run(supervisor->job, rank, supervisor->options);
    _exit(0);
}

static ek_status start_process(struct supervisor *supervisor, uint32_t rank)
{
    pid_t parent = getpid();
    pid_t child = fork();
    if (child == 0)
        live_as_child(supervisor, rank, parent);
    if (child < 0)
        return ek_fail(EK_SYSTEM, "ek_launch: cannot start rank %u: %s", rank, strerror(errno));
    supervisor->workers[rank].pidfd = pidfd_open(child, 0);
    if (supervisor->workers[rank].pidfd >= 0)
        return EK_OK;
    ek_status status = ek_fail(EK_SYSTEM, "ek_launch: cannot watch rank %u: %s", rank, strerror(errno));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return status;
}

struct thread_start {
    struct supervisor *supervisor;
    uint32_t rank;
};

static void *live_as_thread(void *argument)
{
    struct thread_start start = *(struct thread_start *)argument;
    free(argument);
    shm_rank_run(start.supervisor->job, start.rank, start.supervisor->options);
    return NULL;
}

static ek_status start_thread(struct supervisor *supervisor, uint32_t rank)
{
    struct thread_start *start = malloc(sizeof *start);
    if (!start)
        return ek_fail(EK_NO_MEMORY, "ek_launch: out of memory");
    *start = (struct thread_start){supervisor, rank};
    int error = pthread_create(&supervisor->workers[rank].thread, NULL, live_as_thread, start);
    if (error) {
        free(start);
        return ek_fail(EK_SYSTEM, "ek_launch: cannot start rank %u: %s", rank, strerror(error));
    }
    return EK_OK;
}

ek_status shm_worker_start(struct supervisor *supervisor, uint32_t rank)
{
    return supervisor->options->threads ? start_thread(supervisor, rank) : start_process(supervisor, rank);
}

bool shm_worker_has_ended(const struct supervisor *supervisor, uint32_t rank)
{
    if (supervisor->options->threads)
        return atomic_load(&shm_rank_of(supervisor, rank)->finished);
    int place = supervisor->workers[rank].polled;
    return place >= 0 && supervisor->polled[place].revents != 0;
}

void shm_worker_reap(struct supervisor *supervisor, uint32_t rank, ek_loss_cause *cause, int *code)
{
    struct worker *worker = &supervisor->workers[rank];
    *cause = EK_LOSS_EXIT;
    *code = 0;
    if (supervisor->options->threads) {
        pthread_join(worker->thread, NULL);
        return;
    }
    siginfo_t info = {0};
    while (waitid(P_PIDFD, (id_t)worker->pidfd, &info, WEXITED) < 0 && errno == EINTR)
        ;
    close(worker->pidfd);
    worker->pidfd = -1;
    *cause = info.si_code == CLD_EXITED ? EK_LOSS_EXIT : EK_LOSS_SIGNAL;
    *code = info.si_status;
}

void shm_worker_kill(const struct supervisor *supervisor, uint32_t rank)
{
    if (supervisor->options->threads)
        atomic_store(&shm_rank_of(supervisor, rank)->fenced, SHM_FENCED_BY_SUPERVISOR);
    else
        pidfd_send_signal(supervisor->workers[rank].pidfd, SIGKILL, NULL, 0);
}
