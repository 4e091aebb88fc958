/* Command lines in the manner of all subcommands: argp parses them; a refused one is one line on standard error and
 * exit status 2 (argp by itself says two lines and takes another status). */
#ifndef EK_CLI_OPTIONS_H
#define EK_CLI_OPTIONS_H

#include <argp.h>
#include <evenkeel.h>

enum { EK_EXIT_DONE = 0, EK_EXIT_FAILED = 1, EK_EXIT_REFUSED = 2 };

typedef enum ek_parsed {
    EK_PARSED,        /* go on */
    EK_PARSED_HELP,   /* --help was asked for and printed: done */
    EK_PARSED_REFUSED /* ek_error() says why */
} ek_parsed;

/* What a parser of options returns to refuse one, after ek_fail has said why. */
#define EK_OPTION_REFUSED ECANCELED

/* Parses the arguments of a subcommand, whose name is argv[0]. `argp` knows its own options and returns
 * ARGP_ERR_UNKNOWN for everything else; --help is added here, and arguments that are no options are refused. */
ek_parsed ek_options_parse(const struct argp *argp, int argc, char **argv, void *input);

/* Prints "evenkeel: " and ek_error() to standard error. */
void ek_options_complain(void);

#endif
