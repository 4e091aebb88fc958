/* Reads published measurements, the hardware behind them and the ranges of its inputs. */
#include "perf/published.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define FIELDS_MOST 64

static const ek_field own_fields[] = {
    {"published.hardware", .kind = EK_FIELD_STRING, .offset = offsetof(ek_published, machine),
     .help = "the file of the hardware"},
    {"published.seconds", .kind = EK_FIELD_REAL, .offset = offsetof(ek_published, seconds), .bytes = sizeof(double),
     .least_real = 1e-6, .most_real = 1e6, .help = "time of a step"},
    {"published.source", .kind = EK_FIELD_STRING, .offset = offsetof(ek_published, source),
     .help = "where it was published"},
};

static size_t job_fields(ek_field fields[FIELDS_MOST])
{
    size_t more, count = ek_perf_fields_at(fields, own_fields, sizeof own_fields / sizeof *own_fields, 0);
    const ek_field *table = ek_perf_model_fields(&more);
    count += ek_perf_fields_at(fields + count, table, more, offsetof(ek_published, model));
    table = ek_perf_parallel_fields(&more);
    return count + ek_perf_fields_at(fields + count, table, more, offsetof(ek_published, parallel));
}

static ek_status read_job(const char *path, ek_published *published)
{
    ek_field fields[FIELDS_MOST];
    ek_origin origins[FIELDS_MOST] = {0};
    size_t count = job_fields(fields);
    const ek_settings job = {fields, count, published, path, origins};
    EK_TRY(ek_settings_read(&job, NULL, 0));

    ek_origin hardware_origins[FIELDS_MOST] = {0};
    const ek_field *hardware_fields = ek_perf_hardware_fields(&count);
    const ek_settings hardware = {hardware_fields, count, &published->hardware, published->machine, hardware_origins};
    EK_TRY(ek_settings_read(&hardware, NULL, 0));
    ek_perf *perf;
    ek_status status = ek_perf_create(&perf, &published->model, &published->parallel, &published->hardware);
    if (status != EK_OK)
        return ek_settings_locate(&job, status);
    ek_perf_destroy(perf);
    return EK_OK;
}

ek_status ek_published_read(ek_published **published, const char *path)
{
    ek_published *read = calloc(1, sizeof *read);
    if (!read)
        return ek_fail(EK_NO_MEMORY, "no memory for a published time");
    ek_status status = read_job(path, read);
    if (status != EK_OK) {
        ek_published_destroy(read);
        return status;
    }
    *published = read;
    return EK_OK;
}

void ek_published_destroy(ek_published *published)
{
    if (!published)
        return;
    ek_settings_free(own_fields, sizeof own_fields / sizeof *own_fields, published);
    free(published);
}

ek_status ek_published_step(const ek_published *published, ek_perf_time *time)
{
    const ek_perf_parallel *parallel = &published->parallel;
    ek_perf *perf;
    EK_TRY(ek_perf_create(&perf, &published->model, parallel, &published->hardware));
    uint32_t *degrees = calloc(parallel->pp, sizeof *degrees);
    ek_status status = degrees ? EK_OK : ek_fail(EK_NO_MEMORY, "no memory for %u stages", parallel->pp);
    if (degrees) {
        for (uint32_t stage = 0; stage < parallel->pp; stage++)
            degrees[stage] = parallel->tp;
        const ek_perf_replica replica = {.degrees = degrees, .samples = (double)parallel->global_batch / parallel->dp};
        status = ek_perf_step(perf, &replica, time);
    }
    free(degrees);
    ek_perf_destroy(perf);
    return status;
}

/* The pairs of a ranges file, one list of pairs for each input. */
typedef struct range_lists {
    double *pairs[EK_PERF_RANGES];
    size_t counts[EK_PERF_RANGES];
} range_lists;

#define RANGE(index, member)                                                                                           \
    {                                                                                                                  \
        .key = "ranges." #member, .kind = EK_FIELD_PAIRS, .offset = offsetof(range_lists, pairs[index]),               \
        .count_offset = offsetof(range_lists, counts[index]), .least_real = 0, .most_real = 1e6,                       \
        .help = "low and high"                                                                                         \
    }

static const ek_field range_fields[EK_PERF_RANGES] = {
    RANGE(0, matmul_efficiency),   RANGE(1, memory_efficiency), RANGE(2, kernel_seconds),
    RANGE(3, scale_up_efficiency), RANGE(4, scale_up_seconds),  RANGE(5, scale_out_efficiency),
    RANGE(6, scale_out_seconds),
};
static const size_t range_offsets[EK_PERF_RANGES] = {
    offsetof(ek_perf_hardware, matmul_efficiency), offsetof(ek_perf_hardware, memory_efficiency),
    offsetof(ek_perf_hardware, kernel_seconds),    offsetof(ek_perf_hardware, scale_up_efficiency),
    offsetof(ek_perf_hardware, scale_up_seconds),  offsetof(ek_perf_hardware, scale_out_efficiency),
    offsetof(ek_perf_hardware, scale_out_seconds),
};

ek_status ek_perf_ranges_read(const char *path, ek_perf_range ranges[EK_PERF_RANGES])
{
    range_lists lists = {0};
    ek_origin origins[EK_PERF_RANGES] = {0};
    const ek_settings settings = {range_fields, EK_PERF_RANGES, &lists, path, origins};
    ek_status status = ek_settings_read(&settings, NULL, 0);
    for (size_t i = 0; i < EK_PERF_RANGES && status == EK_OK; i++) {
        if (lists.counts[i] != 1 || lists.pairs[i][0] > lists.pairs[i][1])
            status = ek_settings_refuse(&settings, range_fields[i].key, "one pair is needed, [[low, high]]");
        else
            ranges[i] = (ek_perf_range){range_fields[i].key + strlen("ranges."), range_offsets[i], lists.pairs[i][0],
                                        lists.pairs[i][1]};
    }
    ek_settings_free(range_fields, EK_PERF_RANGES, &lists);
    return status;
}
