/* See hosts.h. */
#include "launch/hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "plan/hostlist.h"

#define SLOTS_MOST 65536
#define NAP_NS 10000000

/* ------------------------------------------------------------------------------------------------- naming */

ek_status ek_hosts_add(ek_hosts *hosts, const char *name, uint32_t slots)
{
    for (size_t h = 0; h < hosts->count; h++) {
        if (strcmp(hosts->list[h].name, name) == 0) {
            hosts->list[h].slots += slots;
            return EK_OK;
        }
    }
    ek_host *list = realloc(hosts->list, (hosts->count + 1) * sizeof *list);
    char *copy = strdup(name);
    if (list)
        hosts->list = list;
    if (!list || !copy) {
        free(copy);
        return ek_fail(EK_NO_MEMORY, "out of memory for the hosts");
    }
    hosts->list[hosts->count++] = (ek_host){.name = copy, .slots = slots, .answers = true};
    return EK_OK;
}

void ek_hosts_free(ek_hosts *hosts)
{
    for (size_t h = 0; h < hosts->count; h++)
        free(hosts->list[h].name);
    free(hosts->list);
    *hosts = (ek_hosts){0};
}

/* Digits at *text, and nothing but `ends` or the end behind them; moves *text there. */
static bool take_slots(const char **text, const char *ends, uint32_t *slots)
{
    char *end;
    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    unsigned long number = strtoul(*text, &end, 10);
    if (errno != 0 || number < 1 || number > SLOTS_MOST || (*end && !strchr(ends, *end)))
        return false;
    *text = end;
    *slots = (uint32_t)number;
    return true;
}

ek_status ek_hosts_add_list(ek_hosts *hosts, const char *option, const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return ek_fail(EK_NO_MEMORY, "out of memory for the hosts");
    ek_status status = EK_OK;
    for (char *rest = copy, *one; status == EK_OK && (one = strsep(&rest, ","));) {
        uint32_t slots = 1;
        char *colon = strrchr(one, ':');
        const char *digits = colon ? colon + 1 : NULL;
        if (colon)
            *colon = '\0';
        if (!*one || (digits && !take_slots(&digits, "", &slots)))
            status = ek_fail(EK_INVALID, "%s %s: HOST:SLOTS,… is needed, as in node1:8,node2:8; 1 to %u slots", option,
                             text, SLOTS_MOST);
        else
            status = ek_hosts_add(hosts, one, slots);
    }
    free(copy);
    return status;
}

/* "HOST slots=N", and max_slots=N, which says nothing here. */
static ek_status add_line(ek_hosts *hosts, char *line, const char *path, unsigned number)
{
    uint32_t slots = 0;
    line[strcspn(line, "#\n")] = '\0';
    char *rest = line, *name = NULL;
    for (char *word; (word = strsep(&rest, " \t"));) {
        const char *digits = strncmp(word, "slots=", 6) == 0 ? word + 6 : NULL;
        if (!*word || strncmp(word, "max_slots=", 10) == 0 || strncmp(word, "max-slots=", 10) == 0)
            continue;
        if (name && digits && take_slots(&digits, "", &slots))
            continue;
        if (name)
            return ek_fail(EK_INVALID, "%s:%u: found \"%s\"; HOST slots=N is needed, 1 to %u", path, number, word,
                           SLOTS_MOST);
        name = word;
    }
    if (!name)
        return EK_OK;
    if (!slots)
        return ek_fail(EK_INVALID, "%s:%u: %s has no slots=N", path, number, name);
    return ek_hosts_add(hosts, name, slots);
}

