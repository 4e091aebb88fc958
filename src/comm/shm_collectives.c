/* Groups and collectives of the engine "shm".
 *
 * Every collective is one pattern: publish what the others shall read, arrive, wait until all have, read from the
 * others and write to one's own memory, leave. What is small is copied into a slot of the lane first: then nobody has
 * to wait at the end until the others have read it, a whole operation costs one wait, and the slot is guarded until all
 * have left. What is large is read where it lies, and the owner waits until all have left. All-reduce of a large
 * buffer is two of these in one: member i reduces part i, then all copy the parts from the members that have them. */
#include "comm/futex.h"
#include "comm/reduce.h"
#include "comm/shm.h"

#include "base/hash.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Every member reads all inputs of an all-reduce if they are no more than this together, to save a wait. */
#define SMALL_TOTAL_BYTES ((size_t)1 << 17)

/* ------------------------------------------------------------------------------------------------ groups */

/* The members find each other by (lane, tag, members); the table is wiped when an epoch ends. */
static struct shm_block *claim_block(const struct shm_job *job, uint64_t key)
{
    for (uint64_t probe = 0; probe < job->block_count; probe++) {
        struct shm_block *block = &job->blocks[(key + probe) & (job->block_count - 1)];
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&block->key, &found, key) || found == key)
            return block;
    }
    return NULL;
}

ek_status shm_group_create(ek_group **group, ek_engine *base, ek_lane lane, uint32_t tag, uint32_t *members,
                           uint32_t count, uint32_t index)
{
    const struct shm_engine *engine = (struct shm_engine *)base;
    uint64_t key = ek_hash(members, count * sizeof *members, (uint64_t)tag << 1 | lane);
    struct shm_block *block = claim_block(engine->job, key ? key : 1);
    if (!block)
        return ek_fail(EK_NO_MEMORY, "ek_group_create: there are already %llu groups",
                       (unsigned long long)engine->job->block_count);
    struct shm_group *created = malloc(sizeof *created);
    if (!created)
        return ek_fail(EK_NO_MEMORY, "ek_group_create: out of memory");
    /* The same group may have been made and destroyed before in this epoch, and others may already be in the next
     * phase; but no phase ends, and nobody departs, without this member. */
    assert(count > 0);
    uint64_t arrivals = atomic_load(&block->arrivals.value) / SHM_ONE;
    uint64_t departures = atomic_load(&block->departures.value) / SHM_ONE;
    *created = (struct shm_group){
        .base = {.engine = base, .lane = lane, .count = count, .index = index, .members = members},
        .epoch = engine->epoch,
        .block = block,
        .arrivals = arrivals / count * count,
        .departures = departures,
    };
    *group = &created->base;
    return EK_OK;
}

void shm_group_destroy(ek_group *base)
{
    struct shm_group *group = (struct shm_group *)base;
    struct shm_engine *engine = (struct shm_engine *)base->engine;
    struct shm_lane *lane = &engine->lanes[base->lane];
    if (group->epoch == engine->epoch) {
        queue_drain(&lane->queue); /* what is queued refers to the group */
        lane->beats = true;
        if (shm_is_sound(engine)) /* else the group will not be made again in this epoch */
            shm_await(lane, &group->block->departures, group->departures); /* see shm_group_create */
    }
    free(group);
}

/* ------------------------------------------------------------------------------- publish, arrive, leave */

/* One collective under way. */
struct turn {
    struct shm_lane *lane;
    struct shm_group *group;
    uint32_t members, index;
    unsigned parity; /* of the group's operations: which of its two descriptors each member uses */
    void *published;
    bool aside; /* what is published is a copy: the original may be overwritten at once */
};

static struct shm_descriptor *descriptor_of(const struct turn *turn, uint32_t member)
{
    struct shm_rank *rank = &turn->lane->engine->job->rank[turn->group->base.members[member]];
    return &rank->descriptors[turn->lane->id][turn->parity];
}

