/* Dispatch and combine: rows to the ranks that hold their experts, and results back. */
#include "model/dispatch.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define LEAST_BYTES 64

ek_status ek_buffer_reserve(ek_buffer *buffer, size_t bytes)
{
    if (buffer->memory && bytes <= buffer->bytes)
        return EK_OK;
    ek_buffer_free(buffer);
    size_t larger = LEAST_BYTES + bytes + bytes / 4; /* so that it grows a few times only */
    if (buffer->engine)
        EK_TRY(ek_engine_alloc(buffer->engine, larger, &buffer->memory));
    else
        buffer->memory = malloc(larger);
    if (!buffer->memory)
        return ek_fail(EK_NO_MEMORY, "no memory for %zu bytes of tokens that came to this rank's experts", larger);
    buffer->bytes = larger;
    return EK_OK;
}

void ek_buffer_free(ek_buffer *buffer)
{
    if (buffer->engine && buffer->memory)
        ek_engine_free(buffer->engine, buffer->memory);
    else
        free(buffer->memory);
    buffer->memory = NULL;
    buffer->bytes = 0;
}

void ek_dispatch_free(ek_dispatch *dispatch)
{
    ek_buffer_free(&dispatch->sent_rows);
    ek_buffer_free(&dispatch->counts);
    ek_buffer_free(&dispatch->arrived);
    ek_buffer_free(&dispatch->choices);
    ek_buffer_free(&dispatch->weights);
}

/* ----------------------------------------------------------------------------------------------- counts */

enum { ROWS_OUT, ROWS_IN, BYTES_OUT, BYTES_IN, COUNTS };

static size_t *counts_of(const ek_dispatch *dispatch, const ek_group *group, int kind)
{
    return (size_t *)dispatch->counts.memory + (size_t)kind * ek_group_size(group);
}

/* Whether one of a row's choices is with the member. */
static bool goes_to(const uint32_t *choices, const uint32_t *owner, size_t k, uint32_t member)
{
    for (size_t j = 0; j < k; j++)
        if (owner[choices[j]] == member)
            return true;
    return false;
}

/* Lists the rows by member they go to, ascending. */
static void list_rows(ek_dispatch *dispatch, const ek_group *group, const uint32_t *choices, const uint32_t *owner,
                      size_t N)
{
    uint32_t *rows = dispatch->sent_rows.memory;
    dispatch->sent = 0;
    for (uint32_t member = 0; member < ek_group_size(group); member++) {
        size_t before = dispatch->sent;
        for (size_t n = 0; n < N; n++)
            if (goes_to(choices + n * dispatch->k, owner, dispatch->k, member))
                rows[dispatch->sent++] = (uint32_t)n;
        counts_of(dispatch, group, ROWS_OUT)[member] = dispatch->sent - before;
    }
}

static ek_status exchange_counts(ek_dispatch *dispatch, ek_group *group)
{
    size_t members = ek_group_size(group), *bytes = counts_of(dispatch, group, BYTES_OUT);
    for (size_t member = 0; member < members; member++)
        bytes[member] = sizeof(size_t);
    EK_TRY(ek_all_to_all(group, counts_of(dispatch, group, ROWS_OUT), bytes, counts_of(dispatch, group, ROWS_IN), bytes,
                         NULL));
    dispatch->received = 0;
    for (size_t member = 0; member < members; member++)
        dispatch->received += counts_of(dispatch, group, ROWS_IN)[member];
    return EK_OK;
}

/* ----------------------------------------------------------------------------------------------- the ways */

