/* Error texts, one per thread, and the words for statuses; ek_version and ek_free, which have no other home. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char error_text[EK_ERROR_BYTES];

const char *ek_error(void)
{
    return error_text;
}

/* What comes from files and command lines may have line ends and a terminal's commands in it. */
static void keep_to_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7F)
            *text = '?';
}

int ek_error_set(const char *format, ...)
{
    char text[EK_ERROR_BYTES]; /* the arguments may point into error_text */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    keep_to_one_line(text);
    memcpy(error_text, text, sizeof text);
    return 0;
}

int ek_error_prefix(const char *format, ...)
{
    char text[EK_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length >= 0 && (size_t)length < sizeof text)
        snprintf(text + length, sizeof text - (size_t)length, "%s", error_text);
    keep_to_one_line(text);
    memcpy(error_text, text, sizeof text);
    return 0;
}

const char *ek_status_text(ek_status status)
{
    switch (status) {
    case EK_OK:
        return "ok";
    case EK_INVALID:
        return "invalid input";
    case EK_NO_MEMORY:
        return "out of memory";
    case EK_PEER_LOST:
        return "a rank was lost";
    case EK_UNIT_LOST:
        return "no survivor holds a unit";
    case EK_NO_REPLICA:
        return "no replica is left";
    case EK_FENCED:
        return "this rank was declared lost";
    case EK_CORRUPT:
        return "copies differ";
    case EK_IO:
        return "input/output error";
    case EK_SYSTEM:
        return "operating system error";
    case EK_INTERRUPTED:
        return "interrupted by a signal";
    }
    return "unknown status";
}

#define EK_STRING(x) #x
#define EK_VERSION_STRING(major, minor, patch) EK_STRING(major) "." EK_STRING(minor) "." EK_STRING(patch)

const char *ek_version(void)
{
    return EK_VERSION_STRING(EK_VERSION_MAJOR, EK_VERSION_MINOR, EK_VERSION_PATCH);
}

void ek_free(void *memory)
{
    free(memory);
}
