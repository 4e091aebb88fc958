/* What the engines deliver on this machine, against its memory: all-reduce, and the reshard of a gradient in a replica
 * above the sync level. Started by mpirun it measures the engine "mpi" on the ranks that mpirun gives, and
 * MPI_Allreduce on the same buffers; otherwise the engine "shm" on 2 and on 4.
 *
 * Words are those of nccl-tests (its doc/PERFORMANCE.md): algbw is bytes of the buffer per second; busbw is what each
 * rank must send per second, 2 (n-1)/n of algbw in an all-reduce. A reshard of a buffer takes it from the extra to the
 * cores and back: busbw is twice algbw. The share of memory is what all ranks send together against what memcpy copies
 * on all cores together: with the least possible copies, one for each byte sent, it could be 1. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "bench.h"
#include "jobs.h"
#include "train/clock.h"

#ifdef EK_MPI
#include <mpi.h>
#endif

enum { ROUNDS = 7, RANKS_MOST = 64, SHARE_UNITS = 64, THREADS_MOST = 256, VOTES = 200 };
enum { COPY, ALL_REDUCE, RESHARD, PEER, KINDS };

static const size_t sizes[] = {(size_t)4 << 10, (size_t)16 << 10, (size_t)64 << 10, (size_t)256 << 10,
                               (size_t)1 << 20, (size_t)4 << 20,  (size_t)16 << 20, (size_t)64 << 20};
#define SIZES (sizeof sizes / sizeof *sizes)
#define LARGEST_BYTES ((size_t)64 << 20)
#define COPY_BYTES ((size_t)512 << 20) /* well beyond the caches */
#define TURN_BYTES ((size_t)16 << 20)  /* a small operation is repeated until it has done so much … */
#define TURNS_MOST 200                 /* … or so often */

typedef struct bench {
    ek_engine *engine;
    ek_group *group;
    uint32_t ranks;
    float *buffer;
    ek_message messages[RANKS_MOST]; /* of the reshard: on the extra what it sends at first, on a core what it gets */
    size_t message_count;
    unsigned char *from, *to; /* COPY_BYTES each, rank 0's */
    int threads;              /* that copy */
    double seconds[SIZES][KINDS][ROUNDS];
#ifdef EK_MPI
    MPI_Comm comm;
#endif
} bench;

/* ------------------------------------------------------------------------------------------------ memory */

typedef struct part {
    unsigned char *from, *to;
    size_t bytes;
} part;

static void *copy_part(void *user)
{
    const part *of = user;
    memcpy(of->to, of->from, of->bytes);
    return NULL;
}

/* As many threads as this process may use cores, each with its part. */
static ek_status copy_memory(bench *of)
{
    pthread_t threads[THREADS_MOST];
    part parts[THREADS_MOST];
    size_t bytes = COPY_BYTES / (size_t)of->threads;
    int started = 0;
    for (; started < of->threads; started++) {
        size_t first = bytes * (size_t)started;
        parts[started] = (part){of->from + first, of->to + first, bytes};
        if (pthread_create(&threads[started], NULL, copy_part, &parts[started]) != 0)
            break;
    }
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return started == of->threads ? EK_OK : ek_fail(EK_SYSTEM, "cannot start %d threads", of->threads);
}

static ek_status prepare_copy(bench *of)
{
    cpu_set_t cores;
    of->threads = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    of->threads = of->threads < THREADS_MOST ? of->threads : THREADS_MOST;
    of->from = malloc(COPY_BYTES);
    of->to = malloc(COPY_BYTES);
    if (!of->from || !of->to)
        return ek_fail(EK_NO_MEMORY, "out of memory for %zu bytes to copy", 2 * COPY_BYTES);
    memset(of->from, 1, COPY_BYTES);
    memset(of->to, 1, COPY_BYTES);
    return EK_OK;
}

/* The others wait. */
static ek_status time_copy(bench *of, double *seconds)
{
    if (ek_engine_rank(of->engine) == 0) {
        double began = ek_wall_seconds();
        EK_TRY(copy_memory(of));
        *seconds = ek_wall_seconds() - began;
    }
    return ek_barrier(of->group, NULL);
}

/* -------------------------------------------------------------------------------------------- operations */

static ek_status all_reduce(bench *of, size_t bytes)
{
    return ek_all_reduce(of->group, of->buffer, bytes / sizeof *of->buffer, EK_SUM, NULL);
}

/* The messages by which the last role of a replica of degree `ranks`, which holds `bytes`, gives up its units to the
 * others, as where another replica has a rank less. */
