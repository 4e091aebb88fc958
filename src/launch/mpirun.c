/* See mpirun.h. */
#include "launch/mpirun.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"

static void fill_signals(sigset_t *signals)
{
    const int awaited[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    sigemptyset(signals);
    for (size_t i = 0; i < sizeof awaited / sizeof *awaited; i++)
        sigaddset(signals, awaited[i]);
}

ek_status ek_mpirun_version(unsigned *major)
{
    char line[256] = "";
    FILE *output = popen("mpirun --version 2>/dev/null", "r");
    bool any = output && fgets(line, sizeof line, output);
    const char *version = strstr(line, "(Open MPI) ");
    while (output && fgetc(output) != EOF) /* it shall not die of a closed pipe */
        ;
    if (output)
        pclose(output);
    line[strcspn(line, "\n")] = '\0';
    if (!any)
        return ek_fail(EK_INVALID, "there is no mpirun in PATH; Open MPI's is needed (Debian package openmpi-bin)");
    if (!version || !isdigit((unsigned char)version[11]))
        return ek_fail(EK_INVALID, "mpirun is \"%s\"; Open MPI's is needed", line);
    *major = (unsigned)strtoul(version + 11, NULL, 10);
    return EK_OK;
}

ek_status ek_mpirun_prepare(void)
{
    sigset_t signals;
    fill_signals(&signals);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        return ek_fail(EK_SYSTEM, "cannot take care of mpirun's processes: %s", strerror(errno));
    return EK_OK;
}

/* In a process group of its own: what a terminal sends to this one's is passed on as it should be. */
static _Noreturn void become_mpirun(char *const *words, const char *agent, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    /* Each version of Open MPI looks at its own. A rank has two threads that work, and hosts may have fewer cores than
     * slots. */
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
    setenv("PRTE_MCA_hwloc_default_binding_policy", "none", 0);
    if (agent) {
        setenv("OMPI_MCA_plm", "rsh", 1);
        setenv("OMPI_MCA_plm_rsh_agent", agent, 1);
        setenv("PRTE_MCA_plm", "ssh", 1);
        setenv("PRTE_MCA_plm_ssh_agent", agent, 1);
    }
    execvp(words[0], words);
    fprintf(stderr, "evenkeel: mpirun cannot be started: %s\n", strerror(errno));
    _exit(127);
}

ek_status ek_mpirun_start(ek_mpirun *mpirun, char *const *words, const char *agent)
{
    pid_t self = getpid();
    *mpirun = (ek_mpirun){.pid = fork()};
    if (mpirun->pid == 0)
        become_mpirun(words, agent, self);
    if (mpirun->pid > 0)
        return EK_OK;
    mpirun->pid = 0;
    return ek_fail(EK_SYSTEM, "cannot fork: %s", strerror(errno));
}

bool ek_mpirun_has_left(ek_mpirun *mpirun)
{
    int status = 0;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid != mpirun->pid)
            continue;
        mpirun->pid = 0;
        mpirun->exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return pid == 0;
}

int ek_mpirun_await(ek_mpirun *mpirun, unsigned milliseconds)
{
    sigset_t signals;
    fill_signals(&signals);
    struct timespec time = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L};
    int signal = sigtimedwait(&signals, NULL, &time);
    ek_mpirun_has_left(mpirun);
    return signal > 0 && signal != SIGCHLD ? signal : 0;
}

void ek_mpirun_signal(const ek_mpirun *mpirun, int signal)
{
    if (mpirun->pid > 0)
        kill(mpirun->pid, signal);
}

/* The children of this process, which has one thread: what has lost its own parent is among them. */
static void kill_children(void)
{
    FILE *file = fopen("/proc/thread-self/children", "r");
    for (int pid; file && fscanf(file, "%d", &pid) == 1;)
        kill((pid_t)pid, SIGKILL);
    if (file)
        fclose(file);
}

void ek_mpirun_sweep(ek_mpirun *mpirun)
{
    while (ek_mpirun_has_left(mpirun)) {
        kill_children();
        ek_mpirun_await(mpirun, 10);
    }
}
