/* A run from its configuration to its end: data, membership, power, launch, closing lines. */
#include "train/train.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/whole_file.h"
#include "train/data.h"
#include "train/limits.h"
#include "train/monitor.h"
#include "train/pace.h"
#include "train/records.h"
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

/* The other processes of an MPI job wait for this one, which tells them that there will be none. */
static ek_status refuse_to_start(void *user, ek_launcher *launcher)
{
    (void)launcher;
    return ek_fail(EK_INVALID, "%s", ((const ek_run *)user)->refusal);
}

static ek_status launch_ranks(ek_run *run)
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
        .committed_step = run->briefing.resumed_step,
        .main = ek_worker_main,
        .respawn_seconds = config->recovery.respawn_seconds,
        .shared = &run->briefing,
        .shared_bytes = sizeof run->briefing,
        .on_start = run->refusal ? refuse_to_start : ek_monitor_start,
        .on_report = ek_monitor_report,
        .on_lost = ek_monitor_lost,
        .on_signal = ek_monitor_signal,
        .user = run,
    });
    free(absent);
    return status;
}

/* Nothing a rank finds wrong is an input that was refused before the start. */
static ek_status launch(ek_run *run)
{
    ek_status status = launch_ranks(run);
    return status == EK_INVALID ? EK_SYSTEM : status;
}

/* In a process that does not lead, which leaves it to the leading one to say what is wrong. */
static ek_status follow(ek_run *run)
{
    ek_status status = launch_ranks(run);
    if (status == EK_INVALID)
        return ek_fail(EK_INVALID, "%s", "");
    return status == EK_OK ? EK_OK : EK_FENCED;
}

/* What can be known of power, and whether what is asked of it can be: the ranks' governors are made from the same
 * options. */
static ek_status prepare_power(ek_run *run, ek_limits **limits, char complaint[EK_COMPLAINT_BYTES])
{
    const ek_config *config = run->config;
    run->briefing.default_watts = config->power.default_watts;
    ek_pace *pace;
    EK_TRY(ek_pace_create(&pace, config, ek_membership_job(run->membership), run->briefing.default_watts,
                          config->power.backend == EK_POWER_EMULATED));
    ek_pace_destroy(pace);
    EK_TRY(ek_limits_create(limits, config, ek_membership_ranks(run->membership), complaint));
    run->briefing.may_raise = *limits != NULL;
    if (!*limits)
        return EK_OK;
    run->briefing.default_watts = ek_limits_default_watts(*limits);
    EK_TRY(ek_pace_create(&pace, config, ek_membership_job(run->membership), run->briefing.default_watts, true));
    ek_pace_destroy(pace);
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------- checkpoints */

static void warn(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "evenkeel: a checkpoint is passed over: %s\n", line);
}

/* The last complete checkpoint up to a step, as what the run goes on from; resumed_step is 0 if there is none. */
static ek_status find_checkpoint(ek_run *run, uint64_t most)
{
    return ek_checkpoint_find(run->checkpoints, most, &run->briefing.resumed_step, run->briefing.resumed_path, warn,
                              NULL);
}

/* A run that begins must not be mixed up with what an earlier one has left. */
static ek_status check_fresh(const ek_run *run)
{
    uint64_t newest;
    EK_TRY(ek_checkpoint_newest(run->checkpoints, &newest));
    if (!newest)
        return EK_OK;
    return ek_fail(EK_INVALID,
                   "%s: a run has left checkpoints there, up to step %" PRIu64
                   "; --resume goes on from them, or name another folder",
                   run->config->checkpoint.dir, newest);
}

static ek_status resume(ek_run *run)
{
    const ek_config *config = run->config;
    EK_TRY(find_checkpoint(run, UINT64_MAX));
    if (run->briefing.resumed_step > config->train.steps)
        return ek_fail(EK_INVALID, "--resume: the last checkpoint is of step %" PRIu64 "; train.steps is %" PRIu64,
                       run->briefing.resumed_step, config->train.steps);
    return EK_OK;
}

static ek_status open_checkpoints(ek_run *run)
{
    const ek_config *config = run->config;
    ek_checkpoint_run alike = {&config->model, config->train.seed, config->batch.global};
    ek_status status = ek_checkpoint_dir_open(&run->checkpoints, config->checkpoint.dir, &alike);
    if (status == EK_OK)
        run->briefing.checkpoint_identity = ek_checkpoint_identity(run->checkpoints);
    if (status == EK_OK)
        status = run->options->resume ? resume(run) : check_fresh(run);
    return status == EK_OK ? EK_OK : ek_fail_prefix(status, "checkpoint.dir: ");
}

