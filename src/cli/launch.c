/* `evenkeel launch`: hosts from the command line or from Slurm, a configuration as `evenkeel train` reads it, and then
 * the starts and restarts of launch/restarts.h. */
#include "launch/restarts.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/train_line.h"

#define RESTARTS_MOST 1000000
#define SLURM_PROBE "srun --overlap --quiet --nodes=1 --ntasks=1 --nodelist"
#define SSH_PROBE "ssh -o BatchMode=yes -o ConnectTimeout=5"

enum { KEY_HOST = 0x3000, KEY_HOSTFILE, KEY_AGENT, KEY_RESTARTS, KEY_MPIRUN };

static const struct argp_option options[] = {
    {"host", KEY_HOST, "HOST:SLOTS,...", 0, "Hosts and how many ranks each takes; may be repeated", 0},
    {"hostfile", KEY_HOSTFILE, "FILE", 0, "The same, a line \"HOST slots=N\" for each, as mpirun reads it", 0},
    {"agent", KEY_AGENT, "COMMAND", 0,
     "Reaches other hosts as \"COMMAND HOST ...\"; otherwise ssh does, or Slurm in its allocations", 0},
    {"max-restarts", KEY_RESTARTS, "N", 0,
     "Give up after N restarts in a row without a newly committed step; otherwise 3", 0},
    {"mpirun", KEY_MPIRUN, "ARG", 0, "Hand ARG to mpirun; may be repeated", 0},
    {0},
};

_Static_assert(EK_MAX_REPLICAS <= EK_FIT_REPLICAS_MOST, "every job that a configuration may have can be fitted");

/* The command line, as parsed. */
typedef struct launch_line {
    ek_hosts hosts;
    const char *agent;
    unsigned restarts;
    const char **mpirun_words; /* with room for every word, and NULL at the end */
    size_t mpirun_count;
} launch_line;

static ek_status parse_restarts(const char *text, unsigned *restarts)
{
    char *end;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno != 0 || number > RESTARTS_MOST)
        return ek_fail(EK_INVALID, "--max-restarts: found \"%s\"; 0 to %d is allowed", text, RESTARTS_MOST);
    *restarts = (unsigned)number;
    return EK_OK;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    launch_line *given = state->input;
    ek_status status = EK_OK;
    switch (key) {
    case KEY_HOST:
        status = ek_hosts_add_list(&given->hosts, "--host", argument);
        break;
    case KEY_HOSTFILE:
        status = ek_hosts_add_file(&given->hosts, argument);
        break;
    case KEY_AGENT:
        given->agent = argument;
        break;
    case KEY_RESTARTS:
        status = parse_restarts(argument, &given->restarts);
        break;
    case KEY_MPIRUN:
        given->mpirun_words[given->mpirun_count++] = argument;
        break;
    case ARGP_KEY_ARG:
        status = ek_fail(EK_INVALID, "unexpected argument \"%s\"; the job stands behind --", argument);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return status == EK_OK ? 0 : EK_OPTION_REFUSED;
}

/* ---------------------------------------------------------------------------------------------- the job */

/* The commands of the job, made of the texts of argv. */
typedef struct train_words {
    const char **first, **again; /* NULL at the end */
    char program[PATH_MAX];      /* this one */
    char metrics[PATH_MAX];
} train_words;

static ek_status check_config(const ek_config *config)
{
    if (!config->checkpoint.dir)
        return ek_fail(EK_INVALID, "checkpoint.dir is needed, the folder of checkpoints that a restart goes on from");
    if (config->parallel.degrees)
        return ek_fail(EK_INVALID, "parallel.degrees: evenkeel launch sets them, by the slots of each host");
    return EK_OK;
}

/* The first start has the line as it was given. Later ones have what is not to happen but once left out. */
static void list_words(train_words *words, const ek_train_line *line, int argc, char **argv)
{
    size_t first = 0, again = 0;
    words->first[first++] = words->program;
    for (int i = 0; i < argc; i++)
        words->first[first++] = argv[i];
    const char *const beginning[] = {words->program, "train", "--resume", "--config", line->config_path};
    for (size_t i = 0; i < sizeof beginning / sizeof *beginning; i++)
        words->again[again++] = beginning[i];
    for (size_t i = 0; i < line->override_count; i++) {
        words->again[again++] = "--set";
        words->again[again++] = line->overrides[i];
    }
    if (line->routes_text) {
        words->again[again++] = "--routes";
        words->again[again++] = line->routes_text;
    }
    if (line->quiet)
        words->again[again++] = "--quiet";
    const char *const end[] = {"--set=engine.name=mpi", "--metrics", words->metrics};
    for (size_t i = 0; i < sizeof end / sizeof *end; i++)
        words->first[first++] = words->again[again++] = end[i];
}

