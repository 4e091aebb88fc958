/* evenkeel: nonuniform tensor parallelism (NTP) for training that outlives its devices.
 *
 * This is the whole public interface of libevenkeel: what a framework that brings its own model needs to keep a job
 * stepping when a device is lost. Four parts, from pure to acting:
 *
 *   chain        which units of a sharded tensor each role holds, at every level (pure)
 *   membership   who serves which role in which replica, after any history of failures (pure)
 *   engine       groups, collectives, point-to-point, the commit vote, agreement on failures
 *   sync, recovery   gradients between replicas of different degree; state back in place after a failure
 *
 * Words (docs/concepts.md explains them at length):
 *   rank      one process driving one device. Rank = replica * base_degree + slot, for the whole life of the job;
 *             ranks from replicas * base_degree upward are spares.
 *   role      a logical TP position 0 … N-1 of a replica; N is the base degree.
 *   unit      the smallest indivisible slice of a sharded tensor; tensors cut by the same units form a unit group.
 *   level k   the layout after the first k roles of the drop order are given up; a replica of degree N-k is at level k.
 *   sync level K  the deepest level of any replica: gradients are reduced in its layout.
 *   core, extra   in a replica above the sync level: a role that exists in the sync layout, and one that does not.
 *
 * Conventions. Functions that can fail return ek_status; on failure out-parameters are untouched and ek_error() gives
 * one line of text for the calling thread. Objects come from …_create and go with …_destroy, which accepts NULL; who
 * creates, destroys. Nothing here prints, exits or keeps global state (the error text is per thread).
 * Chains and memberships never change once created and may be read from any number of threads. An engine and what is
 * made from it (groups, syncs, recoveries) belong to the one thread of the rank that ek_launch calls: the compute
 * thread.
 */
#ifndef EVENKEEL_H
#define EVENKEEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define EK_API __attribute__((visibility("default")))
#else
#define EK_API
#endif

#define EK_VERSION_MAJOR 0
#define EK_VERSION_MINOR 1
#define EK_VERSION_PATCH 0

/* "0.1.0": the version of the library that is loaded. */
EK_API const char *ek_version(void);

/* ------------------------------------------------------------------------------------------------ status */

typedef enum ek_status {
    EK_OK = 0,
    EK_INVALID,     /* an argument or an input is refused; ek_error() says what is allowed */
    EK_NO_MEMORY,   /* memory, or the engine's heap, is exhausted */
    EK_PEER_LOST,   /* a rank was lost: nothing of the current step is committed; recover */
    EK_UNIT_LOST,   /* no survivor holds a unit: go back to a checkpoint */
    EK_NO_REPLICA,  /* no replica has as many ranks left as it needs */
    EK_FENCED,      /* this rank has been declared lost by the others: return from main */
    EK_CORRUPT,     /* copies that must be identical differ */
    EK_IO,          /* a file could not be read or written */
    EK_SYSTEM,      /* the operating system refused something else */
    EK_INTERRUPTED, /* the job was ended by a signal */
} ek_status;

/* A few words for a status; never NULL. */
EK_API const char *ek_status_text(ek_status status);

/* The text of the last failure in this thread, one line without a newline; "" if there was none. Valid until the next
 * failure in this thread. */
EK_API const char *ek_error(void);

/* ------------------------------------------------------------------------------------------------- chain */

/* The chain of layouts of one unit group (docs/concepts.md, "The chain of layouts").
 *
 * Level 0 is contiguous sharding: role r of N holds units floor(rU/N) … floor((r+1)U/N)-1. Level k+1 is level k without
 * role drop_order[k]: its units are dealt to the remaining roles so that all sizes stay within one unit of each other,
 * each recipient getting one contiguous run of the dropped role's list, appended to its own. So at every level sizes
 * differ by at most one (balance), and a surviving role's level-k list is a prefix of its level-(k+1) list (prefix). */
typedef struct ek_chain ek_chain;