static ek_status prepare_reshard(bench *of, size_t bytes)
{
    uint32_t rank = ek_engine_rank(of->engine), extra = of->ranks - 1;
    size_t unit = bytes / SHARE_UNITS, count = 0;
    ek_transfer *transfers = NULL;
    ek_chain *chain;
    EK_TRY(ek_chain_create(&chain, SHARE_UNITS * of->ranks, of->ranks, &extra, 1, 0));
    ek_status status = ek_chain_transfers(chain, 0, 1, &transfers, &count);
    of->message_count = 0;
    for (size_t i = 0; i < count; i++) {
        const ek_transfer *run = &transfers[i];
        bool sends = rank == extra;
        if (!sends && rank != run->core)
            continue;
        of->messages[of->message_count++] = (ek_message){
            .peer = sends ? run->core : extra,
            .data = (unsigned char *)of->buffer + unit * (sends ? run->extra_first : run->core_first),
            .bytes = unit * run->count,
        };
    }
    ek_free(transfers);
    ek_chain_destroy(chain);
    return status;
}

/* There and back. */
static ek_status reshard(bench *of, size_t bytes)
{
    (void)bytes;
    bool is_extra = ek_engine_rank(of->engine) == of->ranks - 1;
    size_t out = is_extra ? of->message_count : 0, in = is_extra ? 0 : of->message_count;
    EK_TRY(ek_exchange(of->engine, EK_LANE_COMPUTE, of->messages, out, of->messages, in, NULL));
    return ek_exchange(of->engine, EK_LANE_COMPUTE, of->messages, in, of->messages, out, NULL);
}

#ifdef EK_MPI
static ek_status peer_all_reduce(bench *of, size_t bytes)
{
    int error =
        MPI_Allreduce(MPI_IN_PLACE, of->buffer, (int)(bytes / sizeof *of->buffer), MPI_FLOAT, MPI_SUM, of->comm);
    return error == MPI_SUCCESS ? EK_OK : ek_fail(EK_SYSTEM, "MPI_Allreduce has failed");
}
#endif

/* Seconds of one; in the ranks other than 0 nobody asks for them. */
static ek_status time_operation(bench *of, ek_status (*run)(bench *, size_t), size_t bytes, double *seconds)
{
    size_t turns = bytes * TURNS_MOST < TURN_BYTES ? TURNS_MOST : (TURN_BYTES + bytes - 1) / bytes;
    EK_TRY(ek_barrier(of->group, NULL));
    double began = ek_wall_seconds();
    for (size_t i = 0; i < turns; i++)
        EK_TRY(run(of, bytes));
    EK_TRY(ek_barrier(of->group, NULL));
    *seconds = (ek_wall_seconds() - began) / (double)turns;
    return EK_OK;
}

/* All that is compared, one right after the other, so that they meet the same machine. */
static ek_status measure(bench *of, size_t size, int round)
{
    size_t bytes = sizes[size];
    double(*seconds)[ROUNDS] = of->seconds[size];
    EK_TRY(time_copy(of, &seconds[COPY][round]));
    EK_TRY(time_operation(of, all_reduce, bytes, &seconds[ALL_REDUCE][round]));
#ifdef EK_MPI
    if (of->comm != MPI_COMM_NULL)
        EK_TRY(time_operation(of, peer_all_reduce, bytes, &seconds[PEER][round]));
#endif
    EK_TRY(prepare_reshard(of, bytes));
    return time_operation(of, reshard, bytes, &seconds[RESHARD][round]);
}

