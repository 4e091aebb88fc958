/* Command lines in the manner of all subcommands: argp parses them; a refused one is one line on standard error and
 * exit status 2 (argp by itself says two lines and takes another status). */
#ifndef EK_CLI_OPTIONS_H
#define EK_CLI_OPTIONS_H

#include <argp.h>
#include <evenkeel.h>

enum { EK_EXIT_DONE = 0, EK_EXIT_FAILED = 1, EK_EXIT_REFUSED = 2 };

/* What a parser of options returns to refuse one, after ek_fail has said why. */
#define EK_OPTION_REFUSED ECANCELED

/* Parses the arguments of a subcommand, whose name is argv[0]. `argp` knows its own options and returns
 * ARGP_ERR_UNKNOWN for everything else; --help is added here. Arguments that are no options are refused, unless `argp`
 * says in args_doc that it takes some. False: the command is over, with *exit_status: help was asked for and printed,
 * or an argument was refused, which standard error has been told. */
bool ek_options_parse(const struct argp *argp, int argc, char **argv, void *input, int *exit_status);

/* Prints "evenkeel: " and ek_error() to standard error. */
void ek_options_complain(void);

#endif
