/* `evenkeel sim`: reads a scenario, runs its study, writes what came out. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "report/report.h"
#include "sim/output.h"
#include "sim/study.h"

#define THREADS_MOST 1024

enum { KEY_SCENARIO = 0x4000, KEY_OUT, KEY_OVERWRITE, KEY_SEED, KEY_SET, KEY_THREADS };

static const struct argp_option options[] = {
    {"scenario", KEY_SCENARIO, "FILE", 0, "The scenario, YAML (docs/simulator.md); required", 0},
    {"out", KEY_OUT, "DIR", 0, "Write tables (CSV, JSON) and report.html into DIR; required", 0},
    {"overwrite", KEY_OVERWRITE, NULL, 0, "DIR may hold results already", 0},
    {"seed", KEY_SEED, "N", 0, "Set study.seed", 0},
    {"set", KEY_SET, "KEY=VALUE", 0, "Set a key of the scenario over FILE's; may be repeated", 0},
    {"threads", KEY_THREADS, "N", 0, "Use so many threads; default: one for each core. Results do not depend on it", 0},
    {0},
};

typedef struct command_line {
    const char *scenario_path, *folder;
    const char **overrides; /* [override_count], room for every word */
    size_t override_count;
    char seed[48]; /* as an override */
    uint32_t threads;
    bool overwrite;
} command_line;

static error_t parse_threads(const char *argument, command_line *given)
{
    char *end;
    errno = 0;
    unsigned long threads = strtoul(argument, &end, 10);
    if (errno != 0 || argument[0] < '0' || argument[0] > '9' || *end != '\0' || threads < 1 || threads > THREADS_MOST) {
        ek_fail(EK_INVALID, "--threads %.40s: a whole number from 1 to %d is needed", argument, THREADS_MOST);
        return EK_OPTION_REFUSED;
    }
    given->threads = (uint32_t)threads;
    return 0;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    command_line *given = state->input;
    switch (key) {
    case KEY_SCENARIO:
        given->scenario_path = argument;
        return 0;
    case KEY_OUT:
        given->folder = argument;
        return 0;
    case KEY_OVERWRITE:
        given->overwrite = true;
        return 0;
    case KEY_SEED:
        snprintf(given->seed, sizeof given->seed, "study.seed=%s", argument);
        return 0;
    case KEY_SET:
        given->overrides[given->override_count++] = argument;
        return 0;
    case KEY_THREADS:
        return parse_threads(argument, given);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---------------------------------------------------------------------------------------------------- progress */

enum { BAR_MOST = 40 };

typedef struct progress_bar {
    bool terminal;
    int shown; /* percent; -1: nothing yet */
} progress_bar;

static void show_bar(void *context, double done)
{
    progress_bar *bar = context;
    struct winsize window;
    int percent = (int)(100 * done), length = BAR_MOST;
    if (!bar->terminal || percent == bar->shown)
        return;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 && window.ws_col < BAR_MOST + 10)
        length = window.ws_col > 10 ? window.ws_col - 10 : 0;
    int filled = length * percent / 100;
    fprintf(stderr, "\r\033[K%3d %% [%.*s%*s]", percent, filled, "########################################",
            length - filled, "");
    bar->shown = percent;
}

static void wipe_bar(const progress_bar *bar)
{
    if (bar->shown >= 0)
        fputs("\r\033[K", stderr);
}

/* ----------------------------------------------------------------------------------------------------- command */

/* Names, and beside the longest of them values. */
static void print_facts(const json_t *facts)
{
    size_t i, width = 0;
    json_t *fact;
    json_array_foreach(facts, i, fact)
    {
        size_t length = json_string_length(json_object_get(fact, "name"));
        width = length > width ? length : width;
    }
    json_array_foreach(facts, i, fact)
    {
        printf("%-*s  %s\n", (int)width, json_string_value(json_object_get(fact, "name")),
               json_string_value(json_object_get(fact, "value")));
    }
}

static void print_results(const command_line *given, const ek_study *study)
{
    print_facts(study->facts);
    const char *name, *before = ": ";
    json_t *table;
    printf("%s", given->folder);
    if (ek_report_included()) {
        printf("%sreport.html", before);
        before = ", ";
    }
    json_object_foreach(study->tables, name, table)
    {
        printf("%s%s.csv", before, name);
        before = ", ";
    }
    putchar('\n');
}

static uint32_t default_threads(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores < THREADS_MOST ? (uint32_t)cores : THREADS_MOST;
}

static ek_status run_study(const command_line *given, const ek_scenario *scenario)
{
    progress_bar bar = {isatty(STDERR_FILENO), -1};
    ek_study study = {.scenario = scenario,
                      .threads = given->threads ? given->threads : default_threads(),
                      .progress = show_bar,
                      .progress_context = &bar};
    ek_status status = ek_study_run(&study);
    wipe_bar(&bar);
    if (status == EK_OK)
        status = ek_output_write(given->folder, &study);
    if (status == EK_OK)
        print_results(given, &study);
    ek_study_release(&study);
    return status;
}

/* All that may refuse the input comes before anything runs. */
static ek_status act(command_line *given)
{
    ek_scenario *scenario;
    if (!given->scenario_path)
        return ek_fail(EK_INVALID, "--scenario FILE is needed; see evenkeel sim --help");
    if (!given->folder)
        return ek_fail(EK_INVALID, "--out DIR is needed; see evenkeel sim --help");
    if (given->seed[0])
        given->overrides[given->override_count++] = given->seed;
    ek_status status = ek_scenario_read(&scenario, given->scenario_path, given->overrides, given->override_count);
    if (status != EK_OK)
        return status == EK_IO ? EK_INVALID : status;
    status = ek_output_prepare(given->folder, given->overwrite);
    if (status == EK_OK) {
        status = run_study(given, scenario);
        if (status != EK_OK)
            ek_output_abandon(given->folder);
    }
    ek_scenario_destroy(scenario);
    return status;
}

int ek_command_sim(int argc, char **argv)
{
    static const struct argp argp = {
        options, parse_option, "",  "Simulate a job on a cluster whose devices fail, by a performance model.",
        NULL,    NULL,         NULL};
    command_line given = {.overrides = calloc((size_t)argc + 1, sizeof *given.overrides)};
    int exit_status;
    if (!given.overrides) {
        fprintf(stderr, "evenkeel: no memory for the command line\n");
        return EK_EXIT_FAILED;
    }
    if (ek_options_parse(&argp, argc, argv, &given, &exit_status)) {
        ek_status status = act(&given);
        if (status != EK_OK)
            ek_options_complain();
        exit_status = status == EK_OK ? EK_EXIT_DONE : status == EK_INVALID ? EK_EXIT_REFUSED : EK_EXIT_FAILED;
    }
    free(given.overrides);
    return exit_status;
}