static ek_status time_votes(bench *of, double *seconds)
{
    double one = 1, sum, began = ek_wall_seconds();
    for (uint64_t step = 1; step <= VOTES; step++)
        EK_TRY(ek_vote(of->engine, step, &one, &sum, 1));
    *seconds = (ek_wall_seconds() - began) / VOTES;
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------ results */

/* The median over the rounds of how many times as fast `kind` was as `other`. */
static double ratio(const bench *of, size_t size, int other, int kind)
{
    double ratios[ROUNDS];
    for (int round = 0; round < ROUNDS; round++)
        ratios[round] = of->seconds[size][other][round] / of->seconds[size][kind][round];
    return ek_bench_median(ratios, ROUNDS);
}

/* `sent`: bytes that each rank sends, for each of the buffer. `senders` of them do. */
static void print_line(const bench *of, const char *name, size_t size, int kind, double sent, double senders)
{
    double seconds[ROUNDS], bytes = (double)sizes[size];
    memcpy(seconds, of->seconds[size][kind], sizeof seconds);
    double median = ek_bench_median(seconds, ROUNDS), algbw = 1e-9 * bytes / median;
    double share = ratio(of, size, COPY, kind) * sent * senders * bytes / (double)COPY_BYTES;
    printf("  %-14s%8.0f KiB%11.1f us%8.2f%8.2f%8.3f", name, bytes / 1024, 1e6 * median, algbw, sent * algbw, share);
}

static void print(const bench *of, double vote_seconds)
{
    double copies[SIZES * ROUNDS], ranks = of->ranks, sent = 2 * (ranks - 1) / ranks;
    bool has_peer = of->seconds[0][PEER][0] > 0;
    for (size_t size = 0; size < SIZES; size++)
        memcpy(copies + size * ROUNDS, of->seconds[size][COPY], sizeof of->seconds[size][COPY]);
    printf("engine %s, %u ranks, medians of %d rounds; memory: %.2f GB/s by memcpy, threads: %d\n"
           "                                             algbw   busbw  of memory%s\n",
           ek_engine_name(of->engine), of->ranks, ROUNDS,
           1e-9 * (double)COPY_BYTES / ek_bench_median(copies, SIZES * ROUNDS), of->threads,
           has_peer ? "  times MPI_Allreduce" : "");
    for (size_t size = 0; size < SIZES; size++) {
        print_line(of, "all-reduce", size, ALL_REDUCE, sent, ranks);
        if (has_peer)
            printf("%12.2f", ratio(of, size, PEER, ALL_REDUCE));
        printf("\n");
    }
    for (size_t size = 0; size < SIZES && has_peer; size++) {
        print_line(of, "MPI_Allreduce", size, PEER, sent, ranks);
        printf("\n");
    }
    for (size_t size = 0; size < SIZES; size++) {
        print_line(of, "reshard", size, RESHARD, 2, 1);
        printf("\n");
    }
    printf("  vote%30.1f us\n", 1e6 * vote_seconds);
    fflush(stdout); /* a rank's streams are not flushed when it ends */
}

static ek_status prepare(bench *of)
{
    uint32_t ranks[RANKS_MOST];
    void *buffer;
    for (uint32_t rank = 0; rank < of->ranks; rank++)
        ranks[rank] = rank;
    EK_TRY(ek_group_create(&of->group, of->engine, EK_LANE_COMPUTE, 0, ranks, of->ranks));
    EK_TRY(ek_engine_alloc(of->engine, 2 * LARGEST_BYTES, &buffer)); /* a core's own units and those it gets */
    of->buffer = memset(buffer, 0, 2 * LARGEST_BYTES);
#ifdef EK_MPI
    of->comm = MPI_COMM_NULL;
    if (strcmp(ek_engine_name(of->engine), "mpi") == 0 && MPI_Comm_dup(MPI_COMM_WORLD, &of->comm) != MPI_SUCCESS)
        return ek_fail(EK_SYSTEM, "MPI_Comm_dup has failed");
#endif
    return ek_engine_rank(of->engine) == 0 ? prepare_copy(of) : EK_OK;
}

/* A rank's main. What it takes goes with its process. */
static ek_status run(ek_engine *engine, void *user)
{
    (void)user;
    static bench the_bench;
    bench *of = &the_bench;
    bool leads = ek_engine_rank(engine) == 0;
    double vote_seconds;
    of->engine = engine;
    of->ranks = ek_engine_ranks(engine);
    EK_TRY(prepare(of));
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t size = 0; size < SIZES; size++)
            EK_TRY(measure(of, size, round));
        if (leads)
            ek_bench_progress("engines", round + 1, ROUNDS);
    }
    EK_TRY(time_votes(of, &vote_seconds));
    if (leads)
        print(of, vote_seconds);
#ifdef EK_MPI
    if (of->comm != MPI_COMM_NULL)
        MPI_Comm_free(&of->comm);
#endif
    return EK_OK;
}

static ek_status launch(const char *engine, uint32_t ranks)
{
    if (ranks > RANKS_MOST)
        return ek_fail(EK_INVALID, "bench --only engines: %u ranks; at most %d are allowed", ranks, RANKS_MOST);
    fflush(stdout); /* before the fork */
    return ek_launch(&(ek_launch_options){.engine = engine, .ranks = ranks, .main = run});
}

ek_status ek_bench_engines(void)
{
    ek_place place;
    if (ek_launch_place("mpi", &place) == EK_OK && place.processes > 1)
        return launch("mpi", place.processes);
    EK_TRY(launch("shm", 2));
    return launch("shm", 4);
}
