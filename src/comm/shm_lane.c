/* The two lanes of a rank of the engine "shm": their memory that others read, and how their queues run operations. */
#include "comm/shm.h"

#include <stdlib.h>
#include <string.h>

/* Larger staging memory is given back after each operation. */
#define STAGING_KEPT_BYTES ((size_t)16 << 20)

static ek_status run(struct queue *queue, const struct ek_operation *operation, bool in_compute_thread)
{
    struct shm_lane *lane = (struct shm_lane *)queue;
    lane->beats = in_compute_thread;
    lane->deadline_ns = 0;
    EK_TRY(shm_check(lane->engine));
    EK_TRY(operation->group ? shm_collective(lane, operation) : shm_exchange(lane, operation));
    return shm_await_link(lane);
}

static void beat(const struct queue *queue)
{
    shm_beat(((const struct shm_lane *)queue)->engine);
}

ek_status shm_lane_create(struct shm_lane *lane, struct shm_engine *engine, ek_lane id)
{
    *lane = (struct shm_lane){
        .queue = {.run = run, .beat = beat, .nap_ns = engine->job->nap_ns}, .engine = engine, .id = id};
    queue_init(&lane->queue);
    for (int parity = 0; parity < 2; parity++) {
        void *offsets;
        EK_TRY(heap_alloc(&engine->heap, SHM_SLOT_BYTES, &lane->slots[parity]));
        EK_TRY(heap_alloc(&engine->heap, (engine->base.ranks + 1) * sizeof *lane->offsets[parity], &offsets));
        lane->offsets[parity] = offsets;
    }
    return EK_OK;
}

/* ----------------------------------------------------------------------------------------------- staging */

static ek_status give_back(struct shm_lane *lane)
{
    EK_TRY(shm_await_guard(lane, &lane->staging_guard));
    if (lane->staging)
        heap_free(&lane->engine->heap, lane->staging);
    lane->staging = NULL;
    lane->staging_bytes = 0;
    return EK_OK;
}

ek_status shm_lane_stage(struct shm_lane *lane, size_t bytes)
{
    EK_TRY(shm_await_guard(lane, &lane->staging_guard));
    if (bytes <= lane->staging_bytes)
        return EK_OK;
    EK_TRY(give_back(lane));
    EK_TRY(heap_alloc(&lane->engine->heap, bytes, &lane->staging));
    lane->staging_bytes = bytes;
    return EK_OK;
}

ek_status shm_lane_unstage(struct shm_lane *lane)
{
    return lane->staging_bytes > STAGING_KEPT_BYTES ? give_back(lane) : EK_OK;
}

/* ------------------------------------------------------------------------------------------------- calls */

ek_status shm_submit(ek_engine *engine, ek_lane id, const struct ek_operation *operation, ek_request *request)
{
    struct shm_lane *lane = &((struct shm_engine *)engine)->lanes[id];
    if (operation->group && ((struct shm_group *)operation->group)->epoch != lane->engine->epoch)
        return ek_fail(EK_INVALID, "the group was made before the last ek_agree: make it again");
    return queue_submit(&lane->queue, operation, request);
}

ek_status shm_wait(ek_engine *engine, ek_lane id, ek_request request)
{
    return queue_wait(&((struct shm_engine *)engine)->lanes[id].queue, request);
}

void shm_lane_renew(struct shm_lane *lane)
{
    queue_renew(&lane->queue);
    lane->guards[0].counter = lane->guards[1].counter = lane->staging_guard.counter = NULL;
}
