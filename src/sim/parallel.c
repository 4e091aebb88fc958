/* A counter hands out the parts; threads take from it until there are none. */
#include "sim/parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

typedef struct parallel_state {
    const ek_parallel *parallel;
    uint32_t parts;
    atomic_uint next, done;
    pthread_mutex_t lock; /* of what follows */
    ek_status status;
    char error[EK_ERROR_BYTES];
} parallel_state;

static void remember_failure(parallel_state *state, ek_status status)
{
    pthread_mutex_lock(&state->lock);
    if (state->status == EK_OK) {
        state->status = status;
        snprintf(state->error, sizeof state->error, "%s", ek_error()); /* belongs to the thread that failed */
    }
    pthread_mutex_unlock(&state->lock);
    atomic_store(&state->next, state->parts);
}

static void take_parts(parallel_state *state, bool is_caller)
{
    const ek_parallel *parallel = state->parallel;
    for (;;) {
        uint32_t part = atomic_fetch_add(&state->next, 1);
        if (part >= state->parts)
            return;
        ek_status status = parallel->run(parallel->context, part);
        if (status != EK_OK)
            remember_failure(state, status);
        uint32_t done = atomic_fetch_add(&state->done, 1) + 1;
        if (is_caller && parallel->progress)
            parallel->progress(parallel->progress_context, done);
    }
}

static void *thread_main(void *state)
{
    take_parts(state, false);
    return NULL;
}

ek_status ek_parallel_run(const ek_parallel *parallel, uint32_t parts)
{
    parallel_state state = {.parallel = parallel, .parts = parts, .lock = PTHREAD_MUTEX_INITIALIZER};
    uint32_t helpers = parallel->threads > 1 ? parallel->threads - 1 : 0, started = 0;
    if (parts > 0 && helpers > parts - 1)
        helpers = parts - 1;
    pthread_t *threads = helpers ? malloc(helpers * sizeof *threads) : NULL;
    if (helpers && !threads)
        return ek_fail(EK_NO_MEMORY, "no memory for %u threads", helpers);
    while (started < helpers && pthread_create(&threads[started], NULL, thread_main, &state) == 0)
        started++; /* where the system gives fewer, fewer do the work */
    take_parts(&state, true);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    pthread_mutex_destroy(&state.lock);
    return state.status == EK_OK ? EK_OK : ek_fail(state.status, "%s", state.error);
}
