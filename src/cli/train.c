/* `evenkeel train`: a command line and a configuration, turned into ek_train_options. */
#include "train/train.h"

#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/train_line.h"

/* Everything refused before the training starts is EK_INVALID. */
static ek_status train(const ek_train_line *given)
{
    ek_config *config;
    EK_TRY(ek_train_line_configure(given, &config));
    ek_status status = ek_train(&(ek_train_options){
        .config = config,
        .config_path = given->config_path,
        .faults = given->faults,
        .fault_count = given->fault_count,
        .rejoins = given->rejoins,
        .rejoin_count = given->rejoin_count,
        .flips = given->flips,
        .flip_count = given->flip_count,
        .slows = given->slows,
        .slow_count = given->slow_count,
        .resume = given->resume,
        .routes = given->routes,
        .routes_path = given->routes_path,
        .metrics_path = given->metrics_path,
        .quiet = given->quiet,
    });
    ek_config_destroy(config);
    return status;
}

/* Of many processes that mpirun has started one says what is wrong, the leading one where it can, and its end ends the
 * others, with its exit status as that of mpirun. Who is still there then may have a reason of its own. */
static void complain(ek_status status)
{
    ek_place place;
    bool silent = status == EK_FENCED || !ek_error()[0];
    bool follows = ek_train_starter(&place) && place.process > 0;
    if (follows) {
        char host[64] = "";
        gethostname(host, sizeof host - 1);
        sleep(2);
        ek_fail_prefix(EK_INVALID, "process %u on host %s: ", place.process, host);
    }
    if (!silent)
        ek_options_complain();
}

int ek_command_train(int argc, char **argv)
{
    ek_train_line given;
    int exit_status;
    if (ek_train_line_parse(&given, argc, argv, &exit_status)) {
        ek_status status = train(&given);
        if (status != EK_OK)
            complain(status);
        exit_status = status == EK_OK ? EK_EXIT_DONE : status == EK_INVALID ? EK_EXIT_REFUSED : EK_EXIT_FAILED;
    }
    ek_train_line_free(&given);
    return exit_status;
}
