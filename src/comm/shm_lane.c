/* The two lanes of a rank: operations of a lane run one after the other, in the order in which they were called. A
 * blocking call runs in the compute thread if the lane is idle; what is started, and what comes behind it, runs in the
 * lane's own thread. Requests are tickets: counts of operations called. */
#include "comm/shm.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Larger staging memory is given back after each operation. */
#define STAGING_KEPT_BYTES ((size_t)16 << 20)

struct shm_queued {
    struct shm_queued *next;
    struct ek_operation operation; /* its arrays lie behind */
};

ek_status shm_lane_create(struct shm_lane *lane, struct shm_engine *engine, ek_lane id)
{
    *lane = (struct shm_lane){.engine = engine, .id = id};
    pthread_mutex_init(&lane->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&lane->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    for (int parity = 0; parity < 2; parity++) {
        void *offsets;
        EK_TRY(heap_alloc(&engine->heap, SHM_SLOT_BYTES, &lane->slots[parity]));
        EK_TRY(heap_alloc(&engine->heap, (engine->base.ranks + 1) * sizeof *lane->offsets[parity], &offsets));
        lane->offsets[parity] = offsets;
    }
    return EK_OK;
}

void shm_lane_destroy(struct shm_lane *lane)
{
    shm_lane_drain(lane);
    if (lane->running) {
        pthread_mutex_lock(&lane->mutex);
        lane->stopping = true;
        pthread_cond_broadcast(&lane->changed);
        pthread_mutex_unlock(&lane->mutex);
        pthread_join(lane->thread, NULL);
    }
    pthread_cond_destroy(&lane->changed);
    pthread_mutex_destroy(&lane->mutex);
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

/* ------------------------------------------------------------------------------------------------- queue */

static ek_status run(struct shm_lane *lane, const struct ek_operation *operation, bool beats)
{
    lane->beats = beats;
    lane->deadline_ns = 0;
    EK_TRY(shm_check(lane->engine));
    EK_TRY(operation->group ? shm_collective(lane, operation) : shm_exchange(lane, operation));
    return shm_await_link(lane);
}

static size_t array_bytes(const void *array, size_t count, size_t element_bytes)
{
    return array ? count * element_bytes : 0;
}

/* Copies an array behind a queued operation. */
static const void *keep(unsigned char **room, const void *array, size_t bytes)
{
    if (!bytes)
        return NULL;
    void *copy = memcpy(*room, array, bytes);
    *room += bytes;
    return copy;
}

static struct shm_queued *copy_operation(const struct ek_operation *operation)
{
    size_t members = operation->group ? operation->group->count : 0;
    size_t input_bytes = array_bytes(operation->input_sizes, members, sizeof *operation->input_sizes);
    size_t output_bytes = array_bytes(operation->output_sizes, members, sizeof *operation->output_sizes);
    size_t send_bytes = array_bytes(operation->sends, operation->send_count, sizeof *operation->sends);
    size_t receive_bytes = array_bytes(operation->receives, operation->receive_count, sizeof *operation->receives);
    struct shm_queued *queued = malloc(sizeof *queued + input_bytes + output_bytes + send_bytes + receive_bytes);
    if (!queued)
        return NULL;
    unsigned char *room = (unsigned char *)(queued + 1);
    queued->next = NULL;
    queued->operation = *operation;
    queued->operation.sends = keep(&room, operation->sends, send_bytes);
    queued->operation.receives = keep(&room, operation->receives, receive_bytes);
    queued->operation.input_sizes = keep(&room, operation->input_sizes, input_bytes);
    queued->operation.output_sizes = keep(&room, operation->output_sizes, output_bytes);
    return queued;
}

/* With the mutex held. After a failure what is queued behind it is not run: nothing may overtake. */
static void finish_first(struct shm_lane *lane)
{
    struct shm_queued *queued = lane->first;
    if (lane->failure == EK_OK) {
        pthread_mutex_unlock(&lane->mutex);
        ek_status status = run(lane, &queued->operation, false);
        pthread_mutex_lock(&lane->mutex);
        if (status != EK_OK) {
            lane->failure = status;
            lane->failed = lane->finished + 1;
            memcpy(lane->error, ek_error(), strlen(ek_error()) + 1);
        }
    }
    lane->first = queued->next;
    if (!lane->first)
        lane->last = NULL;
    free(queued);
    lane->finished++;
    pthread_cond_broadcast(&lane->changed);
}

static void *run_queue(void *argument)
{
    struct shm_lane *lane = argument;
    pthread_mutex_lock(&lane->mutex);
    while (lane->first || !lane->stopping) {
        if (lane->first)
            finish_first(lane);
        else
            pthread_cond_wait(&lane->changed, &lane->mutex);
    }
    pthread_mutex_unlock(&lane->mutex);
    return NULL;
}

/* Signals are for the program's own threads. */
static ek_status start_thread(struct shm_lane *lane)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&lane->thread, NULL, run_queue, lane);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error)
        return ek_fail(EK_SYSTEM, "cannot start the thread of a lane: %s", strerror(error));
    lane->running = true;
    return EK_OK;
}

