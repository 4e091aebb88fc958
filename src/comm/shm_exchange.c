/* Point-to-point messages of the engine "shm": all messages of one ek_exchange progress together, whatever the pattern.
 * What goes to one peer is published as one list in the channel to it; what comes is copied as it appears; in between
 * the rank sleeps on its doorbell, which peers ring when they publish or have taken something. */
#include "comm/futex.h"
#include "comm/shm.h"

#include <stdlib.h>
#include <string.h>

/* The messages from or to one peer, in order. */
struct stream {
    size_t next, end; /* in the sorted list */
    bool published;   /* sends only */
};

struct exchange {
    struct shm_lane *lane;
    uint32_t rank, ranks;
    struct stream *sends, *receives;            /* [ranks] */
    ek_message *sorted_sends, *sorted_receives; /* by peer, else in the caller's order */
    struct shm_entry *entries;                  /* [sends] what the receivers read */
    size_t open_streams;
    size_t sent_bytes, received_bytes;
    uint64_t start_ns, last_ns; /* emulated link: when this rank came; when the last one came, 0 without peers */
};

static struct shm_channel *channel(const struct exchange *exchange, uint32_t from, uint32_t to)
{
    const struct shm_job *job = exchange->lane->engine->job;
    return &job->channels[((size_t)exchange->lane->id * job->ranks + to) * job->ranks + from];
}

/* The counter's own wake-up rule: whoever sleeps waits for the next ring. */
static void ring(const struct exchange *exchange, uint32_t peer)
{
    const struct shm_engine *engine = exchange->lane->engine;
    shm_count(engine, &engine->job->rank[peer].doorbells[exchange->lane->id], 0);
}

/* ----------------------------------------------------------------------------------------------- set-up */

static void sort_by_peer(const ek_message *messages, size_t count, ek_message *sorted, struct stream *streams,
                         uint32_t ranks)
{
    for (size_t i = 0; i < count; i++)
        streams[messages[i].peer].end++;
    size_t first = 0;
    for (uint32_t peer = 0; peer < ranks; peer++) {
        size_t length = streams[peer].end;
        streams[peer].next = streams[peer].end = first;
        first += length;
    }
    for (size_t i = 0; i < count; i++)
        sorted[streams[messages[i].peer].end++] = messages[i];
}

static ek_status fail_size(uint32_t from, uint64_t sent, uint32_t to, size_t expected)
{
    return ek_fail(EK_INVALID, "rank %u sends %llu bytes to rank %u, which expects %zu", from, (unsigned long long)sent,
                   to, expected);
}

/* Messages to oneself. */
static ek_status copy_own(struct exchange *exchange)
{
    struct stream *send = &exchange->sends[exchange->rank], *receive = &exchange->receives[exchange->rank];
    if (send->end - send->next != receive->end - receive->next)
        return ek_fail(EK_INVALID, "ek_exchange: rank %u sends itself %zu messages and receives %zu", exchange->rank,
                       send->end - send->next, receive->end - receive->next);
    for (; send->next < send->end; send->next++, receive->next++) {
        const ek_message *from = &exchange->sorted_sends[send->next];
        const ek_message *to = &exchange->sorted_receives[receive->next];
        if (from->bytes != to->bytes)
            return fail_size(exchange->rank, from->bytes, exchange->rank, to->bytes);
        if (to->bytes)
            memmove(to->data, from->data, to->bytes);
    }
    return EK_OK;
}

/* Whether others read a copy of the message. */
static bool is_staged(const struct exchange *exchange, const ek_message *send)
{
    return send->bytes && send->peer != exchange->rank && !shm_reachable(exchange->lane->engine->job, send->data);
}

/* The lists that receivers read, and copies of what they could not reach, in the lane's staging memory. */
static ek_status stage(struct exchange *exchange, size_t send_count)
{
    size_t entries_bytes = send_count * sizeof(struct shm_entry), staged_bytes = 0;
    for (size_t i = 0; i < send_count; i++)
        if (is_staged(exchange, &exchange->sorted_sends[i]))
            staged_bytes += exchange->sorted_sends[i].bytes;
    EK_TRY(shm_lane_stage(exchange->lane, entries_bytes + staged_bytes));
    exchange->entries = exchange->lane->staging;
    unsigned char *room = (unsigned char *)exchange->lane->staging + entries_bytes;
    for (size_t i = 0; i < send_count; i++) {
        const ek_message *send = &exchange->sorted_sends[i];
        const void *data = send->data;
        if (is_staged(exchange, send)) {
            data = room;
            shm_copy(exchange->lane, room, send->data, send->bytes);
            room += send->bytes;
        }
        exchange->entries[i] = (struct shm_entry){data, send->bytes};
    }
    return EK_OK;
}

/* --------------------------------------------------------------------------------------------- progress */

static void note_peer_time(struct exchange *exchange, uint64_t peer_ns)
{
    uint64_t both_ns = peer_ns > exchange->start_ns ? peer_ns : exchange->start_ns;
    if (both_ns > exchange->last_ns)
        exchange->last_ns = both_ns;
}

