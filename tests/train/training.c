/* Runs a job through ek_train and reads what its metrics say. */
#include "train/training.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "entries.h"
#include "testing.h"
#ifdef EK_MPI
#include "mpirun.h"
#endif

static const char tiny[] =
    "model: {layers: 4, hidden: 256, heads: 8, kv_heads: 4, ffn: 704, vocab: 256, sequence: 128}\n"
    "parallel: {dp: 2, tp: 4}\n"
    "batch: {global: 16, micro: 4}\n"
    "train: {steps: 40}\nhealth: {compare_every: 1}\n"
    "engine: {timeout_seconds: 60}\n";

static const char small[] =
    "model: {layers: 2, hidden: 64, heads: 8, kv_heads: 4, ffn: 176, vocab: 256, sequence: 32}\n"
    "parallel: {dp: 2, tp: 4}\n"
    "batch: {global: 8, micro: 2}\n"
    "train: {steps: 40}\nhealth: {compare_every: 1}\n"
    "engine: {timeout_seconds: 1}\n";

static const char experts[] =
    "model: {layers: 8, hidden: 48, heads: 4, kv_heads: 4, ffn: 64, vocab: 256, sequence: 32,\n"
    "        experts: 12, top_k: 2, expert_ffn: 40, vocab_block: 16}\n"
    "parallel: {dp: 2, tp: 4}\n"
    "batch: {global: 10, micro: 2}\n"
    "train: {steps: 40}\nhealth: {compare_every: 1}\n"
    "engine: {timeout_seconds: 20}\n";

static const char common[] = "data: {path: " TEST_TEXT "}\n"
                             "optimizer: {lr: 1.0e-3, warmup_steps: 10}\n";

static uint32_t whole(json_t *line, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(line, key));
}

static void append_number(char *text, size_t size, json_t *number)
{
    size_t length = strlen(text);
    snprintf(text + length, size - length, "%s%lld", length ? " " : "", (long long)json_integer_value(number));
}

static void read_step(json_t *line, training_result *result)
{
    size_t step = (size_t)json_integer_value(json_object_get(line, "step"));
    assert_int_equal(step, result->steps + 1); /* every committed step has one line, in order */
    assert_true(step <= TRAINING_STEPS_MOST);
    result->steps = step;
    result->losses[step] = json_real_value(json_object_get(line, "loss"));
    result->tokens[step] = (uint64_t)json_integer_value(json_object_get(line, "tokens"));
    result->aux_losses[step] = json_real_value(json_object_get(line, "aux_loss"));
    result->route_flips[step] = (uint64_t)json_integer_value(json_object_get(line, "route_flips"));
    result->degrees[0] = result->samples[0] = '\0';
    json_t *replicas = json_object_get(line, "replicas"), *replica;
    size_t i;
    json_array_foreach(replicas, i, replica)
    {
        assert_true(i < TRAINING_REPLICAS_MOST);
        result->replicas[step][i] =
            (training_replica){.degree = whole(replica, "tp"),
                               .samples = whole(replica, "samples"),
                               .watts = json_real_value(json_object_get(replica, "power_watts")),
                               .busy_seconds = json_real_value(json_object_get(replica, "busy_seconds"))};
        append_number(result->degrees, sizeof result->degrees, json_object_get(replica, "tp"));
        append_number(result->samples, sizeof result->samples, json_object_get(replica, "samples"));
    }
}

static void read_event(json_t *line, const char *event, training_result *result)
{
    if (strcmp(event, "failure") == 0) {
        result->failures++;
    } else if (strcmp(event, "recovered") == 0) {
        result->recoveries++;
        result->recovery_seconds += json_real_value(json_object_get(line, "seconds"));
        result->redone_steps += whole(line, "redone_steps");
    } else if (strcmp(event, "rejoined") == 0) {
        result->rejoined++;
    } else if (strcmp(event, "healed") == 0) {
        result->healed++;
        result->healed_step = whole(line, "step");
    } else if (strcmp(event, "adjusted") == 0) {
        assert_int_equal(whole(line, "step"), result->steps);
        result->replicas[result->steps][whole(line, "replica")].predicted_seconds =
            json_real_value(json_object_get(line, "predicted_seconds"));
    } else if (strcmp(event, "straggler") == 0) {
        result->stragglers++;
        result->straggler_step = whole(line, "step");
        result->straggler_replica = whole(line, "replica");
        result->straggler_slot = whole(line, "slot");
    } else if (strcmp(event, "end") == 0) {
        snprintf(result->end, sizeof result->end, "%s", json_string_value(json_object_get(line, "status")));
        if (json_object_get(line, "reason"))
            snprintf(result->error, sizeof result->error, "%s", json_string_value(json_object_get(line, "reason")));
    }
}

void read_training(const char *path, training_result *result)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    json_t *line;
    while ((line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL))) {
        const char *event = json_string_value(json_object_get(line, "event"));
        if (event)
            read_event(line, event, result);
        else
            read_step(line, result);
        json_decref(line);
    }
    fclose(file);
}

static char *temporary_path(const char *name)
{
    char *path;
    assert_true(asprintf(&path, "/tmp/evenkeel-test-%d-%s", getpid(), name) > 0);
    return path;
}

void write_training_config(const char *base, const char *path)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%s%s", strcmp(base, "tiny") == 0 ? tiny : strcmp(base, "experts") == 0 ? experts : small, common);
    assert_int_equal(fclose(file), 0);
}

