/* The queue of a lane, for every engine: operations run one after the other, in the order in which they were called. A
 * blocking call runs in the compute thread if the queue is idle; what is started, and what comes behind it, runs in the
 * queue's own thread. Requests are tickets: counts of operations called. */
#ifndef EK_COMM_QUEUE_H
#define EK_COMM_QUEUE_H

#include "base/error.h"
#include "comm/engine.h"

#include <pthread.h>

struct queue_entry; /* in queue.c */

/* First member of an engine's own structure of a lane. */
struct queue {
    /* The engine's: runs one operation, in the compute thread or in the queue's; a beat of the compute thread, while it
     * waits; how often that is. */
    ek_status (*run)(struct queue *queue, const struct ek_operation *operation, bool in_compute_thread);
    void (*beat)(const struct queue *queue);
    uint64_t nap_ns;

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread; /* made for the first started operation */
    bool running, stopping;
    struct queue_entry *first, *last;
    uint64_t issued, finished;
    ek_status failure; /* of the first started operation that failed since queue_renew */
    uint64_t failed;   /* its ticket */
    char error[EK_ERROR_BYTES];
};

/* The engine's three members are set, the others zero. */
void queue_init(struct queue *queue);
void queue_destroy(struct queue *queue); /* drains it */
/* request == NULL: until it is complete. */
ek_status queue_submit(struct queue *queue, const struct ek_operation *operation, ek_request *request);
ek_status queue_wait(struct queue *queue, ek_request request);
void queue_drain(struct queue *queue);
bool queue_busy(struct queue *queue);
void queue_renew(struct queue *queue); /* failures are forgotten; nothing is queued */

#endif