static ek_status check_weights(const ek_config *config)
{
    if (config->checkpoint.weights && ek_checkpoint_check_weights(config->checkpoint.weights, &config->model) != EK_OK)
        return ek_fail_prefix(EK_INVALID, "checkpoint.weights: ");
    return EK_OK;
}

static ek_status prepare_checkpoints(ek_run *run)
{
    const ek_config *config = run->config;
    if (!run->options->resume) /* before a folder is made for checkpoints */
        EK_TRY(check_weights(config));
    if (config->checkpoint.dir)
        EK_TRY(open_checkpoints(run));
    return run->options->resume && !run->briefing.resumed_step ? check_weights(config) : EK_OK;
}

/* After the loss of what nobody holds any more: the ranks that are left go on from the last checkpoint, of this run or
 * that it went on from. Without one the loss stays: *status. */
static ek_status go_back(ek_run *run, const ek_membership *start, ek_status *status)
{
    char lost_unit[EK_ERROR_BYTES];
    snprintf(lost_unit, sizeof lost_unit, "%s", ek_error());
    if (run->checkpoints)
        EK_TRY(find_checkpoint(run, ek_monitor_last_step(run->monitor)));
    if (!run->checkpoints || !run->briefing.resumed_step)
        return ek_fail(EK_UNIT_LOST, "%s", lost_unit);
    ek_membership *survivors;
    EK_TRY(ek_monitor_survivors(run->monitor, start, &survivors));
    ek_membership_destroy(run->membership);
    run->membership = survivors;
    EK_TRY(ek_monitor_resume(run->monitor));
    *status = launch(run);
    return EK_OK;
}

/* Where an engine cannot go on without what was lost, the user can. */
static ek_status tell_of_resume(const ek_run *run, ek_status status)
{
    char text[EK_ERROR_BYTES];
    uint64_t newest = 0;
    snprintf(text, sizeof text, "%s", ek_error());
    if (run->checkpoints && ek_checkpoint_newest(run->checkpoints, &newest) == EK_OK && newest)
        return ek_fail(status, "%s; --resume goes on from step %" PRIu64, text, newest);
    return ek_fail(status, "%s", text);
}

/* Launches the ranks, again from a checkpoint as often as need be. */
static ek_status launch_and_go_back(ek_run *run)
{
    ek_membership *start;
    EK_TRY(ek_membership_lose(run->membership, NULL, 0, &start));
    ek_status status = launch(run), went_back = EK_OK;
    if (run->place.once && (status == EK_UNIT_LOST || status == EK_PEER_LOST))
        status = tell_of_resume(run, status);
    while (status == EK_UNIT_LOST && went_back == EK_OK && !run->place.once)
        went_back = go_back(run, start, &status);
    if (went_back != EK_OK)
        status = went_back;
    ek_membership_destroy(start);
    uint64_t last = ek_monitor_last_step(run->monitor);
    if (status == EK_OK && ek_monitor_stops(run->monitor) && last < run->config->train.steps)
        return ek_fail(EK_INTERRUPTED, "the job was ended by SIGTERM after step %" PRIu64 "%s", last,
                       ek_monitor_saved_step(run->monitor) == last ? "; --resume goes on from there" : "");
    return status;
}

/* ------------------------------------------------------------------------------------------------ engine */

static ek_status refuse_with(const ek_run *run, const char *what)
{
    return ek_fail(EK_INVALID, "%s: not with engine.name %s", what, run->config->engine.name);
}

/* What is asked for must be among what the engine can do. */
static ek_status check_abilities(const ek_run *run)
{
    const ek_config *config = run->config;
    const ek_place *place = &run->place;
    bool has_link = config->engine.link_bytes_per_second > 0 || config->engine.link_latency_seconds > 0;
    bool has_devices = config->power.backend != EK_POWER_NONE && config->power.backend != EK_POWER_EMULATED;
    if (config->engine.threads && !place->threads)
        return refuse_with(run, "engine.threads");
    if (has_link && !place->links)
        return refuse_with(run, "an emulated link");
    if (config->recovery.respawn_seconds > 0 && !place->returns)
        return refuse_with(run, "recovery.respawn_seconds");
    if (run->options->rejoin_count > 0 && !place->returns)
        return refuse_with(run, "--rejoin");
    if (has_devices && !place->one_machine) /* whose limits the launching process sets */
        return refuse_with(run, "power.backend for real devices");
    return EK_OK;
}

const char *ek_train_starter(ek_place *place)
{
    for (const char *const *engine = ek_engines(); *engine; engine++)
        if (ek_launch_place(*engine, place) == EK_OK && place->processes > 1)
            return *engine;
    return NULL;
}

