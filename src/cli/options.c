/* argp, made to speak in one line. */
#include "cli/options.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

#define KEY_HELP 0x1000 /* no character: --help has no short form */

typedef struct parse_context {
    char name[40]; /* "evenkeel train" */
    const struct argp_option *options;
    void *input;
    bool takes_arguments;
    bool help;           /* was asked for */
    const char *refused; /* the argument at which the parsing ended in an error */
} parse_context;

/* The argument that getopt refused, which it does not tell. It stops behind the argument, except at several letters
 * behind one dash, where it stops at it. */
static const char *refused_argument(const struct argp_state *state)
{
    const char *next = state->next < state->argc ? state->argv[state->next] : "";
    if (next[0] == '-' && next[1] != '-' && next[1] != '\0')
        return next;
    return state->argv[state->next - 1];
}

/* "--name", "--name=value" or "-n". */
static bool is_named(const struct argp_option *option, const char *argument)
{
    if (strncmp(argument, "--", 2) != 0)
        return argument[0] == '-' && argument[1] == option->key && argument[2] == '\0';
    size_t length = strcspn(argument + 2, "=");
    return strlen(option->name) == length && strncmp(option->name, argument + 2, length) == 0;
}

static void explain(const parse_context *context, const char *argument)
{
    static const struct argp_option none[] = {{0}};
    const struct argp_option *option = context->options ? context->options : none;
    while (option->name && !is_named(option, argument))
        option++;
    if (!option->name)
        ek_fail(EK_INVALID, "unknown option \"%s\"; see %s --help", argument, context->name);
    else if (option->arg)
        ek_fail(EK_INVALID, "--%s needs a value: --%s=%s", option->name, option->name, option->arg);
    else
        ek_fail(EK_INVALID, "--%s takes no value; see %s --help", option->name, context->name);
}

static error_t parse_root(int key, char *argument, struct argp_state *state)
{
    parse_context *context = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = context->input;
        return 0;
    case KEY_HELP:
        argp_help(state->root_argp, stdout, ARGP_HELP_STD_HELP, context->name);
        context->help = true;
        return EK_OPTION_REFUSED; /* ends the parsing */
    case ARGP_KEY_ARG:
        if (context->takes_arguments)
            return ARGP_ERR_UNKNOWN; /* the command's own parser is next */
        ek_fail(EK_INVALID, "unexpected argument \"%s\"; see %s --help", argument, context->name);
        return EK_OPTION_REFUSED;
    case ARGP_KEY_ERROR:
        context->refused = refused_argument(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

bool ek_options_parse(const struct argp *argp, int argc, char **argv, void *input, int *exit_status)
{
    static const struct argp_option own_options[] = {{"help", KEY_HELP, NULL, 0, "Print this help", -1}, {0}};
    const struct argp_child children[] = {{argp, 0, NULL, 0}, {0}};
    const struct argp root = {own_options, parse_root, NULL, argp->doc, children, NULL, NULL};
    parse_context context = {
        .options = argp->options, .input = input, .takes_arguments = argp->args_doc && argp->args_doc[0]};
    snprintf(context.name, sizeof context.name, "evenkeel %s", argv[0]);
    error_t error = argp_parse(&root, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_NO_EXIT, NULL, &context);
    *exit_status = context.help || error == 0 ? EK_EXIT_DONE : EK_EXIT_REFUSED;
    if (*exit_status == EK_EXIT_REFUSED) {
        if (error != EK_OPTION_REFUSED) /* getopt's refusal, without a word */
            explain(&context, context.refused);
        ek_options_complain();
    }
    return !context.help && error == 0;
}

void ek_options_complain(void)
{
    fprintf(stderr, "evenkeel: %s\n", ek_error());
}
