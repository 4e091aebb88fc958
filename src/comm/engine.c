/* The public functions of engines: arguments are checked here, once for all engines. */
#include "comm/engine.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct ek_engine_operations *const engines[] = {
    &ek_engine_shm,
#ifdef EK_MPI
    &ek_engine_mpi,
#endif
};

const char *const *ek_engines(void)
{
    static const char *const names[] = {
        "shm",
#ifdef EK_MPI
        "mpi",
#endif
        NULL,
    };
    return names;
}

static ek_status find_engine(const char *name, const struct ek_engine_operations **found)
{
    for (size_t i = 0; i < sizeof engines / sizeof engines[0]; i++) {
        if (name && !strcmp(name, engines[i]->name)) {
            *found = engines[i];
            return EK_OK;
        }
    }
    const char *const *names = ek_engines();
    return ek_fail(EK_INVALID, "there is no engine \"%s\" in this build; there is \"shm\"%s", name ? name : "",
                   names[1] ? " and \"mpi\"" : "");
}

ek_status ek_launch_place(const char *engine, ek_place *place)
{
    const struct ek_engine_operations *operations = NULL;
    EK_TRY(find_engine(engine, &operations));
    operations->place(place);
    return EK_OK;
}

/* What is asked for must be among what the engine can do. */
static ek_status check_abilities(const ek_launch_options *options, const struct ek_engine_operations *operations)
{
    ek_place place;
    operations->place(&place);
    const char *lacks = NULL;
    if (options->threads && !place.threads)
        lacks = "have ranks that are threads";
    else if ((options->link_bytes_per_second > 0 || options->link_latency_seconds > 0) && !place.links)
        lacks = "emulate links";
    else if (options->respawn_seconds > 0 && !place.returns)
        lacks = "start lost ranks again";
    return lacks ? ek_fail(EK_INVALID, "ek_launch: the engine \"%s\" cannot %s", operations->name, lacks) : EK_OK;
}

ek_status ek_launch(const ek_launch_options *options)
{
    if (!options || !options->main)
        return ek_fail(EK_INVALID, "ek_launch: main is NULL");
    if (options->ranks < 1 || options->ranks > EK_RANKS_MOST)
        return ek_fail(EK_INVALID, "ek_launch: %u ranks; 1 to %d are allowed", options->ranks, EK_RANKS_MOST);
    uint32_t present = options->ranks;
    for (uint32_t rank = 0; options->absent && rank < options->ranks; rank++)
        present -= options->absent[rank];
    if (present == 0)
        return ek_fail(EK_INVALID, "ek_launch: all ranks are absent");
    const double numbers[] = {options->timeout_seconds, options->link_bytes_per_second, options->link_latency_seconds,
                              options->respawn_seconds};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (!isfinite(numbers[i]) || numbers[i] < 0)
            return ek_fail(EK_INVALID,
                           "ek_launch: timeout, link bandwidth, link latency and respawn time must be 0 or more");
    if (options->shared_bytes > EK_SHARED_BYTES)
        return ek_fail(EK_INVALID, "ek_launch: %zu shared bytes; at most %d are allowed", options->shared_bytes,
                       EK_SHARED_BYTES);
    const struct ek_engine_operations *operations = NULL;
    EK_TRY(find_engine(options->engine, &operations));
    EK_TRY(check_abilities(options, operations));
    return operations->launch(options);
}

ek_status ek_launcher_revive(ek_launcher *launcher, uint32_t rank)
{
    if (rank >= launcher->ranks)
        return ek_fail(EK_INVALID, "ek_launcher_revive: rank %u; the job has %u ranks", rank, launcher->ranks);
    return launcher->operations->revive(launcher, rank);
}

ek_status ek_launcher_kill(ek_launcher *launcher, uint32_t rank)
{
    if (rank >= launcher->ranks)
        return ek_fail(EK_INVALID, "ek_launcher_kill: rank %u; the job has %u ranks", rank, launcher->ranks);
    return launcher->operations->kill(launcher, rank);
}

void ek_launcher_ask(ek_launcher *launcher, uint64_t wish)
{
    launcher->operations->ask(launcher, wish);
}

uint32_t ek_engine_rank(const ek_engine *engine)
{
    return engine->rank;
}

uint32_t ek_engine_ranks(const ek_engine *engine)
{
    return engine->ranks;
}

const char *ek_engine_name(const ek_engine *engine)
{
    return engine->operations->name;
}

bool ek_engine_is_new(const ek_engine *engine)
{
    return engine->is_new;
}

bool ek_engine_joining(const ek_engine *engine)
{
    return engine->joining;
}

