/* `evenkeel`: finds the subcommand and hands over. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"train", "Train a model, through the loss of devices", ek_command_train},
    {"launch", "Train on many hosts, again on those that are left when some fail", ek_command_launch},
    {"plan", "Plan a job on a cluster where devices have failed", ek_command_plan},
    {"sim", "Simulate a job on a cluster whose devices fail", ek_command_sim},
    {"bench", "Measure this machine: speed, recovery, overhead on the healthy", ek_command_bench},
    {"report", "Make an HTML page with charts of a training run", ek_command_report},
    {"power", "Show the power limits of devices, or restore them", ek_command_power},
    {"version", "Print the version and the engines", ek_command_version},
};
#define COMMAND_COUNT (sizeof commands / sizeof *commands)

static void print_help(void)
{
    printf("Usage: evenkeel COMMAND [OPTION...]\n"
           "evenkeel keeps the training of a large language model going while devices fail.\n\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    printf("\n`evenkeel COMMAND --help' prints the options of a command.\n");
}

static int refuse(const char *what)
{
    char names[EK_ERROR_BYTES] = "";
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        size_t length = strlen(names);
        snprintf(names + length, sizeof names - length, "%s%s", i > 0 ? ", " : "", commands[i].name);
    }
    ek_fail(EK_INVALID, "%s; the commands are %s; see evenkeel --help", what, names);
    ek_options_complain();
    return EK_EXIT_REFUSED;
}

static int run(int argc, char **argv)
{
    if (argc < 2)
        return refuse("a command is needed");
    if (strcmp(argv[1], "--version") == 0)
        return ek_command_version(1, (char *[]){"version", NULL});
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        print_help();
        return EK_EXIT_DONE;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    char what[EK_ERROR_BYTES / 2];
    snprintf(what, sizeof what, "unknown %s \"%s\"", argv[1][0] == '-' ? "option" : "command", argv[1]);
    return refuse(what);
}

/* Standard streams that the caller closed must not be given to files that are opened later. */
static void hold_standard_streams(void)
{
    int file;
    do
        file = open("/dev/null", O_RDWR);
    while (file >= 0 && file <= STDERR_FILENO);
    if (file > STDERR_FILENO)
        close(file);
}

/* OpenBLAS starts a thread for each core when it is loaded, before main. Ranks want none of them: the command starts
 * itself again with the variable that it looks at. */
static void keep_blas_to_one_thread(char **argv)
{
    if (getenv("OPENBLAS_NUM_THREADS") || setenv("OPENBLAS_NUM_THREADS", "1", 0) != 0)
        return;
    execv("/proc/self/exe", argv); /* where that cannot be done, the threads idle */
}

int main(int argc, char **argv)
{
    keep_blas_to_one_thread(argv);
    prctl(PR_SET_NAME, "evenkeel"); /* else it is "exe" to pgrep and top */
    hold_standard_streams();
    signal(SIGPIPE, SIG_IGN); /* a reader of progress that goes away must not end a training run, */
    signal(SIGXFSZ, SIG_IGN); /* nor must a limit of file sizes: both are errors of writing */
    int status = run(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == EK_EXIT_DONE) {
        fprintf(stderr, "evenkeel: standard output cannot be written\n");
        return EK_EXIT_FAILED;
    }
    return status;
}