/* units >= base_degree >= 1; drop_order has `levels` < base_degree distinct roles. `ties` (any number; the index of the
 * unit group) rotates the order in which ties are broken. Cost: O(units + units moved + levels * base_degree). */
EK_API ek_status ek_chain_create(ek_chain **chain, uint32_t units, uint32_t base_degree, const uint32_t *drop_order,
                                 uint32_t levels, uint32_t ties);
EK_API void ek_chain_destroy(ek_chain *chain);

EK_API uint32_t ek_chain_total_units(const ek_chain *chain);
EK_API uint32_t ek_chain_base_degree(const ek_chain *chain);
EK_API uint32_t ek_chain_levels(const ek_chain *chain); /* the deepest level */

/* Units that `role` holds at `level`; 0 if the role does not exist there. O(1). */
EK_API uint32_t ek_chain_count(const ek_chain *chain, uint32_t level, uint32_t role);

/* The list of a role. Its first ek_chain_count(chain, level, role) entries are its units at `level`, in the order in
 * which the rank stores them. Owned by the chain. */
EK_API const uint32_t *ek_chain_list(const ek_chain *chain, uint32_t role);

/* The role that holds `unit` at `level`, and the unit's position in that role's list (position may be NULL). O(moves of
 * that unit). */
EK_API uint32_t ek_chain_owner(const ek_chain *chain, uint32_t level, uint32_t unit, uint32_t *position);

/* One run of a gradient transfer: positions extra_first … of the extra's list at the replica's level are positions
 * core_first … of the core's list at the sync level. */
typedef struct ek_transfer {
    uint32_t extra, core; /* roles */
    uint32_t extra_first, core_first;
    uint32_t count; /* units */
} ek_transfer;

/* The runs by which a replica at `level` reshards to `sync_level` >= level, ordered by (core, core_first). Empty
 * if level == sync_level. *transfers is released with ek_free. O(units moved). */
EK_API ek_status ek_chain_transfers(const ek_chain *chain, uint32_t level, uint32_t sync_level, ek_transfer **transfers,
                                    size_t *count);

EK_API void ek_free(void *memory);

/* -------------------------------------------------------------------------------------------- membership */

#define EK_NONE UINT32_MAX       /* no rank, no role, no replica */
#define EK_REPLICATED UINT32_MAX /* the "unit group" of tensors that every rank holds whole (norms) */

typedef struct ek_unit_group {
    const char *name; /* copied */
    uint32_t units;
    uint64_t
        unit_bytes; /* state held per unit, for the memory limit and for balancing the sources of state motion; 0: 1 */
} ek_unit_group;

typedef struct ek_job {
    uint32_t replicas;           /* DP degree */
    uint32_t base_degree;        /* N: TP degree of a healthy replica */
    uint32_t min_degree;         /* a replica below it is retired; 0 means 1 */
    uint32_t spares;             /* ranks replicas*base_degree … +spares-1 start without a role */
    const ek_unit_group *groups; /* copied; each has units >= base_degree */
    uint32_t group_count;
    uint64_t replicated_bytes; /* state of the replicated tensors, on every rank */
    uint64_t rank_bytes; /* a rank's memory for state; 0: no limit. A degree at which a share would not fit retires the
                            replica just as min_degree does */
} ek_job;

/* Who serves which role of which replica, and the chains at the job's drop order. Immutable: a failure or a return
 * makes a new one. */
typedef struct ek_membership ek_membership;

/* All replicas whole. */
EK_API ek_status ek_membership_create(ek_membership **membership, const ek_job *job);
EK_API void ek_membership_destroy(ek_membership *membership);

/* The membership after the ranks in lost[] are gone. A pure function: every survivor computes the same.
 *  1. Each replica keeps its survivors. Spares take the roles of lost ranks, in the replicas that were hit, deepest
 * first. A replica left below the least degree is retired: its survivors become spares for later failures.
 *  2. The drop order is cut to the deepest level that a replica which stays was at, then extended by lost roles
 *     of the deepest replica that stays (ties: the lowest replica), in ascending order.
 *  3. A survivor keeps its role if it still exists at its replica's level; the others take vacant roles in order.
 * Ranks in lost[] that are not in `old` are ignored. EK_NO_REPLICA if no replica stays. */
