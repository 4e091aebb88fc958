/* The guardian process, and the job's end of it. */
#include "power/guardian.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "power/state.h"

struct ek_guardian {
    pid_t process;   /* 0: there is none */
    int process_fd;  /* a pidfd of it */
    int lock;        /* the state file; -1: not written */
    char *path;      /* of the state file, absolute */
    ek_power *power; /* NULL until it is open */
};

/* ------------------------------------------------------------------------------------ the guardian process */

/* Leaves the job: its session and terminal, its folder, its files but the pidfd, which becomes WATCHED. Then says so on
 * ready_fd. Signals are blocked already. */
#define WATCHED 3
static void detach(int job_fd, int ready_fd)
{
    setsid();
    prctl(PR_SET_NAME, "evenkeel-guard");
    int kept = fcntl(job_fd, F_DUPFD, WATCHED + 1); /* out of the way of what follows */
    int ready = fcntl(ready_fd, F_DUPFD, WATCHED + 1);
    int null = open("/dev/null", O_RDWR);
    if (kept < 0 || ready < 0 || null < 0 || chdir("/") != 0)
        _exit(1);
    for (int standard = 0; standard < WATCHED; standard++)
        dup2(null, standard);
    dup2(kept, WATCHED);
    if (write(ready, "", 1) != 1)
        _exit(1);
    close_range(WATCHED + 1, ~0u, 0);
}

/* The whole life of the guardian: there is nothing to do while the job lives. */
static _Noreturn void guard(int job_fd, int ready_fd, pid_t job, const char *state_path)
{
    detach(job_fd, ready_fd);
    struct pollfd ended = {.fd = WATCHED, .events = POLLIN};
    while (poll(&ended, 1, -1) < 0 && errno == EINTR)
        ;
    /* The file says why, if this fails. If there is no file the job has not come as far as raising limits. */
    ek_state_restore(state_path, NULL);
    ek_state_sweep(state_path, job);
    _exit(0);
}

/* Forks with all signals blocked, so that none meant for the job's group can reach the guardian. 0, or errno. */
static int fork_guard(ek_guardian *guardian, int job_fd, int ready_fd)
{
    pid_t job = getpid();
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pid_t child = fork();
    if (child == 0)
        guard(job_fd, ready_fd, job, guardian->path);
    int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (child < 0)
        return error;
    guardian->process_fd = pidfd_open(child, 0);
    if (guardian->process_fd >= 0) {
        guardian->process = child;
        return 0;
    }
    error = errno;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return error;
}

/* Returns when the guardian has left the job's session: from then on what kills the job's whole group spares it. */
static ek_status start_process(ek_guardian *guardian)
{
    int ready[2] = {-1, -1};
    int self = pidfd_open(getpid(), 0);
    int error = self < 0 || pipe2(ready, O_CLOEXEC) != 0 ? errno : fork_guard(guardian, self, ready[1]);
    if (self >= 0)
        close(self);
    if (ready[1] >= 0)
        close(ready[1]);
    char byte;
    ssize_t got = 0;
    while (error == 0 && (got = read(ready[0], &byte, 1)) < 0 && errno == EINTR)
        ;
    if (ready[0] >= 0)
        close(ready[0]);
    if (error == 0 && got == 1)
        return EK_OK;
    return ek_fail(EK_SYSTEM, "the guardian of the power limits cannot be started%s%s", error ? ": " : "",
                   error ? strerror(error) : "");
}

static void end_process(ek_guardian *guardian)
{
    if (guardian->process == 0)
        return;
    siginfo_t info;
    pidfd_send_signal(guardian->process_fd, SIGKILL, NULL, 0);
    while (waitid(P_PIDFD, (id_t)guardian->process_fd, &info, WEXITED) < 0 && errno == EINTR)
        ;
    close(guardian->process_fd);
    guardian->process = 0;
}

/* ------------------------------------------------------------------------------------------------- the job */

/* The guardian works in "/". */
static ek_status choose_path(const char *given, char **path)
{
    char *folder = NULL;
    int length = -1;
    if (!given)
        length = asprintf(path, "%s/" EK_STATE_PREFIX "%d" EK_STATE_SUFFIX, ek_state_folder(), (int)getpid());
    else if (given[0] == '/')
        length = asprintf(path, "%s", given);
    else if ((folder = getcwd(NULL, 0)))
        length = asprintf(path, "%s/%s", folder, given);
    free(folder);
    if (length >= 0)
        return EK_OK;
    *path = NULL;
    return ek_fail(EK_NO_MEMORY, "power state: no memory for its path");
}

static ek_status open_all(ek_guardian *guardian, const ek_power_options *options, const char *state_path)
{
    EK_TRY(choose_path(state_path, &guardian->path));
    EK_TRY(start_process(guardian));
    EK_TRY(ek_power_create(&guardian->power, options));
    if (ek_power_outlives(guardian->power))
        return ek_state_write(guardian->power, guardian->path, &guardian->lock);
    end_process(guardian);
    return EK_OK;
}

static void destroy(ek_guardian *guardian)
{
    end_process(guardian);
    ek_power_destroy(guardian->power);
    free(guardian->path);
    free(guardian);
}

ek_status ek_guardian_create(ek_guardian **created, const ek_power_options *options, const char *state_path)
{
    ek_guardian *guardian = calloc(1, sizeof *guardian);
    if (!guardian)
        return ek_fail(EK_NO_MEMORY, "the guardian of the power limits: out of memory");
    guardian->lock = -1;
    ek_status status = open_all(guardian, options, state_path);
    if (status == EK_OK)
        *created = guardian;
    else
        destroy(guardian);
    return status;
}

ek_power *ek_guardian_power(const ek_guardian *guardian)
{
    return guardian->power;
}

const char *ek_guardian_state_path(const ek_guardian *guardian)
{
    return guardian->lock >= 0 ? guardian->path : NULL;
}

pid_t ek_guardian_process(const ek_guardian *guardian)
{
    return guardian->process;
}

ek_status ek_guardian_end(ek_guardian *guardian)
{
    if (!guardian)
        return EK_OK;
    ek_status status = EK_OK;
    if (guardian->lock >= 0)
        status = ek_state_restore_held(guardian->path, guardian->lock);
    destroy(guardian);
    return status;
}
