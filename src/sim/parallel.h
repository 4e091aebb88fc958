/* Work that falls into independent parts, done by several threads. */
#ifndef EK_SIM_PARALLEL_H
#define EK_SIM_PARALLEL_H

#include <evenkeel.h>

typedef struct ek_parallel {
    uint32_t threads; /* 0: 1 */
    /* Does part `part`; called by several threads at once, each part once. */
    ek_status (*run)(void *context, uint32_t part);
    void *context;
    /* Called by the caller's thread after its own parts, with how many are done in all. May be NULL. */
    void (*progress)(void *context, uint32_t done);
    void *progress_context;
} ek_parallel;

/* Runs parts 0 … parts-1, on the caller's thread too. The first failure ends it and is returned, with its text. */
ek_status ek_parallel_run(const ek_parallel *parallel, uint32_t parts);

#endif
