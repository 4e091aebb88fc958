/* The command line of `evenkeel train`, which `evenkeel launch` reads too. */
#ifndef EK_CLI_TRAIN_LINE_H
#define EK_CLI_TRAIN_LINE_H

#include "train/train.h"

/* As parsed: texts are argv's. The lists have room for every word of it. */
typedef struct ek_train_line {
    const char *config_path, *metrics_path;
    const char **overrides; /* [override_count] */
    size_t override_count;
    ek_fault_point *faults; /* [fault_count] */
    size_t fault_count;
    ek_rejoin *rejoins;
    size_t rejoin_count;
    ek_flip *flips;
    size_t flip_count;
    ek_slow *slows;
    size_t slow_count;
    bool resume;
    ek_routes_use routes;
    const char *routes_text, *routes_path; /* USE:FILE, and its FILE */
    double link_bytes_per_second, link_latency_seconds;
    bool quiet;
} ek_train_line;

/* argv[0] is "train". False: it is over, as with ek_options_parse. Free the line in any case. */
bool ek_train_line_parse(ek_train_line *line, int argc, char **argv, int *exit_status);
void ek_train_line_free(ek_train_line *line);

/* Reads the configuration and checks the line against it. */
ek_status ek_train_line_configure(const ek_train_line *line, ek_config **config);

#endif
