/* Sleeping on a 64-bit word that processes share (futex(2) knows 32 bits: the low half is what it compares). */
#ifndef EK_COMM_FUTEX_H
#define EK_COMM_FUTEX_H

#include <endian.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline uint32_t *futex_low_half(_Atomic uint64_t *word)
{
    return (uint32_t *)word + (BYTE_ORDER == BIG_ENDIAN ? 1 : 0);
}

/* Sleeps while the low half of the word is that of `seen`, at most so long. May return early: callers look again. */
static inline void futex_wait(_Atomic uint64_t *word, uint64_t seen, uint64_t nanoseconds)
{
    struct timespec timeout = {.tv_sec = (time_t)(nanoseconds / 1000000000u),
                               .tv_nsec = (long)(nanoseconds % 1000000000u)};
    syscall(SYS_futex, futex_low_half(word), FUTEX_WAIT, (uint32_t)seen, &timeout, NULL, 0);
}

static inline void futex_wake_all(_Atomic uint64_t *word)
{
    syscall(SYS_futex, futex_low_half(word), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

#endif
