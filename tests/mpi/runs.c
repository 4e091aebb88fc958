/* See runs.h. */
#include "mpi/runs.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files.h"

void enter_runs(bool ulfm)
{
    require_mpirun(ulfm);
    write_training_config("small", "small.yaml");
    write_training_config("experts", "experts.yaml");
}

int leave_runs(int result)
{
    leave_mpirun();
    return result;
}

/* Not by mpirun. */
static pid_t start_alone(const char *const *words)
{
    pid_t run = fork();
    assert_true(run >= 0);
    if (run == 0) {
        int errors = open("errors", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(errors, STDERR_FILENO);
        execv(COMMAND, (char *const *)words);
        _exit(127);
    }
    return run;
}

pid_t start_run(run_launcher by, uint32_t ranks, const char *base, const char *words)
{
    char config[32], *copy = strdup(words);
    snprintf(config, sizeof config, "%s.yaml", base);
    const char *arguments[MPIRUN_WORDS_MOST] = {COMMAND,     "train",     "--config", config,
                                                "--metrics", "run.jsonl", "--quiet"};
    size_t count = 7;
    if (by != BY_ITSELF) {
        arguments[count++] = "--set";
        arguments[count++] = "engine.name=mpi";
    }
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        assert_true(count < MPIRUN_WORDS_MOST - 1);
        arguments[count++] = word;
    }
    unlink("run.jsonl");
    pid_t run = by == BY_ITSELF ? start_alone(arguments) : start_mpirun(by == BY_MPIRUN_WITH_ULFM, ranks, arguments);
    free(copy);
    return run;
}

int finish_run(pid_t run, double seconds, training_result *result)
{
    int status = finish_mpirun(run, seconds);
    *result = (training_result){0};
    if (access("run.jsonl", R_OK) == 0)
        read_training("run.jsonl", result);
    result->status = strcmp(result->end, "done") == 0 ? EK_OK : EK_SYSTEM;
    return status;
}

int run_whole(run_launcher by, uint32_t ranks, const char *base, const char *words, training_result *result)
{
    return finish_run(start_run(by, ranks, base, words), 60, result);
}

static size_t count_lines(const char *path)
{
    FILE *file = fopen(path, "r");
    size_t lines = 0;
    for (int character = file ? fgetc(file) : EOF; character != EOF; character = fgetc(file))
        lines += character == '\n';
    if (file)
        fclose(file);
    return lines;
}

void await_lines(size_t lines)
{
    for (double waited = 0.0; count_lines("run.jsonl") < lines; waited += 0.002) {
        if (waited > 20.0)
            fail_msg("the metrics have no %zu lines", lines);
        sleep_seconds(0.002);
    }
}

size_t own_errors(char *text, size_t size)
{
    char *all = read_file("errors");
    size_t lines = 0, length = 0;
    text[0] = '\0';
    for (char *line = strtok(all, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "evenkeel: ", 10) != 0)
            continue;
        lines++;
        length += (size_t)snprintf(text + length, size - length, "%s\n", line);
        assert_true(length < size);
    }
    free(all);
    return lines;
}

uint64_t assert_same_losses(const training_result *unbroken, double tolerance)
{
    FILE *file = fopen("run.jsonl", "r");
    assert_non_null(file);
    uint64_t last = 0;
    json_t *line;
    while ((line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL))) {
        if (!json_object_get(line, "event")) {
            last = (uint64_t)json_integer_value(json_object_get(line, "step"));
            double loss = json_real_value(json_object_get(line, "loss"));
            assert_true(last <= unbroken->steps);
            if (!(fabs(loss / unbroken->losses[last] - 1.0) <= tolerance))
                fail_msg("step %u: loss %.9f, expected %.9f", (unsigned)last, loss, unbroken->losses[last]);
        }
        json_decref(line);
    }
    fclose(file);
    return last;
}
