/* Status returns with text: how every part says what went wrong. See ek_error() in evenkeel.h. */
#ifndef EK_BASE_ERROR_H
#define EK_BASE_ERROR_H

#include <evenkeel.h>

/* Sets the calling thread's error text (one line: control characters become question marks; at most
 * EK_ERROR_BYTES-1 bytes) and returns `status`:
 *     return ek_fail(EK_INVALID, "parallel.tp: %u is above the %u attention units", tp, units); */
#define EK_ERROR_BYTES 512
#define ek_fail(status, ...) ek_status_after((status), ek_error_set(__VA_ARGS__))

/* Puts text in front of the current error text and returns `status`. */
#define ek_fail_prefix(status, ...) ek_status_after((status), ek_error_prefix(__VA_ARGS__))

/* What the two are made of: in this way compilers and analyzers see which status comes back. */
int ek_error_set(const char *format, ...) __attribute__((format(printf, 1, 2)));
int ek_error_prefix(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline ek_status ek_status_after(ek_status status, int nothing)
{
    (void)nothing;
    return status;
}

/* Propagates a failure to the caller. Use it where nothing needs releasing; elsewhere go to a cleanup label. */
#define EK_TRY(expression)                                                                                             \
    do {                                                                                                               \
        ek_status ek_try_status = (expression);                                                                        \
        if (ek_try_status != EK_OK)                                                                                    \
            return ek_try_status;                                                                                      \
    } while (0)

#endif
