/* The lanes of a rank of the engine "mpi": messages are posted, then completed together by polling, which is what makes
 * MPI move them. Between polls the thread naps, so that ranks that share a core get on, and beats. See "Losses" in
 * mpi.h for what happens when one fails. */
#include "comm/mpi_rank.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAP_NS 20000
/* Before the first nap the core is left to others so often: what is small has come by then. */
#define YIELDS 50
#define BEAT_NS 10000000
/* MPI counts in int. */
#define PIECE_BYTES ((size_t)1 << 30)
#define SCRATCH_KEPT_BYTES ((size_t)32 << 20)
/* What MPI may take to let go of the buffers of a failed operation. */
#define LET_GO_NS 20000000000u

/* -------------------------------------------------------------------------------------------- operations */

static ek_status check_sound(const struct mpi_engine *engine)
{
    if (atomic_load(&engine->page->loss) || atomic_load(&engine->broken))
        return mpi_fail_lost(engine);
    return EK_OK;
}

/* Messages to oneself must match: nobody else would ever notice. */
static ek_status check_peers(const struct mpi_engine *engine, const struct ek_operation *operation)
{
    size_t sent = 0, received = 0;
    for (size_t i = 0; i < operation->send_count + operation->receive_count; i++) {
        bool sends = i < operation->send_count;
        uint32_t peer = sends ? operation->sends[i].peer : operation->receives[i - operation->send_count].peer;
        sent += sends && peer == engine->base.rank;
        received += !sends && peer == engine->base.rank;
    }
    if (sent != received)
        return ek_fail(EK_INVALID, "ek_exchange: rank %u sends itself %zu messages and receives %zu", engine->base.rank,
                       sent, received);
    return EK_OK;
}

/* Tag 0; those of collectives are others. */
static ek_status exchange(struct mpi_lane *lane, const struct ek_operation *operation)
{
    EK_TRY(check_peers(lane->engine, operation));
    for (size_t i = 0; i < operation->receive_count; i++)
        mpi_post_receive(lane, operation->receives[i].peer, operation->receives[i].data, operation->receives[i].bytes,
                         0);
    for (size_t i = 0; i < operation->send_count; i++)
        mpi_post_send(lane, operation->sends[i].peer, operation->sends[i].data, operation->sends[i].bytes, 0);
    return mpi_complete(lane);
}

static ek_status run(struct queue *queue, const struct ek_operation *operation, bool in_compute_thread)
{
    struct mpi_lane *lane = (struct mpi_lane *)queue;
    lane->beats = in_compute_thread;
    EK_TRY(check_sound(lane->engine));
    EK_TRY(operation->group ? mpi_collective(lane, operation) : exchange(lane, operation));
    if (lane->scratch_bytes > SCRATCH_KEPT_BYTES) {
        free(lane->scratch);
        lane->scratch = NULL;
        lane->scratch_bytes = 0;
    }
    return EK_OK;
}

static void beat(const struct queue *queue)
{
    mpi_beat(((const struct mpi_lane *)queue)->engine);
}

void mpi_lane_create(struct mpi_lane *lane, struct mpi_engine *engine, ek_lane id)
{
    *lane = (struct mpi_lane){
        .queue = {.run = run, .beat = beat, .nap_ns = BEAT_NS}, .engine = engine, .id = id, .comm = MPI_COMM_NULL};
    queue_init(&lane->queue);
}

void mpi_lane_destroy(struct mpi_lane *lane)
{
    queue_destroy(&lane->queue);
    free(lane->requests);
    free(lane->statuses);
    free(lane->parts);
    free(lane->scratch);
}

ek_status mpi_submit(ek_engine *engine, ek_lane id, const struct ek_operation *operation, ek_request *request)
{
    struct mpi_lane *lane = &((struct mpi_engine *)engine)->lanes[id];
    if (operation->group && ((struct mpi_group *)operation->group)->epoch != lane->engine->epoch)
        return ek_fail(EK_INVALID, "the group was made before the last ek_agree: make it again");
    return queue_submit(&lane->queue, operation, request);
}

ek_status mpi_wait(ek_engine *engine, ek_lane id, ek_request request)
{
    return queue_wait(&((struct mpi_engine *)engine)->lanes[id].queue, request);
}

ek_status mpi_scratch(struct mpi_lane *lane, size_t bytes)
{
    if (bytes <= lane->scratch_bytes)
        return EK_OK;
    free(lane->scratch);
    lane->scratch = malloc(bytes);
    lane->scratch_bytes = lane->scratch ? bytes : 0;
    return lane->scratch ? EK_OK : ek_fail(EK_NO_MEMORY, "out of memory for %zu bytes of an operation", bytes);
}

/* ----------------------------------------------------------------------------------------------- posting */

/* The array with room for so many bytes; as it was, and *grown is false, if there is no memory. */
static void *grow(void *array, size_t bytes, bool *grown)
{
    void *larger = realloc(array, bytes);
    if (larger)
        return larger;
    *grown = false;
    return array;
}

static ek_status make_room(struct mpi_lane *lane)
{
    if (lane->count < lane->room)
        return EK_OK;
    size_t room = lane->room ? 2 * lane->room : 64;
    bool grown = true;
    lane->requests = grow(lane->requests, room * sizeof(MPI_Request), &grown);
    lane->statuses = grow(lane->statuses, room * sizeof *lane->statuses, &grown);
    lane->parts = grow(lane->parts, room * sizeof *lane->parts, &grown);
    if (!grown)
        return ek_fail(EK_NO_MEMORY, "out of memory for %zu messages", room);
    lane->room = room;
    return EK_OK;
}

