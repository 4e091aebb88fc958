/* The connections of the supervisor of the engine "mpi". Guards come as visitors, and have the seat of their rank once
 * they have said the job's token. When all seats are taken the job begins. */
#include "comm/mpi_supervisor.h"

#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

void mpi_tell_live(struct supervisor *supervisor, enum mpi_message_type type, const void *data, size_t bytes)
{
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++)
        if (supervisor->seats[rank].state == SEAT_LIVE)
            wire_send(&supervisor->seats[rank].wire, type, data, bytes);
}

void mpi_tell_connected(struct supervisor *supervisor, enum mpi_message_type type, const void *data, size_t bytes)
{
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++)
        if (supervisor->seats[rank].wire.fd >= 0)
            wire_send(&supervisor->seats[rank].wire, type, data, bytes);
}

/* ----------------------------------------------------------------------------------------------- visitors */

void mpi_turn_away_visitors(struct supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->base.ranks; i++)
        wire_close(&supervisor->visitors[i]);
    supervisor->awaited = 0;
}

/* All have come: the job begins, and what it was asked for before is known. Who is still at the door is none of it. */
static void welcome_all(struct supervisor *supervisor)
{
    mpi_turn_away_visitors(supervisor);
    mpi_tell_live(supervisor, WIRE_WISH, &supervisor->wish, sizeof supervisor->wish);
    mpi_tell_live(supervisor, WIRE_WELCOME, supervisor->options->shared, supervisor->options->shared_bytes);
}

/* Gives a visitor its seat, if it knows the token. */
static void seat_visitor(struct supervisor *supervisor, struct wire *visitor, const struct wire_message *message)
{
    struct mpi_hello hello = {.rank = EK_NONE};
    if (message->type == WIRE_HELLO && message->bytes == sizeof hello)
        memcpy(&hello, message->data, sizeof hello);
    if (hello.rank >= supervisor->base.ranks || supervisor->seats[hello.rank].state != SEAT_AWAITED ||
        memcmp(hello.token, supervisor->job->contact.token, sizeof hello.token) != 0) {
        wire_close(visitor);
        return;
    }
    struct seat *seat = &supervisor->seats[hello.rank];
    seat->state = SEAT_LIVE;
    seat->wire = *visitor; /* with what else has come */
    *visitor = (struct wire){.fd = -1};
    memcpy(seat->host, hello.host, sizeof seat->host);
    seat->host[sizeof seat->host - 1] = '\0';
    supervisor->live++;
    if (--supervisor->awaited == 0)
        welcome_all(supervisor);
}

void mpi_listen_to_visitors(struct supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->base.ranks && supervisor->awaited; i++) {
        struct wire *visitor = &supervisor->visitors[i];
        if (visitor->fd < 0) {
            int fd = accept4(supervisor->job->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (fd < 0)
                continue;
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
            wire_open(visitor, fd);
        }
        struct wire_message message;
        bool there = wire_receive(visitor);
        if (wire_next(visitor, sizeof(struct mpi_hello), &message))
            seat_visitor(supervisor, visitor, &message);
        else if (!there)
            wire_close(visitor);
    }
}

/* -------------------------------------------------------------------------------------------------- seats */

/* A connection that closes without a word: the guard was killed, and its rank with it. */
void mpi_listen_to_seats(struct supervisor *supervisor)
{
    for (uint32_t rank = 0; rank < supervisor->base.ranks; rank++) {
        struct seat *seat = &supervisor->seats[rank];
        struct wire_message message;
        if (seat->wire.fd < 0)
            continue;
        bool there = wire_receive(&seat->wire);
        while (wire_next(&seat->wire, JOB_MESSAGE_BYTES, &message)) {
            seat->silent = 0;
            if (seat->state == SEAT_LIVE)
                mpi_hear(supervisor, rank, &message);
        }
        wire_flush(&seat->wire);
        if (there)
            continue;
        if (seat->state == SEAT_LIVE)
            mpi_lose(supervisor, rank, (struct mpi_lost){.cause = EK_LOSS_SIGNAL, .code = SIGKILL});
        wire_close(&seat->wire);
    }
}

ek_status mpi_take_seats(struct supervisor *supervisor)
{
    uint32_t ranks = supervisor->base.ranks;
    const bool *absent = supervisor->options->absent;
    supervisor->seats = calloc(ranks, sizeof *supervisor->seats);
    supervisor->visitors = calloc(ranks, sizeof *supervisor->visitors);
    supervisor->polled = calloc(2 * (size_t)ranks + 2, sizeof *supervisor->polled);
    if (!supervisor->seats || !supervisor->visitors || !supervisor->polled)
        return ek_fail(EK_NO_MEMORY, "ek_launch: out of memory");
    for (uint32_t rank = 0; rank < ranks; rank++) {
        supervisor->seats[rank].wire.fd = supervisor->visitors[rank].fd = -1;
        supervisor->seats[rank].state = absent && absent[rank] ? SEAT_ABSENT : SEAT_AWAITED;
    }
    supervisor->awaited = supervisor->job->present;
    return EK_OK;
}

/* After a failure the connections stay open until this process ends: see await_last_word in mpi_guard.c. */
void mpi_leave_seats(struct supervisor *supervisor)
{
    for (uint32_t rank = 0; supervisor->seats && supervisor->visitors && rank < supervisor->base.ranks; rank++) {
        if (supervisor->end.status != EK_OK)
            supervisor->seats[rank].wire.fd = -1;
        wire_close(&supervisor->seats[rank].wire);
        wire_close(&supervisor->visitors[rank]);
    }
    free(supervisor->seats);
    free(supervisor->visitors);
    free(supervisor->polled);
}
