/* Groups and collectives of the engine "mpi", as point-to-point messages on the lane's communicator. Every member sends
 * each other what that one needs, and reduces in order of members: the least possible bytes (an all-reduce moves
 * 2 (n-1)/n of the buffer), the same bits on every member and on every engine. */
#include "comm/mpi_rank.h"
#include "comm/reduce.h"

#include <stdlib.h>
#include <string.h>

/* Every member gets all inputs of an all-reduce if they are no more than this together, to save a wait. */
#define SMALL_TOTAL_BYTES ((size_t)1 << 17)
/* A large broadcast goes out in parts, which the members then give each other. */
#define SMALL_BROADCAST_BYTES ((size_t)1 << 15)
/* Floats of an operation between two waits, which bounds the memory for what comes in. */
#define SLICE ((size_t)1 << 20)
/* MPI allows tags up to 32767 at least. 0 is for messages of ek_exchange. */
#define TAGS 32767

/* ------------------------------------------------------------------------------------------------ groups */

ek_status mpi_group_create(ek_group **group, ek_engine *base, ek_lane lane, uint32_t tag, uint32_t *members,
                           uint32_t count, uint32_t index)
{
    struct mpi_group *created = malloc(sizeof *created);
    if (!created)
        return ek_fail(EK_NO_MEMORY, "ek_group_create: out of memory");
    /* Operations of a lane run in one order, so groups that share a tag could still not be mixed up. */
    *created =
        (struct mpi_group){.base = {.engine = base, .lane = lane, .count = count, .index = index, .members = members},
                           .epoch = ((struct mpi_engine *)base)->epoch,
                           .tag = 1 + (int)(tag % TAGS)};
    *group = &created->base;
    return EK_OK;
}

void mpi_group_destroy(ek_group *base)
{
    queue_drain(&((struct mpi_engine *)base->engine)->lanes[base->lane].queue); /* what is queued refers to it */
    free(base);
}

/* One collective under way. */
struct turn {
    struct mpi_lane *lane;
    const uint32_t *ranks;
    uint32_t members, index;
    int tag;
};

static void post_send(const struct turn *turn, uint32_t member, const void *data, size_t bytes)
{
    mpi_post_send(turn->lane, turn->ranks[member], data, bytes, turn->tag);
}

static void post_receive(const struct turn *turn, uint32_t member, void *data, size_t bytes)
{
    mpi_post_receive(turn->lane, turn->ranks[member], data, bytes, turn->tag);
}

/* The step-th other member, counted from the own place: not all send to the same one at first. */
static uint32_t other(const struct turn *turn, uint32_t step)
{
    return (turn->index + step) % turn->members;
}

static void *copy(void *to, const void *from, size_t bytes)
{
    return bytes && to != from ? memmove(to, from, bytes) : to;
}

static size_t sum(const size_t *sizes, uint32_t count)
{
    size_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += sizes[i];
    return total;
}

/* --------------------------------------------------------------------------------------------- reductions */

/* What the other members sent, count floats of each in order of members, the own place left out. */
static float *received_from(const struct turn *turn, uint32_t member, size_t count)
{
    return turn->lane->scratch + (member - (member > turn->index)) * count;
}

/* output[] = the reduction of own[] and of what was received, in order of members. output may be own. */
static void reduce(const struct turn *turn, float *output, const float *own, size_t count, ek_reduction reduction)
{
    float block[REDUCE_BLOCK];
    for (size_t done = 0; done < count; done += REDUCE_BLOCK) {
        size_t length = count - done < REDUCE_BLOCK ? count - done : REDUCE_BLOCK;
        for (uint32_t member = 0; member < turn->members; member++) {
            const float *input = (member == turn->index ? own : received_from(turn, member, count)) + done;
            if (member == 0)
                memcpy(block, input, length * sizeof *block);
            else
                reduce_into(block, input, length, reduction);
        }
        memcpy(output + done, block, length * sizeof *block);
        if (turn->lane->beats)
            mpi_beat(turn->lane->engine);
    }
}

/* Parts of input, one per member, to the members; own_count floats into output, reduced. Where a member's part is is
 * told by first[0 … members]. */
static ek_status scatter_reduced(const struct turn *turn, const float *input, const size_t *first, float *output,
                                 ek_reduction reduction)
{
    size_t own = first[turn->index + 1] - first[turn->index];
    EK_TRY(mpi_scratch(turn->lane, (turn->members - 1) * own * sizeof *output));
    for (uint32_t step = 1; step < turn->members && own > 0; step++) {
        uint32_t member = other(turn, step);
        post_receive(turn, member, received_from(turn, member, own), own * sizeof *output);
    }
    for (uint32_t step = 1; step < turn->members; step++) {
        uint32_t member = other(turn, step);
        if (first[member + 1] > first[member])
            post_send(turn, member, input + first[member], (first[member + 1] - first[member]) * sizeof *input);
    }
    EK_TRY(mpi_complete(turn->lane));
    reduce(turn, output, input + first[turn->index], own, reduction);
    return EK_OK;
}

