/* The beginning of a job of the engine "mpi": what mpirun or srun says of this process, and the forks. */
#include "comm/mpi.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TICK_LEAST_NS 1000000u

/* -------------------------------------------------------------------------------------------------- place */

static bool read_variable(const char *name, uint32_t *value)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return false;
    unsigned long number = strtoul(text, &end, 10);
    if (*end || number > UINT32_MAX)
        return false;
    *value = (uint32_t)number;
    return true;
}

/* Before MPI_Init, which only the rank itself calls: launchers tell by the environment. */
void mpi_place(ek_place *place)
{
    static const char *const variables[][2] = {
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, /* Open MPI's mpirun */
        {"PMI_RANK", "PMI_SIZE"},                         /* MPICH's, srun --mpi=pmi2 */
        {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},         /* srun --mpi=pmix */
    };
    *place = (ek_place){.process = 0, .processes = 1, .once = true};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        uint32_t process, processes;
        if (!read_variable(variables[i][0], &process) || !read_variable(variables[i][1], &processes))
            continue;
        place->process = process;
        place->processes = processes;
        return;
    }
}

/* ------------------------------------------------------------------------------------------------ contact */

/* Addresses of this host, the loopback ones last. */
static void list_addresses(struct mpi_contact *contact)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return;
    for (int loopback = 0; loopback < 2; loopback++) {
        for (const struct ifaddrs *one = all; one && contact->count < JOB_ADDRESSES_MOST; one = one->ifa_next) {
            bool is_loopback = one->ifa_flags & IFF_LOOPBACK;
            if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET || is_loopback != loopback)
                continue;
            struct sockaddr_in address;
            memcpy(&address, one->ifa_addr, sizeof address);
            contact->addresses[contact->count++] = address.sin_addr.s_addr;
        }
    }
    freeifaddrs(all);
}

static ek_status listen_for_guards(struct mpi_job *job)
{
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t size = sizeof place;
    job->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (job->listener < 0 || bind(job->listener, (struct sockaddr *)&place, size) != 0 ||
        listen(job->listener, SOMAXCONN) != 0 || getsockname(job->listener, (struct sockaddr *)&place, &size) != 0 ||
        getrandom(job->contact.token, sizeof job->contact.token, 0) != sizeof job->contact.token)
        return ek_fail(EK_SYSTEM, "ek_launch: cannot listen for the other processes: %s", strerror(errno));
    job->contact.port = place.sin_port;
    list_addresses(&job->contact);
    return EK_OK;
}

/* -------------------------------------------------------------------------------------------------- forks */

/* The rank of this process: they are taken in order by those that are present. */
static void find_rank(struct mpi_job *job)
{
    const ek_launch_options *options = job->options;
    for (uint32_t rank = 0; rank < options->ranks; rank++) {
        if (options->absent && options->absent[rank])
            continue;
        if (job->present++ == job->place.process)
            job->rank = rank;
    }
}

/* What the whole job is told by signals concerns the leading side alone, and MPI would act on some. */
static _Noreturn void live_as_rank(struct mpi_job *job, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before the line above */
        _exit(1);
    for (size_t i = 0; i < JOB_SIGNALS; i++)
        signal(mpi_signals[i], SIG_IGN);
    pthread_sigmask(SIG_SETMASK, &job->old_mask, NULL);
    close(job->pipe[0]);
    if (job->listener >= 0)
        close(job->listener);
    mpi_rank_run(job);
}

/* No signal gets lost, and none ends a process, before somebody reads it. */
static void block_signals(struct mpi_job *job)
{
    sigset_t signals;
    sigemptyset(&signals);
    for (size_t i = 0; i < JOB_SIGNALS; i++)
        sigaddset(&signals, mpi_signals[i]);
    pthread_sigmask(SIG_BLOCK, &signals, &job->old_mask);
}

/* What has started this process, if it is of Open MPI's: mpirun, or its daemon on this host. */
static void find_run_time(struct mpi_job *job)
{
    static const char *const names[] = {"orted", "prted", "mpirun", "orterun", "prterun"};
    enum { DAEMONS = 2, NAMES = sizeof names / sizeof names[0] };
    char path[32], name[16] = "";
    size_t found = 0;
    pid_t parent = getppid();
    snprintf(path, sizeof path, "/proc/%ld/comm", (long)parent);
    FILE *file = fopen(path, "re");
    if (!file || fscanf(file, "%15s", name) != 1)
        name[0] = '\0';
    if (file)
        fclose(file);
    while (found < NAMES && strcmp(name, names[found]) != 0)
        found++;
    job->run_time = found < NAMES ? pidfd_open(parent, 0) : -1;
    job->run_time_is_daemon = found < DAEMONS;
}

static ek_status fork_all(struct mpi_job *job)
{
    block_signals(job);
    if (job->place.process == 0) {
        EK_TRY(listen_for_guards(job));
        job->supervisor = fork();
        if (job->supervisor == 0) {
            close(job->pipe[0]);
            close(job->pipe[1]);
            job->pipe[0] = job->pipe[1] = -1;
            return mpi_supervise(job);
        }
        if (job->supervisor < 0)
            return ek_fail(EK_SYSTEM, "ek_launch: cannot fork: %s", strerror(errno));
    }
    pid_t self = getpid(), rank = fork();
    if (rank == 0)
        live_as_rank(job, self);
    if (rank < 0) {
        ek_status status = ek_fail(EK_SYSTEM, "ek_launch: cannot fork: %s", strerror(errno));
        if (job->supervisor > 0) /* which would wait for this rank */
            kill(job->supervisor, SIGKILL);
        return status;
    }
    close(job->pipe[1]);
    job->pipe[1] = -1;
    if (job->listener >= 0)
        close(job->listener);
    job->listener = -1;
    return mpi_guard_run(job, rank);
}

ek_status mpi_launch(const ek_launch_options *options)
{
    struct mpi_job job = {.options = options, .pipe = {-1, -1}, .listener = -1, .rank = EK_NONE, .run_time = -1};
    mpi_place(&job.place);
    find_rank(&job);
    if (job.place.processes != job.present)
        return ek_fail(EK_INVALID,
                       "ek_launch: %u processes were started for %u ranks: the engine \"mpi\" needs mpirun -n %u",
                       job.place.processes, job.present, job.present);
    if (options->timeout_seconds > 0)
        job.tick_ns = (uint64_t)(options->timeout_seconds * 1e9 / JOB_TICKS_PER_TIMEOUT);
    if (options->timeout_seconds > 0 && job.tick_ns < TICK_LEAST_NS)
        job.tick_ns = TICK_LEAST_NS;
    job.page = mmap(NULL, sizeof *job.page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job.page == MAP_FAILED)
        return ek_fail(EK_NO_MEMORY, "ek_launch: out of memory");
    atomic_store(&job.page->patience, 1);
    pthread_sigmask(SIG_BLOCK, NULL, &job.old_mask);
    find_run_time(&job);
    ek_status status = pipe2(job.pipe, O_CLOEXEC) == 0
                           ? fork_all(&job)
                           : ek_fail(EK_SYSTEM, "ek_launch: cannot make a pipe: %s", strerror(errno));
    pthread_sigmask(SIG_SETMASK, &job.old_mask, NULL);
    for (int i = 0; i < 2; i++)
        if (job.pipe[i] >= 0)
            close(job.pipe[i]);
    if (job.listener >= 0)
        close(job.listener);
    if (job.run_time >= 0)
        close(job.run_time);
    munmap(job.page, sizeof *job.page);
    return status;
}
