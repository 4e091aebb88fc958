/* What the lost leave: nobody reads memory that a survivor has put to another use since, and what is freed stays as it
 * is until all agree. */
#include "jobs.h"

#include <unistd.h>

/* Rank 2 dies while rank 0 sends rank 1 what it overwrites as soon as its operation fails, where rank 1 is still to
 * read it: rank 1 first copies OWN_BYTES of its own. Many more groups keep the supervisor busy between making the loss
 * known and poisoning the group of the two. */
enum { WINDOW_RANKS = 256, WINDOW_GROUPS = 14000, OWN_BYTES = 8 << 20, SENT_BYTES = 1 << 20 };

struct window {
    unsigned microseconds; /* until the death */
};

static ek_status fill_table(ek_engine *engine)
{
    uint32_t self = ek_engine_rank(engine);
    for (uint32_t tag = 1; tag <= WINDOW_GROUPS; tag++) {
        ek_group *group;
        EK_TRY(ek_group_create(&group, engine, EK_LANE_COMPUTE, tag, &self, 1));
        ek_group_destroy(group);
    }
    return EK_OK;
}

static ek_status send_until_lost(ek_engine *engine, ek_group *group)
{
    void *data;
    EK_TRY(ek_engine_alloc(engine, SENT_BYTES, &data));
    memset(data, 1, SENT_BYTES);
    const size_t sent[] = {SENT_BYTES, 0}, received[] = {0, 0};
    ek_status status = EK_OK;
    while (status == EK_OK)
        status = ek_all_to_all(group, data, sent, data, received, NULL);
    memset(data, 2, SENT_BYTES);
    return status;
}

static ek_status receive_until_lost(ek_engine *engine, ek_group *group)
{
    const size_t sizes_sent[] = {OWN_BYTES, 0}, sizes_received[] = {OWN_BYTES, SENT_BYTES};
    unsigned char *own = calloc(1, OWN_BYTES), *received = malloc(OWN_BYTES + SENT_BYTES);
    CHECK(own && received);
    ek_status status;
    size_t sound = SENT_BYTES;
    while ((status = ek_all_to_all(group, own, sizes_sent, received, sizes_received, NULL)) == EK_OK &&
           sound == SENT_BYTES)
        for (sound = 0; sound < SENT_BYTES && received[OWN_BYTES + sound] == 1;)
            sound++;
    free(own);
    free(received);
    CHECK(sound == SENT_BYTES);
    return status;
}

static ek_status overwrite_after_loss(ek_engine *engine, void *user)
{
    const struct window *window = user;
    const uint32_t members[] = {1, 0};
    ek_group *group, *all;
    ek_agreement agreement;
    uint32_t rank = ek_engine_rank(engine);
    EK_TRY(ek_group_create(&all, engine, EK_LANE_COMPUTE, 0, (const uint32_t[]){0, 1, 2}, 3));
    if (rank == 1)
        EK_TRY(fill_table(engine));
    ek_status status = ek_barrier(all, NULL);
    ek_group_destroy(all);
    if (rank == 2) {
        usleep(window->microseconds);
        return ek_inject(engine, EK_FAULT_KILL);
    }
    EK_TRY(ek_group_create(&group, engine, EK_LANE_COMPUTE, 0, members, 2));
    if (status == EK_OK) /* else it came too early */
        status = rank == 0 ? send_until_lost(engine, group) : receive_until_lost(engine, group);
    CHECK_STATUS(status, EK_PEER_LOST);
    ek_group_destroy(group);
    return ek_agree(engine, EK_AGREE_BEGIN, true, &agreement);
}

static void test_overwritten_after_loss(void **state)
{
    (void)state;
    if (UNDER_TSAN) /* the race is meant */
        skip();
    bool absent[WINDOW_RANKS];
    for (uint32_t rank = 0; rank < WINDOW_RANKS; rank++)
        absent[rank] = rank > 2;
    for (uint32_t i = 0; i < 40; i++) {
        struct window window = {.microseconds = 5000 + 317 * i};
        ek_launch_options options = job_options(WINDOW_RANKS, false, overwrite_after_loss, &window);
        options.absent = absent;
        assert_ok(ek_launch(&options));
    }
}

enum { FREED_BYTES = 100000 };

/* Whether memory that was freed still holds what it did, and is not given out again. */
static ek_status check_freed(ek_engine *engine, const unsigned char *freed)
{
    void *other;
    EK_TRY(ek_engine_alloc(engine, FREED_BYTES, &other));
    CHECK((unsigned char *)other >= freed + FREED_BYTES || (unsigned char *)other + FREED_BYTES <= freed);
    ek_engine_free(engine, other);
    for (size_t i = 0; i < FREED_BYTES; i++)
        CHECK(freed[i] == 7);
    return EK_OK;
}

/* Rank 0 dies. What the others free, and where it is a thread itself, stays as it is until all agree. */
static ek_status free_after_loss(ek_engine *engine, void *user)
{
    (void)user;
    void *memory, *again;
    double none;
    ek_agreement agreement;
    EK_TRY(ek_engine_alloc(engine, FREED_BYTES, &memory));
    memset(memory, 7, FREED_BYTES);
    if (ek_engine_rank(engine) == 0) {
        CHECK_STATUS(ek_inject(engine, EK_FAULT_KILL), EK_FENCED);
        ek_engine_free(engine, memory);
        EK_TRY(check_freed(engine, memory));
        return ek_vote(engine, 1, NULL, &none, 0); /* still EK_FENCED */
    }
    CHECK_STATUS(ek_vote(engine, 1, NULL, &none, 0), EK_PEER_LOST);
    ek_engine_free(engine, memory);
    EK_TRY(check_freed(engine, memory));
    EK_TRY(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement));
    EK_TRY(ek_engine_alloc(engine, FREED_BYTES, &again));
    CHECK(again == memory && ((unsigned char *)again)[FREED_BYTES - 1] == 0);
    return EK_OK;
}

static void test_freed_after_loss(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    assert_ok(run_job(3, threads, free_after_loss, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overwritten_after_loss),
        cmocka_unit_test(test_freed_after_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
