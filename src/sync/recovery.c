/* Recovery in place: ek_recovery of evenkeel.h, where the protocol stands. What it rests on (docs/recovery.md):
 *
 *   - ek_agree gives every rank of the job the same answer, and completes when all that are alive have come;
 *   - an attempt is one agreement of kind BEGIN and one of kind END, and every rank passes both, whatever happened
 *     between them, so that the agreements of different ranks never mix up. A begin that fails because of a loss
 *     passes END itself, where its peers' ok fails too, and begins anew with them. (A rank whose begin fails for
 *     another reason leaves main, which ends the job);
 *   - ek_membership_lose, _join and _moves are pure: equal input, equal plan, on every rank. Newcomers get the input,
 *     the old membership, from a rank that has it;
 *   - a rank that was lost is in no membership when it returns: it is never taken for a holder of what it held;
 *   - between begin and end old stores are only read, new stores only written. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cluster/membership.h"

struct ek_recovery {
    ek_engine *engine;
    const ek_membership *old; /* the caller's, or `received` */
    ek_membership *received;  /* in a newcomer */
    ek_membership *next;
    ek_move *moves;
    size_t move_count;
    uint64_t committed_step, bytes;
};

static void destroy(ek_recovery *recovery)
{
    ek_membership_destroy(recovery->received);
    ek_membership_destroy(recovery->next);
    ek_free(recovery->moves);
    free(recovery);
}

/* ------------------------------------------------------------------------------------------------- begin */

/* The lowest rank that has the old membership, or EK_NONE. */
static uint32_t find_elder(const ek_agreement *agreement, uint32_t ranks)
{
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (agreement->live[rank] && !agreement->newcomers[rank])
            return rank;
    return EK_NONE;
}

/* The elder sends its packed membership to each newcomer. words is [count]. */
static ek_status exchange_words(ek_engine *engine, const ek_agreement *agreement, uint32_t elder, uint32_t *words,
                                size_t count)
{
    uint32_t rank = ek_engine_rank(engine), ranks = ek_engine_ranks(engine);
    ek_message receive = {.peer = elder, .data = words, .bytes = count * sizeof *words};
    if (agreement->newcomers[rank])
        return ek_exchange(engine, EK_LANE_COMPUTE, NULL, 0, &receive, 1, NULL);
    ek_message *sends = calloc(ranks, sizeof *sends);
    if (!sends)
        return ek_fail(EK_NO_MEMORY, "out of memory for recovery");
    size_t send_count = 0;
    for (uint32_t peer = 0; peer < ranks; peer++)
        if (agreement->newcomers[peer])
            sends[send_count++] = (ek_message){.peer = peer, .data = words, .bytes = count * sizeof *words};
    ek_status status = ek_exchange(engine, EK_LANE_COMPUTE, sends, send_count, NULL, 0, NULL);
    free(sends);
    return status;
}

/* Newcomers learn the membership that the others have. */
static ek_status share_membership(ek_recovery *recovery, const ek_agreement *agreement)
{
    uint32_t rank = ek_engine_rank(recovery->engine);
    uint32_t elder = find_elder(agreement, ek_engine_ranks(recovery->engine));
    if (elder == EK_NONE)
        return ek_fail(EK_UNIT_LOST, "no survivor holds any state: all that did were lost before newcomers had it");
    if (rank != elder && !agreement->newcomers[rank])
        return EK_OK;
    size_t count = membership_packed_words(recovery->old);
    uint32_t *words = calloc(count, sizeof *words);
    if (!words)
        return ek_fail(EK_NO_MEMORY, "out of memory for recovery");
    membership_pack(recovery->old, words);
    ek_status status = exchange_words(recovery->engine, agreement, elder, words, count);
    if (status == EK_OK && rank != elder) {
        status = membership_unpack(recovery->old, words, &recovery->received);
        recovery->old = recovery->received;
    }
    free(words);
    return status;
}

static ek_status begin(ek_recovery *recovery)
{
    ek_agreement agreement;
    EK_TRY(ek_agree(recovery->engine, EK_AGREE_BEGIN, true, &agreement));
    recovery->committed_step = agreement.committed_step;
    EK_TRY(share_membership(recovery, &agreement));
    EK_TRY(ek_membership_follow(recovery->old, agreement.live, &recovery->next));
    return ek_membership_moves(recovery->old, recovery->next, &recovery->moves, &recovery->move_count);
}