/* What newcomers must not do yet. */
static ek_status check_joined(const ek_engine *engine, const char *function)
{
    if (engine->is_new)
        return ek_fail(EK_INVALID, "%s: rank %u has not joined the job: ek_agree comes first", function, engine->rank);
    return EK_OK;
}

ek_status ek_engine_alloc(ek_engine *engine, size_t bytes, void **memory)
{
    return engine->operations->alloc(engine, bytes, memory);
}

void ek_engine_free(ek_engine *engine, void *memory)
{
    if (memory)
        engine->operations->free(engine, memory);
}

/* ------------------------------------------------------------------------------------------------ groups */

static ek_status check_lane(ek_lane lane)
{
    if (lane != EK_LANE_COMPUTE && lane != EK_LANE_GRADIENT)
        return ek_fail(EK_INVALID, "lane %d does not exist", (int)lane);
    return EK_OK;
}

/* Distinct ranks that are in the job, the caller among them: finds its index. */
static ek_status check_members(const ek_engine *engine, const uint32_t *ranks, uint32_t count, uint32_t *index)
{
    bool *seen = calloc(engine->ranks, sizeof *seen);
    if (!seen)
        return ek_fail(EK_NO_MEMORY, "ek_group_create: out of memory");
    ek_status status = EK_OK;
    *index = EK_NONE;
    for (uint32_t i = 0; i < count && status == EK_OK; i++) {
        if (ranks[i] >= engine->ranks)
            status = ek_fail(EK_INVALID, "ek_group_create: rank %u; the job has %u ranks", ranks[i], engine->ranks);
        else if (seen[ranks[i]])
            status = ek_fail(EK_INVALID, "ek_group_create: rank %u is given twice", ranks[i]);
        else if (!engine->live[ranks[i]])
            status = ek_fail(EK_INVALID, "ek_group_create: rank %u is lost or absent", ranks[i]);
        else
            seen[ranks[i]] = true;
        if (ranks[i] == engine->rank)
            *index = i;
    }
    free(seen);
    if (status == EK_OK && *index == EK_NONE)
        status = ek_fail(EK_INVALID, "ek_group_create: rank %u is not a member of the group", engine->rank);
    return status;
}

ek_status ek_group_create(ek_group **group, ek_engine *engine, ek_lane lane, uint32_t tag, const uint32_t *ranks,
                          uint32_t count)
{
    uint32_t index = EK_NONE;
    EK_TRY(check_joined(engine, "ek_group_create"));
    EK_TRY(check_lane(lane));
    EK_TRY(check_members(engine, ranks, count, &index));
    uint32_t *members = malloc(count * sizeof *members);
    if (!members)
        return ek_fail(EK_NO_MEMORY, "ek_group_create: out of memory");
    memcpy(members, ranks, count * sizeof *members);
    ek_status status = engine->operations->group_create(group, engine, lane, tag, members, count, index);
    if (status != EK_OK)
        free(members);
    return status;
}

void ek_group_destroy(ek_group *group)
{
    if (!group)
        return;
    uint32_t *members = group->members;
    group->engine->operations->group_destroy(group);
    free(members);
}

uint32_t ek_group_size(const ek_group *group)
{
    return group->count;
}

uint32_t ek_group_index(const ek_group *group)
{
    return group->index;
}

/* ------------------------------------------------------------------------------------------- collectives */

static ek_status submit(const struct ek_operation *operation, ek_request *request)
{
    ek_group *group = operation->group;
    return group->engine->operations->submit(group->engine, group->lane, operation, request);
}

static ek_status check_reduction(ek_reduction reduction)
{
    if (reduction != EK_SUM && reduction != EK_MAX)
        return ek_fail(EK_INVALID, "reduction %d does not exist", (int)reduction);
    return EK_OK;
}

ek_status ek_all_reduce(ek_group *group, float *buffer, size_t count, ek_reduction reduction, ek_request *request)
{
    EK_TRY(check_reduction(reduction));
    return submit(&(struct ek_operation){.kind = EK_ALL_REDUCE,
                                         .group = group,
                                         .input = buffer,
                                         .output = buffer,
                                         .size = count,
                                         .reduction = reduction},
                  request);
}

ek_status ek_reduce_scatter(ek_group *group, const float *input, float *output, const size_t *counts,
                            ek_request *request)
{
    return submit(&(struct ek_operation){.kind = EK_REDUCE_SCATTER,
                                         .group = group,
                                         .input = input,
                                         .output = output,
                                         .input_sizes = counts,
                                         .reduction = EK_SUM},
                  request);
}