/* Publishes the list to a peer once the channel is free, and sees it consumed. True if anything happened. */
static bool push(struct exchange *exchange, uint32_t peer)
{
    struct stream *stream = &exchange->sends[peer];
    if (stream->next == stream->end)
        return false;
    struct shm_channel *out = channel(exchange, exchange->rank, peer);
    uint64_t published = atomic_load_explicit(&out->published, memory_order_relaxed);
    if (atomic_load_explicit(&out->consumed, memory_order_acquire) != published)
        return false;
    if (stream->published) {
        for (; stream->next < stream->end; stream->next++)
            exchange->sent_bytes += exchange->sorted_sends[stream->next].bytes;
        note_peer_time(exchange, out->receiver_ns);
        exchange->open_streams--;
        return true;
    }
    out->entries = exchange->entries + stream->next;
    out->first = published;
    out->sender_ns = exchange->start_ns;
    stream->published = true;
    atomic_store(&out->published, published + stream->end - stream->next);
    ring(exchange, peer);
    return true;
}

/* Copies what has come from a peer and is expected. *moved is set if that was anything. */
static ek_status pull(struct exchange *exchange, uint32_t peer, bool *moved)
{
    struct stream *stream = &exchange->receives[peer];
    if (stream->next == stream->end)
        return EK_OK;
    struct shm_channel *in = channel(exchange, peer, exchange->rank);
    uint64_t consumed = atomic_load_explicit(&in->consumed, memory_order_relaxed);
    uint64_t published = atomic_load_explicit(&in->published, memory_order_acquire);
    if (consumed == published)
        return EK_OK;
    /* What is copied here is a result only if progress() finds no loss after the last copy. */
    for (; consumed < published && stream->next < stream->end; consumed++, stream->next++) {
        const struct shm_entry *entry = &in->entries[consumed - in->first];
        const ek_message *receive = &exchange->sorted_receives[stream->next];
        if (entry->bytes != receive->bytes)
            return fail_size(peer, entry->bytes, exchange->rank, receive->bytes);
        shm_copy(exchange->lane, receive->data, entry->data, entry->bytes);
        exchange->received_bytes += entry->bytes;
    }
    note_peer_time(exchange, in->sender_ns);
    in->receiver_ns = exchange->start_ns;
    atomic_store(&in->consumed, consumed);
    ring(exchange, peer);
    exchange->open_streams -= stream->next == stream->end;
    *moved = true;
    return EK_OK;
}

static ek_status progress(struct exchange *exchange)
{
    struct shm_lane *lane = exchange->lane;
    struct shm_counter *bell = &lane->engine->own->doorbells[lane->id];
    while (exchange->open_streams > 0) {
        uint64_t rings = atomic_load(&bell->value) / SHM_ONE;
        bool moved = false;
        for (uint32_t peer = 0; peer < exchange->ranks; peer++) {
            moved |= push(exchange, peer);
            EK_TRY(pull(exchange, peer, &moved));
        }
        if (!moved)
            EK_TRY(shm_await(lane, bell, rings + 1));
    }
    return shm_check(lane->engine); /* after the last read: see "Losses" in shm.h */
}

/* ------------------------------------------------------------------------------------------------- whole */

static void use_link(const struct exchange *exchange)
{
    const struct shm_job *job = exchange->lane->engine->job;
    size_t bytes = exchange->sent_bytes > exchange->received_bytes ? exchange->sent_bytes : exchange->received_bytes;
    if (job->link_emulated && exchange->last_ns)
        exchange->lane->deadline_ns =
            exchange->last_ns + (uint64_t)(job->link_latency_ns + (double)bytes * job->link_ns_per_byte);
}

static ek_status run(struct exchange *exchange, const struct ek_operation *operation)
{
    sort_by_peer(operation->sends, operation->send_count, exchange->sorted_sends, exchange->sends, exchange->ranks);
    sort_by_peer(operation->receives, operation->receive_count, exchange->sorted_receives, exchange->receives,
                 exchange->ranks);
    EK_TRY(copy_own(exchange));
    if (operation->send_count > 0)
        EK_TRY(stage(exchange, operation->send_count));
    for (uint32_t peer = 0; peer < exchange->ranks; peer++)
        exchange->open_streams += (exchange->sends[peer].next < exchange->sends[peer].end) +
                                  (exchange->receives[peer].next < exchange->receives[peer].end);
    EK_TRY(progress(exchange));
    use_link(exchange);
    return shm_lane_unstage(exchange->lane); /* all that was published has been consumed */
}

ek_status shm_exchange(struct shm_lane *lane, const struct ek_operation *operation)
{
    uint32_t ranks = lane->engine->job->ranks;
    struct exchange exchange = {.lane = lane, .rank = lane->engine->base.rank, .ranks = ranks};
    if (lane->engine->job->link_emulated)
        exchange.start_ns = clock_now_ns();
    exchange.sends = calloc(2 * (size_t)ranks, sizeof *exchange.sends);
    exchange.sorted_sends =
        malloc((operation->send_count + operation->receive_count + 1) * sizeof *exchange.sorted_sends);
    ek_status status = EK_NO_MEMORY;
    if (!exchange.sends || !exchange.sorted_sends) {
        ek_fail(status, "ek_exchange: out of memory");
    } else {
        exchange.receives = exchange.sends + ranks;
        exchange.sorted_receives = exchange.sorted_sends + operation->send_count;
        status = run(&exchange, operation);
    }
    free(exchange.sends);
    free(exchange.sorted_sends);
    return status;
}
