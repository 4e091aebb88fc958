/* bench_comm: what the engine "shm" delivers on this machine, against plain memcpy. Prints one line per measurement.
 *
 *     bench_comm [ranks…]          default: 2 4 8
 *
 * Bandwidth of an all-reduce is bytes of the buffer per second (every rank has such a buffer), of an exchange bytes
 * received per second by all ranks together, each from its neighbour. */
#include <evenkeel.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LARGE_FLOATS ((size_t)8 << 20) /* 32 MiB */
#define LARGE_BYTES (LARGE_FLOATS * sizeof(float))

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double memcpy_bytes_per_second(void)
{
    float *from = malloc(LARGE_BYTES), *to = malloc(LARGE_BYTES);
    if (!from || !to)
        exit(1);
    memset(from, 1, LARGE_BYTES);
    memset(to, 1, LARGE_BYTES);
    double start = now_seconds();
    for (int i = 0; i < 20; i++) {
        memcpy(to, from, LARGE_BYTES);
        from[i] = to[LARGE_FLOATS - 1 - (size_t)i]; /* so that no turn can be left out */
    }
    double seconds = (now_seconds() - start) / 20;
    free(from);
    free(to);
    return (double)LARGE_BYTES / seconds;
}

/* Seconds of one all-reduce of so many floats, averaged over `turns`. */
static ek_status time_all_reduce(ek_group *group, float *buffer, size_t count, int turns, double *seconds)
{
    ek_status status = ek_barrier(group, NULL);
    double start = now_seconds();
    for (int i = 0; i < turns && status == EK_OK; i++)
        status = ek_all_reduce(group, buffer, count, EK_SUM, NULL);
    *seconds = (now_seconds() - start) / turns;
    return status;
}

static ek_status time_exchange(ek_engine *engine, ek_group *group, float *from, float *to, size_t bytes, int turns,
                               double *seconds)
{
    uint32_t rank = ek_engine_rank(engine), ranks = ek_engine_ranks(engine);
    ek_message send = {.peer = (rank + 1) % ranks, .data = from, .bytes = bytes};
    ek_message receive = {.peer = (rank + ranks - 1) % ranks, .data = to, .bytes = bytes};
    ek_status status = ek_barrier(group, NULL);
    double start = now_seconds();
    for (int i = 0; i < turns && status == EK_OK; i++)
        status = ek_exchange(engine, EK_LANE_COMPUTE, &send, 1, &receive, 1, NULL);
    *seconds = (now_seconds() - start) / turns;
    return status;
}

static ek_status time_vote(ek_engine *engine, uint64_t turns, double *seconds)
{
    ek_status status = EK_OK;
    double start = now_seconds(), one = 1, sum;
    for (uint64_t step = 1; step <= turns && status == EK_OK; step++)
        status = ek_vote(engine, step, &one, &sum, 1);
    *seconds = (now_seconds() - start) / (double)turns;
    return status;
}

static ek_status measure(ek_engine *engine, ek_group *group, float *buffer, float *other)
{
    static const size_t floats[] = {1, 1024, 8192, 32768, 262144, LARGE_FLOATS};
    uint32_t ranks = ek_engine_ranks(engine);
    ek_status status = EK_OK;
    double seconds = 0;
    bool prints = ek_engine_rank(engine) == 0;
    memset(buffer, 0, LARGE_BYTES);
    memset(other, 0, LARGE_BYTES);
    for (size_t i = 0; i < sizeof floats / sizeof floats[0] && status == EK_OK; i++) {
        double bytes = (double)(floats[i] * sizeof(float));
        int turns = floats[i] < 100000 ? 1000 : floats[i] < 1000000 ? 100 : 10;
        status = time_all_reduce(group, buffer, floats[i], turns, &seconds);
        if (prints)
            printf("ranks %u  all-reduce %9.0f bytes  %9.1f us  %6.2f GB/s\n", ranks, bytes, 1e6 * seconds,
                   bytes / seconds / 1e9);
        if (status == EK_OK)
            status = time_exchange(engine, group, buffer, other, floats[i] * sizeof(float), turns, &seconds);
        if (prints)
            printf("ranks %u  exchange   %9.0f bytes  %9.1f us  %6.2f GB/s\n", ranks, bytes, 1e6 * seconds,
                   bytes * ranks / seconds / 1e9);
    }
    if (status == EK_OK)
        status = time_vote(engine, 1000, &seconds);
    if (prints) {
        printf("ranks %u  vote                        %9.1f us\n", ranks, 1e6 * seconds);
        fflush(stdout); /* a rank's streams are not flushed when it ends */
    }
    return status;
}

static ek_status run(ek_engine *engine, void *user)
{
    (void)user;
    uint32_t ranks[64];
    ek_group *group;
    void *buffer, *other;
    for (uint32_t rank = 0; rank < ek_engine_ranks(engine); rank++)
        ranks[rank] = rank;
    ek_status status = ek_group_create(&group, engine, EK_LANE_COMPUTE, 0, ranks, ek_engine_ranks(engine));
    if (status == EK_OK)
        status = ek_engine_alloc(engine, LARGE_BYTES, &buffer);
    if (status == EK_OK)
        status = ek_engine_alloc(engine, LARGE_BYTES, &other);
    if (status == EK_OK)
        status = measure(engine, group, buffer, other);
    return status;
}

int main(int argument_count, char **arguments)
{
    char *defaults[] = {"bench_comm", "2", "4", "8"};
    if (argument_count < 2) {
        argument_count = 4;
        arguments = defaults;
    }
    printf("memcpy                               %6.2f GB/s\n", memcpy_bytes_per_second() / 1e9);
    for (int i = 1; i < argument_count; i++) {
        ek_launch_options options = {.engine = "shm", .ranks = (uint32_t)atoi(arguments[i]), .main = run};
        if (options.ranks > 64) {
            fprintf(stderr, "bench_comm: at most 64 ranks\n");
            return 2;
        }
        fflush(stdout); /* before the fork */
        if (ek_launch(&options) != EK_OK) {
            fprintf(stderr, "bench_comm: %s\n", ek_error());
            return 1;
        }
    }
    return 0;
}
