/* `evenkeel version`. */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/options.h"

int ek_command_version(int argc, char **argv)
{
    static const struct argp argp = {.args_doc = "", .doc = "Print the version and the engines."};
    int exit_status;
    if (!ek_options_parse(&argp, argc, argv, NULL, &exit_status))
        return exit_status;
    printf("evenkeel %s\nengines:", ek_version());
    for (const char *const *engine = ek_engines(); *engine; engine++)
        printf(" %s", *engine);
    printf("\n");
    return EK_EXIT_DONE;
}
