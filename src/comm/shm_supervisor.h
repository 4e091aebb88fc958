/* What the launching side of the engine "shm" knows: shm_supervisor.c watches over the job, shm_members.c says who is
 * in it, shm_workers.c starts, watches and ends the ranks, be they processes or threads. */
#ifndef EK_COMM_SHM_SUPERVISOR_H
#define EK_COMM_SHM_SUPERVISOR_H

#include "comm/shm.h"

#include <poll.h>
#include <signal.h>

enum worker_state {
    WORKER_ABSENT,
    WORKER_LIVE, /* in the job */
    WORKER_NEW,  /* started again, has not joined */
    WORKER_DONE,
    WORKER_LOST
};

/* A rank as the supervisor sees it. */
struct worker {
    enum worker_state state;
    int pidfd;        /* -1: a thread */
    int polled;       /* where in supervisor->polled, at the last poll; -1: nowhere */
    pthread_t thread; /* where ranks are threads */
    uint64_t beats;   /* as last seen */
    unsigned idle;    /* ticks without a beat */
    bool timed_out;   /* has been killed (or fenced) for it */
    bool killed;      /* on request */
    bool just_lost;   /* on_lost is still to be called */
    ek_loss loss;
    uint64_t lost_ns; /* when it was lost, or could not be started again */
    bool settled;     /* no rank of the job knows it any more */
    bool revived;     /* is to be started again */
};

struct supervisor {
    struct ek_launcher base;
    const ek_launch_options *options;
    struct shm_job *job;
    struct worker *workers; /* [ranks] */
    struct pollfd *polled;  /* [ranks + 3] event, report, signal, then the pidfds there are */
    uint32_t live;          /* ranks in the job */
    uint32_t running;       /* these and those that have not joined */
    int event_fd, signal_fd, report_fds[2];
    sigset_t old_mask;                 /* the program's, given back to it and to the ranks, */
    struct sigaction old_child_action; /* and what it does on SIGCHLD */
    uint64_t next_tick_ns;
    uint64_t respawn_ns;     /* 0: never */
    bool any_lost, any_done; /* ranks of the job, since launch */
    bool over;               /* the job ends now, with this: */
    ek_status status;
    char error[EK_ERROR_BYTES];
};

static inline struct shm_rank *shm_rank_of(const struct supervisor *supervisor, uint32_t rank)
{
    return &supervisor->job->rank[rank];
}

/* Closes all that this process holds of the job but what is -1. */
void shm_supervisor_close(struct supervisor *supervisor);

static inline bool is_running(const struct worker *worker)
{
    return worker->state == WORKER_LIVE || worker->state == WORKER_NEW;
}

/* What callbacks and the like want: a status other than EK_OK ends the job with it and with ek_error(). */
void shm_obey(struct supervisor *supervisor, ek_status status);

/* Completes the agreement that every rank of the job waits in, if they all do. */
void shm_try_agreement(struct supervisor *supervisor);
/* Starts the lost ranks whose time to return has come. */
void shm_start_newcomers(struct supervisor *supervisor);
/* When that is, if nobody asks before, in nanoseconds; UINT64_MAX: not without being asked, or not settled yet. */
uint64_t shm_respawn_time(const struct supervisor *supervisor, const struct worker *worker);
/* Marks the open step where newcomers ask to join, unless all are on their way to an agreement. */
void shm_mark_vote(struct supervisor *supervisor);

/* Starts one rank. */
ek_status shm_worker_start(struct supervisor *supervisor, uint32_t rank);
/* After a poll: whether the rank has ended. */
bool shm_worker_has_ended(const struct supervisor *supervisor, uint32_t rank);
/* Waits for the end of a rank. How it ended, unless its main returned. */
void shm_worker_reap(struct supervisor *supervisor, uint32_t rank, ek_loss_cause *cause, int *code);
/* A process ends at once, a thread when it next calls the engine. */
void shm_worker_kill(const struct supervisor *supervisor, uint32_t rank);

#endif
