/* `evenkeel bench`: the benchmarks of bench/, one after the other. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "bench.h"
#include "cli/commands.h"
#include "cli/options.h"

enum { KEY_ONLY = 0x3000 };

static const struct {
    const char *name;
    ek_status (*run)(void);
} benchmarks[] = {{"speed", ek_bench_speed},
                  {"recovery", ek_bench_recovery},
                  {"return", ek_bench_return},
                  {"overhead", ek_bench_overhead},
                  {"expert-overhead", ek_bench_expert_overhead},
                  {"dispatch", ek_bench_dispatch},
                  {"sim", ek_bench_sim},
                  {"checkpoint", ek_bench_checkpoint},
                  {"engines", ek_bench_engines}};
#define BENCHMARK_COUNT (sizeof benchmarks / sizeof *benchmarks)

static const struct argp_option options[] = {
    {"only", KEY_ONLY, "NAME", 0,
     "Run that one alone: speed, recovery, return, overhead, expert-overhead, dispatch, sim, checkpoint or engines; "
     "may be repeated",
     0},
    {0},
};

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    bool *chosen = state->input;
    if (key != KEY_ONLY)
        return ARGP_ERR_UNKNOWN;
    for (size_t i = 0; i < BENCHMARK_COUNT; i++) {
        if (strcmp(argument, benchmarks[i].name) == 0) {
            chosen[i] = true;
            return 0;
        }
    }
    ek_fail(EK_INVALID, "--only %s: no such benchmark; see evenkeel bench --help", argument);
    return EK_OPTION_REFUSED;
}

int ek_command_bench(int argc, char **argv)
{
    static const struct argp argp = {options, parse_option, "",  "Measure this machine. All of it takes some minutes.",
                                     NULL,    NULL,         NULL};
    bool chosen[BENCHMARK_COUNT] = {false}, all = true;
    int exit_status;
    if (!ek_options_parse(&argp, argc, argv, chosen, &exit_status))
        return exit_status;
    for (size_t i = 0; i < BENCHMARK_COUNT; i++)
        all = all && !chosen[i];
    for (size_t i = 0; i < BENCHMARK_COUNT; i++) {
        if (!all && !chosen[i])
            continue;
        if (benchmarks[i].run() != EK_OK) {
            ek_options_complain();
            return EK_EXIT_FAILED;
        }
        fflush(stdout);
    }
    return EK_EXIT_DONE;
}