EK_API ek_status ek_membership_lose(const ek_membership *old, const uint32_t *lost, uint32_t lost_count,
                                    ek_membership **next);

/* The membership after `rank`, which held no role, joined: it takes role d_k of the deepest replica at level k > 0 (its
 * home replica first, rank / base_degree), and the other roles cut their lists back to the prefix. Where its home
 * replica is retired it becomes a spare, and the replica comes back once its home ranks among the spares reach the
 * least degree. With every replica whole it becomes a spare. */
EK_API ek_status ek_membership_join(const ek_membership *old, uint32_t rank, ek_membership **next);

/* The membership after an agreement: the ranks that are not live are lost, then each live rank that `old` does not know
 * joins, in ascending order. live is [ranks]. */
EK_API ek_status ek_membership_follow(const ek_membership *old, const bool *live, ek_membership **next);

EK_API const ek_job *ek_membership_job(const ek_membership *membership);
EK_API uint32_t ek_membership_ranks(const ek_membership *membership);      /* replicas * base_degree + spares */
EK_API uint32_t ek_membership_sync_level(const ek_membership *membership); /* K, also the length of the drop order */
EK_API const uint32_t *ek_membership_drop_order(const ek_membership *membership);
EK_API uint32_t ek_membership_degree(const ek_membership *membership, uint32_t replica); /* 0: retired */
EK_API uint32_t ek_membership_level(const ek_membership *membership, uint32_t replica);  /* EK_NONE: retired */
EK_API uint32_t ek_membership_rank(const ek_membership *membership, uint32_t replica, uint32_t role); /* or EK_NONE */
/* The ranks of a replica in order of their roles: its TP group. ranks has room for base_degree; returns how many. */
EK_API uint32_t ek_membership_replica(const ek_membership *membership, uint32_t replica, uint32_t *ranks);
/* True if the rank holds a role; then *replica and *role (may be NULL) are set. */
EK_API bool ek_membership_place(const ek_membership *membership, uint32_t rank, uint32_t *replica, uint32_t *role);
EK_API bool ek_membership_is_spare(const ek_membership *membership, uint32_t rank);
EK_API const ek_chain *ek_membership_chain(const ek_membership *membership, uint32_t group);
/* Units of a group that the rank holds, and how many; NULL and 0 for a rank without a role. */
EK_API const uint32_t *ek_membership_units(const ek_membership *membership, uint32_t rank, uint32_t group,
                                           uint32_t *count);
/* The lowest role that exists at the sync level: it reduces the replicated tensors. */
EK_API uint32_t ek_membership_first_core(const ek_membership *membership);

/* One run of state motion: `destination` gets `count` units of `group` from `source`. Positions count in the rank's
 * own list, the source's under the old membership, the destination's under the new one. */
typedef struct ek_move {
    uint32_t group;               /* or EK_REPLICATED: all replicated tensors; positions 0, count 1 */
    uint32_t source, destination; /* ranks; equal where a unit only changes place within its rank */
    uint32_t source_first, destination_first, count;
} ek_move;

/* What every rank of `next` needs and does not hold, from whom: a holder in its own replica where there is one, else
 * one in another, the bytes spread evenly over the sources. Holders are ranks with a role in `old` that `next` still
 * knows (role or spare). Units kept in place (same position) are not listed; those kept at another position are, with
 * source == destination. Ordered by (destination, group, destination_first). Released with ek_free. EK_UNIT_LOST names
 * the unit that nobody holds. Cost: linear in units moved + ranks * groups * levels. */
EK_API ek_status ek_membership_moves(const ek_membership *old, const ek_membership *next, ek_move **moves,
                                     size_t *count);

/* ------------------------------------------------------------------------------------------------ engine */

