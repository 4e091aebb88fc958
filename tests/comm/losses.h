/* Losses as the launching process hears of them. */
#ifndef TESTS_COMM_LOSSES_H
#define TESTS_COMM_LOSSES_H

#include "jobs.h"

struct log {
    uint32_t lost_count;
    ek_loss lost[16];
};

static inline ek_status on_lost(void *user, const ek_loss *loss)
{
    struct log *log = user;
    log->lost[log->lost_count++] = *loss;
    return EK_OK;
}

static inline ek_status launch_logged(uint32_t ranks, bool threads, ek_status (*main)(ek_engine *, void *),
                                      struct log *log)
{
    ek_launch_options options = job_options(ranks, threads, main, log);
    options.on_lost = on_lost;
    options.timeout_seconds = UNDER_TSAN ? 2 : 0.3;
    return ek_launch(&options);
}

#endif
