/* The subcommands: each gets the arguments from its own name on and returns the exit status. */
#ifndef EK_CLI_COMMANDS_H
#define EK_CLI_COMMANDS_H

int ek_command_train(int argc, char **argv);
int ek_command_launch(int argc, char **argv);
int ek_command_plan(int argc, char **argv);
int ek_command_sim(int argc, char **argv);
int ek_command_bench(int argc, char **argv);
int ek_command_report(int argc, char **argv);
int ek_command_power(int argc, char **argv);
int ek_command_version(int argc, char **argv);

#endif
