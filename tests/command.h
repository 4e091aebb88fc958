/* The built command, from outside. */
#ifndef TESTS_COMMAND_H
#define TESTS_COMMAND_H

#include "testing.h"

typedef struct outcome {
    int status;                      /* exit status; a command that a signal ends fails the test */
    char output[8192], errors[8192]; /* what it printed, cut there */
} outcome;

/* Runs COMMAND, the path of evenkeel, with arguments[] (ends with NULL). */
outcome run_command(const char *const *arguments);
#define RUN(...) run_command((const char *const[]){__VA_ARGS__, NULL})

#endif