ek_status ek_all_gather(ek_group *group, const void *input, void *output, const size_t *bytes, ek_request *request)
{
    return submit(
        &(struct ek_operation){
            .kind = EK_ALL_GATHER, .group = group, .input = input, .output = output, .output_sizes = bytes},
        request);
}

ek_status ek_all_to_all(ek_group *group, const void *send, const size_t *send_bytes, void *receive,
                        const size_t *receive_bytes, ek_request *request)
{
    return submit(&(struct ek_operation){.kind = EK_ALL_TO_ALL,
                                         .group = group,
                                         .input = send,
                                         .output = receive,
                                         .input_sizes = send_bytes,
                                         .output_sizes = receive_bytes},
                  request);
}

ek_status ek_broadcast(ek_group *group, void *buffer, size_t bytes, uint32_t root_index, ek_request *request)
{
    if (root_index >= group->count)
        return ek_fail(EK_INVALID, "ek_broadcast: root %u of a group of %u", root_index, group->count);
    return submit(
        &(struct ek_operation){
            .kind = EK_BROADCAST, .group = group, .input = buffer, .output = buffer, .size = bytes, .root = root_index},
        request);
}

ek_status ek_barrier(ek_group *group, ek_request *request)
{
    return submit(&(struct ek_operation){.kind = EK_BARRIER, .group = group}, request);
}

/* -------------------------------------------------------------------------------------- point-to-point */

static ek_status check_messages(const ek_engine *engine, const ek_message *messages, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (messages[i].peer >= engine->ranks)
            return ek_fail(EK_INVALID, "ek_exchange: rank %u; the job has %u ranks", messages[i].peer, engine->ranks);
        if (!engine->live[messages[i].peer])
            return ek_fail(EK_INVALID, "ek_exchange: rank %u is lost or absent", messages[i].peer);
    }
    return EK_OK;
}

ek_status ek_exchange(ek_engine *engine, ek_lane lane, const ek_message *sends, size_t send_count,
                      const ek_message *receives, size_t receive_count, ek_request *request)
{
    EK_TRY(check_joined(engine, "ek_exchange"));
    EK_TRY(check_lane(lane));
    EK_TRY(check_messages(engine, sends, send_count));
    EK_TRY(check_messages(engine, receives, receive_count));
    return engine->operations->submit(engine, lane,
                                      &(struct ek_operation){.kind = EK_EXCHANGE,
                                                             .sends = sends,
                                                             .receives = receives,
                                                             .send_count = send_count,
                                                             .receive_count = receive_count},
                                      request);
}

ek_status ek_wait(ek_engine *engine, ek_lane lane, ek_request request)
{
    EK_TRY(check_lane(lane));
    return engine->operations->wait(engine, lane, request);
}

/* ------------------------------------------------------------------------------------ agreement and life */

ek_status ek_vote(ek_engine *engine, uint64_t step, const double *values, double *sums, uint32_t count)
{
    if (count > EK_VOTE_VALUES)
        return ek_fail(EK_INVALID, "ek_vote: %u values; at most %d are allowed", count, EK_VOTE_VALUES);
    EK_TRY(check_joined(engine, "ek_vote"));
    return engine->operations->vote(engine, step, values, sums, count);
}

ek_status ek_agree(ek_engine *engine, ek_agreement_kind kind, bool ok, ek_agreement *agreement)
{
    if (kind != EK_AGREE_BEGIN && kind != EK_AGREE_END)
        return ek_fail(EK_INVALID, "ek_agree: kind %d does not exist", (int)kind);
    if (kind == EK_AGREE_END)
        EK_TRY(check_joined(engine, "ek_agree (END)"));
    return engine->operations->agree(engine, kind, ok, agreement);
}

void ek_beat(ek_engine *engine, uint64_t note)
{
    engine->operations->beat(engine, note);
}

ek_status ek_report(ek_engine *engine, const void *record, size_t bytes)
{
    if (bytes > EK_REPORT_BYTES)
        return ek_fail(EK_INVALID, "ek_report: %zu bytes; at most %d are allowed", bytes, EK_REPORT_BYTES);
    return engine->operations->report(engine, record, bytes);
}

uint64_t ek_engine_asked(const ek_engine *engine)
{
    return engine->operations->asked(engine);
}

ek_status ek_inject(ek_engine *engine, ek_fault fault)
{
    if (fault != EK_FAULT_KILL && fault != EK_FAULT_HANG)
        return ek_fail(EK_INVALID, "ek_inject: fault %d does not exist", (int)fault);
    return engine->operations->inject(engine, fault);
}