/* data == NULL: there is nothing to read here, but the sizes are compared. */
static ek_status publish(struct turn *turn, const void *data, size_t bytes)
{
    struct shm_lane *lane = turn->lane;
    EK_TRY(shm_await_guard(lane, &lane->guards[turn->parity]));
    turn->published = (void *)data; /* only all-reduce writes to it, whose data is its output */
    turn->aside = true;
    if (data && bytes <= SHM_SLOT_BYTES) {
        turn->published = memcpy(lane->slots[turn->parity], data, bytes);
    } else if (data && shm_reachable(lane->engine->job, data)) {
        turn->aside = false;
    } else if (data) {
        EK_TRY(shm_lane_stage(lane, bytes));
        turn->published = lane->staging;
        shm_copy(lane, lane->staging, data, bytes);
    }
    *descriptor_of(turn, turn->index) = (struct shm_descriptor){
        .data = turn->published,
        .bytes = bytes,
        .offsets = lane->offsets[turn->parity],
        .arrived_ns = lane->engine->job->link_emulated ? clock_now_ns() : 0,
    };
    return EK_OK;
}

/* Waits until all members have arrived: what they wrote before is now seen here. */
static ek_status arrive(struct turn *turn)
{
    struct shm_counter *arrivals = &turn->group->block->arrivals;
    turn->group->arrivals += turn->members;
    EK_TRY(shm_count(turn->lane->engine, arrivals, turn->group->arrivals));
    return shm_await(turn->lane, arrivals, turn->group->arrivals);
}

/* This member has read all that it wanted, and returns once its own data may be overwritten. */
static ek_status leave(struct turn *turn)
{
    struct shm_lane *lane = turn->lane;
    struct shm_counter *departures = &turn->group->block->departures;
    turn->group->departures += turn->members;
    EK_TRY(shm_count(lane->engine, departures, turn->group->departures));
    /* A peer may have overwritten what was read here as soon as it saw job->loss, which is set before this block is
     * poisoned: that the count went well says nothing yet. The loss that it saw is seen here. */
    EK_TRY(shm_check(lane->engine));
    if (!turn->aside)
        return shm_await(lane, departures, turn->group->departures);
    lane->guards[turn->parity] = (struct shm_guard){departures, turn->group->departures};
    if (turn->published == lane->staging && lane->staging)
        lane->staging_guard = lane->guards[turn->parity];
    return EK_OK;
}

/* Members must agree on how much a member publishes. */
static ek_status check_size(const struct turn *turn, uint32_t member, size_t bytes)
{
    uint64_t published = descriptor_of(turn, member)->bytes;
    if (published != bytes)
        return ek_fail(EK_INVALID, "rank %u takes part with %llu bytes, rank %u expects %zu",
                       turn->group->base.members[member], (unsigned long long)published, turn->lane->engine->base.rank,
                       bytes);
    return EK_OK;
}

static ek_status check_sizes(const struct turn *turn, size_t bytes)
{
    for (uint32_t member = 0; member < turn->members; member++)
        EK_TRY(check_size(turn, member, bytes));
    return EK_OK;
}

/* The emulated link carries `bytes` of this member in this operation. After the first arrival. */
static void use_link(const struct turn *turn, double bytes)
{
    const struct shm_job *job = turn->lane->engine->job;
    if (!job->link_emulated)
        return;
    uint64_t last_ns = 0;
    for (uint32_t member = 0; member < turn->members; member++) {
        uint64_t arrived_ns = descriptor_of(turn, member)->arrived_ns;
        last_ns = arrived_ns > last_ns ? arrived_ns : last_ns;
    }
    turn->lane->deadline_ns = last_ns + (uint64_t)(job->link_latency_ns + bytes * job->link_ns_per_byte);
}

static size_t sum(const size_t *sizes, uint32_t count)
{
    size_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += sizes[i];
    return total;
}

/* --------------------------------------------------------------------------------------------- reductions */

/* Floats of a large all-reduce between two waits: the sums are still in the cache when the others copy them. */
#define SLICE ((size_t)1 << 18)

/* output[0 … count-1] = the reduction, in order of members, of elements first … of what each published. The output may
 * be one of the inputs. */
