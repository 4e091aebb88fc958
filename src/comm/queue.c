/* See queue.h. */
#include "comm/queue.h"

#include "comm/clock.h"
#include "comm/thread.h"

#include <stdlib.h>
#include <string.h>

struct queue_entry {
    struct queue_entry *next;
    struct ek_operation operation; /* its arrays lie behind */
};

void queue_init(struct queue *queue)
{
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&queue->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void queue_destroy(struct queue *queue)
{
    queue_drain(queue);
    if (queue->running) {
        pthread_mutex_lock(&queue->mutex);
        queue->stopping = true;
        pthread_cond_broadcast(&queue->changed);
        pthread_mutex_unlock(&queue->mutex);
        pthread_join(queue->thread, NULL);
    }
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->mutex);
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

static struct queue_entry *copy_operation(const struct ek_operation *operation)
{
    size_t members = operation->group ? operation->group->count : 0;
    size_t input_bytes = array_bytes(operation->input_sizes, members, sizeof *operation->input_sizes);
    size_t output_bytes = array_bytes(operation->output_sizes, members, sizeof *operation->output_sizes);
    size_t send_bytes = array_bytes(operation->sends, operation->send_count, sizeof *operation->sends);
    size_t receive_bytes = array_bytes(operation->receives, operation->receive_count, sizeof *operation->receives);
    struct queue_entry *entry = malloc(sizeof *entry + input_bytes + output_bytes + send_bytes + receive_bytes);
    if (!entry)
        return NULL;
    unsigned char *room = (unsigned char *)(entry + 1);
    entry->next = NULL;
    entry->operation = *operation;
    entry->operation.sends = keep(&room, operation->sends, send_bytes);
    entry->operation.receives = keep(&room, operation->receives, receive_bytes);
    entry->operation.input_sizes = keep(&room, operation->input_sizes, input_bytes);
    entry->operation.output_sizes = keep(&room, operation->output_sizes, output_bytes);
    return entry;
}

/* With the mutex held. After a failure what is queued behind it is not run: nothing may overtake. */
static void finish_first(struct queue *queue)
{
    struct queue_entry *entry = queue->first;
    if (queue->failure == EK_OK) {
        pthread_mutex_unlock(&queue->mutex);
        ek_status status = queue->run(queue, &entry->operation, false);
        pthread_mutex_lock(&queue->mutex);
        if (status != EK_OK) {
            queue->failure = status;
            queue->failed = queue->finished + 1;
            memcpy(queue->error, ek_error(), strlen(ek_error()) + 1);
        }
    }
    queue->first = entry->next;
    if (!queue->first)
        queue->last = NULL;
    free(entry);
    queue->finished++;
    pthread_cond_broadcast(&queue->changed);
}

static void *run_queue(void *argument)
{
    struct queue *queue = argument;
    pthread_mutex_lock(&queue->mutex);
    while (queue->first || !queue->stopping) {
        if (queue->first)
            finish_first(queue);
        else
            pthread_cond_wait(&queue->changed, &queue->mutex);
    }
    pthread_mutex_unlock(&queue->mutex);
    return NULL;
}

static ek_status start_thread(struct queue *queue)
{
    int error = thread_start(&queue->thread, run_queue, queue);
    if (error)
        return ek_fail(EK_SYSTEM, "cannot start the thread of a lane: %s", strerror(error));
    queue->running = true;
    return EK_OK;
}

static ek_status enqueue(struct queue *queue, const struct ek_operation *operation, ek_request *ticket)
{
    if (!queue->running)
        EK_TRY(start_thread(queue));
    struct queue_entry *entry = copy_operation(operation);
    if (!entry)
        return ek_fail(EK_NO_MEMORY, "out of memory for a queued operation");
    pthread_mutex_lock(&queue->mutex);
    if (queue->last)
        queue->last->next = entry;
    else
        queue->first = entry;
    queue->last = entry;
    *ticket = ++queue->issued;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->mutex);
    return EK_OK;
}

/* The failure among the operations up to `ticket`, or EK_OK. With the mutex held. */
static ek_status outcome(const struct queue *queue, ek_request ticket)
{
    if (queue->failure != EK_OK && queue->failed <= ticket)
        return ek_fail(queue->failure, "%s", queue->error);
    return EK_OK;
}

/* Waits, beating, until so many operations are finished. Leaves the mutex locked. */
static void lock_when_finished(struct queue *queue, ek_request ticket)
{
    pthread_mutex_lock(&queue->mutex);
    while (queue->finished < ticket) {
        struct timespec until = clock_timespec(clock_now_ns() + queue->nap_ns);
        pthread_cond_timedwait(&queue->changed, &queue->mutex, &until);
        queue->beat(queue);
    }
}

static ek_status await_ticket(struct queue *queue, ek_request ticket)
{
    lock_when_finished(queue, ticket);
    ek_status status = outcome(queue, ticket);
    pthread_mutex_unlock(&queue->mutex);
    return status;
}

ek_status queue_submit(struct queue *queue, const struct ek_operation *operation, ek_request *request)
{
    if (request)
        return enqueue(queue, operation, request);

    pthread_mutex_lock(&queue->mutex);
    bool idle = queue->finished == queue->issued;
    ek_status status = idle ? outcome(queue, queue->issued) : EK_OK;
    pthread_mutex_unlock(&queue->mutex);
    if (status != EK_OK)
        return status;
    if (idle)
        return queue->run(queue, operation, true);
    ek_request ticket = 0;
    EK_TRY(enqueue(queue, operation, &ticket));
    return await_ticket(queue, ticket);
}

ek_status queue_wait(struct queue *queue, ek_request request)
{
    if (request > queue->issued)
        return ek_fail(EK_INVALID, "ek_wait: operation %llu of a lane that has started %llu",
                       (unsigned long long)request, (unsigned long long)queue->issued);
    return await_ticket(queue, request);
}

void queue_drain(struct queue *queue)
{
    lock_when_finished(queue, queue->issued);
    pthread_mutex_unlock(&queue->mutex);
}

bool queue_busy(struct queue *queue)
{
    pthread_mutex_lock(&queue->mutex);
    bool busy = queue->finished < queue->issued;
    pthread_mutex_unlock(&queue->mutex);
    return busy;
}

void queue_renew(struct queue *queue)
{
    queue->failure = EK_OK;
}
