/* Jobs in which every rank that is lost is started again: their launching side, planned ends of lives, and random
 * histories of them. A job's own structure begins with a struct returns and is the `user` of ek_launch. */
#ifndef TESTS_COMM_RETURNS_H
#define TESTS_COMM_RETURNS_H

#include "jobs.h"

#define RETURNS_RANKS_MOST 16

struct returns {
    uint64_t seed;
    bool threads;
    ek_launcher *launcher;
    uint32_t lives[RETURNS_RANKS_MOST]; /* ended ones: each process sees its own number here */
    uint32_t lost, lost_new;            /* lost_new: before they had joined */
};

static inline ek_status keep_launcher(void *user, ek_launcher *launcher)
{
    ((struct returns *)user)->launcher = launcher;
    return EK_OK;
}

static inline void count_loss(struct returns *returns, const ek_loss *loss)
{
    returns->lives[loss->rank]++;
    returns->lost++;
    returns->lost_new += loss->is_new;
}

static inline ek_status revive(void *user, const ek_loss *loss)
{
    struct returns *returns = user;
    count_loss(returns, loss);
    return ek_launcher_revive(returns->launcher, loss->rank);
}

/* For a job whose returns are set up but for the mode. */
static inline ek_launch_options returning_options(uint32_t ranks, bool threads, ek_status (*main)(ek_engine *, void *),
                                                  struct returns *job)
{
    ek_launch_options options = job_options(ranks, threads, main, job);
    job->threads = threads;
    options.on_start = keep_launcher;
    options.on_lost = revive;
    return options;
}

/* Where a life ends, as the test numbers its places from 1 on (0: nowhere), and the first step in which it does. */
struct death {
    uint32_t place;
    uint64_t step;
};

/* Of the life that a rank is in: at one of the places 1 … places-1, in one of `steps` steps. */
static inline struct death draw_death(const struct returns *job, uint32_t rank, uint32_t places, uint64_t steps)
{
    uint64_t draw = ek_random_u64(job->seed, rank, job->lives[rank]);
    return (struct death){1 + (uint32_t)(draw % (places - 1)), draw / places % steps};
}

static inline ek_status die_if_due(ek_engine *engine, struct death death, uint32_t place, uint64_t step)
{
    return death.place == place && step >= death.step ? ek_inject(engine, EK_FAULT_KILL) : EK_OK;
}

/* What came about in all histories of a test. */
struct history_totals {
    uint32_t lost, joined, stepped_in; /* stepped_in: spares that took a role */
};

/* Runs one job for each seed below `seeds`, in every mode. */
static inline struct history_totals run_histories(uint64_t seeds,
                                                  void (*run)(uint64_t seed, bool threads, struct history_totals *sum))
{
    struct history_totals totals = {0};
    FOR_EACH_MODE(threads)
    for (uint64_t seed = 0; seed < seeds; seed++)
        run(seed, threads, &totals);
    print_message("%u losses, %u returns, %u spares took a role\n", totals.lost, totals.joined, totals.stepped_in);
    return totals;
}

#endif
