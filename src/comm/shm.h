/* The engine "shm": ranks are processes (or threads) of one machine that share one mapping.
 *
 * Memory. ek_launch makes one anonymous shared mapping before it forks, so no named object exists that could be left
 * behind, and a pointer into it is valid on every rank:
 *
 *     struct shm_job with a struct shm_rank per rank | group blocks | channels | heap of rank 0 | heap of rank 1 | …
 *
 * Who writes what. A rank writes only its own struct shm_rank, its own heap, its side of its channels, and counters. An
 * operation publishes where its data lies and the others read it there; nobody writes into another rank's memory.
 * The launching thread, the supervisor, alone decides who is lost and what is agreed.
 *
 * Losses. When a rank dies the supervisor (1) aborts the open vote, (2) sets job->loss, (3) poisons or rings
 * every word that anybody may sleep on. From then on every operation fails, until the survivors have all come to
 * ek_agree and the supervisor has wiped blocks and channels for the next epoch. An operation looks at the poison or at
 * job->loss after its last read of a peer's memory: what a peer overwrote because it had already failed is never
 * returned as a result.
 *
 * Returns. A lost rank is started again when its loss is settled: from then on no membership knows it, nobody reads its
 * heap or its struct shm_rank, and both are emptied for it. It asks to join by ek_agree and is let in by the next
 * agreement of kind BEGIN; until then it is not in the job: no operation, no vote, and no loss if it dies. To bring
 * such an agreement about, the supervisor marks the open vote. The last voter hands the mark on to the next step, for
 * which nobody can vote before an agreement: so all ranks stop behind the same step, and a slow one still finds the
 * mark when it looks.
 *
 * Order. Data is handed over by counters: written before an atomic addition, read after a load that saw it.
 *
 * Files: shm_supervisor.c, shm_members.c, shm_workers.c the launching side; shm_job.c the mapping; shm_rank.c a rank's
 * life, vote and agreement; shm_lane.c its two lanes; shm_collectives.c, shm_exchange.c the operations;
 * heap.c the allocator. */
#ifndef EK_COMM_SHM_H
#define EK_COMM_SHM_H

#include "base/error.h"
#include "comm/clock.h"
#include "comm/engine.h"
#include "comm/heap.h"
#include "comm/queue.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#define SHM_LINE _Alignas(64)

/* A rank has timed out when so many ticks in a row have seen no beat. */
#define SHM_TICKS_PER_TIMEOUT 8

/* What a rank copies aside so that nobody has to wait until the others have read it. */
#define SHM_SLOT_BYTES 32768

/* ------------------------------------------------------------------------------------------------ shared */

/* Counts up; others sleep until it has reached what they wait for. */
struct shm_counter {
    SHM_LINE _Atomic uint64_t value; /* count << 1 | poisoned */
    _Atomic uint32_t sleepers;       /* whether a wake-up is needed */
};
#define SHM_POISON 1u
#define SHM_ONE 2u

/* The meeting place of a group, found by its key in an open-addressing table. */
struct shm_block {
    SHM_LINE _Atomic uint64_t key; /* 0: unclaimed */
    struct shm_counter arrivals;   /* members × phases: a phase begins when all have published */
    struct shm_counter departures; /* members × operations: all have read, what was published may be overwritten */
};

/* What a member shows the others in one operation. */
struct shm_descriptor {
    const void *data;
    uint64_t bytes;          /* compared with what the reader expects */
    const uint64_t *offsets; /* [members + 1] all-to-all: where in data each member's part begins */
    uint64_t arrived_ns;     /* emulated link only */
};

struct shm_entry {
    const void *data;
    uint64_t bytes;
};

/* Messages from one rank to another on one lane. A sender publishes all that one ek_exchange sends there as one list;
 * the next list follows when this one is consumed. */
struct shm_channel {
    SHM_LINE _Atomic uint64_t published; /* messages in this epoch; the sender's */
    const struct shm_entry *entries;     /* of message `first` and later ones */
    uint64_t first;
    uint64_t sender_ns;                 /* when the sender came; emulated link only */
    SHM_LINE _Atomic uint64_t consumed; /* messages in this epoch; the receiver's */
    uint64_t receiver_ns;
};

