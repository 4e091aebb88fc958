/* See train_line.h. */
#include "cli/train_line.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/options.h"

enum {
    KEY_CONFIG = 0x2000,
    KEY_SET,
    KEY_KILL,
    KEY_HANG,
    KEY_REJOIN,
    KEY_FLIP,
    KEY_SLOW,
    KEY_RESUME,
    KEY_ROUTES,
    KEY_METRICS,
    KEY_EMULATE_LINK,
    KEY_QUIET
};

static const struct argp_option options[] = {
    {"config", KEY_CONFIG, "FILE", 0, "The configuration, YAML (docs/configuration.md); required", 0},
    {"set", KEY_SET, "KEY=VALUE", 0, "Set a key of the configuration over FILE's; may be repeated", 0},
    {"kill", KEY_KILL, "STEP:REPLICA.SLOT[@PHASE]", 0,
     "Kill that rank (SIGKILL) in that step, once; PHASE is forward, backward (default), sync, commit, optimizer or "
     "recovery; may be repeated",
     0},
    {"hang", KEY_HANG, "STEP:REPLICA.SLOT[@PHASE]", 0, "Stop that rank (SIGSTOP) instead; may be repeated", 0},
    {"rejoin", KEY_REJOIN, "STEP:REPLICA.SLOT", 0, "Start that lost rank again when STEP begins; may be repeated", 0},
    {"flip", KEY_FLIP, "STEP:REPLICA.SLOT", 0, "Flip a bit of that rank's weights after STEP, once; may be repeated",
     0},
    {"slow", KEY_SLOW, "STEP:REPLICA.SLOT@FACTOR", 0,
     "Have that rank report FACTOR times its busy time from STEP on; may be repeated", 0},
    {"resume", KEY_RESUME, NULL, 0, "Go on from the last complete checkpoint in checkpoint.dir, if there is one", 0},
    {"routes", KEY_ROUTES, "USE:FILE", 0,
     "Experts: USE is record, to write to FILE which ones tokens go to; replay, to send them there again; compare, to "
     "count those that go elsewhere",
     0},
    {"metrics", KEY_METRICS, "FILE", 0, "Write a JSON line to FILE for every step and event", 0},
    {"emulate-link", KEY_EMULATE_LINK, "GBps:MICROSECONDS", 0,
     "Delay communication as a link of so many gigabytes (10^9 bytes) per second and of that latency would", 0},
    {"quiet", KEY_QUIET, NULL, 0, "Print no progress", 0},
    {0},
};

/* Reads digits at *text into *value and moves *text behind them. False if there are none, or too many. */
static bool take_whole(const char **text, uint64_t most, uint64_t *value)
{
    if (!isdigit((unsigned char)**text))
        return false;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(*text, &end, 10);
    if (errno != 0 || number > most)
        return false;
    *text = end;
    *value = number;
    return true;
}

static bool take_character(const char **text, char character)
{
    if (**text != character)
        return false;
    ++*text;
    return true;
}

static bool find_phase(const char *name, ek_phase *phase)
{
    for (int i = 0; i < EK_PHASES; i++) {
        if (strcmp(name, ek_phase_name((ek_phase)i)) == 0) {
            *phase = (ek_phase)i;
            return true;
        }
    }
    return false;
}

/* STEP:REPLICA.SLOT[@PHASE] */
static ek_status parse_fault(const char *text, bool hang, ek_fault_point *fault)
{
    const char *rest = text;
    uint64_t step, replica, slot;
    *fault = (ek_fault_point){.hang = hang, .phase = EK_PHASE_BACKWARD};
    bool right = take_whole(&rest, UINT64_MAX, &step) && take_character(&rest, ':') &&
                 take_whole(&rest, UINT32_MAX, &replica) && take_character(&rest, '.') &&
                 take_whole(&rest, UINT32_MAX, &slot);
    if (right && take_character(&rest, '@'))
        right = find_phase(rest, &fault->phase);
    else
        right = right && *rest == '\0';
    if (!right)
        return ek_fail(
            EK_INVALID,
            "--%s %s: STEP:REPLICA.SLOT[@PHASE] is needed, as in 20:1.2@backward; PHASE is forward, backward, "
            "sync, commit, optimizer or recovery",
            hang ? "hang" : "kill", text);
    fault->step = step;
    fault->replica = (uint32_t)replica;
    fault->slot = (uint32_t)slot;
    return EK_OK;
}

