/* A run from its configuration to its end: data, membership, power, launch, closing lines. */
#include "train/train.h"

#include <stdlib.h>

#include "base/error.h"
#include "train/data.h"
#include "train/limits.h"
#include "train/monitor.h"
#include "train/pace.h"
#include "train/store.h"
#include "train/worker.h"

/* The unit groups of the job with the bytes of training state that one unit of each stands for. */
static uint32_t measure_units(const ek_run *run, ek_unit_group groups[EK_MODEL_GROUPS], uint64_t *replicated_bytes)
{
    uint32_t count = ek_model_groups(&run->config->model, groups);
    *replicated_bytes = 0;
    for (size_t t = 0; t < run->tensor_count; t++) {
        uint64_t bytes = EK_PLANES * run->tensors[t].unit_elements * sizeof(float);
        if (run->tensors[t].group == EK_REPLICATED)
            *replicated_bytes += bytes;
        else
            groups[run->tensors[t].group].unit_bytes += bytes;
    }
    return count;
}

/* The membership at the start: whole replicas, or with parallel.degrees as if the highest slots of each had failed. */
static ek_status make_membership(ek_run *run)
{
    const ek_config *config = run->config;
    uint32_t dp = config->parallel.dp, tp = config->parallel.tp;
    ek_unit_group groups[EK_MODEL_GROUPS];
    ek_job job = {.replicas = dp,
                  .base_degree = tp,
                  .min_degree = config->parallel.min_tp,
                  .spares = config->recovery.spares,
                  .groups = groups};
    job.group_count = measure_units(run, groups, &job.replicated_bytes);
    /* In a recovery the old state and the new one, each of EK_PLANES floats a weight, lie beside each other; gradients
     * are one more. */
    job.rank_bytes = config->engine.heap_bytes / (2 * EK_PLANES + 1) * EK_PLANES;
    ek_membership *whole;
    ek_status created = ek_membership_create(&whole, &job);
    if (created != EK_OK) /* units were checked with the configuration: what is left is the memory */
        return ek_fail_prefix(created,
                              "engine.heap_bytes: found %llu: ", (unsigned long long)config->engine.heap_bytes);
    uint32_t *absent = calloc((size_t)dp * tp, sizeof *absent), count = 0;
    for (uint32_t r = 0; absent && r < config->parallel.degree_count; r++)
        for (uint32_t slot = config->parallel.degrees[r]; slot < tp; slot++)
            absent[count++] = r * tp + slot;
    ek_status status = absent ? ek_membership_lose(whole, absent, count, &run->membership)
                              : ek_fail(EK_NO_MEMORY, "out of memory for the membership");
    free(absent);
    ek_membership_destroy(whole);
    return status;
}

static ek_status launch(ek_run *run)
{
    const ek_config *config = run->config;
    uint32_t ranks = ek_membership_ranks(run->membership);
    bool *absent = calloc(ranks, sizeof *absent);
    if (!absent)
        return ek_fail(EK_NO_MEMORY, "out of memory for the list of ranks");
    for (uint32_t rank = 0; rank < ranks; rank++)
        absent[rank] =
            !ek_membership_place(run->membership, rank, NULL, NULL) && !ek_membership_is_spare(run->membership, rank);
    ek_status status = ek_launch(&(ek_launch_options){
        .engine = config->engine.name,
        .ranks = ranks,
        .absent = absent,
        .threads = config->engine.threads,
        .timeout_seconds = config->engine.timeout_seconds,
        .heap_bytes = config->engine.heap_bytes,
        .link_bytes_per_second = config->engine.link_bytes_per_second,
        .link_latency_seconds = config->engine.link_latency_seconds,
        .main = ek_worker_main,
        .respawn_seconds = config->recovery.respawn_seconds,
        .on_start = ek_monitor_start,
        .on_report = ek_monitor_report,
        .on_lost = ek_monitor_lost,
        .user = run,
    });
    free(absent);
    /* nothing a rank finds wrong is an input that was refused before the start */
    return status == EK_INVALID ? ek_fail_prefix(EK_SYSTEM, "%s", "") : status;
}

/* What can be known of power, and whether what is asked of it can be: the ranks' governors are made from the same
 * options. */
static ek_status prepare_power(ek_run *run, ek_limits **limits, char complaint[EK_COMPLAINT_BYTES])
{
    const ek_config *config = run->config;
    run->default_watts = config->power.default_watts;
    ek_pace *pace;
    EK_TRY(ek_pace_create(&pace, config, ek_membership_job(run->membership), run->default_watts,
                          config->power.backend == EK_POWER_EMULATED));
    ek_pace_destroy(pace);
    EK_TRY(ek_limits_create(limits, config, ek_membership_ranks(run->membership), complaint));
    run->may_raise = *limits != NULL;
    if (!*limits)
        return EK_OK;
    run->default_watts = ek_limits_default_watts(*limits);
    EK_TRY(ek_pace_create(&pace, config, ek_membership_job(run->membership), run->default_watts, true));
    ek_pace_destroy(pace);
    return EK_OK;
}

static ek_status prepare(ek_run *run, ek_data **data, ek_limits **limits)
{
    char complaint[EK_COMPLAINT_BYTES];
    const ek_config *config = run->config;
    EK_TRY(ek_data_open(data, config->data.path, config->data.format, config->model.sequence, config->model.vocab));
    run->data = *data;
    EK_TRY(ek_model_tensors(&config->model, &run->tensors, &run->tensor_count));
    run->bucket_count = ek_model_buckets(&config->model);
    EK_TRY(make_membership(run));
    EK_TRY(prepare_power(run, limits, complaint));
    if (run->options->routes != EK_ROUTES_FREE)
        EK_TRY(ek_routes_file_open(&run->routes, run->options->routes_path, run->options->routes, config,
                                   (const char *const[]){config->data.path, run->options->config_path}, 2));
    return ek_monitor_create(&run->monitor, run, *limits, complaint);
}

ek_status ek_train(const ek_train_options *options)
{
    ek_run run = {.options = options, .config = options->config};
    ek_data *data = NULL;
    ek_limits *limits = NULL;
    ek_status status = prepare(&run, &data, &limits);
    if (status == EK_OK)
        status = ek_monitor_finish(run.monitor, launch(&run));
    else if (status != EK_NO_MEMORY) /* an input that cannot be used is refused, whatever the reason */
        status = ek_fail_prefix(EK_INVALID, "%s", "");
    ek_status restored = ek_limits_end(limits);
    status = status == EK_OK ? restored : status;
    ek_monitor_destroy(run.monitor);
    ek_membership_destroy(run.membership);
    ek_free(run.tensors);
    ek_routes_file_close(run.routes);
    ek_data_close(data);
    return status;
}
