/* Every collective, with odd sizes, memory of the engine and ordinary memory, blocking and started, on both lanes at
 * once; and votes in a row. See checks.h. */
#include "checks.h"

#include <unistd.h>

/* Sizes in floats: empty, tiny, around a slot (8192 floats), around a block, large. */
static const size_t sizes[] = {0, 1, 17, 1000, 8192, 8193, 40001, 100003};
#define SIZES (sizeof sizes / sizeof sizes[0])

/* Where an operation is tried. */
struct place {
    ek_engine *engine;
    ek_group *group;
    bool in_heap, started;
    uint64_t salt; /* makes the data of each try different */
};

static ek_status get(const struct place *place, size_t bytes, void **memory)
{
    if (place->in_heap)
        return ek_engine_alloc(place->engine, bytes, memory);
    *memory = malloc(bytes + 1);
    return *memory ? EK_OK : ek_fail(EK_NO_MEMORY, "malloc");
}

static void put(const struct place *place, void *memory)
{
    if (place->in_heap)
        ek_engine_free(place->engine, memory);
    else
        free(memory);
}

/* What member `member` puts in at element i. */
static float value(const struct place *place, uint32_t member, size_t i)
{
    uint64_t mixed = (i * 2654435761u + member * 40503u + place->salt * 9176u) & 0xFFFFF;
    return (float)mixed / 977.0f - 500.0f;
}

static float expected_reduction(const struct place *place, size_t i, ek_reduction reduction)
{
    float total = value(place, 0, i);
    for (uint32_t member = 1; member < ek_group_size(place->group); member++) {
        float next = value(place, member, i);
        total = reduction == EK_SUM ? total + next : next > total ? next : total;
    }
    return total;
}

static ek_status finish(const struct place *place, ek_status status, ek_lane lane, const ek_request *request)
{
    EK_TRY(status);
    return place->started ? ek_wait(place->engine, lane, *request) : EK_OK;
}

static ek_lane lane_of(const struct place *place)
{
    return place->salt & 1 ? EK_LANE_GRADIENT : EK_LANE_COMPUTE;
}

static ek_status try_all_reduce(const struct place *place, size_t count, ek_reduction reduction)
{
    ek_engine *engine = place->engine;
    void *memory;
    ek_request request = 0;
    EK_TRY(get(place, count * sizeof(float), &memory));
    float *buffer = memory;
    for (size_t i = 0; i < count; i++)
        buffer[i] = value(place, ek_group_index(place->group), i);
    EK_TRY(finish(place, ek_all_reduce(place->group, buffer, count, reduction, place->started ? &request : NULL),
                  lane_of(place), &request));
    for (size_t i = 0; i < count; i++) /* exactly: the order of the sum is part of the contract */
        CHECK(buffer[i] == expected_reduction(place, i, reduction));
    put(place, memory);
    return EK_OK;
}

/* Uneven parts: some are empty. */
static size_t part(size_t size, uint32_t member)
{
    return member % 3 == 1 ? 0 : size / (1 + member);
}

static ek_status try_reduce_scatter(const struct place *place, size_t size)
{
    ek_engine *engine = place->engine;
    uint32_t members = ek_group_size(place->group), index = ek_group_index(place->group);
    size_t counts[16], total = 0, first = 0;
    for (uint32_t member = 0; member < members; member++) {
        counts[member] = part(size, member);
        first += member < index ? counts[member] : 0;
        total += counts[member];
    }
    void *memory, *result;
    ek_request request = 0;
    EK_TRY(get(place, total * sizeof(float), &memory));
    EK_TRY(get(place, counts[index] * sizeof(float), &result));
    float *input = memory, *output = result;
    for (size_t i = 0; i < total; i++)
        input[i] = value(place, index, i);
    EK_TRY(finish(place, ek_reduce_scatter(place->group, input, output, counts, place->started ? &request : NULL),
                  lane_of(place), &request));
    for (size_t i = 0; i < counts[index]; i++)
        CHECK(output[i] == expected_reduction(place, first + i, EK_SUM));
    put(place, memory);
    put(place, result);
    return EK_OK;
}

