/* Point-to-point: random patterns, all messages at once, both lanes, unequal numbers of messages per call. See
 * checks.h. */
#include "checks.h"

enum { ROUNDS = 12, MAX_MESSAGES = 60 };

/* Message number `i` of a round: who to whom, how long. All ranks compute the same list. */
struct planned {
    uint32_t from, to;
    size_t bytes;
};

static struct planned plan(uint64_t round, uint64_t i, uint32_t ranks)
{
    uint32_t words[4];
    ek_random_words(99, round, i, words);
    size_t bytes = words[2] % 7 == 0 ? words[3] % 300000 : words[3] % 100; /* some long, most short, some empty */
    return (struct planned){.from = words[0] % ranks, .to = words[1] % ranks, .bytes = bytes};
}

static unsigned char content(uint64_t round, uint64_t i, size_t at)
{
    return (unsigned char)(round * 7 + i * 13 + at * 31);
}

/* Even messages lie in the heap, odd ones in ordinary memory. */
static ek_status get(ek_engine *engine, uint64_t i, size_t bytes, void **memory)
{
    if (i % 2 == 0)
        return ek_engine_alloc(engine, bytes, memory);
    *memory = malloc(bytes + 1);
    return *memory ? EK_OK : ek_fail(EK_NO_MEMORY, "malloc");
}

static void put(ek_engine *engine, uint64_t i, void *memory)
{
    if (i % 2 == 0)
        ek_engine_free(engine, memory);
    else
        free(memory);
}

static ek_status run_round(ek_engine *engine, uint64_t round)
{
    uint32_t rank = ek_engine_rank(engine), ranks = ek_engine_ranks(engine);
    ek_lane lane = round % 2 ? EK_LANE_GRADIENT : EK_LANE_COMPUTE;
    ek_message sends[MAX_MESSAGES], receives[MAX_MESSAGES];
    uint64_t sent[MAX_MESSAGES], received[MAX_MESSAGES];
    size_t out = 0, in = 0;
    for (uint64_t i = 0; i < MAX_MESSAGES; i++) {
        struct planned message = plan(round, i, ranks);
        if (message.from == rank) {
            sent[out] = i;
            sends[out] = (ek_message){.peer = message.to, .bytes = message.bytes};
            EK_TRY(get(engine, i, message.bytes, &sends[out].data));
            for (size_t at = 0; at < message.bytes; at++)
                ((unsigned char *)sends[out].data)[at] = content(round, i, at);
            out++;
        }
        if (message.to == rank) {
            received[in] = i;
            receives[in] = (ek_message){.peer = message.from, .bytes = message.bytes};
            EK_TRY(get(engine, i / 2, message.bytes, &receives[in].data));
            in++;
        }
    }
    ek_request request = 0;
    bool started = round % 3 == 0;
    EK_TRY(ek_exchange(engine, lane, sends, out, receives, in, started ? &request : NULL));
    if (started)
        EK_TRY(ek_wait(engine, lane, request));
    for (size_t i = 0; i < in; i++) {
        for (size_t at = 0; at < receives[i].bytes; at++)
            CHECK(((unsigned char *)receives[i].data)[at] == content(round, received[i], at));
        put(engine, received[i] / 2, receives[i].data);
    }
    for (size_t i = 0; i < out; i++)
        put(engine, sent[i], sends[i].data);
    return EK_OK;
}

ek_status exchange_randomly(ek_engine *engine, void *user)
{
    (void)user;
    for (uint64_t round = 0; round < ROUNDS; round++)
        EK_TRY(run_round(engine, round));
    return EK_OK;
}