/* As many processes as the engine wants. */
static ek_status check_place(ek_run *run)
{
    const char *name = run->config->engine.name;
    if (ek_launch_place(name, &run->place) != EK_OK)
        return ek_fail_prefix(EK_INVALID, "engine.name: ");
    ek_place among;
    const char *starter = ek_train_starter(&among);
    if (starter && strcmp(starter, name) != 0)
        return ek_fail(EK_INVALID, "%u processes were started, as by mpirun, but engine.name is %s; set it to %s",
                       among.processes, name, starter);
    EK_TRY(check_abilities(run));
    if (!run->place.once)
        return EK_OK;
    uint32_t present = 0;
    for (uint32_t rank = 0; rank < ek_membership_ranks(run->membership); rank++)
        present += ek_rank_is_known(run->membership, rank);
    if (present == run->place.processes)
        return EK_OK;
    return ek_fail(EK_INVALID,
                   "engine.name: %s: %u processes were started for %u ranks (parallel.dp x parallel.tp, as far as "
                   "parallel.degrees has them, and recovery.spares); mpirun -n %u is needed",
                   name, run->place.processes, present, present);
}

/* ------------------------------------------------------------------------------------------------- whole */

ek_status ek_run_open_routes(ek_run *run)
{
    const ek_train_options *options = run->options;
    if (options->routes == EK_ROUTES_FREE || run->routes)
        return EK_OK;
    return ek_routes_file_open(&run->routes, options->routes_path, options->routes, run->place.process == 0,
                               run->config);
}

/* Before any of them is opened: no output is an input, or another output. */
static ek_status check_outputs(const ek_train_options *options)
{
    const ek_config *config = options->config;
    bool two_files = config->data.format == EK_DATA_MEGATRON, records = options->routes == EK_ROUTES_RECORD;
    char tokens[PATH_MAX], index[PATH_MAX];
    snprintf(tokens, sizeof tokens, "%s%s", config->data.path, two_files ? ".bin" : "");
    snprintf(index, sizeof index, "%s%s", config->data.path, two_files ? ".idx" : "");
    const char *const used[] = {tokens, index, options->config_path, options->routes_path};
    enum { INPUTS = 3, ALL = sizeof used / sizeof *used };
    if (records)
        EK_TRY(ek_output_check("--routes", options->routes_path, used, INPUTS));
    return options->metrics_path ? ek_output_check("--metrics", options->metrics_path, used, ALL) : EK_OK;
}

/* What every process of a job has, whoever leads. */
static ek_status prepare(ek_run *run, ek_data **data)
{
    const ek_config *config = run->config;
    EK_TRY(check_outputs(run->options));
    EK_TRY(ek_data_open(data, config->data.path, config->data.format, config->model.sequence, config->model.vocab));
    run->data = *data;
    EK_TRY(ek_model_tensors(&config->model, &run->tensors, &run->tensor_count));
    run->bucket_count = ek_model_buckets(&config->model);
    EK_TRY(make_membership(run));
    return check_place(run);
}

/* What the launching process has. */
static ek_status prepare_to_lead(ek_run *run, ek_limits **limits)
{
    char complaint[EK_COMPLAINT_BYTES];
    EK_TRY(prepare_checkpoints(run));
    EK_TRY(prepare_power(run, limits, complaint));
    EK_TRY(ek_run_open_routes(run));
    return ek_monitor_create(&run->monitor, run, *limits, complaint);
}

/* An input that cannot be used is refused, whatever the reason. */
static ek_status refuse(ek_run *run, ek_status status)
{
    char reason[EK_ERROR_BYTES];
    snprintf(reason, sizeof reason, "%s", ek_error());
    run->refusal = reason;
    if (run->place.processes > 1)
        launch(run);
    run->refusal = NULL;
    return ek_fail(status == EK_NO_MEMORY ? status : EK_INVALID, "%s", reason);
}

static ek_status lead(ek_run *run)
{
    ek_limits *limits = NULL;
    ek_status status = prepare_to_lead(run, &limits);
    if (status == EK_OK)
        status = ek_monitor_finish(run->monitor, launch_and_go_back(run));
    else
        status = refuse(run, status);
    ek_status restored = ek_limits_end(limits);
    ek_monitor_destroy(run->monitor);
    ek_checkpoint_dir_close(run->checkpoints);
    return status == EK_OK ? restored : status;
}

ek_status ek_train(const ek_train_options *options)
{
    ek_run run = {.options = options, .config = options->config};
    ek_data *data = NULL;
    ek_status status = prepare(&run, &data);
    if (status != EK_OK)
        status = status == EK_NO_MEMORY ? status : EK_INVALID;
    else if (run.place.process > 0)
        status = follow(&run);
    else
        status = lead(&run);
    ek_membership_destroy(run.membership);
    ek_free(run.tensors);
    ek_routes_file_close(run.routes);
    ek_data_close(data);
    return status;
}