static unsigned char byte(const struct place *place, uint32_t from, uint32_t to, size_t i)
{
    return (unsigned char)(i * 131 + from * 17 + to * 29 + place->salt);
}

static ek_status try_all_gather(const struct place *place, size_t size, bool in_place)
{
    ek_engine *engine = place->engine;
    uint32_t members = ek_group_size(place->group), index = ek_group_index(place->group);
    size_t bytes[16], total = 0, first = 0;
    for (uint32_t member = 0; member < members; member++) {
        bytes[member] = part(size, member);
        first += member < index ? bytes[member] : 0;
        total += bytes[member];
    }
    void *memory, *result;
    ek_request request = 0;
    EK_TRY(get(place, bytes[index], &memory));
    EK_TRY(get(place, total, &result));
    unsigned char *output = result, *input = in_place ? output + first : memory;
    for (size_t i = 0; i < bytes[index]; i++)
        input[i] = byte(place, index, 0, i);
    EK_TRY(finish(place, ek_all_gather(place->group, input, output, bytes, place->started ? &request : NULL),
                  lane_of(place), &request));
    for (uint32_t member = 0; member < members; member++)
        for (size_t i = 0; i < bytes[member]; i++)
            CHECK(*output++ == byte(place, member, 0, i));
    put(place, memory);
    put(place, result);
    return EK_OK;
}

static ek_status try_all_to_all(const struct place *place, size_t size)
{
    ek_engine *engine = place->engine;
    uint32_t members = ek_group_size(place->group), index = ek_group_index(place->group);
    size_t sent[16], received[16], out = 0, in = 0;
    for (uint32_t member = 0; member < members; member++) {
        out += sent[member] = part(size, index * 5 + member);
        in += received[member] = part(size, member * 5 + index);
    }
    void *memory, *result;
    ek_request request = 0;
    EK_TRY(get(place, out, &memory));
    EK_TRY(get(place, in, &result));
    unsigned char *next = memory;
    for (uint32_t member = 0; member < members; member++)
        for (size_t i = 0; i < sent[member]; i++)
            *next++ = byte(place, index, member, i);
    EK_TRY(finish(place, ek_all_to_all(place->group, memory, sent, result, received, place->started ? &request : NULL),
                  lane_of(place), &request));
    next = result;
    for (uint32_t member = 0; member < members; member++)
        for (size_t i = 0; i < received[member]; i++)
            CHECK(*next++ == byte(place, member, index, i));
    put(place, memory);
    put(place, result);
    return EK_OK;
}

static ek_status try_broadcast(const struct place *place, size_t size)
{
    ek_engine *engine = place->engine;
    uint32_t root = (uint32_t)place->salt % ek_group_size(place->group);
    void *memory;
    ek_request request = 0;
    EK_TRY(get(place, size, &memory));
    unsigned char *buffer = memory;
    for (size_t i = 0; i < size; i++)
        buffer[i] = byte(place, ek_group_index(place->group), 1, i);
    EK_TRY(finish(place, ek_broadcast(place->group, buffer, size, root, place->started ? &request : NULL),
                  lane_of(place), &request));
    for (size_t i = 0; i < size; i++)
        CHECK(buffer[i] == byte(place, root, 1, i));
    put(place, memory);
    return EK_OK;
}

static ek_status try_all(const struct place *place, size_t size)
{
    EK_TRY(try_all_reduce(place, size, EK_SUM));
    EK_TRY(try_all_reduce(place, size, EK_MAX));
    EK_TRY(try_reduce_scatter(place, size));
    EK_TRY(try_all_gather(place, size, false));
    EK_TRY(try_all_gather(place, size, true));
    EK_TRY(try_all_to_all(place, size));
    EK_TRY(try_broadcast(place, size));
    return ek_barrier(place->group, NULL);
}