/* bytes[] of each member into output, one after the other; the own ones lie there already. */
static ek_status gather_in_place(const struct turn *turn, unsigned char *output, const size_t *bytes)
{
    const unsigned char *own = output + sum(bytes, turn->index);
    for (uint32_t step = 1; step < turn->members; step++) {
        uint32_t member = other(turn, step);
        if (bytes[member])
            post_receive(turn, member, output + sum(bytes, member), bytes[member]);
    }
    for (uint32_t step = 1; step < turn->members && bytes[turn->index]; step++)
        post_send(turn, other(turn, step), own, bytes[turn->index]);
    return mpi_complete(turn->lane);
}

/* Equal parts of count elements, in whole units: first[0 … members]. */
static void divide(const struct turn *turn, size_t count, size_t unit, size_t *first)
{
    size_t part = (count + turn->members - 1) / turn->members;
    part = (part + unit - 1) / unit * unit;
    for (uint32_t member = 0; member <= turn->members; member++)
        first[member] = part * member < count ? part * member : count;
}

static ek_status all_reduce_small(const struct turn *turn, float *buffer, size_t count, ek_reduction reduction)
{
    EK_TRY(mpi_scratch(turn->lane, (turn->members - 1) * count * sizeof *buffer));
    for (uint32_t step = 1; step < turn->members; step++) {
        uint32_t member = other(turn, step);
        post_receive(turn, member, received_from(turn, member, count), count * sizeof *buffer);
        post_send(turn, member, buffer, count * sizeof *buffer);
    }
    EK_TRY(mpi_complete(turn->lane));
    reduce(turn, buffer, buffer, count, reduction);
    return EK_OK;
}

/* sizes[0 … members]: room. */
static ek_status all_reduce(const struct turn *turn, const struct ek_operation *operation, size_t *sizes)
{
    float *buffer = operation->output;
    if (operation->size * sizeof *buffer * turn->members <= SMALL_TOTAL_BYTES)
        return all_reduce_small(turn, buffer, operation->size, operation->reduction);
    for (size_t done = 0; done < operation->size; done += SLICE) {
        size_t length = operation->size - done < SLICE ? operation->size - done : SLICE;
        float *slice = buffer + done;
        divide(turn, length, 16, sizes);
        EK_TRY(scatter_reduced(turn, slice, sizes, slice + sizes[turn->index], operation->reduction));
        for (uint32_t member = 0; member < turn->members; member++)
            sizes[member] = (sizes[member + 1] - sizes[member]) * sizeof *buffer;
        EK_TRY(gather_in_place(turn, (unsigned char *)slice, sizes));
    }
    return EK_OK;
}

/* A slice of every member's part at a time. */
static ek_status reduce_scatter(const struct turn *turn, const struct ek_operation *operation)
{
    const size_t *counts = operation->input_sizes;
    const float *input = operation->input;
    float *output = operation->output;
    size_t slice = SLICE / turn->members + 1, most = 0, own = counts[turn->index];
    for (uint32_t member = 0; member < turn->members; member++)
        most = counts[member] > most ? counts[member] : most;
    for (size_t done = 0; done < most; done += slice) {
        size_t own_now = own > done ? (own - done < slice ? own - done : slice) : 0, first = 0;
        EK_TRY(mpi_scratch(turn->lane, (turn->members - 1) * own_now * sizeof *output));
        for (uint32_t member = 0; member < turn->members; first += counts[member++]) {
            size_t left = counts[member] > done ? counts[member] - done : 0;
            if (member != turn->index && own_now)
                post_receive(turn, member, received_from(turn, member, own_now), own_now * sizeof *output);
            if (member != turn->index && left)
                post_send(turn, member, input + first + done, (left < slice ? left : slice) * sizeof *input);
        }
        EK_TRY(mpi_complete(turn->lane));
        if (own_now)
            reduce(turn, output + done, input + sum(counts, turn->index) + done, own_now, EK_SUM);
    }
    return EK_OK;
}

/* --------------------------------------------------------------------------------------------------- copies */

static ek_status all_gather(const struct turn *turn, const struct ek_operation *operation)
{
    const size_t *bytes = operation->output_sizes;
    unsigned char *output = operation->output;
    copy(output + sum(bytes, turn->index), operation->input, bytes[turn->index]);
    return gather_in_place(turn, output, bytes);
}

