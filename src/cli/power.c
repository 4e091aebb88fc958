/* `evenkeel power show` and `evenkeel power restore`. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "power/power.h"
#include "power/state.h"

enum { KEY_BACKEND = 0x2000, KEY_PATH, KEY_STATE };

/* Long enough for counters of energy to tell a mean. */
#define DRAW_MICROSECONDS 200000

static const struct argp_option options[] = {
    {"backend", KEY_BACKEND, "NAME", 0, "show: nvml (default), powercap or emulated", 0},
    {"path", KEY_PATH, "PATH", 0, "show: nvml's library, powercap's folder or the file of emulated devices", 0},
    {"state", KEY_STATE, "FILE", 0, "restore: the state file of a job, or a folder of them; default: the usual folder",
     0},
    {0},
};

typedef struct command_line {
    bool restore; /* or show */
    const char *backend, *path, *state;
} command_line;

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    command_line *given = state->input;
    switch (key) {
    case KEY_BACKEND:
        given->backend = argument;
        return 0;
    case KEY_PATH:
        given->path = argument;
        return 0;
    case KEY_STATE:
        given->state = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Takes the action out of the arguments, so that only options are left. */
static bool take_action(int *argc, char ***argv, command_line *given)
{
    if (*argc < 2 || (strcmp((*argv)[1], "show") != 0 && strcmp((*argv)[1], "restore") != 0))
        return false;
    given->restore = strcmp((*argv)[1], "restore") == 0;
    (*argv)[1] = (*argv)[0];
    ++*argv;
    --*argc;
    return true;
}

static ek_status check(const command_line *given)
{
    if (!given->restore && given->state)
        return ek_fail(EK_INVALID, "--state is for evenkeel power restore");
    if (given->restore && (given->backend || given->path))
        return ek_fail(EK_INVALID, "--backend and --path are for evenkeel power show");
    if (given->backend && strcmp(given->backend, "emulated") == 0 && !given->path)
        return ek_fail(EK_INVALID, "--backend emulated: --path is needed too: the file that a job's power.path names");
    return EK_OK;
}

/* --------------------------------------------------------------------------------------------------- show */

static ek_status show_device(ek_power *power, uint32_t device)
{
    ek_power_limits limits;
    double draw;
    ek_status status = ek_power_read(power, device, &limits);
    if (status == EK_OK)
        status = ek_power_draw(power, device, &draw);
    if (status == EK_PEER_LOST) {
        printf("%6u  lost\n", device);
        return EK_OK;
    }
    EK_TRY(status);
    char drawn[32] = "-";
    if (!isnan(draw))
        snprintf(drawn, sizeof drawn, "%.1f", draw);
    printf("%6u %9.1f %9.1f %9.1f %9.1f %9s  %s\n", device, limits.least_watts, limits.default_watts,
           limits.greatest_watts, limits.watts, drawn, ek_power_identity(power, device));
    return EK_OK;
}

static ek_status show(const command_line *given)
{
    ek_power *power;
    ek_power_options wanted = {.backend = given->backend ? given->backend : "nvml", .path = given->path};
    EK_TRY(ek_power_create(&power, &wanted));
    usleep(DRAW_MICROSECONDS);
    printf("%s, watts\n%6s %9s %9s %9s %9s %9s  %s\n", ek_power_name(power), "device", "least", "default", "greatest",
           "limit", "draw", "identity");
    ek_status status = EK_OK;
    for (uint32_t device = 0; status == EK_OK && device < ek_power_devices(power); device++)
        status = show_device(power, device);
    ek_power_destroy(power);
    return status;
}

/* ------------------------------------------------------------------------------------------------ restore */

static ek_status restore_one(const char *path)
{
    uint32_t restored;
    EK_TRY(ek_state_restore(path, &restored));
    printf("%s: %u limits set, the rest were as found\n", path, restored);
    return EK_OK;
}

static int is_state(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name), suffix = strlen(EK_STATE_SUFFIX);
    return strncmp(entry->d_name, EK_STATE_PREFIX, strlen(EK_STATE_PREFIX)) == 0 && length > suffix &&
           strcmp(entry->d_name + length - suffix, EK_STATE_SUFFIX) == 0;
}

/* Unless its job lives. */
static ek_status restore_left(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    pid_t holder = ek_state_holder(path);
    if (holder == 0)
        return restore_one(path);
    printf("%s: left alone, its job lives (process %d)\n", path, (int)holder);
    return EK_OK;
}

/* What jobs that are gone left behind; all of it, though some may fail. */
static ek_status restore_folder(const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, is_state, alphasort);
    if (count < 0)
        return ek_fail(EK_IO, "%s: cannot be read: %s", folder, strerror(errno));
    if (count == 0)
        printf("nothing to restore in %s\n", folder);
    int failed = 0;
    for (int i = 0; i < count; i++) {
        if (restore_left(folder, entries[i]->d_name) != EK_OK) {
            ek_options_complain();
            failed++;
        }
        free(entries[i]);
    }
    free(entries);
    return failed == 0 ? EK_OK : ek_fail(EK_SYSTEM, "%d of %d state files could not be restored from", failed, count);
}

static ek_status restore(const char *path)
{
    struct stat found;
    if (!path)
        return restore_folder(ek_state_folder());
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode) ? restore_folder(path) : restore_one(path);
}

/* -------------------------------------------------------------------------------------------------- command */

static ek_status act(const command_line *given)
{
    EK_TRY(check(given));
    return given->restore ? restore(given->state) : show(given);
}

int ek_command_power(int argc, char **argv)
{
    static const struct argp argp = {
        options,
        parse_option,
        "",
        "Power limits of devices: `evenkeel power show' lists them, `evenkeel power restore' puts back those that a "
        "killed job changed.",
        NULL,
        NULL,
        NULL};
    command_line given = {0};
    bool action = take_action(&argc, &argv, &given);
    int exit_status;
    if (!action && !(argc > 1 && strcmp(argv[1], "--help") == 0)) {
        ek_fail(EK_INVALID, "show or restore is needed, as in evenkeel power show; see evenkeel power --help");
        ek_options_complain();
        return EK_EXIT_REFUSED;
    }
    if (!ek_options_parse(&argp, argc, argv, &given, &exit_status))
        return exit_status;
    ek_status status = act(&given);
    if (status == EK_OK)
        return EK_EXIT_DONE;
    ek_options_complain();
    return status == EK_INVALID ? EK_EXIT_REFUSED : EK_EXIT_FAILED;
}