static void reduce(const struct turn *turn, float *output, size_t first, size_t count, ek_reduction reduction)
{
    float block[REDUCE_BLOCK];
    for (size_t done = 0; done < count; done += REDUCE_BLOCK) {
        size_t length = count - done < REDUCE_BLOCK ? count - done : REDUCE_BLOCK;
        for (uint32_t member = 0; member < turn->members; member++) {
            const float *input = (const float *)descriptor_of(turn, member)->data + first + done;
            if (member == 0)
                memcpy(block, input, length * sizeof *block);
            else
                reduce_into(block, input, length, reduction);
        }
        memcpy(output + done, block, length * sizeof *block);
        if (turn->lane->beats)
            shm_beat(turn->lane->engine);
    }
}

/* Where part `member` of a slice of an all-reduce begins: parts are whole cache lines. */
static size_t part_first(const struct turn *turn, uint32_t member, size_t count)
{
    size_t part = (count + turn->members - 1) / turn->members;
    size_t first = (part + 15) / 16 * 16 * member;
    return first < count ? first : count;
}

/* Elements first … first+count-1: reduces the own part and copies the others' parts when all are reduced. */
static ek_status reduce_slice(struct turn *turn, float *buffer, size_t first, size_t count, ek_reduction reduction)
{
    /* Of what is published here the others never read the own part until it is reduced: the result goes there. */
    size_t begin = first + part_first(turn, turn->index, count);
    size_t end = first + part_first(turn, turn->index + 1, count);
    reduce(turn, (float *)turn->published + begin, begin, end - begin, reduction);
    EK_TRY(arrive(turn));
    for (uint32_t step = 0; step < turn->members; step++) { /* each begins with its own part: not all read one */
        uint32_t member = (turn->index + step) % turn->members;
        begin = first + part_first(turn, member, count);
        end = first + part_first(turn, member + 1, count);
        shm_copy(turn->lane, buffer + begin, (const float *)descriptor_of(turn, member)->data + begin,
                 (end - begin) * sizeof *buffer);
    }
    return EK_OK;
}

static ek_status all_reduce(struct turn *turn, const struct ek_operation *operation)
{
    float *buffer = operation->output;
    size_t count = operation->size, bytes = count * sizeof *buffer;
    EK_TRY(publish(turn, buffer, bytes));
    EK_TRY(arrive(turn));
    EK_TRY(check_sizes(turn, bytes));
    use_link(turn, 2.0 * (turn->members - 1) / turn->members * (double)bytes);
    if (bytes <= SHM_SLOT_BYTES && bytes * turn->members <= SMALL_TOTAL_BYTES) {
        reduce(turn, buffer, 0, count, operation->reduction);
        return leave(turn);
    }
    for (size_t done = 0; done < count; done += SLICE) {
        size_t length = count - done < SLICE ? count - done : SLICE;
        EK_TRY(reduce_slice(turn, buffer, done, length, operation->reduction));
    }
    return leave(turn);
}

static ek_status reduce_scatter(struct turn *turn, const struct ek_operation *operation)
{
    const size_t *counts = operation->input_sizes;
    size_t total = sum(counts, turn->members), own = counts[turn->index];
    EK_TRY(publish(turn, operation->input, total * sizeof(float)));
    EK_TRY(arrive(turn));
    EK_TRY(check_sizes(turn, total * sizeof(float)));
    use_link(turn, (double)((total - own) * sizeof(float)));
    reduce(turn, operation->output, sum(counts, turn->index), own, EK_SUM);
    return leave(turn);
}

/* --------------------------------------------------------------------------------------------------- copies */

static ek_status all_gather(struct turn *turn, const struct ek_operation *operation)
{
    const size_t *sizes = operation->output_sizes;
    size_t own = sizes[turn->index];
    EK_TRY(publish(turn, operation->input, own));
    EK_TRY(arrive(turn));
    use_link(turn, (double)(sum(sizes, turn->members) - own));
    unsigned char *output = operation->output;
    for (uint32_t member = 0; member < turn->members; member++) {
        EK_TRY(check_size(turn, member, sizes[member]));
        const void *part = member == turn->index ? operation->input : descriptor_of(turn, member)->data;
        shm_copy(turn->lane, output, part, sizes[member]);
        output += sizes[member];
    }
    return leave(turn);
}