/* An engine joins the ranks of a job. Data in engine memory (ek_engine_alloc) is moved with the fewest copies; any
 * other memory works too. Each rank has two lanes; operations of one lane run in the order in which they were
 * called, the two lanes are independent: tensor-parallel collectives use one, gradients the other.
 *
 * Losing a rank ends every pending and later operation of every survivor with EK_PEER_LOST, within a bounded time,
 * until ek_agree acknowledges the loss; until then others may still read the buffers of an operation that failed.
 * Groups live until the next ek_agree: after it they can only be destroyed.
 *
 * A lost rank that is started again (ek_launcher_revive) is a newcomer: its main runs from the beginning, but it is not
 * in the job, and has no operations and no vote, until its first ek_agree returns. */
typedef struct ek_engine ek_engine;
typedef struct ek_group ek_group;

typedef enum ek_lane { EK_LANE_COMPUTE = 0, EK_LANE_GRADIENT = 1 } ek_lane;
#define EK_LANES 2

EK_API uint32_t ek_engine_rank(const ek_engine *engine);
EK_API uint32_t ek_engine_ranks(const ek_engine *engine); /* ranks of the job, present or not */
EK_API const char *ek_engine_name(const ek_engine *engine);
EK_API bool ek_engine_is_new(const ek_engine *engine); /* a newcomer, until its first ek_agree returns */

/* Zeroed memory, aligned to 64 bytes; with "shm" other ranks' operations reach it directly. EK_NO_MEMORY. Freed memory
 * goes back to the system. */
EK_API ek_status ek_engine_alloc(ek_engine *engine, size_t bytes, void **memory);
/* After a loss the memory is kept, for peers that still read it, until the next ek_agree. */
EK_API void ek_engine_free(ek_engine *engine, void *memory);

/* A group: ranks[0 … count-1], distinct, in an order that is the same on every member; the caller is one of them. Not a
 * collective: members make it when they like. Two groups of the same lane must differ in `tag`. */
EK_API ek_status ek_group_create(ek_group **group, ek_engine *engine, ek_lane lane, uint32_t tag, const uint32_t *ranks,
                                 uint32_t count);
EK_API void ek_group_destroy(ek_group *group);
EK_API uint32_t ek_group_size(const ek_group *group);
EK_API uint32_t ek_group_index(const ek_group *group); /* the caller's place in ranks[] */

/* Collectives. With request == NULL the call returns when the operation is complete for this rank (its buffers may be
 * reused). Otherwise it returns at once, and buffers must be left alone until ek_wait. Sums are taken in the
 * order of ranks[] and all members get the same bits. A group of one does nothing but copy. */
typedef uint64_t ek_request;
typedef enum ek_reduction { EK_SUM, EK_MAX } ek_reduction;

/* buffer (count) on every member becomes the reduction of all. */
EK_API ek_status ek_all_reduce(ek_group *group, float *buffer, size_t count, ek_reduction reduction,
                               ek_request *request);
/* input (sum of counts[]), output (counts[index]), not overlapping: member i gets part i of the sum. counts[] is the
 * same on all. */
EK_API ek_status ek_reduce_scatter(ek_group *group, const float *input, float *output, const size_t *counts,
                                   ek_request *request);
/* input (bytes[index]), output (sum of bytes[]): the parts in order. In place if input == its part of output. */
EK_API ek_status ek_all_gather(ek_group *group, const void *input, void *output, const size_t *bytes,
                               ek_request *request);
/* send holds send_bytes[i] for member i, one after the other; receive likewise. send_bytes of a pair = receive_bytes of
 * the other side. */
EK_API ek_status ek_all_to_all(ek_group *group, const void *send, const size_t *send_bytes, void *receive,
                               const size_t *receive_bytes, ek_request *request);
EK_API ek_status ek_broadcast(ek_group *group, void *buffer, size_t bytes, uint32_t root_index, ek_request *request);
EK_API ek_status ek_barrier(ek_group *group, ek_request *request);

/* Point-to-point: any number of messages at once, in any pattern, without deadlock. The n-th message from a to b
 * matches the n-th that b receives from a on that lane; their sizes must agree. A message to oneself is a copy. The
 * arrays are copied. */