/* All collectives in the world, reversed, and in a group that not all are in. */
ek_status try_everything(ek_engine *engine, void *user)
{
    (void)user;
    uint32_t ranks = ek_engine_ranks(engine), reversed[16];
    for (uint32_t i = 0; i < ranks; i++)
        reversed[i] = ranks - 1 - i;
    uint32_t inner = ek_engine_rank(engine) < ranks / 2 ? ranks / 2 : ranks; /* the end of this rank's half */
    uint32_t first = inner == ranks ? ranks / 2 : 0, half[16];
    for (uint32_t i = first; i < inner; i++)
        half[i - first] = i;
    for (uint64_t salt = 0; salt < 8; salt++) {
        struct place place = {.engine = engine, .in_heap = salt & 2, .started = salt & 4, .salt = salt};
        ek_group *whole, *part_of_it;
        EK_TRY(ek_group_create(&whole, engine, lane_of(&place), 7, reversed, ranks));
        EK_TRY(ek_group_create(&part_of_it, engine, lane_of(&place), 8, half, inner - first));
        CHECK(ek_group_size(whole) == ranks && ek_group_index(whole) == ranks - 1 - ek_engine_rank(engine));
        for (size_t i = 0; i < SIZES; i++) {
            place.group = whole;
            EK_TRY(try_all(&place, sizes[i]));
            place.group = part_of_it;
            EK_TRY(try_all(&place, sizes[i] % 10000));
        }
        ek_group_destroy(whole);
        ek_group_destroy(part_of_it);
    }
    return EK_OK;
}

ek_status try_large(ek_engine *engine, void *user)
{
    (void)user;
    for (uint64_t salt = 0; salt < 2; salt++) {
        struct place place = {.engine = engine, .in_heap = salt, .started = salt, .salt = salt};
        EK_TRY(make_world(&place.group, engine, lane_of(&place), 9));
        EK_TRY(try_all(&place, salt ? 1100003 : 2600011));
        ek_group_destroy(place.group);
    }
    return EK_OK;
}

/* Started sums on the gradient lane, while the compute lane runs others; nobody waits before all are started. */
ek_status run_both_lanes(ek_engine *engine, void *user)
{
    (void)user;
    enum { STARTED = 20, COUNT = 5003 };
    ek_group *compute, *gradient;
    EK_TRY(make_world(&compute, engine, EK_LANE_COMPUTE, 0));
    EK_TRY(make_world(&gradient, engine, EK_LANE_GRADIENT, 0));
    void *memory;
    EK_TRY(ek_engine_alloc(engine, STARTED * COUNT * 4 * sizeof(float), &memory));
    float *buffers = memory, one;
    ek_request request;
    uint32_t ranks = ek_engine_ranks(engine);
    for (size_t i = 0; i < STARTED * COUNT * 4; i++)
        buffers[i] = (float)(i % 1000);
    for (size_t i = 0; i < STARTED; i++) {
        EK_TRY(ek_all_reduce(gradient, buffers + i * COUNT * 4, i % 2 ? COUNT * 4 : COUNT, EK_SUM, &request));
        one = (float)ek_engine_rank(engine);
        EK_TRY(ek_all_reduce(compute, &one, 1, EK_SUM, NULL));
        CHECK(2.0f * one == (float)(ranks * (ranks - 1)));
    }
    one = 1;
    EK_TRY(ek_all_reduce(gradient, &one, 1, EK_SUM, NULL)); /* blocking, behind what is queued */
    CHECK(one == (float)ranks);
    CHECK_STATUS(ek_wait(engine, EK_LANE_GRADIENT, request), EK_OK);
    CHECK_STATUS(ek_wait(engine, EK_LANE_GRADIENT, request + 100), EK_INVALID);
    for (size_t i = 0; i < STARTED * COUNT * 4; i++) {
        bool reduced = i / (COUNT * 4) % 2 || i % (COUNT * 4) < COUNT;
        CHECK(buffers[i] == (float)(i % 1000) * (float)(reduced ? ranks : 1));
    }
    ek_group_destroy(compute);
    ek_group_destroy(gradient);
    ek_engine_free(engine, memory);
    return EK_OK;
}

