/* See mpirun.h. */
#include "mpirun.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif
#ifdef OMPI_HAVE_MPI_EXT_FTMPI
#define HAS_ULFM 1
#else
#define HAS_ULFM 0
#endif

#define SKIPPED 77
#define GONE_SECONDS 10.0

static char folder[] = "/tmp/evenkeel-mpirun-XXXXXX";

void sleep_seconds(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * fmod(seconds, 1.0))};
    nanosleep(&time, NULL);
}

/* ------------------------------------------------------------------------------------------- surroundings */

static void skip_all(const char *why)
{
    printf("skipped: %s\n", why);
    exit(SKIPPED);
}

/* One machine, whatever its network, its number of cores and its user are. Nothing in /dev/shm: other tests count what
 * is there. */
static bool set_environment(void)
{
    static const char *const variables[][2] = {
        {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
        {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
        {"OMPI_MCA_btl_tcp_if_include", "lo"},
        {"OMPI_MCA_btl_vader_backing_directory", folder},
        {"OMPI_MCA_btl_sm_backing_directory", folder},
        {"TMPDIR", folder},
    };
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (setenv(variables[i][0], variables[i][1], 1) != 0)
            return false;
    return true;
}

void require_mpirun(bool ulfm)
{
    if (system("command -v mpirun >/dev/null") != 0)
        skip_all("there is no mpirun here");
    if (ulfm && !HAS_ULFM)
        skip_all("this MPI has no ULFM; scripts/in-debian13 makes a root with one that has");
    /* what outlives mpirun becomes a child of this process, which then sees it */
    if (!mkdtemp(folder) || chdir(folder) != 0 || !set_environment() || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
        perror("cannot make a folder for jobs of mpirun");
        exit(1);
    }
}

void leave_mpirun(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (chdir("/") != 0 || system(command) != 0)
        perror(folder);
}

/* ---------------------------------------------------------------------------------------------- processes */

struct process {
    pid_t pid, parent;
    char name[32];
};

/* False: it is none, or it is gone, or dead. */
static bool read_process(const char *entry, struct process *process)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%.20s/stat", entry);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    int read = fscanf(file, "%d (%31[^)]) %c %d", &process->pid, process->name, &state, &process->parent);
    fclose(file);
    return read == 4 && state != 'Z' && state != 'X';
}

static size_t list_processes(struct process *processes, size_t most)
{
    DIR *proc = opendir("/proc");
    size_t count = 0;
    assert_non_null(proc);
    for (const struct dirent *entry = readdir(proc); entry && count < most; entry = readdir(proc))
        count += read_process(entry->d_name, &processes[count]);
    closedir(proc);
    return count;
}

static pid_t parent_of(const struct process *processes, size_t count, pid_t pid)
{
    for (size_t i = 0; i < count; i++)
        if (processes[i].pid == pid)
            return processes[i].parent;
    return 0;
}

/* The processes below this one. */
static size_t list_descendants(struct process *descendants, size_t most)
{
    static struct process all[4096];
    size_t count = list_processes(all, sizeof all / sizeof *all), found = 0;
    for (size_t i = 0; i < count && found < most; i++) {
        pid_t above = all[i].parent;
        while (above && above != getpid())
            above = parent_of(all, count, above);
        if (above)
            descendants[found++] = all[i];
    }
    return found;
}

static bool look_for_processes(uint32_t ranks, mpirun_processes *processes)
{
    struct process below[256];
    size_t count = list_descendants(below, sizeof below / sizeof *below);
    uint32_t found = 0, rank;
    *processes = (mpirun_processes){0};
    for (size_t i = 0; i < count; i++) {
        if (sscanf(below[i].name, "ek rank %u", &rank) != 1 || rank >= ranks)
            continue;
        processes->ranks[rank] = below[i].pid;
        processes->guards[rank] = below[i].parent;
        found++;
    }
    for (size_t i = 0; i < count; i++)
        if (below[i].parent == processes->guards[0] && below[i].pid != processes->ranks[0])
            processes->supervisor = below[i].pid;
    return found == ranks && processes->supervisor;
}

void find_processes(uint32_t ranks, mpirun_processes *processes)
{
    for (double waited = 0.0; !look_for_processes(ranks, processes); waited += 0.01) {
        if (waited > 10.0)
            fail_msg("the %u ranks of the job are not all there", ranks);
        sleep_seconds(0.01);
    }
}

/* ----------------------------------------------------------------------------------------- start and end */

static void redirect(const char *path, int to)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || dup2(fd, to) < 0)
        _exit(127);
    close(fd);
}

pid_t start_mpirun(bool ulfm, uint32_t ranks, const char *const *words)
{
    const char *arguments[MPIRUN_WORDS_MOST] = {"mpirun", "--oversubscribe", "-n"};
    char number[16];
    size_t count = 3;
    snprintf(number, sizeof number, "%u", ranks);
    arguments[count++] = number;
    for (int i = 0; ulfm && i < 2; i++)
        arguments[count++] = i ? "ulfm" : "--with-ft";
    for (size_t i = 0; words[i]; i++) {
        assert_true(count < MPIRUN_WORDS_MOST - 1);
        arguments[count++] = words[i];
    }
    pid_t mpirun = fork();
    assert_true(mpirun >= 0);
    if (mpirun == 0) {
        redirect("output", STDOUT_FILENO);
        redirect("errors", STDERR_FILENO);
        execvp("mpirun", (char *const *)arguments);
        _exit(127);
    }
    return mpirun;
}

static void kill_descendants(const char *what)
{
    struct process below[256];
    size_t count = list_descendants(below, sizeof below / sizeof *below);
    for (size_t i = 0; i < count; i++) {
        print_message("%s: process %d, \"%s\"\n", what, below[i].pid, below[i].name);
        kill(below[i].pid, SIGKILL);
    }
    while (waitpid(-1, NULL, 0) > 0)
        ;
}

/* Reaps children until `awaited` (-1: the last) has ended. False: that takes more than so many seconds. */
static bool reap(pid_t awaited, double seconds, int *status)
{
    for (double waited = 0.0; waited < seconds;) {
        pid_t ended = waitpid(-1, status, WNOHANG);
        if ((ended < 0 && errno == ECHILD) || (ended > 0 && ended == awaited))
            return true;
        if (ended > 0)
            continue;
        sleep_seconds(0.005);
        waited += 0.005;
    }
    return false;
}

int finish_mpirun(pid_t mpirun, double seconds)
{
    int status = 0, other;
    if (!reap(mpirun, seconds, &status)) {
        kill_descendants("not at its end");
        fail_msg("the job has not ended after %g s", seconds);
    }
    if (!reap(-1, GONE_SECONDS, &other)) {
        kill_descendants("left behind");
        fail_msg("processes have outlived the job");
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