static ek_status post_piece(struct mpi_lane *lane, struct mpi_part part, void *data, int tag)
{
    EK_TRY(make_room(lane));
    int place = lane->engine->comm_ranks[part.peer], count = (int)part.bytes;
    MPI_Request *request = &lane->requests[lane->count];
    int error = part.receives ? MPI_Irecv(data, count, MPI_BYTE, place, tag, lane->comm, request)
                              : MPI_Isend(data, count, MPI_BYTE, place, tag, lane->comm, request);
    if (error != MPI_SUCCESS) { /* MPI knows already that the peer is lost */
        mpi_break(lane->engine, "a message cannot be posted");
        return mpi_fail_lost(lane->engine);
    }
    lane->parts[lane->count++] = part;
    return EK_OK;
}

/* One message of MPI's for each gigabyte. What fails is told by mpi_complete. */
static void post(struct mpi_lane *lane, bool receives, uint32_t peer, unsigned char *data, size_t bytes, int tag)
{
    size_t done = 0;
    do {
        size_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        if (lane->failure == EK_OK)
            lane->failure = post_piece(lane, (struct mpi_part){peer, receives, piece}, data ? data + done : NULL, tag);
        done += piece;
    } while (done < bytes);
}

void mpi_post_send(struct mpi_lane *lane, uint32_t peer, const void *data, size_t bytes, int tag)
{
    post(lane, false, peer, (unsigned char *)data, bytes, tag); /* it is only read */
}

void mpi_post_receive(struct mpi_lane *lane, uint32_t peer, void *data, size_t bytes, int tag)
{
    post(lane, true, peer, data, bytes, tag);
}

/* -------------------------------------------------------------------------------------------- completing */

static void pause_between(struct mpi_lane *lane, uint32_t polls)
{
    if (lane->beats)
        mpi_beat(lane->engine);
    if (polls <= lane->engine->spins)
        return;
    if (polls <= lane->engine->spins + YIELDS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

/* Of an operation that has failed: waits until its buffers are the caller's again. A rank that cannot get them back has
 * no way to go on. */
static void let_go(struct mpi_lane *lane)
{
    uint64_t until_ns = clock_now_ns() + LET_GO_NS;
    for (size_t i = 0; i < lane->count; i++) {
        while (lane->requests[i] != MPI_REQUEST_NULL) {
            int done = 0;
            /* an error completes the request, as far as its buffer is concerned */
            if (MPI_Test(&lane->requests[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done)
                break;
            if (clock_now_ns() > until_ns)
                kill(getpid(), SIGKILL);
            pause_between(lane, UINT32_MAX); /* beats: the peer that MPI waits for may be the one that hangs */
        }
    }
    lane->count = 0;
}

static ek_status fail_size(const struct mpi_lane *lane, const struct mpi_part *part, const char *found)
{
    return ek_fail(EK_INVALID, "rank %u sends rank %u %s bytes than the %zu that it expects", part->peer,
                   lane->engine->base.rank, found, part->bytes);
}

/* What MPI_Testall has found wrong: a message too long is the program's fault, anything else counts as a loss. */
static ek_status explain(const struct mpi_lane *lane, int error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(error, text, &length);
    for (size_t i = 0; i < lane->count && error == MPI_ERR_IN_STATUS; i++) {
        int of = lane->statuses[i].MPI_ERROR, class = of;
        if (of == MPI_SUCCESS || of == MPI_ERR_PENDING)
            continue;
        MPI_Error_string(of, text, &length);
        MPI_Error_class(of, &class);
        if (class == MPI_ERR_TRUNCATE && lane->parts[i].receives)
            return fail_size(lane, &lane->parts[i], "more");
    }
    return ek_fail(EK_PEER_LOST, "%s", text);
}

static ek_status check_sizes(struct mpi_lane *lane)
{
    for (size_t i = 0; i < lane->count; i++) {
        int received = 0;
        if (lane->parts[i].receives)
            MPI_Get_count(&lane->statuses[i], MPI_BYTE, &received);
        if (lane->parts[i].receives && (size_t)received != lane->parts[i].bytes)
            return fail_size(lane, &lane->parts[i], "fewer");
    }
    return EK_OK;
}

/* Ends what is posted, unfinished: `status` with its text is why. */
static ek_status give_up(struct mpi_lane *lane, ek_status status)
{
    char text[EK_ERROR_BYTES];
    snprintf(text, sizeof text, "%s", ek_error());
    mpi_break(lane->engine, text);
    let_go(lane);
    return status == EK_PEER_LOST ? mpi_fail_lost(lane->engine) : ek_fail(status, "%s", text);
}

ek_status mpi_complete(struct mpi_lane *lane)
{
    ek_status status = lane->failure;
    lane->failure = EK_OK;
    int done = 0;
    for (uint32_t polls = 0; status == EK_OK && !done; polls++) {
        if (polls > 0)
            pause_between(lane, polls);
        status = check_sound(lane->engine);
        int error = MPI_SUCCESS;
        if (status == EK_OK)
            error = MPI_Testall((int)lane->count, lane->requests, &done, lane->statuses);
        if (error != MPI_SUCCESS)
            status = explain(lane, error);
    }
    if (status == EK_OK)
        status = check_sizes(lane);
    if (status != EK_OK)
        return give_up(lane, status);
    lane->count = 0;
    return EK_OK;
}
