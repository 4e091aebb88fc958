/* Words in messages. */
#ifndef EK_BASE_TEXT_H
#define EK_BASE_TEXT_H

#include <stdint.h>

/* What a counted noun ends with: "1 stage", "2 stages". */
static inline const char *ek_plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

#endif
