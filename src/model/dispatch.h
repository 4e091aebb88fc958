/* Expert parallelism's way of tokens: every row goes once to each rank that holds at least one of its experts, with its
 * choices and their weights, and what those ranks make of it comes back and is added up. Both directions in forward and
 * in backward are the same two calls. A rank may send or receive nothing. */
#ifndef EK_MODEL_DISPATCH_H
#define EK_MODEL_DISPATCH_H

#include <evenkeel.h>

/* Memory that grows as it is needed: how many rows arrive is known only when they do. All zero is an empty one. With an
 * engine it is engine memory: others read it where it lies. */
typedef struct ek_buffer {
    ek_engine *engine;
    void *memory;
    size_t bytes;
} ek_buffer;

/* At least so much, with any content; never NULL. */
ek_status ek_buffer_reserve(ek_buffer *buffer, size_t bytes);
void ek_buffer_free(ek_buffer *buffer);

/* The way of the rows of one layer and one micro-batch. All zero is an empty one. */
typedef struct ek_dispatch {
    size_t sent, received; /* rows */
    size_t k;
    ek_buffer sent_rows;        /* uint32_t [sent]: the row, by member it goes to */
    ek_buffer counts;           /* size_t [4][members]: rows and bytes to and from each member */
    ek_buffer arrived;          /* (received,2k): choices and weights of each row together */
    ek_buffer choices, weights; /* (received,k): the same, apart */
} ek_dispatch;

void ek_dispatch_free(ek_dispatch *dispatch);

static inline const uint32_t *ek_dispatch_choices(const ek_dispatch *dispatch)
{
    return dispatch->choices.memory;
}

static inline const float *ek_dispatch_weights(const ek_dispatch *dispatch)
{
    return dispatch->weights.memory;
}

/* Settles who gets what and hands over choices and weights (N,k). owner[expert] is an index in the group. `staging` is
 * scratch that all calls may share. */
ek_status ek_dispatch_plan(ek_dispatch *dispatch, ek_group *group, ek_buffer *staging, const uint32_t *choices,
                           const float *weights, const uint32_t *owner, size_t N, size_t k);

/* received (dispatch->received,C), from everybody's rows (N,C). */
ek_status ek_dispatch_send(const ek_dispatch *dispatch, ek_group *group, ek_buffer *staging, float *received,
                           const float *rows, size_t C);

/* Adds to rows (N,C) what the members made of them: results (dispatch->received,C). */
ek_status ek_dispatch_return(const ek_dispatch *dispatch, ek_group *group, ek_buffer *staging, float *rows,
                             const float *results, size_t C);

#endif