typedef struct ek_message {
    uint32_t peer; /* rank */
    void *data;    /* not written to by a send */
    size_t bytes;
} ek_message;
EK_API ek_status ek_exchange(ek_engine *engine, ek_lane lane, const ek_message *sends, size_t send_count,
                             const ek_message *receives, size_t receive_count, ek_request *request);

/* Waits for a started operation and all before it on its lane. */
EK_API ek_status ek_wait(ek_engine *engine, ek_lane lane, ek_request request);

/* The commit vote: all live ranks of the job vote for step `step`, in turn 1, 2, 3 … The step is committed when the
 * last of them has voted; a death before that aborts it. EK_OK: committed; sums[i] is then the sum over the ranks, in
 * order of rank, of their values[i] (all ranks get the same bits). EK_PEER_LOST: not committed. Ranks obey this answer
 * alone, never what they saw of their peers. count <= EK_VOTE_VALUES. */
#define EK_VOTE_VALUES 8
EK_API ek_status ek_vote(ek_engine *engine, uint64_t step, const double *values, double *sums, uint32_t count);

/* After a vote that returned EK_OK: true if newcomers wait to join at this boundary between steps, on all ranks or on
 * none. Then the rank goes to ek_recovery_begin, as after a loss: there is no vote before that. */
EK_API bool ek_engine_joining(const ek_engine *engine);

/* What the ranks of the job agree on. The arrays are [ranks], the engine's, until the next ek_agree. */
typedef struct ek_agreement {
    bool ok;                 /* every rank passed ok, and none was lost or joined since the last agreement */
    uint64_t committed_step; /* the highest committed step; votes go on with the next one */
    const bool *live;        /* the ranks that are in the job now */
    const bool *newcomers;   /* those of them that joined after the last EK_AGREE_END with ok, or after the launch */
} ek_agreement;

/* Agreements come in pairs: BEGIN, where newcomers come in, and END. What happens in between is complete when END has
 * ok. Every rank of the job passes the same kind; a newcomer's first is BEGIN. */
typedef enum ek_agreement_kind { EK_AGREE_BEGIN, EK_AGREE_END } ek_agreement_kind;

/* A collective of all ranks of the job that losses do not interrupt: it completes when every rank still alive is in it.
 * Waits for the rank's own lanes first. After it operations work again, until the next loss. A newcomer waits for the
 * next BEGIN, nobody waits for a newcomer. */
EK_API ek_status ek_agree(ek_engine *engine, ek_agreement_kind kind, bool ok, ek_agreement *agreement);

/* Progress of the compute thread: call it at least a few times per engine timeout (operations do it by themselves).
 * `note` is handed to on_lost if this rank is lost: say where it is. */
EK_API void ek_beat(ek_engine *engine, uint64_t note);

/* Sends a record to the launcher's on_report; records of one rank arrive in order, also those sent just before its
 * death. */
#define EK_REPORT_BYTES 2048
EK_API ek_status ek_report(ek_engine *engine, const void *record, size_t bytes);

/* What the launching side last asked for (ek_launcher_ask), 0 at first. Ranks may see it at different times: what they
 * do about it they agree on by a vote. */
EK_API uint64_t ek_engine_asked(const ek_engine *engine);

/* Fault injection: dies as by SIGKILL, or stops as by SIGSTOP. Does not return where a rank is a process; where it is a
 * thread, it returns EK_FENCED, which the caller must pass up out of main. */
typedef enum ek_fault { EK_FAULT_KILL, EK_FAULT_HANG } ek_fault;
EK_API ek_status ek_inject(ek_engine *engine, ek_fault fault);

typedef enum ek_loss_cause { EK_LOSS_EXIT, EK_LOSS_SIGNAL, EK_LOSS_TIMEOUT } ek_loss_cause;
typedef struct ek_loss {
    uint32_t rank;
    ek_loss_cause cause;
    int code;      /* exit status or signal number */
    uint64_t note; /* the rank's last ek_beat */
    bool is_new;   /* it was a newcomer that had not joined: the others never heard of it */
} ek_loss;

