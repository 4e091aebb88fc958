/* Messages over a stream socket or a pipe, framed by their type and size, without blocking: what is sent is kept until
 * the other side takes it. All machines of a job are alike, so numbers travel as they lie in memory. */
#ifndef EK_COMM_WIRE_H
#define EK_COMM_WIRE_H

#include <evenkeel.h>

struct wire_header {
    uint32_t type, bytes;
};

/* A message as it was received; valid until the next wire_receive. */
struct wire_message {
    uint32_t type;
    size_t bytes;
    const unsigned char *data;
};

struct wire_buffer {
    unsigned char *data;
    size_t first, last, room; /* in use: first … last-1 */
};

struct wire {
    int fd;                     /* -1: none */
    struct wire_buffer in, out; /* zero at first */
    bool broken;                /* the other side has closed, or no memory was left */
    bool mute;                  /* the other side takes nothing more; what it has sent can still be had */
};

/* fd must not block; it belongs to the wire. */
void wire_open(struct wire *wire, int fd);
void wire_close(struct wire *wire);

/* Queues a message and sends what can be sent. A broken or mute wire takes everything in silence: receiving tells. */
void wire_send(struct wire *wire, uint32_t type, const void *data, size_t bytes);
void wire_flush(struct wire *wire);
/* Whether something is still to be sent: poll for POLLOUT too. */
bool wire_is_sending(const struct wire *wire);

/* Takes in what has come. False once the wire is broken; what came before can still be had by wire_next. */
bool wire_receive(struct wire *wire);
/* The next whole message; false if there is none. Larger ones than `most` bytes of data break the wire. */
bool wire_next(struct wire *wire, size_t most, struct wire_message *message);

#endif
