/* Runs the built command. */
#include "command.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS_MOST 32

static void read_back(FILE *file, char *text, size_t bytes)
{
    rewind(file);
    text[fread(text, 1, bytes - 1, file)] = '\0';
    fclose(file);
}

outcome run_command(const char *const *arguments)
{
    const char *words[WORDS_MOST] = {COMMAND};
    for (size_t i = 0; arguments[i]; i++) {
        assert_true(i + 2 < WORDS_MOST);
        words[i + 1] = arguments[i];
    }
    FILE *output = tmpfile(), *errors = tmpfile();
    assert_true(output && errors);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(fileno(output), STDOUT_FILENO);
        dup2(fileno(errors), STDERR_FILENO);
        execv(COMMAND, (char *const *)words);
        _exit(127);
    }
    outcome got;
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    got.status = WEXITSTATUS(status);
    read_back(output, got.output, sizeof got.output);
    read_back(errors, got.errors, sizeof got.errors);
    return got;
}