static ek_status check_place(const char *option, uint64_t step, uint32_t replica, uint32_t slot,
                             const ek_config *config)
{
    if (step < 1 || step > config->train.steps)
        return ek_fail(EK_INVALID, "--%s: there is no step %" PRIu64 "; 1 to %" PRIu64 " is allowed (train.steps)",
                       option, step, config->train.steps);
    if (replica >= config->parallel.dp)
        return ek_fail(EK_INVALID, "--%s: there is no replica %u; 0 to %u is allowed (parallel.dp)", option, replica,
                       config->parallel.dp - 1);
    if (slot >= config->parallel.tp)
        return ek_fail(EK_INVALID, "--%s: there is no slot %u in a replica; 0 to %u is allowed (parallel.tp)", option,
                       slot, config->parallel.tp - 1);
    return EK_OK;
}

static ek_status check_fault(const ek_fault_point *fault, const ek_config *config)
{
    const char *option = fault->hang ? "hang" : "kill";
    EK_TRY(check_place(option, fault->step, fault->replica, fault->slot, config));
    if (config->parallel.degrees && fault->slot >= config->parallel.degrees[fault->replica])
        return ek_fail(EK_INVALID, "--%s: slot %u of replica %u does not start; 0 to %u do (parallel.degrees)", option,
                       fault->slot, fault->replica, config->parallel.degrees[fault->replica] - 1);
    return EK_OK;
}

/* A rank can come back only from a loss: one that the user asks for in an earlier step. */
static ek_status check_rejoin(const ek_train_line *given, const ek_rejoin *rejoin, const ek_config *config)
{
    EK_TRY(check_place("rejoin", rejoin->step, rejoin->replica, rejoin->slot, config));
    for (size_t i = 0; i < given->fault_count; i++)
        if (given->faults[i].replica == rejoin->replica && given->faults[i].slot == rejoin->slot &&
            given->faults[i].step < rejoin->step)
            return EK_OK;
    return ek_fail(EK_INVALID,
                   "--rejoin: slot %u of replica %u is not lost before step %" PRIu64
                   "; --kill or --hang it in an earlier step",
                   rejoin->slot, rejoin->replica, rejoin->step);
}

static ek_status check_places(const ek_train_line *given, const ek_config *config)
{
    for (size_t i = 0; i < given->fault_count; i++)
        EK_TRY(check_fault(&given->faults[i], config));
    for (size_t i = 0; i < given->rejoin_count; i++)
        EK_TRY(check_rejoin(given, &given->rejoins[i], config));
    for (size_t i = 0; i < given->flip_count; i++)
        EK_TRY(check_place("flip", given->flips[i].step, given->flips[i].replica, given->flips[i].slot, config));
    for (size_t i = 0; i < given->slow_count; i++)
        EK_TRY(check_place("slow", given->slows[i].step, given->slows[i].replica, given->slows[i].slot, config));
    return EK_OK;
}

/* A number in plain decimal digits at *text, as take_whole. */
static bool take_real(const char **text, double most, double *value)
{
    if (!isdigit((unsigned char)**text) || (**text == '0' && tolower((unsigned char)(*text)[1]) == 'x'))
        return false;
    char *end;
    double number = strtod(*text, &end);
    if (!(number <= most))
        return false;
    *text = end;
    *value = number;
    return true;
}

/* STEP:REPLICA.SLOT at *text; moves it behind. */
static bool take_place(const char **text, ek_rejoin *place)
{
    uint64_t replica, slot;
    bool right = take_whole(text, UINT64_MAX, &place->step) && take_character(text, ':') &&
                 take_whole(text, UINT32_MAX, &replica) && take_character(text, '.') &&
                 take_whole(text, UINT32_MAX, &slot);
    if (right) {
        place->replica = (uint32_t)replica;
        place->slot = (uint32_t)slot;
    }
    return right;
}

static ek_status parse_place(const char *option, const char *text, ek_rejoin *place)
{
    const char *rest = text;
    if (!take_place(&rest, place) || *rest != '\0')
        return ek_fail(EK_INVALID, "--%s %s: STEP:REPLICA.SLOT is needed, as in 40:1.2", option, text);
    return EK_OK;
}

static ek_status parse_slow(const char *text, ek_slow *slow)
{
    const char *rest = text;
    ek_rejoin place;
    if (!take_place(&rest, &place) || !take_character(&rest, '@') || !take_real(&rest, 1000, &slow->factor) ||
        *rest != '\0' || slow->factor <= 0)
        return ek_fail(EK_INVALID,
                       "--slow %s: STEP:REPLICA.SLOT@FACTOR is needed, as in 20:1.2@1.5; FACTOR is up to 1000", text);
    slow->step = place.step;
    slow->replica = place.replica;
    slow->slot = place.slot;
    return EK_OK;
}