/* Rows of `row_bytes` in the order of the lists, to their members, or back from them. */
static ek_status exchange(const ek_dispatch *dispatch, ek_group *group, bool back, const void *out, void *in,
                          size_t row_bytes)
{
    size_t *bytes_out = counts_of(dispatch, group, back ? BYTES_IN : BYTES_OUT);
    size_t *bytes_in = counts_of(dispatch, group, back ? BYTES_OUT : BYTES_IN);
    for (uint32_t member = 0; member < ek_group_size(group); member++) {
        counts_of(dispatch, group, BYTES_OUT)[member] = counts_of(dispatch, group, ROWS_OUT)[member] * row_bytes;
        counts_of(dispatch, group, BYTES_IN)[member] = counts_of(dispatch, group, ROWS_IN)[member] * row_bytes;
    }
    return ek_all_to_all(group, out, bytes_out, in, bytes_in, NULL);
}

/* Choices and weights, which belong together: a word each. */
static ek_status send_choices(ek_dispatch *dispatch, ek_group *group, ek_buffer *staging, const uint32_t *choices,
                              const float *weights)
{
    size_t k = dispatch->k, bytes = k * sizeof(uint32_t), received = dispatch->received;
    EK_TRY(ek_buffer_reserve(staging, dispatch->sent * 2 * bytes));
    EK_TRY(ek_buffer_reserve(&dispatch->arrived, received * 2 * bytes));
    EK_TRY(ek_buffer_reserve(&dispatch->choices, received * bytes));
    EK_TRY(ek_buffer_reserve(&dispatch->weights, received * bytes));
    const uint32_t *list = dispatch->sent_rows.memory;
    uint32_t *out = staging->memory;
    for (size_t i = 0; i < dispatch->sent; i++, out += 2 * k) {
        memcpy(out, choices + list[i] * k, bytes);
        memcpy(out + k, weights + list[i] * k, bytes);
    }
    EK_TRY(exchange(dispatch, group, false, staging->memory, dispatch->arrived.memory, 2 * bytes));
    const uint32_t *in = dispatch->arrived.memory;
    for (size_t i = 0; i < received; i++, in += 2 * k) {
        memcpy((uint32_t *)dispatch->choices.memory + i * k, in, bytes);
        memcpy((float *)dispatch->weights.memory + i * k, in + k, bytes);
    }
    return EK_OK;
}

ek_status ek_dispatch_plan(ek_dispatch *dispatch, ek_group *group, ek_buffer *staging, const uint32_t *choices,
                           const float *weights, const uint32_t *owner, size_t N, size_t k)
{
    size_t members = ek_group_size(group), places = k < members ? k : members; /* a row goes to so many at most */
    dispatch->k = k;
    EK_TRY(ek_buffer_reserve(&dispatch->sent_rows, N * places * sizeof(uint32_t)));
    EK_TRY(ek_buffer_reserve(&dispatch->counts, COUNTS * members * sizeof(size_t)));
    list_rows(dispatch, group, choices, owner, N);
    EK_TRY(exchange_counts(dispatch, group));
    return send_choices(dispatch, group, staging, choices, weights);
}

ek_status ek_dispatch_send(const ek_dispatch *dispatch, ek_group *group, ek_buffer *staging, float *received,
                           const float *rows, size_t C)
{
    EK_TRY(ek_buffer_reserve(staging, dispatch->sent * C * sizeof(float)));
    const uint32_t *list = dispatch->sent_rows.memory;
    float *out = staging->memory;
    for (size_t i = 0; i < dispatch->sent; i++)
        memcpy(out + i * C, rows + list[i] * C, C * sizeof *out);
    return exchange(dispatch, group, false, out, received, C * sizeof *out);
}

ek_status ek_dispatch_return(const ek_dispatch *dispatch, ek_group *group, ek_buffer *staging, float *rows,
                             const float *results, size_t C)
{
    EK_TRY(ek_buffer_reserve(staging, dispatch->sent * C * sizeof(float)));
    EK_TRY(exchange(dispatch, group, true, results, staging->memory, C * sizeof(float)));
    const uint32_t *list = dispatch->sent_rows.memory;
    const float *returned = staging->memory;
    for (size_t i = 0; i < dispatch->sent; i++) {
        float *row = rows + list[i] * C;
        for (size_t c = 0; c < C; c++)
            row[c] += returned[i * C + c];
    }
    return EK_OK;
}
