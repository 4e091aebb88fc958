/* `evenkeel plan`: which device serves which role of a job on a cluster. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/whole_file.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "plan/input.h"
#include "plan/megatron.h"
#include "plan/planning.h"
#include "plan/slurm.h"

enum { KEY_CLUSTER = 0x2000, KEY_JOB, KEY_SET, KEY_FORMAT, KEY_FROM, KEY_DRAIN };

static const struct argp_option options[] = {
    {"cluster", KEY_CLUSTER, "FILE", 0, "The cluster, YAML (docs/planner.md); required", 0},
    {"job", KEY_JOB, "FILE", 0, "The job, YAML; required", 0},
    {"set", KEY_SET, "KEY=VALUE", 0, "Set a key of either file; may be repeated", 0},
    {"format", KEY_FORMAT, "NAME", 0, "table (default), json, megatron or slurm", 0},
    {"from", KEY_FROM, "OLD.json", 0,
     "Replan: move as little as possible of that plan, and say whether moving pays before the next repair", 0},
    {"drain", KEY_DRAIN, "LIST", 0,
     "What it costs to take these out of use: domains, nodes or DOMAIN.SLOT, with commas between them", 0},
    {"output", 'o', "FILE", 0, "Write to FILE instead of standard output; an existing FILE is replaced", 0},
    {0},
};

typedef enum plan_format { FORMAT_TABLE, FORMAT_JSON, FORMAT_MEGATRON, FORMAT_SLURM, FORMATS } plan_format;
static const char *const format_names[FORMATS] = {"table", "json", "megatron", "slurm"};

typedef struct command_line {
    const char *cluster, *job, *from, *drain, *output;
    const char **overrides; /* [override_count], of argv */
    size_t override_count;
    plan_format format;
} command_line;

static error_t parse_format(const char *name, plan_format *format)
{
    for (plan_format i = 0; i < FORMATS; i++) {
        if (strcmp(name, format_names[i]) == 0) {
            *format = i;
            return 0;
        }
    }
    ek_fail(EK_INVALID, "--format: found \"%.60s\"; table, json, megatron or slurm is needed", name);
    return EK_OPTION_REFUSED;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    command_line *given = state->input;
    switch (key) {
    case KEY_CLUSTER:
        given->cluster = argument;
        return 0;
    case KEY_JOB:
        given->job = argument;
        return 0;
    case KEY_SET:
        given->overrides[given->override_count++] = argument;
        return 0;
    case KEY_FORMAT:
        return parse_format(argument, &given->format);
    case KEY_FROM:
        given->from = argument;
        return 0;
    case KEY_DRAIN:
        given->drain = argument;
        return 0;
    case 'o':
        given->output = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ------------------------------------------------------------------------------------------------- output */

/* As one piece, which is quicker than one write for each number. */
static ek_status write_json(const ek_planning *planning, FILE *file)
{
    json_t *json;
    EK_TRY(ek_planning_json(planning, &json));
    char *text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(12));
    json_decref(json);
    if (!text)
        return ek_fail(EK_NO_MEMORY, "no memory for the plan as JSON");
    bool written = fputs(text, file) != EOF && fputc('\n', file) != EOF;
    free(text);
    return written ? EK_OK : ek_fail(EK_IO, "the plan cannot be written: %s", strerror(errno));
}

static ek_status write_planning(const command_line *given, const ek_planning *planning, FILE *file)
{
    switch (given->format) {
    case FORMAT_JSON:
        return write_json(planning, file);
    case FORMAT_MEGATRON:
        return ek_plan_write_megatron(planning->plan, &planning->input->model, file);
    case FORMAT_SLURM:
        return ek_plan_write_slurm(planning->plan, file);
    default:
        ek_planning_print(planning, file);
        return EK_OK;
    }
}

static ek_status write_output(const command_line *given, const ek_planning *planning)
{
    if (!given->output)
        return write_planning(given, planning, stdout);
    ek_whole_file file;
    EK_TRY(ek_whole_file_open(&file, given->output));
    return ek_whole_file_end(&file, write_planning(given, planning, file.file));
}

/* ------------------------------------------------------------------------------------------------ command */

/* What cannot be planned is refused; what can, and cannot be written, has failed. */
static ek_status act(const command_line *given, int *exit_status)
{
    *exit_status = EK_EXIT_REFUSED;
    if (!given->cluster || !given->job)
        return ek_fail(EK_INVALID, "--%s FILE is needed; see evenkeel plan --help", given->cluster ? "job" : "cluster");
    if (given->output) /* a plan may take the place of the one that it replaces, --from */
        EK_TRY(ek_output_check("--output", given->output, (const char *const[]){given->cluster, given->job}, 2));
    ek_plan_input *input;
    EK_TRY(ek_plan_input_read(&input, given->cluster, given->job, given->overrides, given->override_count));
    ek_planning *planning;
    ek_status status = ek_planning_create(&planning, input, given->from, given->drain);
    if (status == EK_OK) {
        status = write_output(given, planning);
        status = status == EK_INVALID ? ek_plan_input_locate(input, status) : status;
        *exit_status = status == EK_OK ? EK_EXIT_DONE : status == EK_INVALID ? EK_EXIT_REFUSED : EK_EXIT_FAILED;
        ek_planning_destroy(planning);
    }
    ek_plan_input_destroy(input);
    return status;
}

int ek_command_plan(int argc, char **argv)
{
    static const struct argp argp = {options,
                                     parse_option,
                                     "",
                                     "Plan a job on a cluster where devices have failed: which domain serves which "
                                     "replica and stage, which device which role.",
                                     NULL,
                                     NULL,
                                     NULL};
    command_line given = {.overrides = calloc((size_t)argc, sizeof(char *))};
    if (!given.overrides) {
        ek_fail(EK_NO_MEMORY, "no memory for the command line");
        ek_options_complain();
        return EK_EXIT_FAILED;
    }
    int exit_status;
    if (ek_options_parse(&argp, argc, argv, &given, &exit_status) && act(&given, &exit_status) != EK_OK)
        ek_options_complain();
    free(given.overrides);
    return exit_status;
}
