/* Reads JSON lines as they come. The file is opened anew each time, which is what makes network file systems look. */
#include "launch/record.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

static void take_line(ek_record *record, const char *text, size_t bytes)
{
    json_t *line = json_loadb(text, bytes, 0, NULL);
    const char *event = json_string_value(json_object_get(line, "event"));
    uint64_t step = (uint64_t)json_integer_value(json_object_get(line, "step"));
    record->any = true;
    if (!event && step > record->step)
        record->step = step;
    if (event && strcmp(event, "end") == 0) {
        const char *status = json_string_value(json_object_get(line, "status"));
        const char *reason = json_string_value(json_object_get(line, "reason"));
        record->ended = true;
        record->done = status && strcmp(status, "done") == 0;
        snprintf(record->reason, sizeof record->reason, "%s", reason ? reason : "");
    }
    json_decref(line);
}

/* The whole lines from `offset` on; they begin at *text, the caller's to free, and are so many bytes. */
static size_t read_lines(int file, off_t offset, off_t size, char **text)
{
    size_t bytes = (size_t)(size - offset), got = 0;
    *text = malloc(bytes + 1);
    while (*text && got < bytes) {
        ssize_t some = pread(file, *text + got, bytes - got, offset + (off_t)got);
        if (some <= 0)
            break;
        got += (size_t)some;
    }
    const char *last = *text ? memrchr(*text, '\n', got) : NULL;
    return last ? (size_t)(last - *text) + 1 : 0;
}

/* Hands over what is new, or passes it over. */
static void advance(ek_record *record, bool take)
{
    struct stat information;
    char *text = NULL;
    int file = open(record->path, O_RDONLY | O_CLOEXEC);
    if (file >= 0 && fstat(file, &information) == 0 && S_ISREG(information.st_mode)) {
        if (information.st_size < record->offset) /* emptied */
            record->offset = 0;
        size_t bytes = read_lines(file, record->offset, information.st_size, &text);
        for (size_t at = 0; take && at < bytes;) {
            size_t length = (size_t)((char *)memchr(text + at, '\n', bytes - at) - (text + at));
            take_line(record, text + at, length);
            at += length + 1;
        }
        record->offset += (off_t)bytes;
    }
    free(text);
    if (file >= 0)
        close(file);
}

void ek_record_begin(ek_record *record)
{
    record->any = record->ended = record->done = false;
    record->reason[0] = '\0';
    advance(record, false);
}

void ek_record_read(ek_record *record)
{
    advance(record, true);
}