/* Ordinary memory that is too large for the staging memory to be kept: it is given back, but not while others read. */
ek_status stage_much(ek_engine *engine, void *user)
{
    (void)user;
    const size_t bytes = (size_t)20 << 20;
    ek_group *group;
    EK_TRY(make_world(&group, engine, EK_LANE_COMPUTE, 0));
    unsigned char *buffer = malloc(bytes);
    CHECK(buffer);
    for (uint32_t turn = 0; turn < 6; turn++) {
        uint32_t root = turn % ek_group_size(group);
        memset(buffer, ek_engine_rank(engine) == root ? 1 + (int)turn : 0, bytes);
        EK_TRY(ek_broadcast(group, buffer, bytes, root, NULL));
        for (size_t i = 0; i < bytes; i++)
            CHECK(buffer[i] == 1 + turn);
    }
    ek_group_destroy(group);
    free(buffer);
    return EK_OK;
}

/* A group that is made and destroyed again and again meets in one place. */
ek_status remake_groups(ek_engine *engine, void *user)
{
    (void)user;
    for (int i = 0; i < 200; i++) {
        ek_group *group;
        float one = 1;
        EK_TRY(make_world(&group, engine, EK_LANE_COMPUTE, (uint32_t)i % 2));
        for (int j = 0; j < i % 3; j++) {
            one = 1;
            EK_TRY(ek_all_reduce(group, &one, 1, EK_SUM, NULL));
        }
        CHECK(one == (float)(i % 3 ? ek_engine_ranks(engine) : 1));
        ek_group_destroy(group);
    }
    return EK_OK;
}

/* Rank 0 broadcasts to each of the others in turn, on one lane and from the same slots: what one group's slow member
 * has not read yet must not be overwritten for the next group. Rank 0 comes last, so the others are still waking up. */
ek_status alternate_groups(ek_engine *engine, void *user)
{
    (void)user;
    uint32_t rank = ek_engine_rank(engine), ranks = ek_engine_ranks(engine);
    ek_group *groups[8] = {NULL};
    for (uint32_t peer = 1; peer < ranks; peer++)
        if (rank == 0 || rank == peer)
            EK_TRY(ek_group_create(&groups[peer], engine, EK_LANE_COMPUTE, peer, (uint32_t[]){0, peer}, 2));
    for (uint32_t round = 0; round < 500; round++) {
        for (uint32_t peer = 1; peer < ranks; peer++) {
            uint32_t words[100];
            for (uint32_t i = 0; i < 100; i++)
                words[i] = rank == 0 ? 1000 * round + 100 * peer + i : 0;
            if (groups[peer])
                EK_TRY(ek_broadcast(groups[peer], words, sizeof words, 0, NULL));
            for (uint32_t i = 0; i < 100 && rank == peer; i++)
                CHECK(words[i] == 1000 * round + 100 * peer + i);
        }
        if (rank == 0)
            usleep(20);
    }
    for (uint32_t peer = 1; peer < ranks; peer++)
        ek_group_destroy(groups[peer]);
    return EK_OK;
}

/* Thousands of votes in a row: sums never mix steps. */
ek_status race_votes(ek_engine *engine, void *user)
{
    (void)user;
    uint32_t rank = ek_engine_rank(engine), ranks = ek_engine_ranks(engine);
    for (uint64_t step = 1; step <= 3000; step++) {
        double values[EK_VOTE_VALUES], sums[EK_VOTE_VALUES];
        for (uint32_t i = 0; i < EK_VOTE_VALUES; i++)
            values[i] = (double)(step * (rank + 1) * (i + 1));
        EK_TRY(ek_vote(engine, step, values, sums, EK_VOTE_VALUES));
        for (uint32_t i = 0; i < EK_VOTE_VALUES; i++)
            CHECK(2.0 * sums[i] == (double)(step * (i + 1) * ranks * (ranks + 1)));
    }
    return EK_OK;
}
