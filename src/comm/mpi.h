/* The engine "mpi": ranks are processes that mpirun or srun started, on any number of machines.
 *
 * Processes. ek_launch forks in each process that it is called in:
 *
 *     guard        the process that mpirun started. It watches over its rank: kills it when its heart stops, tells how
 *                  it ended, dies as it did. It passes messages between its rank and the supervisor.
 *     rank         its child: runs main; the only one that calls MPI.
 *     supervisor   in process 0 another child, in a process group of its own, since it must outlive rank 0.
 *
 * The supervisor decides who is lost, what is committed and what is agreed, as the launching thread of the engine "shm"
 * does, and calls the callbacks.
 *
 * Rank and guard share a page of memory (struct mpi_page), and a pipe to the guard; guards talk to the supervisor over
 * TCP (wire.h). MPI moves data, and nothing else.
 *
 * Data. Each lane has a communicator, a duplicate of that of all live ranks, and all operations of a lane are
 * point-to-point messages on it (mpi_lane.c): so groups cost nothing, sums are taken in one order on every member, the
 * same bits as from the engine "shm", and two communicators are all that must be revoked.
 *
 * Losses. A guard tells that its rank has ended before it ends itself, which is when MPI hears of it. The supervisor
 * aborts the open vote and tells every guard, which sets page->loss: every wait ends. What MPI itself says first is an
 * error on somebody's operation; that rank tells the supervisor (WIRE_TROUBLE), which disturbs all others in the same
 * way. A rank that leaves an operation revokes both communicators, then waits until MPI has let go of its buffers. When
 * all have come to ek_agree, and the supervisor has said who lives, communicators are made anew by MPIX_Comm_shrink. If
 * that fails because one more has died, the next agreement makes them. Data that a rank took from a peer which had
 * already given up is never committed: the peer is on its way to an agreement and does not vote.
 *
 * A host that is cut off is noticed by silence on both sides; MPI's run-time does not outlive that, so the job ends.
 * Nor does it end by itself, before TCP has given the connection up, some 15 minutes later: the guards end it.
 *
 * Files: mpi_launch.c forks; mpi_guard.c; mpi_supervisor.h names the three of the supervisor; mpi_rank.c a rank's life,
 * vote, agreement; mpi_lane.c messages; mpi_collectives.c; mpi_ulfm.c the calls that not every MPI has; wire.c; heap.c
 * and queue.c as in "shm". */
#ifndef EK_COMM_MPI_H
#define EK_COMM_MPI_H

#include "base/error.h"
#include "comm/clock.h"
#include "comm/engine.h"
#include "comm/heap.h"
#include "comm/queue.h"
#include "comm/wire.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>

#define JOB_TICKS_PER_TIMEOUT 8
#define JOB_HOST_BYTES 64
#define JOB_TOKEN_BYTES 16
#define JOB_ADDRESSES_MOST 16

/* ---------------------------------------------------------------------------------------------- messages */

enum mpi_message_type {
    /* rank to guard, which passes all but the first on to the supervisor */
    WIRE_CONTACT, /* struct mpi_contact: where the supervisor is */
    WIRE_REPORT,  /* the record */
    WIRE_VOTE,    /* struct mpi_ballot */
    WIRE_AGREE,   /* struct mpi_consent */
    WIRE_TROUBLE, /* struct mpi_trouble */
    WIRE_END,     /* struct mpi_end: main has returned */
    /* guard to supervisor */
    WIRE_HELLO, /* struct mpi_hello */
    WIRE_LOST,  /* struct mpi_lost: the rank is gone */
    /* both ways */
    WIRE_BEAT,
    /* supervisor to guard */
    WIRE_WELCOME,  /* the launching side's shared bytes */
    WIRE_DECISION, /* struct mpi_decision */
    WIRE_EPOCH,    /* struct mpi_epoch */
    WIRE_LOSS,     /* struct mpi_loss: operations fail from now on */
    WIRE_WISH,     /* uint64_t */
    WIRE_KILL,
    WIRE_OVER, /* struct mpi_end: the job is over */
};

/* Where the supervisor listens. A guard that has it connects. */
struct mpi_contact {
    unsigned char token[JOB_TOKEN_BYTES];
    in_port_t port; /* network order, as the addresses */
    uint32_t count;
    in_addr_t addresses[JOB_ADDRESSES_MOST];
};

struct mpi_hello {
    unsigned char token[JOB_TOKEN_BYTES];
    uint32_t rank;
    char host[JOB_HOST_BYTES];
};

struct mpi_ballot {
    uint64_t step;
    double values[EK_VOTE_VALUES];
};