static ek_status all_to_all(const struct turn *turn, const struct ek_operation *operation)
{
    const size_t *sent = operation->input_sizes, *received = operation->output_sizes;
    const unsigned char *input = operation->input;
    unsigned char *output = operation->output;
    uint32_t own = turn->index;
    if (sent[own] != received[own])
        return ek_fail(EK_INVALID, "ek_all_to_all: rank %u sends itself %zu bytes and expects %zu", turn->ranks[own],
                       sent[own], received[own]);
    copy(output + sum(received, own), input + sum(sent, own), sent[own]);
    for (uint32_t step = 1; step < turn->members; step++) {
        uint32_t member = other(turn, step);
        post_receive(turn, member, output + sum(received, member), received[member]);
        post_send(turn, member, input + sum(sent, member), sent[member]);
    }
    return mpi_complete(turn->lane);
}

static ek_status send_to_all(const struct turn *turn, void *buffer, size_t bytes, uint32_t root)
{
    if (turn->index != root)
        post_receive(turn, root, buffer, bytes);
    for (uint32_t step = 1; step < turn->members && turn->index == root; step++)
        post_send(turn, other(turn, step), buffer, bytes);
    return mpi_complete(turn->lane);
}

/* sizes[0 … members]: room. */
static ek_status broadcast(const struct turn *turn, const struct ek_operation *operation, size_t *sizes)
{
    unsigned char *buffer = operation->output;
    size_t bytes = operation->size;
    uint32_t root = operation->root;
    if (bytes <= SMALL_BROADCAST_BYTES || turn->members == 2)
        return send_to_all(turn, buffer, bytes, root);
    divide(turn, bytes, 64, sizes);
    if (turn->index != root && sizes[turn->index + 1] > sizes[turn->index])
        post_receive(turn, root, buffer + sizes[turn->index], sizes[turn->index + 1] - sizes[turn->index]);
    for (uint32_t member = 0; member < turn->members && turn->index == root; member++)
        if (member != root && sizes[member + 1] > sizes[member])
            post_send(turn, member, buffer + sizes[member], sizes[member + 1] - sizes[member]);
    EK_TRY(mpi_complete(turn->lane));
    for (uint32_t member = 0; member < turn->members; member++)
        sizes[member] = sizes[member + 1] - sizes[member];
    return gather_in_place(turn, buffer, sizes);
}

/* In round i a token comes from 2^i places before: after the last all have been heard of. */
static ek_status barrier(const struct turn *turn)
{
    for (uint32_t distance = 1; distance < turn->members; distance *= 2) {
        post_receive(turn, (turn->index + turn->members - distance) % turn->members, NULL, 0);
        post_send(turn, (turn->index + distance) % turn->members, NULL, 0);
        EK_TRY(mpi_complete(turn->lane));
    }
    return EK_OK;
}

/* A group of one. */
static ek_status copy_alone(const struct turn *turn, const struct ek_operation *operation)
{
    if (operation->kind == EK_REDUCE_SCATTER)
        copy(operation->output, operation->input, operation->input_sizes[0] * sizeof(float));
    else if (operation->kind == EK_ALL_GATHER)
        return all_gather(turn, operation);
    else if (operation->kind == EK_ALL_TO_ALL)
        return all_to_all(turn, operation);
    return EK_OK;
}

static ek_status run(const struct turn *turn, const struct ek_operation *operation, size_t *sizes)
{
    if (turn->members <= 1)
        return copy_alone(turn, operation);
    switch (operation->kind) {
    case EK_ALL_REDUCE:
        return all_reduce(turn, operation, sizes);
    case EK_REDUCE_SCATTER:
        return reduce_scatter(turn, operation);
    case EK_ALL_GATHER:
        return all_gather(turn, operation);
    case EK_ALL_TO_ALL:
        return all_to_all(turn, operation);
    case EK_BROADCAST:
        return broadcast(turn, operation, sizes);
    default:
        return barrier(turn);
    }
}

ek_status mpi_collective(struct mpi_lane *lane, const struct ek_operation *operation)
{
    const struct mpi_group *group = (struct mpi_group *)operation->group;
    struct turn turn = {.lane = lane,
                        .ranks = group->base.members,
                        .members = group->base.count,
                        .index = group->base.index,
                        .tag = group->tag};
    size_t *sizes = calloc((size_t)turn.members + 1, sizeof *sizes);
    if (!sizes)
        return ek_fail(EK_NO_MEMORY, "out of memory for a collective of %u", turn.members);
    ek_status status = run(&turn, operation, sizes);
    free(sizes);
    return status;
}
