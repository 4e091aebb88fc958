/* Status returns with text: how every part says what went wrong. See ek_error() in evenkeel.h. */
#ifndef EK_BASE_ERROR_H
#define EK_BASE_ERROR_H

#include <evenkeel.h>

/* Sets the calling thread's error text (one line, no newline, at most EK_ERROR_BYTES-1 bytes) and returns `status`:
 *     return ek_fail(EK_INVALID, "parallel.tp: %u is above the %u attention units", tp, units); */
#define EK_ERROR_BYTES 512
ek_status ek_fail(ek_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts text in front of the current error text and returns `status`. */
ek_status ek_fail_prefix(ek_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Propagates a failure to the caller. Use it where nothing needs releasing; elsewhere go to a cleanup label. */
#define EK_TRY(expression)                                                                                             \
    do {                                                                                                               \
        ek_status ek_try_status = (expression);                                                                        \
        if (ek_try_status != EK_OK)                                                                                    \
            return ek_try_status;                                                                                      \
    } while (0)

#endif