struct shm_ballot {
    uint64_t step;
    double values[EK_VOTE_VALUES];
};

/* The epoch of a newcomer. */
#define SHM_NO_EPOCH UINT64_MAX

struct shm_rank {
    SHM_LINE _Atomic uint64_t beats; /* the compute thread makes progress */
    _Atomic uint64_t note;
    _Atomic uint32_t fenced;   /* threads only: enum shm_fence */
    _Atomic uint32_t finished; /* main has returned; status and error are valid */
    bool killed;               /* threads only: it ended itself by EK_FAULT_KILL */
    ek_status status;
    char error[EK_ERROR_BYTES];

    SHM_LINE _Atomic uint64_t agreeing; /* the epoch that the rank asks to end; SHM_NO_EPOCH: it asks to be let in */
    ek_agreement_kind kind;             /* by which agreement, */
    bool agrees;                        /* and its `ok` */
    _Atomic uint64_t admitted;          /* the epoch in which the rank joined; 0: a newcomer */
    struct shm_ballot ballots[2];       /* by parity of the step: step s+2 opens only after all have voted for s+1,
                                           hence have read the ballots of s */
    struct shm_descriptor descriptors[EK_LANES][2];
    struct shm_counter doorbells[EK_LANES]; /* rung when a channel to or from this rank moves */
};

/* What goes through the pipe before each record. */
struct shm_report_header {
    uint32_t rank, bytes;
};

/* A thread cannot be killed: it is fenced, its operations end with EK_FENCED, and it is lost when its main returns. */
enum shm_fence { SHM_FREE, SHM_FENCED_ITSELF, SHM_FENCED_BY_SUPERVISOR };

struct shm_job {
    /* fixed before the ranks start */
    uint32_t ranks;
    bool threads;
    uint32_t spins; /* looks at a word before sleeping on it */
    size_t mapping_bytes;
    uint64_t tick_ns; /* the supervisor looks for beats so often; 0: never, there is no timeout */
    uint64_t nap_ns;  /* the longest sleep without a beat */
    bool link_emulated;
    double link_ns_per_byte, link_latency_ns;
    int report_fd, event_fd;          /* to the supervisor */
    struct shm_block *blocks;         /* [block_count] wiped with the channels at each agreement */
    uint64_t block_count;             /* a power of two */
    struct shm_channel *channels;     /* [EK_LANES][to][from] */
    size_t wiped_bytes;               /* of blocks and channels */
    unsigned char *heaps, *heaps_end; /* [ranks][heap_bytes] */
    size_t heap_bytes;
    ek_agreement agreement; /* the last one; at first all that are present are live */
    bool *live, *newcomers; /* [ranks] its arrays, to be written */

    _Atomic uint64_t wish;           /* what the launching side asks for */
    SHM_LINE _Atomic uint64_t loss;  /* 0, or 1 + the rank first lost since the last agreement */
    SHM_LINE _Atomic uint64_t epoch; /* 1 + agreements */
    SHM_LINE _Atomic uint64_t vote;  /* a packed struct shm_vote_word */
    struct shm_rank rank[];
};

ek_status shm_job_create(struct shm_job **job, const ek_launch_options *options);
void shm_job_destroy(struct shm_job *job);

/* The word of the vote: the step that is open, how many vote in it, how many of them have not yet, whether a death has
 * aborted it. Its low half, on which voters sleep, changes with each vote. */
struct shm_vote_word {
    uint64_t step;
    uint32_t voters, missing; /* below 2048 */
    bool aborted;
    bool marked;  /* newcomers wait for the end of this step */
    bool joining; /* the step before was marked: no vote until an agreement */
};
uint64_t shm_vote_pack(struct shm_vote_word vote);
struct shm_vote_word shm_vote_unpack(uint64_t word);
/* Takes one away from those missing. The last one commits the step and opens the next. */
void shm_vote_count(struct shm_vote_word *vote);

/* --------------------------------------------------------------------------------------------- of a rank */

/* A counter's value that must be reached before something may be overwritten. */
struct shm_guard {
    struct shm_counter *counter; /* NULL: free */
    uint64_t target;
};