/* The launching side of a running job. */
typedef struct ek_launcher ek_launcher;

/* In a callback of ek_launch: starts a lost rank again, once its loss is settled, which is when an EK_AGREE_END with ok
 * has come after it. Where the system lacks the means it is tried again. EK_INVALID if the rank is not lost, or is
 * already to be started. */
EK_API ek_status ek_launcher_revive(ek_launcher *launcher, uint32_t rank);

/* In a callback of ek_launch: kills a rank, as when the device that it uses has failed. It is lost as by SIGKILL
 * (EK_LOSS_SIGNAL), unless it is just ending by itself. A thread cannot be killed: its operations end with EK_FENCED,
 * and it is lost when its main has returned that. EK_INVALID if the rank is not running. */
EK_API ek_status ek_launcher_kill(ek_launcher *launcher, uint32_t rank);

/* In a callback of ek_launch, on_start too: what ek_engine_asked is to return on every rank, from some time soon on.
 * Only the last wish is kept: what ranks are to tell apart lies in its bits. */
EK_API void ek_launcher_ask(ek_launcher *launcher, uint64_t wish);

/* The names of the engines of this build, then NULL: "shm", and "mpi" where MPI was found. The library's own. */
EK_API const char *const *ek_engines(void);

/* How the processes of a job come about, which differs between engines. "shm": one process calls ek_launch, which
 * starts the ranks. "mpi": mpirun or srun starts a process per rank that is present, and all of them call ek_launch
 * with options that are alike. Process 0 leads: callbacks are called there alone. */
typedef struct ek_place {
    uint32_t process, processes; /* this one, and how many there are; "shm", or without mpirun: 0 and 1 */
    bool once;                   /* ek_launch can be called but once */
    bool one_machine;            /* all ranks are on the machine of process 0, which reaches their devices */
    /* What else the engine can do: ranks that are threads, emulated links, lost ranks that are started again. Options
     * that ask for what it cannot do are refused by ek_launch. */
    bool threads, links, returns;
} ek_place;
/* Before ek_launch, without starting MPI. EK_INVALID: there is no such engine in this build. */
EK_API ek_status ek_launch_place(const char *engine, ek_place *place);

#define EK_RANKS_MOST 1024
#define EK_SHARED_BYTES 65536
typedef struct ek_launch_options {
    const char *engine;     /* one of ek_engines() */
    uint32_t ranks;         /* of the job, present or not; at most EK_RANKS_MOST */
    const bool *absent;     /* [ranks] or NULL: ranks that are not started; never reported as lost */
    bool threads;           /* ranks are threads of this process instead of processes (for ThreadSanitizer) */
    double timeout_seconds; /* a rank without progress for so long (8 ms at least) is killed and lost; 0: never */
    size_t heap_bytes; /* engine memory per rank; 0: half of the machine's (address space, taken only when touched) */
    double link_bytes_per_second; /* emulated link: an operation completes no sooner than latency + bytes / bandwidth */
    double link_latency_seconds;  /* after all members are in it; 0 and 0: no emulation */
    uint64_t committed_step; /* the step that the job goes on from, 0 at first: votes begin with the one after it */
    double respawn_seconds;  /* each lost rank is started again so long after its loss, once settled; 0: none is */
    ek_status (*main)(ek_engine *engine, void *user); /* runs on every rank */
    /* What process 0 tells the others, NULL and 0 if nothing: before main, `shared` holds on every rank what it held in
     * process 0 after on_start. At most EK_SHARED_BYTES, and as many in every process. */
    void *shared;
    size_t shared_bytes;
    /* In the launching thread, any may be NULL; a status other than EK_OK ends the job with it. */
    /* Before any rank's main. The launcher lives as long as the ranks. */
    ek_status (*on_start)(void *user, ek_launcher *launcher);
    ek_status (*on_report)(void *user, uint32_t rank, const void *record, size_t bytes);
    ek_status (*on_lost)(void *user, const ek_loss *loss);
    /* SIGINT, SIGTERM, SIGHUP or SIGUSR1 has come: EK_OK, and the job goes on. NULL: the first three end it, and
     * SIGUSR1 is not attended to. */
    ek_status (*on_signal)(void *user, int signal);
    void *user; /* each process has its own copy-on-write image, from when it was started, of what it points to */
} ek_launch_options;

