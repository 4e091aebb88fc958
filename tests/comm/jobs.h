/* Running jobs in tests: as processes and as threads (under ThreadSanitizer as threads only). What a rank finds wrong
 * it returns from main as EK_CORRUPT with the place, which ek_launch hands to the test. */
#ifndef TESTS_COMM_JOBS_H
#define TESTS_COMM_JOBS_H

#include "testing.h"

#include "base/error.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

/* In a rank's main and what it calls. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return ek_fail(EK_CORRUPT, "rank %u, %s:%d: %s", ek_engine_rank(engine), __FILE__, __LINE__, #condition);  \
    } while (0)

#define CHECK_STATUS(expression, expected)                                                                             \
    do {                                                                                                               \
        ek_status check_status = (expression);                                                                         \
        if (check_status != (expected))                                                                                \
            return ek_fail(EK_CORRUPT, "rank %u, %s:%d: %s: %s (%s)", ek_engine_rank(engine), __FILE__, __LINE__,      \
                           #expression, ek_status_text(check_status), ek_error());                                     \
    } while (0)

static inline ek_launch_options job_options(uint32_t ranks, bool threads,
                                            ek_status (*main)(ek_engine *engine, void *user), void *user)
{
    return (ek_launch_options){.engine = "shm",
                               .ranks = ranks,
                               .threads = threads,
                               .timeout_seconds = UNDER_TSAN ? 20 : 5,
                               .heap_bytes = (size_t)64 << 20,
                               .main = main,
                               .user = user};
}

static inline ek_status run_job(uint32_t ranks, bool threads, ek_status (*main)(ek_engine *engine, void *user),
                                void *user)
{
    ek_launch_options options = job_options(ranks, threads, main, user);
    return ek_launch(&options);
}

/* threads = 0, then 1; under ThreadSanitizer 1 alone. */
/* NOLINTNEXTLINE(bugprone-macro-parentheses): it declares its argument */
#define FOR_EACH_MODE(threads) for (int threads = UNDER_TSAN; threads < 2; threads++)

/* All ranks of the job. */
static inline ek_status make_world(ek_group **group, ek_engine *engine, ek_lane lane, uint32_t tag)
{
    uint32_t ranks[64];
    for (uint32_t rank = 0; rank < ek_engine_ranks(engine); rank++)
        ranks[rank] = rank;
    return ek_group_create(group, engine, lane, tag, ranks, ek_engine_ranks(engine));
}

static inline double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* How many ranks are not in the job. */
static inline uint32_t count_absent(const ek_engine *engine, const ek_agreement *agreement)
{
    uint32_t absent = 0;
    for (uint32_t rank = 0; rank < ek_engine_ranks(engine); rank++)
        absent += !agreement->live[rank];
    return absent;
}

/* All ranks that are in the job. */
static inline ek_status make_survivors(ek_group **group, ek_engine *engine, ek_lane lane, uint32_t tag,
                                       const ek_agreement *agreement)
{
    uint32_t ranks[64], count = 0;
    for (uint32_t rank = 0; rank < ek_engine_ranks(engine); rank++)
        if (agreement->live[rank])
            ranks[count++] = rank;
    return ek_group_create(group, engine, lane, tag, ranks, count);
}

#endif