static ek_status parse_routes(const char *text, ek_train_line *given)
{
    static const char *const uses[] = {
        [EK_ROUTES_RECORD] = "record:", [EK_ROUTES_REPLAY] = "replay:", [EK_ROUTES_COMPARE] = "compare:"};
    for (ek_routes_use use = EK_ROUTES_RECORD; use <= EK_ROUTES_COMPARE; use++) {
        size_t length = strlen(uses[use]);
        if (strncmp(text, uses[use], length) != 0 || text[length] == '\0')
            continue;
        given->routes = use;
        given->routes_path = text + length;
        given->routes_text = text;
        return EK_OK;
    }
    return ek_fail(EK_INVALID, "--routes %s: record:FILE, replay:FILE or compare:FILE is needed", text);
}

static ek_status parse_link(const char *text, ek_train_line *given)
{
    const char *rest = text;
    double gigabytes_per_second, microseconds;
    if (!take_real(&rest, 1e6, &gigabytes_per_second) || !take_character(&rest, ':') ||
        !take_real(&rest, 1e7, &microseconds) || *rest != '\0' || gigabytes_per_second < 1e-6)
        return ek_fail(EK_INVALID,
                       "--emulate-link %s: GBps:MICROSECONDS is needed, as in 12.5:3; 1e-6 to 1e6 and 0 to 1e7 are "
                       "allowed",
                       text);
    given->link_bytes_per_second = gigabytes_per_second * 1e9;
    given->link_latency_seconds = microseconds * 1e-6;
    return EK_OK;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    ek_train_line *given = state->input;
    ek_status status = EK_OK;
    switch (key) {
    case KEY_CONFIG:
        given->config_path = argument;
        break;
    case KEY_SET:
        given->overrides[given->override_count++] = argument;
        break;
    case KEY_KILL:
    case KEY_HANG:
        status = parse_fault(argument, key == KEY_HANG, &given->faults[given->fault_count++]);
        break;
    case KEY_REJOIN:
        status = parse_place("rejoin", argument, &given->rejoins[given->rejoin_count++]);
        break;
    case KEY_FLIP:
        status = parse_place("flip", argument, &given->flips[given->flip_count++]);
        break;
    case KEY_SLOW:
        status = parse_slow(argument, &given->slows[given->slow_count++]);
        break;
    case KEY_RESUME:
        given->resume = true;
        break;
    case KEY_ROUTES:
        status = parse_routes(argument, given);
        break;
    case KEY_METRICS:
        given->metrics_path = argument;
        break;
    case KEY_EMULATE_LINK:
        status = parse_link(argument, given);
        break;
    case KEY_QUIET:
        given->quiet = true;
        break;
    case ARGP_KEY_END:
        if (!given->config_path)
            status = ek_fail(EK_INVALID, "--config FILE is needed; see evenkeel train --help");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return status == EK_OK ? 0 : EK_OPTION_REFUSED;
}

ek_status ek_train_line_configure(const ek_train_line *line, ek_config **config)
{
    ek_config *read;
    ek_status status = ek_config_read(&read, line->config_path, line->overrides, line->override_count);
    if (status != EK_OK)
        return status == EK_IO ? EK_INVALID : status;
    read->engine.link_bytes_per_second = line->link_bytes_per_second;
    read->engine.link_latency_seconds = line->link_latency_seconds;
    status = check_places(line, read);
    if (status == EK_OK && line->resume && !read->checkpoint.dir)
        status = ek_fail(EK_INVALID, "--resume: checkpoint.dir is needed, the folder of checkpoints to go on from");
    if (status == EK_OK)
        *config = read;
    else
        ek_config_destroy(read);
    return status;
}

static bool allocate(ek_train_line *line, int argc)
{
    line->overrides = calloc((size_t)argc, sizeof *line->overrides);
    line->faults = calloc((size_t)argc, sizeof *line->faults);
    line->rejoins = calloc((size_t)argc, sizeof *line->rejoins);
    line->flips = calloc((size_t)argc, sizeof *line->flips);
    line->slows = calloc((size_t)argc, sizeof *line->slows);
    return line->overrides && line->faults && line->rejoins && line->flips && line->slows;
}

bool ek_train_line_parse(ek_train_line *line, int argc, char **argv, int *exit_status)
{
    static const struct argp argp = {
        options, parse_option, "", "Train a model by a configuration, through the loss of devices.", NULL, NULL, NULL};
    *line = (ek_train_line){0};
    *exit_status = EK_EXIT_FAILED;
    if (allocate(line, argc))
        return ek_options_parse(&argp, argc, argv, line, exit_status);
    ek_fail(EK_NO_MEMORY, "no memory for the command line");
    ek_options_complain();
    return false;
}

void ek_train_line_free(ek_train_line *line)
{
    free(line->overrides);
    free(line->faults);
    free(line->rejoins);
    free(line->flips);
    free(line->slows);
}