/* Runs a job and returns when it is over: EK_OK when every live rank's main returned EK_OK. The first
 * rank whose main returns another status ends the job with that status and its error text (EK_FENCED: just that rank).
 * A rank that dies or stalls is lost, and the others go on. Newcomers that have not joined when the others are done are
 * ended with the job. SIGINT, SIGTERM and SIGHUP end the job with EK_INTERRUPTED (handled by the launching thread while
 * it is in this call: the program's other threads must block them, or the system may give them to one of those, which
 * act on them in their own way; threads made by a rank that is a thread block them from the start). SIGCHLD has its
 * default action in the launching process while it is in this call, and no other thread may wait for children that it
 * did not start. No process, shared memory or file outlives the call, and ranks die with the launching process. A rank
 * that is a process ends without flushing stdio streams: main does, where it writes to one.
 *
 * "mpi" differs in this: no rank comes back (ek_launcher_revive, respawn_seconds), there are no threads and no emulated
 * links; without ULFM the first loss ends the job with EK_PEER_LOST, as does the silence of a whole host for
 * timeout_seconds, or 2 s where that is longer; while MPI begins, ends or makes communicators anew a rank may be
 * without progress for a minute. Process 0 goes on, and returns, in a child of the process that mpirun started, which
 * watches over rank 0 and ends with the child's exit status: so the leading side outlives its rank. The other processes
 * return with the same status and text as it does, unless their rank is lost: then they end as it did (with ULFM by
 * SIGKILL, where it did not by a signal). SIGUSR2 to the process that mpirun started is SIGTERM to the leading one, for
 * mpirun makes SIGTERM its own business. */
EK_API ek_status ek_launch(const ek_launch_options *options);

/* -------------------------------------------------------------------------------------------------- sync */

/* A tensor whose gradients are synchronised. Sharded tensors are unit-major: a unit is unit_elements contiguous floats,
 * a rank's units lie in the order of its list. A replicated tensor is one "unit" of EK_REPLICATED. */
typedef struct ek_tensor {
    const char *name; /* the caller's, kept as long as the objects made from it */
    uint32_t group;
    uint32_t bucket; /* 0 … buckets-1, in the order in which backward completes them */
    size_t unit_elements;
    /* A replicated tensor: false, all ranks of a replica come to the same gradient (tensor parallelism: norms); true,
     * each has a part of it, and the sum over all ranks of the job is the gradient (expert parallelism: all but the
     * experts). */
    bool partial;
} ek_tensor;

/* Gradient synchronisation between replicas of different degree (docs/concepts.md, "Gradient synchronisation"): per
 * bucket, extras send their units to the core roles that own them in the sync layout (pre), each core role is reduced
 * across the replicas (DP), the sums go back to the extras (post); replicated tensors are reduced by the first core
 * role and sent to all ranks of its replica. Everything runs on the gradient lane. */
typedef struct ek_sync ek_sync;

/* For the calling rank. Like the groups in it, it lives until the next ek_agree (ek_recovery_begin calls it): after
 * that it can only be destroyed. A rank without a role gets a sync that does nothing. Tags of groups on the gradient
 * lane: all taken. */
EK_API ek_status ek_sync_create(ek_sync **sync, ek_engine *engine, const ek_membership *membership,
                                const ek_tensor *tensors, size_t tensor_count);
/* Waits for what was started, so that the gradient buffer may go. */
EK_API void ek_sync_destroy(ek_sync *sync);

/* The gradient buffer of this rank: its size in floats, and where a tensor begins. There lie first the rank's own units
 * (ek_sync_own elements, written by backward), then, on a core of a reduced job, the room for what arrives (which needs
 * no clearing). */