struct shm_lane {
    struct queue queue;
    struct shm_engine *engine;
    ek_lane id;

    /* of whichever thread runs an operation; only one does */
    bool beats; /* the compute thread does */
    struct shm_guard guards[2];
    void *slots[2]; /* [SHM_SLOT_BYTES] in the heap */
    uint64_t *offsets[2];
    void *staging; /* in the heap: data that the others cannot reach where it is */
    size_t staging_bytes;
    struct shm_guard staging_guard;
    uint64_t deadline_ns; /* emulated link: the operation is not complete before */
};

struct shm_engine {
    struct ek_engine base;
    struct shm_job *job;
    struct shm_rank *own;
    uint64_t epoch;
    struct heap heap;
    struct shm_lane lanes[EK_LANES];
};

struct shm_group {
    struct ek_group base;
    uint64_t epoch;
    struct shm_block *block;
    uint64_t arrivals, departures; /* counts that end the last phase that this member took part in */
};

/* The life of a rank: makes its engine, runs main, says how it ended. */
void shm_rank_run(struct shm_job *job, uint32_t rank, const ek_launch_options *options);

/* EK_FENCED or EK_PEER_LOST if this rank, or another one, is lost. */
ek_status shm_check(const struct shm_engine *engine);
bool shm_is_sound(const struct shm_engine *engine); /* the same as an answer, without an error */
ek_status shm_check_fence(const struct shm_engine *engine);
ek_status shm_fail_lost(const struct shm_job *job);

/* Spins, then sleeps a while at most, while the word is `seen`. The rank's heart beats if `beat`. */
void shm_doze(const struct shm_engine *engine, bool beat, _Atomic uint64_t *word, uint64_t seen);
/* Waits until the counter has reached target. */
ek_status shm_await(const struct shm_lane *lane, struct shm_counter *counter, uint64_t target);
/* Waits until what is guarded may be overwritten. */
ek_status shm_await_guard(const struct shm_lane *lane, struct shm_guard *guard);
/* Adds one and wakes those who wait for `target` once it is reached. EK_PEER_LOST if the counter was poisoned. */
ek_status shm_count(const struct shm_engine *engine, struct shm_counter *counter, uint64_t target);
/* Sleeps until lane->deadline_ns. */
ek_status shm_await_link(const struct shm_lane *lane);

void shm_beat(const struct shm_engine *engine);
/* memcpy, with beats when it takes long; nothing if to == from. */
void shm_copy(const struct shm_lane *lane, void *to, const void *from, size_t bytes);

/* shm_lane.c */
ek_status shm_lane_create(struct shm_lane *lane, struct shm_engine *engine, ek_lane id);
ek_status shm_submit(ek_engine *engine, ek_lane lane, const struct ek_operation *operation, ek_request *request);
ek_status shm_wait(ek_engine *engine, ek_lane lane, ek_request request);
void shm_lane_renew(struct shm_lane *lane); /* a new epoch: failures and guards are forgotten */
/* At least `bytes` of heap memory that the others can read, the lane's until the next call. */
ek_status shm_lane_stage(struct shm_lane *lane, size_t bytes);
ek_status shm_lane_unstage(struct shm_lane *lane); /* gives back what is too large to keep */
static inline bool shm_reachable(const struct shm_job *job, const void *data)
{
    return (const unsigned char *)data >= job->heaps && (const unsigned char *)data < job->heaps_end;
}

/* shm_collectives.c, shm_exchange.c */
ek_status shm_group_create(ek_group **group, ek_engine *engine, ek_lane lane, uint32_t tag, uint32_t *members,
                           uint32_t count, uint32_t index);
void shm_group_destroy(ek_group *group);
ek_status shm_collective(struct shm_lane *lane, const struct ek_operation *operation);
ek_status shm_exchange(struct shm_lane *lane, const struct ek_operation *operation);

/* shm_supervisor.c */
void shm_place(ek_place *place);
ek_status shm_launch(const ek_launch_options *options);
ek_status shm_kill(ek_launcher *launcher, uint32_t rank);
void shm_ask(ek_launcher *launcher, uint64_t wish);

/* shm_members.c */
ek_status shm_revive(ek_launcher *launcher, uint32_t rank);

#endif
