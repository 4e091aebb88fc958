/* `evenkeel version`. */
#include <errno.h>
#include <stdio.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "train/config.h"

static error_t parse_nothing(int key, char *argument, struct argp_state *state)
{
    (void)key, (void)argument, (void)state;
    return ARGP_ERR_UNKNOWN;
}

int ek_command_version(int argc, char **argv)
{
    static const struct argp_option options[] = {{0}};
    static const struct argp argp = {options, parse_nothing, "",  "Print the version and the engines.",
                                     NULL,    NULL,          NULL};
    switch (ek_options_parse(&argp, argc, argv, NULL)) {
    case EK_PARSED_HELP:
        return EK_EXIT_DONE;
    case EK_PARSED_REFUSED:
        ek_options_complain();
        return EK_EXIT_REFUSED;
    case EK_PARSED:
        break;
    }
    printf("evenkeel %s\nengines:", ek_version());
    for (const char *const *engine = ek_config_engines(); *engine; engine++)
        printf(" %s", *engine);
    printf("\n");
    return EK_EXIT_DONE;
}