EK_API size_t ek_sync_elements(const ek_sync *sync);
EK_API size_t ek_sync_offset(const ek_sync *sync, size_t tensor);
EK_API size_t ek_sync_own(const ek_sync *sync, size_t tensor);

/* Bucket `bucket` of `gradients` is ready. Call it for every bucket, in order, the same way on every rank, also in a
 * replica without samples (with zeros). Returns at once. */
EK_API ek_status ek_sync_start(ek_sync *sync, float *gradients, uint32_t bucket);
/* After the last bucket: waits until every own unit of this rank holds its global sum. */
EK_API ek_status ek_sync_finish(ek_sync *sync, float *gradients);
/* After finish: this rank's share of the squared global norm. Over all ranks of the job each unit counts once. Pass it
 * to ek_vote. */
EK_API double ek_sync_square(const ek_sync *sync, const float *gradients);
/* Bytes this rank sends in one synchronisation: pre + post reshard, and the DP reduction (2 (n-1)/n of its run). */
EK_API void ek_sync_traffic(const ek_sync *sync, uint64_t *reshard_bytes, uint64_t *reduce_bytes);

/* ---------------------------------------------------------------------------------------------- recovery */

/* In-place recovery, the protocol (docs/recovery.md lists its assumptions):
 *
 *     do {
 *         status = ek_recovery_begin(&recovery, engine, membership);     all survivors agree on who is lost
 *         …make new stores beside the old ones, for ek_recovery_membership(recovery)…
 *         status = ek_recovery_move(recovery, states, count);            kept and fetched units into the new stores
 *         status = ek_recovery_end(&recovery, status, &next);            all survivors agree that it is complete
 *         …EK_OK: free the old stores, go on under `next`; otherwise free the new ones…
 *     } while (status == EK_PEER_LOST);                                  another failure: again, from the old
 * membership
 *
 * When: after EK_PEER_LOST; after a vote and its update where ek_engine_joining says so; and in a newcomer
 * (ek_engine_is_new) before anything else: it is the way into the job. Before begin, a rank whose vote returned EK_OK
 * must have finished that step's update. All ranks, spares too, take part. */
typedef struct ek_recovery ek_recovery;

/* One kind of state (parameters, a moment of the optimizer) of one tensor on this rank. */
typedef struct ek_state {
    uint32_t group; /* or EK_REPLICATED */
    size_t unit_bytes;
    const void *old_data; /* NULL where the rank had no role */
    void *new_data;       /* NULL where the rank gets no role */
} ek_state;

/* `membership`: the one that the last recovery ended with, or the job started with; in a newcomer any of the same job,
 * which gives but the shape: the others tell it theirs. It stays as long as the recovery. The new membership: without
 * the ranks lost, then with each live rank that it lacks joined, in ascending order. EK_UNIT_LOST names what nobody
 * holds any more; a loss of more ranks in here is not an error. */
EK_API ek_status ek_recovery_begin(ek_recovery **recovery, ek_engine *engine, const ek_membership *membership);
EK_API const ek_membership *ek_recovery_membership(const ek_recovery *recovery); /* owned by the recovery */
EK_API uint64_t ek_recovery_committed_step(const ek_recovery *recovery);
/* Bytes that this rank received from others, so far. */
EK_API uint64_t ek_recovery_bytes(const ek_recovery *recovery);
/* True if every unit of this rank stays where it is: then its old stores may serve as its new ones. */
EK_API bool ek_recovery_keeps(const ek_recovery *recovery);
/* states[]: the same tensors in the same order on every rank. Uses the compute lane. */
EK_API ek_status ek_recovery_move(ek_recovery *recovery, const ek_state *states, size_t count);
/* Destroys the recovery. EK_OK: all are complete, *next is the new membership (the caller's). EK_PEER_LOST: begin
 * again. Any other `status` passed in comes back, after the others were told. */
EK_API ek_status ek_recovery_end(ek_recovery **recovery, ek_status status, ek_membership **next);

#ifdef __cplusplus
}
#endif
#endif