ek_status ek_recovery_begin(ek_recovery **out, ek_engine *engine, const ek_membership *membership)
{
    if (ek_membership_ranks(membership) > ek_engine_ranks(engine))
        return ek_fail(EK_INVALID, "ek_recovery_begin: a membership of %u ranks in a job of %u",
                       ek_membership_ranks(membership), ek_engine_ranks(engine));
    ek_recovery *recovery = calloc(1, sizeof *recovery);
    if (!recovery)
        return ek_fail(EK_NO_MEMORY, "out of memory for recovery");
    *recovery = (ek_recovery){.engine = engine, .old = membership};
    ek_agreement failed; /* END, and never ok: a rank was lost */
    ek_status status;
    while ((status = begin(recovery)) == EK_PEER_LOST)
        if ((status = ek_agree(engine, EK_AGREE_END, false, &failed)) != EK_OK)
            break;
    if (status != EK_OK) {
        destroy(recovery);
        return status;
    }
    *out = recovery;
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------ move and end */

const ek_membership *ek_recovery_membership(const ek_recovery *recovery)
{
    return recovery->next;
}

uint64_t ek_recovery_committed_step(const ek_recovery *recovery)
{
    return recovery->committed_step;
}

uint64_t ek_recovery_bytes(const ek_recovery *recovery)
{
    return recovery->bytes;
}

bool ek_recovery_keeps(const ek_recovery *recovery)
{
    uint32_t rank = ek_engine_rank(recovery->engine);
    if (!ek_membership_place(recovery->old, rank, NULL, NULL) || !ek_membership_place(recovery->next, rank, NULL, NULL))
        return false;
    for (uint32_t group = 0; group < ek_membership_job(recovery->old)->group_count; group++) {
        uint32_t old_count, new_count;
        const uint32_t *old_units = ek_membership_units(recovery->old, rank, group, &old_count);
        const uint32_t *new_units = ek_membership_units(recovery->next, rank, group, &new_count);
        if (old_count != new_count || memcmp(old_units, new_units, old_count * sizeof *old_units) != 0)
            return false;
    }
    return true;
}

/* A send only reads its data, but a message has one pointer for both directions. */
static void *sendable(const void *data)
{
    union {
        const void *read;
        void *sent;
    } pointer = {.read = data};
    return pointer.sent;
}

static char *at(void *data, uint64_t unit, size_t unit_bytes)
{
    return (char *)data + unit * unit_bytes;
}

/* Copies what keeps its place. What keeps its rank but not its place is among the moves. */
static void keep_in_place(const ek_recovery *recovery, uint32_t rank, const ek_state *state)
{
    if (!state->old_data || !state->new_data || state->old_data == state->new_data)
        return;
    if (state->group == EK_REPLICATED) {
        memcpy(state->new_data, state->old_data, state->unit_bytes);
        return;
    }
    uint32_t old_count, new_count;
    const uint32_t *old_units = ek_membership_units(recovery->old, rank, state->group, &old_count);
    const uint32_t *new_units = ek_membership_units(recovery->next, rank, state->group, &new_count);
    uint32_t common = old_count < new_count ? old_count : new_count;
    for (uint32_t first = 0; first < common;) {
        uint32_t end = first;
        while (end < common && old_units[end] == new_units[end])
            end++;
        if (end > first)
            memcpy(at(state->new_data, first, state->unit_bytes),
                   (const char *)state->old_data + first * state->unit_bytes, (end - first) * state->unit_bytes);
        first = end + 1;
    }
}

/* Turns the moves of one state into messages: between two ranks they are ordered by state, then as in the plan, on both
 * sides. */
static void plan_messages(const ek_recovery *recovery, uint32_t rank, const ek_state *state, ek_message *sends,
                          size_t *send_count, ek_message *receives, size_t *receive_count)
{
    for (size_t i = 0; i < recovery->move_count; i++) {
        const ek_move *move = &recovery->moves[i];
        if (move->group != state->group)
            continue;
        size_t bytes = move->count * state->unit_bytes;
        if (move->source == rank) /* a send does not write to its data */
            sends[(*send_count)++] = (ek_message){
                move->destination, at(sendable(state->old_data), move->source_first, state->unit_bytes), bytes};
        if (move->destination == rank)
            receives[(*receive_count)++] =
                (ek_message){move->source, at(state->new_data, move->destination_first, state->unit_bytes), bytes};
    }
}

ek_status ek_recovery_move(ek_recovery *recovery, const ek_state *states, size_t count)
{
    uint32_t rank = ek_engine_rank(recovery->engine);
    size_t most_sends = 0, most_receives = 0;
    for (size_t i = 0; i < recovery->move_count; i++) {
        most_sends += recovery->moves[i].source == rank;
        most_receives += recovery->moves[i].destination == rank;
    }
    ek_message *sends = calloc(most_sends * count + 1, sizeof *sends);
    ek_message *receives = calloc(most_receives * count + 1, sizeof *receives);
    ek_status status = EK_OK;
    if (!sends || !receives)
        status = ek_fail(EK_NO_MEMORY, "out of memory for recovery");
    size_t send_count = 0, receive_count = 0;
    for (size_t i = 0; i < count && status == EK_OK; i++) {
        keep_in_place(recovery, rank, &states[i]);
        plan_messages(recovery, rank, &states[i], sends, &send_count, receives, &receive_count);
    }
    if (status == EK_OK)
        status = ek_exchange(recovery->engine, EK_LANE_COMPUTE, sends, send_count, receives, receive_count, NULL);
    for (size_t i = 0; i < receive_count && status == EK_OK; i++)
        if (receives[i].peer != rank)
            recovery->bytes += receives[i].bytes;
    free(sends);
    free(receives);
    return status;
}

ek_status ek_recovery_end(ek_recovery **recovery, ek_status status, ek_membership **next)
{
    ek_recovery *ending = *recovery;
    *recovery = NULL;
    ek_agreement agreement;
    ek_status agreed = ek_agree(ending->engine, EK_AGREE_END, status == EK_OK, &agreement);
    if (status == EK_OK)
        status = agreed;
    if (status == EK_OK && !agreement.ok)
        status = ek_fail(EK_PEER_LOST, "another rank was lost during recovery");
    if (status == EK_OK) {
        *next = ending->next;
        ending->next = NULL;
    }
    destroy(ending);
    return status;
}
