#include "perf/published.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testing.h"

#define FIELDS_MOST 64

static void read_settings(const char *folder, const char *name, const ek_field *fields, size_t count, void *target)
{
    char path[512];
    ek_origin origins[FIELDS_MOST] = {0};
    assert_true(count <= FIELDS_MOST);
    snprintf(path, sizeof path, "%s/%s/%s.yaml", EXAMPLES, folder, name);
    const ek_settings settings = {fields, count, target, path, origins};
    assert_ok(ek_settings_read(&settings, NULL, 0));
}

static size_t job_fields(ek_field fields[FIELDS_MOST])
{
    static const ek_field own[] = {
        {"published.seconds", .kind = EK_FIELD_REAL, .offset = offsetof(published_job, seconds),
         .bytes = sizeof(double), .least_real = 0, .most_real = 1e6},
        {"published.source", .kind = EK_FIELD_STRING, .offset = offsetof(published_job, source)},
    };
    size_t count = ek_perf_fields_at(fields, own, 2, 0), more;
    const ek_field *table = ek_perf_model_fields(&more);
    count += ek_perf_fields_at(fields + count, table, more, offsetof(published_job, model));
    table = ek_perf_parallel_fields(&more);
    return count + ek_perf_fields_at(fields + count, table, more, offsetof(published_job, parallel));
}

void published_read(const char *name, published_job *job)
{
    ek_field fields[FIELDS_MOST];
    memset(job, 0, sizeof *job);
    read_settings("published", name, fields, job_fields(fields), job);
}

void published_free(published_job *job)
{
    free(job->source);
}

void published_hardware(const char *name, ek_perf_hardware *hardware)
{
    size_t count;
    const ek_field *fields = ek_perf_hardware_fields(&count);
    memset(hardware, 0, sizeof *hardware);
    read_settings("hardware", name, fields, count, hardware);
}

void published_step(const published_job *job, const ek_perf_hardware *hardware, ek_perf_time *time)
{
    ek_perf *perf;
    assert_ok(ek_perf_create(&perf, &job->model, &job->parallel, hardware));
    uint32_t degrees[128];
    for (uint32_t stage = 0; stage < job->parallel.pp; stage++)
        degrees[stage] = job->parallel.tp;
    const ek_perf_replica replica = {.degrees = degrees,
                                     .samples = (double)job->parallel.global_batch / job->parallel.dp};
    assert_ok(ek_perf_step(perf, &replica, time));
    ek_perf_destroy(perf);
}