static ek_status enqueue(struct shm_lane *lane, const struct ek_operation *operation, ek_request *ticket)
{
    if (!lane->running)
        EK_TRY(start_thread(lane));
    struct shm_queued *queued = copy_operation(operation);
    if (!queued)
        return ek_fail(EK_NO_MEMORY, "out of memory for a queued operation");
    pthread_mutex_lock(&lane->mutex);
    if (lane->last)
        lane->last->next = queued;
    else
        lane->first = queued;
    lane->last = queued;
    *ticket = ++lane->issued;
    pthread_cond_broadcast(&lane->changed);
    pthread_mutex_unlock(&lane->mutex);
    return EK_OK;
}

/* The failure among the operations up to `ticket`, or EK_OK. With the mutex held. */
static ek_status outcome(const struct shm_lane *lane, ek_request ticket)
{
    if (lane->failure != EK_OK && lane->failed <= ticket)
        return ek_fail(lane->failure, "%s", lane->error);
    return EK_OK;
}

/* Waits, beating, until so many operations are finished. Leaves the mutex locked. */
static void lock_when_finished(struct shm_lane *lane, ek_request ticket)
{
    pthread_mutex_lock(&lane->mutex);
    while (lane->finished < ticket) {
        uint64_t until_ns = shm_now_ns() + lane->engine->job->nap_ns;
        struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u), .tv_nsec = (long)(until_ns % 1000000000u)};
        pthread_cond_timedwait(&lane->changed, &lane->mutex, &until);
        shm_beat(lane->engine);
    }
}

static ek_status await_ticket(struct shm_lane *lane, ek_request ticket)
{
    lock_when_finished(lane, ticket);
    ek_status status = outcome(lane, ticket);
    pthread_mutex_unlock(&lane->mutex);
    return status;
}

ek_status shm_submit(ek_engine *engine, ek_lane id, const struct ek_operation *operation, ek_request *request)
{
    struct shm_lane *lane = &((struct shm_engine *)engine)->lanes[id];
    if (operation->group && ((struct shm_group *)operation->group)->epoch != lane->engine->epoch)
        return ek_fail(EK_INVALID, "the group was made before the last ek_agree: make it again");
    if (request)
        return enqueue(lane, operation, request);

    pthread_mutex_lock(&lane->mutex);
    bool idle = lane->finished == lane->issued;
    ek_status status = idle ? outcome(lane, lane->issued) : EK_OK;
    pthread_mutex_unlock(&lane->mutex);
    if (status != EK_OK)
        return status;
    if (idle)
        return run(lane, operation, true);
    ek_request ticket = 0;
    EK_TRY(enqueue(lane, operation, &ticket));
    return await_ticket(lane, ticket);
}

ek_status shm_wait(ek_engine *engine, ek_lane id, ek_request request)
{
    struct shm_lane *lane = &((struct shm_engine *)engine)->lanes[id];
    if (request > lane->issued)
        return ek_fail(EK_INVALID, "ek_wait: operation %llu of a lane that has started %llu",
                       (unsigned long long)request, (unsigned long long)lane->issued);
    return await_ticket(lane, request);
}

void shm_lane_drain(struct shm_lane *lane)
{
    lock_when_finished(lane, lane->issued);
    pthread_mutex_unlock(&lane->mutex);
}

bool shm_lane_busy(struct shm_lane *lane)
{
    pthread_mutex_lock(&lane->mutex);
    bool busy = lane->finished < lane->issued;
    pthread_mutex_unlock(&lane->mutex);
    return busy;
}

void shm_lane_renew(struct shm_lane *lane)
{
    lane->failure = EK_OK;
    lane->guards[0].counter = lane->guards[1].counter = lane->staging_guard.counter = NULL;
}