struct mpi_decision {
    ek_status status; /* EK_INVALID: the open step is another one */
    uint64_t step;
    double sums[EK_VOTE_VALUES];
};

struct mpi_consent {
    ek_agreement_kind kind;
    bool ok;
};

struct mpi_epoch {
    uint64_t epoch, committed_step;
    bool ok;
    bool renew; /* operations failed in the last one: communicators are made anew */
    bool live[EK_RANKS_MOST];
};

#define JOB_TROUBLE_BYTES 256
struct mpi_trouble {
    uint64_t epoch;
    char text[JOB_TROUBLE_BYTES];
};

struct mpi_loss {
    uint32_t rank; /* EK_NONE: somebody's operations fail, nobody is known to be lost */
};

struct mpi_lost {
    ek_loss_cause cause;
    int code;
    uint64_t note;
};

struct mpi_end {
    ek_status status;
    bool cut_off; /* a host is silent: guards end MPI's run-time, which would wait for it */
    char error[EK_ERROR_BYTES];
};

/* The largest but WIRE_WELCOME. */
#define JOB_MESSAGE_BYTES (EK_REPORT_BYTES > sizeof(struct mpi_epoch) ? EK_REPORT_BYTES : sizeof(struct mpi_epoch))

/* ------------------------------------------------------------------------------------- rank and its guard */

/* What a rank and its guard share. The rank writes the first part, the guard the second. */
struct mpi_page {
    _Atomic uint64_t beats, note;
    _Atomic uint32_t patience; /* 1, as at first: the rank is in calls of MPI's that take their time */

    _Atomic uint64_t admitted; /* 1: the job has begun; what is shared is there */
    _Atomic uint64_t loss;     /* 0; 1 + the rank lost in this epoch; JOB_DISTURBED */
    _Atomic uint64_t wish;
    _Atomic uint64_t decisions; /* counts them; rung as are the next two */
    _Atomic uint64_t epoch;     /* 1 + agreements */
    _Atomic uint64_t over;      /* 1: the job is over, well; otherwise the rank is killed */
    struct mpi_decision decision;
    struct mpi_epoch agreed;
    size_t shared_bytes;
    unsigned char shared[EK_SHARED_BYTES];
};
#define JOB_DISTURBED UINT64_MAX

/* What the three kinds of processes know from before the forks. */
struct mpi_job {
    const ek_launch_options *options;
    ek_place place;
    uint32_t rank, present; /* this process', and how many there are */
    uint64_t tick_ns;       /* 0: no timeout */
    struct mpi_page *page;
    int pipe[2];                /* rank to guard */
    int listener;               /* process 0, else -1 */
    struct mpi_contact contact; /* process 0 */
    pid_t supervisor;           /* process 0 */
    int run_time;               /* a pidfd of what started this process: mpirun or its daemon; -1: unknown */
    bool run_time_is_daemon;
    sigset_t old_mask; /* the program's: the signals below are blocked before the forks */
};

/* What the launching side hears; the last one in its guard alone. */
static const int mpi_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
#define JOB_SIGNALS (sizeof mpi_signals / sizeof *mpi_signals)

void mpi_place(ek_place *place);
ek_status mpi_launch(const ek_launch_options *options);

/* Where there is no timeout there is nothing to be measured, but messages say that both are there. */
static inline uint64_t mpi_beat_ns(const struct mpi_job *job)
{
    return job->tick_ns ? job->tick_ns : 1000000000u;
}

/* For so many ticks in a row a host may be silent: the timeout, or 2 s if that is longer. */
static inline uint64_t mpi_silent_ticks(const struct mpi_job *job)
{
    uint64_t least = 2000000000u / job->tick_ns;
    return least > JOB_TICKS_PER_TIMEOUT ? least : JOB_TICKS_PER_TIMEOUT;
}

/* Whether ranks may be lost in this job: MPI has ULFM, and mpirun was asked for it. */
bool mpi_can_lose(void);

/* Runs main in the rank's process, and leaves it. */
_Noreturn void mpi_rank_run(struct mpi_job *job);
/* Watches over the rank until it has ended. Its status is the job's; or the process ends as the rank did. */
ek_status mpi_guard_run(struct mpi_job *job, pid_t rank);
ek_status mpi_supervise(struct mpi_job *job);
ek_status mpi_revive(ek_launcher *launcher, uint32_t rank);
ek_status mpi_kill(ek_launcher *launcher, uint32_t rank);
void mpi_ask(ek_launcher *launcher, uint64_t wish);

#endif
