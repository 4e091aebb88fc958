/* See wire.h. */
#include "comm/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE_BYTES 65536

void wire_open(struct wire *wire, int fd)
{
    *wire = (struct wire){.fd = fd};
}

void wire_close(struct wire *wire)
{
    if (wire->fd >= 0)
        close(wire->fd);
    free(wire->in.data);
    free(wire->out.data);
    *wire = (struct wire){.fd = -1, .broken = true};
}

/* Room for so many bytes behind what is in use. */
static bool make_room(struct wire_buffer *buffer, size_t bytes)
{
    if (buffer->first > 0) {
        memmove(buffer->data, buffer->data + buffer->first, buffer->last - buffer->first);
        buffer->last -= buffer->first;
        buffer->first = 0;
    }
    if (buffer->room - buffer->last >= bytes)
        return true;
    size_t room = 2 * buffer->room > buffer->last + bytes ? 2 * buffer->room : buffer->last + bytes;
    unsigned char *data = realloc(buffer->data, room);
    if (!data)
        return false;
    buffer->data = data;
    buffer->room = room;
    return true;
}

static void append(struct wire_buffer *buffer, const void *data, size_t bytes)
{
    if (bytes)
        memcpy(buffer->data + buffer->last, data, bytes);
    buffer->last += bytes;
}

void wire_send(struct wire *wire, uint32_t type, const void *data, size_t bytes)
{
    struct wire_header header = {type, (uint32_t)bytes};
    if (wire->broken || wire->mute)
        return;
    if (!make_room(&wire->out, sizeof header + bytes)) {
        wire->broken = true;
        return;
    }
    append(&wire->out, &header, sizeof header);
    append(&wire->out, data, bytes);
    wire_flush(wire);
}

void wire_flush(struct wire *wire)
{
    struct wire_buffer *out = &wire->out;
    while (wire_is_sending(wire)) {
        ssize_t sent = send(wire->fd, out->data + out->first, out->last - out->first, MSG_NOSIGNAL);
        if (sent > 0)
            out->first += (size_t)sent;
        else if (errno == EAGAIN)
            return;
        else if (errno != EINTR)
            wire->mute = true;
    }
}

bool wire_is_sending(const struct wire *wire)
{
    return !wire->broken && !wire->mute && wire->out.first < wire->out.last;
}

bool wire_receive(struct wire *wire)
{
    while (!wire->broken) {
        if (!make_room(&wire->in, PIECE_BYTES)) {
            wire->broken = true;
            break;
        }
        ssize_t got = read(wire->fd, wire->in.data + wire->in.last, PIECE_BYTES);
        if (got > 0)
            wire->in.last += (size_t)got;
        else if (got < 0 && errno == EAGAIN)
            return true;
        else if (got == 0 || errno != EINTR)
            wire->broken = true;
    }
    return false;
}

bool wire_next(struct wire *wire, size_t most, struct wire_message *message)
{
    struct wire_buffer *in = &wire->in;
    struct wire_header header;
    if (in->last - in->first < sizeof header)
        return false;
    memcpy(&header, in->data + in->first, sizeof header);
    if (header.bytes > most) {
        wire->broken = true;
        in->first = in->last;
        return false;
    }
    if (in->last - in->first < sizeof header + header.bytes)
        return false;
    *message = (struct wire_message){header.type, header.bytes, in->data + in->first + sizeof header};
    in->first += sizeof header + header.bytes;
    return true;
}