static ek_status make_words(train_words *words, const ek_train_line *line, const ek_config *config, int argc,
                            char **argv)
{
    ssize_t length = readlink("/proc/self/exe", words->program, sizeof words->program - 1);
    if (length < 0)
        return ek_fail(EK_SYSTEM, "cannot find this program: %s", strerror(errno));
    words->program[length] = '\0';
    if (line->metrics_path)
        snprintf(words->metrics, sizeof words->metrics, "%s", line->metrics_path);
    else
        snprintf(words->metrics, sizeof words->metrics, "%s/metrics.jsonl", config->checkpoint.dir);
    size_t room = 2 * (size_t)argc + 16;
    words->first = calloc(room, sizeof *words->first);
    words->again = calloc(room, sizeof *words->again);
    if (!words->first || !words->again)
        return ek_fail(EK_NO_MEMORY, "no memory for the command line");
    list_words(words, line, argc, argv);
    return EK_OK;
}

/* Where none are given: those of the allocation, or this one. */
static ek_status find_hosts(launch_line *given, const ek_fit_job *job)
{
    const char *nodes = getenv("SLURM_JOB_NODELIST"), *tasks = getenv("SLURM_TASKS_PER_NODE");
    if (given->hosts.count > 0)
        return EK_OK;
    if (nodes && tasks)
        return ek_hosts_add_slurm(&given->hosts, nodes, tasks);
    return ek_hosts_add(&given->hosts, "localhost", job->dp * job->tp + job->spares);
}

static const char *find_probe(const launch_line *given)
{
    if (given->agent)
        return given->agent;
    return getenv("SLURM_JOB_ID") ? SLURM_PROBE : SSH_PROBE;
}

static ek_status launch(launch_line *given, const ek_config *config, const train_words *words)
{
    const ek_fit_job job = {config->parallel.dp, config->parallel.tp, config->parallel.min_tp, config->recovery.spares};
    EK_TRY(find_hosts(given, &job));
    return ek_restarts_run(&(ek_restarts_options){.first_words = words->first,
                                                  .again_words = words->again,
                                                  .mpirun_words = given->mpirun_words,
                                                  .metrics_path = words->metrics,
                                                  .hosts = &given->hosts,
                                                  .agent = given->agent,
                                                  .probe = find_probe(given),
                                                  .job = job,
                                                  .parallelism = ek_config_parallelism(config),
                                                  .timeout_seconds = config->engine.timeout_seconds,
                                                  .restarts_most = given->restarts});
}

/* argv[0] is "train". */
static int launch_train(launch_line *given, int argc, char **argv)
{
    ek_train_line line;
    ek_config *config = NULL;
    train_words words = {0};
    int exit_status;
    if (ek_train_line_parse(&line, argc, argv, &exit_status)) {
        ek_status status = ek_train_line_configure(&line, &config);
        if (status == EK_OK)
            status = check_config(config);
        if (status == EK_OK)
            status = make_words(&words, &line, config, argc, argv);
        if (status == EK_OK)
            status = launch(given, config, &words);
        if (status != EK_OK)
            ek_options_complain();
        exit_status = status == EK_OK ? EK_EXIT_DONE : status == EK_INVALID ? EK_EXIT_REFUSED : EK_EXIT_FAILED;
    }
    free(words.first);
    free(words.again);
    ek_config_destroy(config);
    ek_train_line_free(&line);
    return exit_status;
}

/* -------------------------------------------------------------------------------------------------- whole */

/* The arguments before "--" are this command's, those behind it a command line of the trainer. */
static int split(int argc, char **argv)
{
    int own = 1;
    while (own < argc && strcmp(argv[own], "--") != 0)
        own++;
    return own;
}

static int parse_and_launch(launch_line *given, int argc, char **argv)
{
    static const char doc[] = "Run a training job on many hosts by mpirun, and again from its last checkpoint on those "
                              "that are left.";
    static const struct argp argp = {options, parse_option, "-- train ARGUMENT...", doc, NULL, NULL, NULL};
    int exit_status, own = split(argc, argv);
    if (!ek_options_parse(&argp, own, argv, given, &exit_status))
        return exit_status;
    if (own + 1 < argc && strcmp(argv[own + 1], "train") == 0)
        return launch_train(given, argc - own - 1, argv + own + 1);
    ek_fail(EK_INVALID, "-- train ARGUMENT... is needed, the job; see evenkeel launch --help");
    ek_options_complain();
    return EK_EXIT_REFUSED;
}

int ek_command_launch(int argc, char **argv)
{
    launch_line given = {.restarts = 3, .mpirun_words = calloc((size_t)argc + 1, sizeof *given.mpirun_words)};
    int exit_status = EK_EXIT_FAILED;
    if (given.mpirun_words) {
        exit_status = parse_and_launch(&given, argc, argv);
    } else {
        ek_fail(EK_NO_MEMORY, "no memory for the command line");
        ek_options_complain();
    }
    ek_hosts_free(&given.hosts);
    free(given.mpirun_words);
    return exit_status;
}