ek_status ek_hosts_add_file(ek_hosts *hosts, const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return ek_fail(EK_INVALID, "--hostfile %s: cannot be opened: %s", path, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    ek_status status = EK_OK;
    for (unsigned number = 1; status == EK_OK && getline(&line, &room, file) >= 0; number++)
        status = add_line(hosts, line, path, number);
    free(line);
    fclose(file);
    return status;
}

/* The next of "4(x2),3", which is moved on when its repetitions are used up. */
static bool next_tasks(const char **text, uint32_t *tasks, uint32_t *left)
{
    if (*left > 0) {
        --*left;
        return true;
    }
    *text += **text == ',';
    if (!take_slots(text, ",(", tasks))
        return false;
    if (strncmp(*text, "(x", 2) == 0) {
        *text += 2;
        if (!take_slots(text, ")", left) || **text != ')')
            return false;
        ++*text;
        --*left;
    }
    return true;
}

ek_status ek_hosts_add_slurm(ek_hosts *hosts, const char *nodes, const char *tasks)
{
    ek_hostlist names = {0};
    uint32_t slots = 0, left = 0;
    const char *rest = tasks;
    ek_status status = ek_hostlist_expand(&names, nodes);
    if (status != EK_OK)
        status = ek_fail_prefix(status, "SLURM_JOB_NODELIST: ");
    for (size_t n = 0; status == EK_OK && n < names.count; n++) {
        if (!next_tasks(&rest, &slots, &left))
            status = ek_fail(EK_INVALID, "SLURM_TASKS_PER_NODE: \"%s\" does not say it for the %zu nodes of \"%s\"",
                             tasks, names.count, nodes);
        else
            status = ek_hosts_add(hosts, names.names[n], slots);
    }
    ek_hostlist_free(&names);
    return status;
}

/* ------------------------------------------------------------------------------------------------ probing */

/* Only an address of this machine can be bound to. Its own names need not be known to any resolver. */
bool ek_host_is_here(const char *name)
{
    char own[HOST_NAME_MAX + 1] = "";
    gethostname(own, sizeof own - 1);
    if (strcmp(name, "localhost") == 0 || strcmp(name, own) == 0)
        return true;
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *addresses;
    if (getaddrinfo(name, NULL, &hints, &addresses) != 0)
        return false;
    bool here = false;
    for (const struct addrinfo *one = addresses; one && !here; one = one->ai_next) {
        int fd = socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, 0);
        here = fd >= 0 && bind(fd, one->ai_addr, one->ai_addrlen) == 0;
        if (fd >= 0)
            close(fd);
    }
    freeaddrinfo(addresses);
    return here;
}

/* "AGENT HOST true", in a process group of its own, so that it can be ended with what it has started. */
static pid_t ask(const char *agent, const char *name)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        dup2(null, fd);
    char command[4096];
    snprintf(command, sizeof command, "exec %s \"$1\" true", agent);
    execl("/bin/sh", "sh", "-c", command, "sh", name, (char *)NULL);
    _exit(127);
}

/* Waits for the processes until there are none, or the time is over: then they are killed. */
static void await_all(ek_hosts *hosts, size_t first, size_t count, pid_t *pids, double seconds)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    size_t open = 1;
    for (double waited = 0.0; open > 0 && waited < seconds + 1.0; waited += 1e-9 * NAP_NS) {
        open = 0;
        for (size_t i = 0; i < count; i++) {
            int status = 0;
            if (pids[i] <= 0)
                continue;
            if (waited >= seconds)
                kill(-pids[i], SIGKILL);
            if (waitpid(pids[i], &status, WNOHANG) == 0) {
                open++;
                continue;
            }
            hosts->list[first + i].answers = WIFEXITED(status) && WEXITSTATUS(status) == 0;
            pids[i] = 0;
        }
        if (open > 0)
            nanosleep(&nap, NULL);
    }
}

ek_status ek_hosts_probe(ek_hosts *hosts, size_t first, size_t count, const char *agent, double seconds)
{
    pid_t *pids = calloc(count, sizeof *pids);
    if (!pids)
        return ek_fail(EK_NO_MEMORY, "out of memory for the hosts");
    for (size_t i = 0; i < count; i++) {
        ek_host *host = &hosts->list[first + i];
        host->answers = ek_host_is_here(host->name);
        if (!host->answers)
            pids[i] = ask(agent, host->name);
    }
    await_all(hosts, first, count, pids, seconds);
    free(pids);
    return EK_OK;
}
