/* Runs jobs with files in memory and reads their metrics back; medians and their intervals. */
#include "jobs.h"
#include "bench.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/rng.h"

#define TEXT_BYTES (256 * 1024)

ek_status ek_bench_file_create(ek_bench_file *file, const void *content, size_t bytes)
{
    file->fd = memfd_create("evenkeel-bench", MFD_CLOEXEC);
    if (file->fd < 0 || write(file->fd, content, bytes) != (ssize_t)bytes) {
        ek_bench_file_close(file);
        return ek_fail(EK_SYSTEM, "cannot make a file in memory: %s", strerror(errno));
    }
    snprintf(file->path, sizeof file->path, "/proc/self/fd/%d", file->fd);
    return EK_OK;
}

void ek_bench_file_close(ek_bench_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

ek_status ek_bench_config(ek_config **config, const char *yaml, const char *data_path)
{
    char data[96];
    snprintf(data, sizeof data, "data.path=%s", data_path);
    ek_bench_file file;
    EK_TRY(ek_bench_file_create(&file, yaml, strlen(yaml)));
    ek_status status = ek_config_read(config, file.path, (const char *const[]){data}, 1);
    ek_bench_file_close(&file);
    return status;
}

static void read_step(json_t *line, ek_bench_job *job)
{
    size_t number = (size_t)json_integer_value(json_object_get(line, "step")), i;
    if (number > EK_BENCH_STEPS_MOST)
        return;
    ek_bench_step *step = &job->step[number];
    job->steps = number;
    step->at = json_real_value(json_object_get(line, "at"));
    step->seconds = json_real_value(json_object_get(line, "seconds"));
    json_t *replica;
    json_array_foreach(json_object_get(line, "replicas"), i, replica)
    {
        if (i == EK_BENCH_REPLICAS_MOST)
            break;
        step->busy_seconds[i] = json_real_value(json_object_get(replica, "busy_seconds"));
        step->exposed_seconds[i] = json_real_value(json_object_get(replica, "exposed_seconds"));
        step->dispatch_bytes[i] = (uint64_t)json_integer_value(json_object_get(replica, "dispatch_bytes"));
    }
}

static void read_metrics(const char *path, ek_bench_job *job)
{
    FILE *file = fopen(path, "re");
    json_t *line;
    while (file && (line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL))) {
        const char *event = json_string_value(json_object_get(line, "event"));
        if (!event)
            read_step(line, job);
        else if (strcmp(event, "failure") == 0)
            job->failure_at = json_real_value(json_object_get(line, "injected_at"));
        else if (strcmp(event, "rejoined") == 0 && job->return_count < EK_BENCH_RETURNS_MOST)
            job->return_step[job->return_count++] = (size_t)json_integer_value(json_object_get(line, "step"));
        json_decref(line);
    }
    if (file)
        fclose(file);
}

static ek_status run(const ek_bench_file *text, const ek_bench_file *metrics, const ek_bench_setup *setup)
{
    ek_config *config;
    EK_TRY(ek_bench_config(&config, setup->yaml, text->path));
    config->engine.link_bytes_per_second = setup->link_bytes_per_second;
    config->engine.link_latency_seconds = setup->link_latency_seconds;
    ek_status status = ek_train(&(ek_train_options){.config = config,
                                                    .faults = setup->faults,
                                                    .fault_count = setup->fault_count,
                                                    .rejoins = setup->rejoins,
                                                    .rejoin_count = setup->rejoin_count,
                                                    .routes = setup->routes,
                                                    .routes_path = setup->routes_path,
                                                    .metrics_path = metrics->path,
                                                    .quiet = true});
    ek_config_destroy(config);
    return status;
}

ek_status ek_bench_run(const ek_bench_setup *setup, ek_bench_job *job)
{
    ek_bench_file text_file = {.fd = -1}, metrics = {.fd = -1};
    char *text = malloc(TEXT_BYTES);
    ek_status status = text ? EK_OK : ek_fail(EK_NO_MEMORY, "out of memory for the benchmark's text");
    for (size_t i = 0; text && i < TEXT_BYTES; i++)
        text[i] = (char)('a' + ek_random_u64(1, 0, i) % 26);
    if (status == EK_OK)
        status = ek_bench_file_create(&text_file, text, TEXT_BYTES);
    if (status == EK_OK)
        status = ek_bench_file_create(&metrics, "", 0);
    if (status == EK_OK)
        status = run(&text_file, &metrics, setup);
    *job = (ek_bench_job){0};
    if (status == EK_OK)
        read_metrics(metrics.path, job);
    ek_bench_file_close(&text_file);
    ek_bench_file_close(&metrics);
    free(text);
    return status;
}

void ek_bench_progress(const char *name, int done, int of)
{
    if (!isatty(STDERR_FILENO))
        return;
    if (done < of)
        fprintf(stderr, "\r\033[K%s: %d of %d", name, done, of);
    else
        fprintf(stderr, "\r\033[K");
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ek_bench_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

/* The chance that at most k of `count` values lie below the median: k or fewer heads of `count` fair coins. */
static double at_most(size_t k, size_t count)
{
    double sum = 0.0;
    for (size_t i = 0; i <= k; i++)
        sum += exp(lgamma((double)count + 1) - lgamma((double)i + 1) - lgamma((double)(count - i) + 1) -
                   (double)count * log(2.0));
    return sum;
}

void ek_bench_median_interval(const double *values, size_t count, double *low, double *high)
{
    size_t k = 0; /* values[k] and values[count-1-k] enclose the median with a chance of at least 95 % */
    while (k + 1 < count / 2 && at_most(k, count) <= 0.025)
        k++;
    k = k > 0 && at_most(k, count) > 0.025 ? k - 1 : k;
    *low = values[k];
    *high = values[count - 1 - k];
}