/* How many entries of the lists come before the empty one. */
static void count_entries(const training_spec *training, ek_train_options *options)
{
    while (options->rejoin_count < TRAINING_LIST_MOST && training->rejoins[options->rejoin_count].step)
        options->rejoin_count++;
    while (options->flip_count < TRAINING_LIST_MOST && training->flips[options->flip_count].step)
        options->flip_count++;
    while (options->slow_count < TRAINING_LIST_MOST && training->slows[options->slow_count].step)
        options->slow_count++;
}

bool training_by_mpirun(void)
{
    return getenv("EK_TEST_MPIRUN") != NULL;
}

static uint32_t present_ranks(const ek_config *config)
{
    uint32_t present = config->recovery.spares;
    for (uint32_t replica = 0; replica < config->parallel.dp; replica++)
        present += config->parallel.degrees ? config->parallel.degrees[replica] : config->parallel.tp;
    return present;
}

#ifdef EK_MPI
static void enter_mpirun_once(void)
{
    static bool entered;
    if (entered)
        return;
    require_mpirun(true);
    atexit(leave_mpirun);
    entered = true;
}

/* The same through the command. Success is judged by the record that ends the metrics. */
static void train_by_mpirun(const char *config_path, const training_spec *training, const ek_train_options *options,
                            training_result *result)
{
    static const char *const uses[] = {
        [EK_ROUTES_RECORD] = "record", [EK_ROUTES_REPLAY] = "replay", [EK_ROUTES_COMPARE] = "compare"};
    const char *words[MPIRUN_WORDS_MOST] = {COMMAND,     "train",     "--config",
                                            config_path, "--metrics", options->metrics_path,
                                            "--quiet",   "--set",     "engine.name=mpi"};
    char texts[TRAINING_LIST_MOST + 1][128];
    size_t count = 9, text = 0;
    assert_true(options->rejoin_count + options->flip_count + options->slow_count == 0);
    enter_mpirun_once();
    for (size_t i = 0; i < TRAINING_LIST_MOST && training->set[i]; i++) {
        words[count++] = "--set";
        words[count++] = training->set[i];
    }
    for (size_t i = 0; i < training->fault_count; i++) {
        const ek_fault_point *fault = &training->faults[i];
        snprintf(texts[text], sizeof *texts, "%d:%u.%u@%s", (int)fault->step, fault->replica, fault->slot,
                 ek_phase_name(fault->phase));
        words[count++] = fault->hang ? "--hang" : "--kill";
        words[count++] = texts[text++];
    }
    if (training->routes != EK_ROUTES_FREE) {
        snprintf(texts[text], sizeof *texts, "%s:%s", uses[training->routes], training->routes_path);
        words[count++] = "--routes";
        words[count++] = texts[text];
    }
    finish_mpirun(start_mpirun(true, present_ranks(options->config), words), 60);
    read_training(options->metrics_path, result);
    result->status = strcmp(result->end, "done") == 0 ? EK_OK : EK_SYSTEM;
}
#endif

/* Trains in this process and its children, or where a job of several ranks is to be started by mpirun, there. */
static void train(const char *config_path, const training_spec *training, ek_train_options *options,
                  training_result *result)
{
    ek_config *config;
    size_t overrides = 0;
    while (overrides < TRAINING_LIST_MOST && training->set[overrides])
        overrides++;
    assert_ok(ek_config_read(&config, config_path, training->set, overrides));
    config->engine.link_latency_seconds = training->link_latency_seconds;
#ifdef EK_SANITIZE_THREAD
    config->engine.threads = true; /* ThreadSanitizer sees the threads of one process */
#endif
    options->config = config;
#ifdef EK_MPI
    if (training_by_mpirun() && present_ranks(config) > 1) {
        train_by_mpirun(config_path, training, options, result);
        ek_config_destroy(config);
        return;
    }
#endif
    result->status = ek_train(options);
    snprintf(result->error, sizeof result->error, "%s", ek_error());
    ek_config_destroy(config);
    if (result->status != EK_INVALID)
        read_training(options->metrics_path, result);
}

void run_training(const training_spec *training, training_result *result)
{
    *result = (training_result){0};
    size_t shm_entries = entries_of("/dev/shm");
    char *config_path = temporary_path("config.yaml"), *metrics_path = temporary_path("metrics.jsonl");
    write_training_config(training->base, config_path);
    ek_train_options options = {.faults = training->faults,
                                .fault_count = training->fault_count,
                                .rejoins = training->rejoins,
                                .flips = training->flips,
                                .slows = training->slows,
                                .routes = training->routes,
                                .routes_path = training->routes_path,
                                .metrics_path = metrics_path,
                                .quiet = true};
    count_entries(training, &options);
    train(config_path, training, &options, result);
    assert_int_equal(entries_of("/dev/shm"), shm_entries);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left, not even a dead one */
    assert_int_equal(errno, ECHILD);
    unlink(config_path);
    unlink(metrics_path);
    free(config_path);
    free(metrics_path);
}

void assert_same_curve(const training_result *expected, const training_result *actual, double tolerance)
{
    if (actual->status != EK_OK)
        fail_msg("%s: %s", ek_status_text(actual->status), actual->error);
    assert_int_equal(actual->steps, expected->steps);
    for (size_t step = 1; step <= expected->steps; step++) {
        double difference = fabs(actual->losses[step] / expected->losses[step] - 1.0);
        if (!(difference <= tolerance))
            fail_msg("step %zu: loss %.9f, expected %.9f: %.1e apart", step, actual->losses[step],
                     expected->losses[step], difference);
    }
}