static ek_status all_to_all(struct turn *turn, const struct ek_operation *operation)
{
    const size_t *sent = operation->input_sizes, *received = operation->output_sizes;
    uint64_t *offsets = turn->lane->offsets[turn->parity];
    EK_TRY(publish(turn, operation->input, sum(sent, turn->members)));
    for (uint32_t member = 0; member <= turn->members; member++)
        offsets[member] = sum(sent, member);
    EK_TRY(arrive(turn));
    size_t out = sum(sent, turn->members) - sent[turn->index];
    size_t in = sum(received, turn->members) - received[turn->index];
    use_link(turn, (double)(out > in ? out : in));
    unsigned char *output = operation->output;
    for (uint32_t member = 0; member < turn->members; member++) {
        const struct shm_descriptor *peer = descriptor_of(turn, member);
        const uint64_t *range = peer->offsets + turn->index;
        if (range[1] - range[0] != received[member])
            return ek_fail(EK_INVALID, "rank %u sends %llu bytes to rank %u, which expects %zu",
                           turn->group->base.members[member], (unsigned long long)(range[1] - range[0]),
                           turn->lane->engine->base.rank, received[member]);
        shm_copy(turn->lane, output, (const unsigned char *)peer->data + range[0], received[member]);
        output += received[member];
    }
    return leave(turn);
}

static ek_status broadcast(struct turn *turn, const struct ek_operation *operation)
{
    bool is_root = turn->index == operation->root;
    EK_TRY(publish(turn, is_root ? operation->input : NULL, operation->size));
    EK_TRY(arrive(turn));
    EK_TRY(check_sizes(turn, operation->size));
    use_link(turn, (double)operation->size);
    if (!is_root)
        shm_copy(turn->lane, operation->output, descriptor_of(turn, operation->root)->data, operation->size);
    return leave(turn);
}

static ek_status barrier(struct turn *turn)
{
    EK_TRY(publish(turn, NULL, 0));
    EK_TRY(arrive(turn));
    use_link(turn, 0);
    return leave(turn);
}

/* A group of one. */
static ek_status copy_alone(const struct shm_lane *lane, const struct ek_operation *operation)
{
    size_t bytes = 0; /* where the result is where the input is */
    if (operation->kind == EK_REDUCE_SCATTER)
        bytes = operation->input_sizes[0] * sizeof(float);
    else if (operation->kind == EK_ALL_GATHER || operation->kind == EK_ALL_TO_ALL)
        bytes = operation->output_sizes[0];
    if (operation->kind == EK_ALL_TO_ALL && operation->input_sizes[0] != bytes)
        return ek_fail(EK_INVALID, "ek_all_to_all: a group of one sends %zu bytes and receives %zu",
                       operation->input_sizes[0], bytes);
    shm_copy(lane, operation->output, operation->input, bytes);
    return EK_OK;
}

static ek_status run(struct turn *turn, const struct ek_operation *operation)
{
    switch (operation->kind) {
    case EK_ALL_REDUCE:
        return all_reduce(turn, operation);
    case EK_REDUCE_SCATTER:
        return reduce_scatter(turn, operation);
    case EK_ALL_GATHER:
        return all_gather(turn, operation);
    case EK_ALL_TO_ALL:
        return all_to_all(turn, operation);
    case EK_BROADCAST:
        return broadcast(turn, operation);
    default:
        return barrier(turn);
    }
}

ek_status shm_collective(struct shm_lane *lane, const struct ek_operation *operation)
{
    struct shm_group *group = (struct shm_group *)operation->group;
    uint32_t members = group->base.count;
    if (members == 1)
        return copy_alone(lane, operation);
    struct turn turn = {.lane = lane,
                        .group = group,
                        .members = members,
                        .index = group->base.index,
                        .parity = group->departures / members & 1};
    EK_TRY(run(&turn, operation));
    return shm_lane_unstage(lane);
}
