/* A random program of operations on random groups and both lanes, started and blocking, from nothing to several MiB.
 * What each rank gets is hashed: engines agree on it to the bit. All ranks go through one list in one order, so that
 * nobody waits for somebody who waits for him. */
#include "mpi/program.h"

#include "base/hash.h"

enum { OPERATIONS = 150, GROUPS = 10, PENDING_MOST = 6, LARGEST = 1500000 };

struct program {
    ek_engine *engine;
    uint64_t seed, hash;
    ek_group *groups[GROUPS]; /* NULL: this rank is no member */
    /* started operations: the lane and the ticket of each, and what it will have put where */
    struct pending {
        ek_lane lane;
        ek_request request;
        float *memory;
        size_t bytes;
    } pending[PENDING_MOST];
    size_t pending_count;
};

static ek_lane lane_of(uint64_t group)
{
    return group % 2 ? EK_LANE_GRADIENT : EK_LANE_COMPUTE;
}

/* Members are drawn, in an order that is drawn too; the first two groups have all. */
static ek_status make_groups(struct program *program)
{
    uint32_t ranks = ek_engine_ranks(program->engine);
    for (uint64_t group = 0; group < GROUPS; group++) {
        uint32_t members[64], count = 0;
        bool member = false;
        for (uint32_t i = 0; i < ranks; i++) {
            uint32_t rank = (uint32_t)ek_random_permute(program->seed + group, i, ranks);
            if (group >= 2 && ek_random_u64(program->seed, group, rank) % 3 == 0)
                continue;
            member |= rank == ek_engine_rank(program->engine);
            members[count++] = rank;
        }
        if (member)
            EK_TRY(ek_group_create(&program->groups[group], program->engine, lane_of(group), (uint32_t)group, members,
                                   count));
    }
    return EK_OK;
}

static ek_status finish_pending(struct program *program)
{
    for (size_t i = 0; i < program->pending_count; i++) {
        struct pending *pending = &program->pending[i];
        EK_TRY(ek_wait(program->engine, pending->lane, pending->request));
        program->hash = ek_hash(pending->memory, pending->bytes, program->hash);
        ek_engine_free(program->engine, pending->memory);
    }
    program->pending_count = 0;
    return EK_OK;
}

/* Most are small; a few take several slices. */
static size_t draw_size(const struct program *program, uint64_t index)
{
    const size_t most[] = {4, 300, 20000, 150000};
    uint32_t words[4];
    ek_random_words(program->seed, 6000, index, words);
    return words[0] % 20 == 0 ? words[1] % LARGEST : words[1] % most[words[0] % 4];
}

/* input: size floats at `memory`; output: as many behind it. */
static ek_status start(struct program *program, uint64_t index, ek_group *group, float *memory, size_t size,
                       ek_request *request)
{
    uint32_t words[4], members = ek_group_size(group), own = ek_group_index(group);
    size_t sizes[64], others[64];
    float *output = memory + size;
    ek_random_words(program->seed, 1000 + index, 0, words);
    for (uint32_t i = 0; i < members; i++) /* together no more than size */
        sizes[i] = ek_random_u64(program->seed, 2000 + index, i) % (size / members + 1);
    switch (words[2] % 6) {
    case 0:
        return ek_all_reduce(group, memory, size, words[3] % 2 ? EK_SUM : EK_MAX, request);
    case 1:
        return ek_reduce_scatter(group, memory, output, sizes, request);
    case 2:
        return ek_all_gather(group, memory, output, sizes, request);
    case 3:
        return ek_broadcast(group, memory, size, words[3] % members, request);
    case 4:
        for (uint32_t i = 0; i < members; i++) {
            sizes[i] = ek_random_u64(program->seed, 3000 + index, own * 64 + i) % (size / members + 1);
            others[i] = ek_random_u64(program->seed, 3000 + index, i * 64 + own) % (size / members + 1);
        }
        return ek_all_to_all(group, memory, sizes, output, others, request);
    default:
        return ek_barrier(group, request);
    }
}

static float value(uint32_t rank, uint64_t index, size_t i)
{
    return (float)((i * 2654435761u + rank * 40503u + index * 9176u) & 0xFFFFF) / 977.0f;
}

static ek_status run_operation(struct program *program, uint64_t index)
{
    uint64_t group = ek_random_u64(program->seed, 4000, index) % GROUPS;
    bool started = ek_random_u64(program->seed, 5000, index) % 3 > 0;
    if (!program->groups[group])
        return EK_OK;
    if (program->pending_count == PENDING_MOST || !started)
        EK_TRY(finish_pending(program));
    struct pending *pending = &program->pending[program->pending_count];
    size_t size = draw_size(program, index);
    void *memory;
    *pending = (struct pending){.lane = lane_of(group), .bytes = 2 * size * sizeof(float)};
    EK_TRY(ek_engine_alloc(program->engine, pending->bytes, &memory));
    pending->memory = memory;
    for (size_t i = 0; i < size; i++)
        pending->memory[i] = value(ek_engine_rank(program->engine), index, i);
    EK_TRY(start(program, index, program->groups[group], pending->memory, size, started ? &pending->request : NULL));
    if (started) {
        program->pending_count++;
        return EK_OK;
    }
    program->hash = ek_hash(memory, pending->bytes, program->hash);
    ek_engine_free(program->engine, memory);
    return EK_OK;
}

ek_status run_program(ek_engine *engine, void *user)
{
    struct program program = {.engine = engine, .seed = *(const uint64_t *)user};
    EK_TRY(make_groups(&program));
    for (uint64_t i = 0; i < OPERATIONS; i++)
        EK_TRY(run_operation(&program, i));
    EK_TRY(finish_pending(&program));
    for (size_t group = 0; group < GROUPS; group++)
        ek_group_destroy(program.groups[group]);
    return ek_report(engine, &program.hash, sizeof program.hash);
}
