/* `evenkeel plan`: which device serves which role of a job on a cluster. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "plan/input.h"
#include "plan/json.h"
#include "plan/megatron.h"
#include "plan/slurm.h"
#include "plan/table.h"

enum { KEY_CLUSTER = 0x2000, KEY_JOB, KEY_SET, KEY_FORMAT, KEY_FROM, KEY_DRAIN, KEY_OUT };

static const struct argp_option options[] = {
    {"cluster", KEY_CLUSTER, "FILE", 0, "The cluster, YAML (docs/planner.md); required", 0},
    {"job", KEY_JOB, "FILE", 0, "The job, YAML; required", 0},
    {"set", KEY_SET, "KEY=VALUE", 0, "Set a key of either file; may be repeated", 0},
    {"format", KEY_FORMAT, "NAME", 0, "table (default), json, megatron or slurm", 0},
    {0},
};

typedef enum plan_format { FORMAT_TABLE, FORMAT_JSON, FORMAT_MEGATRON, FORMAT_SLURM, FORMATS } plan_format;
static const char *const format_names[FORMATS] = {"table", "json", "megatron", "slurm"};

typedef struct command_line {
    const char *cluster, *job;
    const char **overrides; /* [override_count], of argv */
    size_t override_count;
    plan_format format;
} command_line;

static ek_status parse_format(const char *name, plan_format *format)
{
    for (plan_format i = 0; i < FORMATS; i++) {
        if (strcmp(name, format_names[i]) == 0) {
            *format = i;
            return EK_OK;
        }
    }
    return ek_fail(EK_INVALID, "--format: found \"%.60s\"; table, json, megatron or slurm is needed", name);
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
        return parse_format(argument, &given->format) == EK_OK ? 0 : EK_OPTION_REFUSED;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static ek_status write_json(const ek_plan *plan, FILE *file)
{
    json_t *json;
    EK_TRY(ek_plan_json(plan, &json));
    int failed = json_dumpf(json, file, JSON_COMPACT | JSON_REAL_PRECISION(12));
    json_decref(json);
    fputc('\n', file);
    return failed ? ek_fail(EK_IO, "cannot write the plan") : EK_OK;
}

static ek_status write_plan(const command_line *given, const ek_plan_input *input, const ek_plan *plan, FILE *file)
{
    switch (given->format) {
    case FORMAT_JSON:
        return write_json(plan, file);
    case FORMAT_MEGATRON:
        return ek_plan_input_locate(input, ek_plan_write_megatron(plan, &input->model, file));
    case FORMAT_SLURM:
        return ek_plan_write_slurm(plan, file);
    default:
        ek_plan_print_table(plan, file);
        return EK_OK;
    }
}

static ek_status act(const command_line *given)
{
    if (!given->cluster || !given->job)
        return ek_fail(EK_INVALID, "--%s FILE is needed; see evenkeel plan --help", given->cluster ? "job" : "cluster");
    ek_plan_input *input;
    EK_TRY(ek_plan_input_read(&input, given->cluster, given->job, given->overrides, given->override_count));
    ek_plan *plan;
    ek_status status = ek_plan_create(&plan, &input->options);
    if (status == EK_OK) {
        status = write_plan(given, input, plan, stdout);
        ek_plan_destroy(plan);
    } else {
        status = ek_plan_input_locate(input, status);
    }
    ek_plan_input_destroy(input);
    return status;
}

int ek_command_plan(int argc, char **argv)
{
    static const struct argp argp = {
        options, parse_option, "", "Plans a job on a cluster, some of whose devices have failed.", NULL, NULL, NULL};
    command_line given = {.overrides = calloc((size_t)argc, sizeof(char *))};
    if (!given.overrides)
        return EK_EXIT_FAILED;
    int exit_status;
    if (ek_options_parse(&argp, argc, argv, &given, &exit_status)) {
        ek_status status = act(&given);
        if (status != EK_OK)
            ek_options_complain();
        exit_status = status == EK_OK ? EK_EXIT_DONE : status == EK_INVALID ? EK_EXIT_REFUSED : EK_EXIT_FAILED;
    }
    free(given.overrides);
    return exit_status;
}
