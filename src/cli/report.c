/* `evenkeel report`. */
#include <string.h>

#include "base/error.h"
#include "base/whole_file.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "report/report.h"
#include "report/run.h"

enum { KEY_TITLE = 0x2000 };

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "The page, HTML; an existing FILE is replaced; required", 0},
    {"title", KEY_TITLE, "TEXT", 0, "The page's title", 0},
    {0},
};

typedef struct command_line {
    const char *run, *output, *title;
} command_line;

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    command_line *given = state->input;
    switch (key) {
    case 'o':
        given->output = argument;
        return 0;
    case KEY_TITLE:
        given->title = argument;
        return 0;
    case ARGP_KEY_ARG:
        if (!given->run) {
            given->run = argument;
            return 0;
        }
        ek_fail(EK_INVALID, "unexpected argument \"%s\"; a report is about one run", argument);
        return EK_OPTION_REFUSED;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static ek_status check(const command_line *given)
{
    if (!given->run)
        return ek_fail(EK_INVALID, "RUN.jsonl is needed, what evenkeel train --metrics wrote; see evenkeel report "
                                   "--help");
    if (!given->output)
        return ek_fail(EK_INVALID, "--output FILE is needed, as in -o run.html; see evenkeel report --help");
    return ek_output_check("--output", given->output, &given->run, 1);
}

/* EK_INVALID and *exit_status EK_EXIT_REFUSED for what is wrong with the input. */
static ek_status make_report(const command_line *given, int *exit_status)
{
    *exit_status = EK_EXIT_REFUSED;
    json_t *page;
    EK_TRY(check(given));
    EK_TRY(ek_run_describe(given->run, given->title, &page));
    ek_whole_file file;
    ek_status status = ek_whole_file_open(&file, given->output);
    if (status == EK_OK)
        status = ek_whole_file_end(&file, ek_report_write(file.file, page));
    json_decref(page);
    *exit_status = status == EK_OK ? EK_EXIT_DONE : status == EK_INVALID ? EK_EXIT_REFUSED : EK_EXIT_FAILED;
    return status;
}

int ek_command_report(int argc, char **argv)
{
    static const struct argp argp = {options,
                                     parse_option,
                                     "RUN.jsonl",
                                     "Make one HTML page with interactive charts of a training run from its metrics: "
                                     "loss, speed, degree and power of each replica, events, where goodput went.",
                                     NULL,
                                     NULL,
                                     NULL};
    command_line given = {0};
    int exit_status;
    if (!ek_options_parse(&argp, argc, argv, &given, &exit_status))
        return exit_status;
    if (make_report(&given, &exit_status) != EK_OK)
        ek_options_complain();
    return exit_status;
}
