/* Point-to-point: random patterns, all messages at once, both lanes, unequal numbers of messages per call. */
#include "jobs.h"

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

static ek_status exchange_randomly(ek_engine *engine, void *user)
{
    (void)user;
    for (uint64_t round = 0; round < ROUNDS; round++)
        EK_TRY(run_round(engine, round));
    return EK_OK;
}

static void test_random_patterns(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    for (uint32_t ranks = 1; ranks <= 9; ranks += 2)
        assert_ok(run_job(ranks, threads, exchange_randomly, NULL));
}

/* Three messages sent in one call, received in two; and started calls in both directions that overlap. */
static ek_status split_calls(ek_engine *engine, void *user)
{
    (void)user;
    uint32_t rank = ek_engine_rank(engine), peer = 1 - rank;
    int64_t out[3] = {rank, rank + 10, rank + 20}, in[3] = {-1, -1, -1};
    ek_message sends[3], receives[3];
    for (int i = 0; i < 3; i++) {
        sends[i] = (ek_message){.peer = peer, .data = &out[i], .bytes = sizeof out[i]};
        receives[i] = (ek_message){.peer = peer, .data = &in[i], .bytes = sizeof in[i]};
    }
    for (int turn = 0; turn < 100; turn++) {
        if (rank == 0) {
            EK_TRY(ek_exchange(engine, EK_LANE_COMPUTE, sends, 3, NULL, 0, NULL));
        } else {
            EK_TRY(ek_exchange(engine, EK_LANE_COMPUTE, NULL, 0, receives, 1, NULL));
            EK_TRY(ek_exchange(engine, EK_LANE_COMPUTE, NULL, 0, receives + 1, 2, NULL));
            CHECK(in[0] == 0 && in[1] == 10 && in[2] == 20);
        }
        ek_request request;
        for (int i = 0; i < 3; i++)
            EK_TRY(ek_exchange(engine, EK_LANE_GRADIENT, sends + i, 1, receives + i, 1, &request));
        EK_TRY(ek_wait(engine, EK_LANE_GRADIENT, request));
        for (int i = 0; i < 3; i++) {
            CHECK(in[i] == peer + 10 * i);
            in[i] = -1;
        }
    }
    out[0] = 5;
    sends[0].bytes = rank == 0 ? 8 : 4; /* sizes that do not agree */
    ek_status status = rank == 0 ? ek_exchange(engine, EK_LANE_COMPUTE, sends, 1, NULL, 0, NULL)
                                 : ek_exchange(engine, EK_LANE_COMPUTE, NULL, 0, &(ek_message){0, in, 4}, 1, NULL);
    CHECK(rank == 1 && status == EK_INVALID); /* the sender is still waiting when this ends the job */
    return ek_fail(EK_INVALID, "sizes differ, as they should");
}

static void test_split_calls(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        assert_int_equal(run_job(2, threads, split_calls, NULL), EK_INVALID);
        assert_string_equal(ek_error(), "sizes differ, as they should");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_patterns),
        cmocka_unit_test(test_split_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
