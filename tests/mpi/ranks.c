/* The program of test_comm.c: ranks ENGINE RANKS CHECK [SEED], started by mpirun where ENGINE is mpi. Exit status 0:
 * all is right; 1: one line says what is not. */
#include "comm/checks.h"
#include "mpi/program.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* What process 0 hears, and what ranks are told. */
struct job {
    uint64_t seed; /* first: run_program takes it */
    bool exits;    /* check_loss: rank 1 does so by itself */
    ek_launcher *launcher;
    uint64_t hashes[64];
    uint32_t reports;
    ek_loss lost;
};

static ek_status keep_launcher(void *user, ek_launcher *launcher)
{
    ((struct job *)user)->launcher = launcher;
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------ checks */

static ek_status check_operations(ek_engine *engine, void *user)
{
    static ek_status (*const checks[])(ek_engine *, void *) = {try_everything,    try_large,     run_both_lanes,
                                                               stage_much,        remake_groups, alternate_groups,
                                                               exchange_randomly, race_votes};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        EK_TRY(checks[i](engine, user));
    ek_agreement agreement;
    ek_group *group;
    float one = 1;
    EK_TRY(make_world(&group, engine, EK_LANE_COMPUTE, 0));
    for (int i = 0; i < 4; i++) {
        ek_agreement_kind kind = i % 2 ? EK_AGREE_END : EK_AGREE_BEGIN;
        EK_TRY(ek_agree(engine, kind, i != 2 || ek_engine_rank(engine) != 1, &agreement));
        CHECK(agreement.ok == (i != 2) && agreement.committed_step == 3000 && count_absent(engine, &agreement) == 0);
        CHECK_STATUS(ek_barrier(group, NULL), EK_INVALID); /* of the last epoch */
        ek_group_destroy(group);
        EK_TRY(make_world(&group, engine, EK_LANE_COMPUTE, 0));
        one = 1;
        EK_TRY(ek_all_reduce(group, &one, 1, EK_SUM, NULL));
        CHECK(one == (float)ek_engine_ranks(engine));
    }
    ek_group_destroy(group);
    return EK_OK;
}

/* Ranks that send more or less than is expected: somebody says so, and the job ends with that. */
static ek_status check_sizes(ek_engine *engine, void *user)
{
    ek_group *group;
    void *memory;
    ek_agreement agreement;
    size_t count = ((const struct job *)user)->seed + (ek_engine_rank(engine) == 1);
    EK_TRY(make_world(&group, engine, EK_LANE_COMPUTE, 0));
    EK_TRY(ek_engine_alloc(engine, count * sizeof(float), &memory));
    ek_status status = ek_all_reduce(group, memory, count, EK_SUM, NULL);
    CHECK(status == EK_INVALID || status == EK_PEER_LOST);
    if (status == EK_INVALID)
        return status;
    return ek_agree(engine, EK_AGREE_BEGIN, true, &agreement); /* where the end of the job finds it */
}

static ek_status ask_by_signal(void *user, int signal)
{
    ek_launcher_ask(((struct job *)user)->launcher, (uint64_t)signal);
    return EK_OK;
}

static void compute_until(double until)
{
    while (now_seconds() < until)
        ;
}

/* What a sum of gradients takes when nothing else is done, the median, and how much of it is left when the compute
 * thread has computed four times as long meanwhile, without a call into the engine: the least, since other work on the
 * machine may hold the cores that the communication thread waits for. Seconds. */
static ek_status measure_overlap(ek_engine *engine, void *user)
{
    (void)user;
    enum { FLOATS = 16 << 20, BUCKETS = 8, TURNS = 9 };
    ek_group *group;
    void *memory;
    double figures[2] = {0}, seconds[2][TURNS];
    EK_TRY(make_world(&group, engine, EK_LANE_GRADIENT, 0));
    EK_TRY(ek_engine_alloc(engine, FLOATS * sizeof(float), &memory));
    for (int turn = 0; turn < 2 * TURNS; turn++) {
        ek_request request = 0;
        EK_TRY(ek_barrier(group, NULL));
        double began = now_seconds();
        for (size_t bucket = 0; bucket < BUCKETS; bucket++)
            EK_TRY(ek_all_reduce(group, (float *)memory + bucket * (FLOATS / BUCKETS), FLOATS / BUCKETS, EK_MAX,
                                 &request));
        if (turn % 2) {
            compute_until(began + 4 * seconds[0][turn / 2]);
            began = now_seconds();
        }
        EK_TRY(ek_wait(engine, EK_LANE_GRADIENT, request));
        seconds[turn % 2][turn / 2] = now_seconds() - began;
    }
    figures[1] = seconds[1][0];
    for (int i = 0; i < TURNS; i++) {
        int below = 0;
        for (int j = 0; j < TURNS; j++)
            below += seconds[0][j] < seconds[0][i];
        figures[0] = below <= TURNS / 2 && seconds[0][i] > figures[0] ? seconds[0][i] : figures[0];
        figures[1] = seconds[1][i] < figures[1] ? seconds[1][i] : figures[1];
    }
    ek_group_destroy(group);
    ek_engine_free(engine, memory);
    return ek_engine_rank(engine) == 0 ? ek_report(engine, figures, sizeof figures) : EK_OK;
}

static ek_status print_figures(void *user, uint32_t rank, const void *record, size_t bytes)
{
    double figures[2];
    (void)user;
    (void)rank;
    if (bytes != sizeof figures)
        return ek_fail(EK_CORRUPT, "a report of %zu bytes", bytes);
    memcpy(figures, record, sizeof figures);
    printf("%.9f %.9f\n", figures[0], figures[1]);
    return EK_OK;
}

/* Until the ranks have been told of SIGUSR1, then of SIGTERM. */
static ek_status check_signals(ek_engine *engine, void *user)
{
    (void)user;
    uint32_t ranks = ek_engine_ranks(engine);
    CHECK(ek_engine_asked(engine) == 0);
    for (uint64_t step = 1, seen = 0; seen < 2; step++) {
        double asked = ek_engine_asked(engine) == (seen ? SIGTERM : SIGUSR1), all;
        EK_TRY(ek_vote(engine, step, &asked, &all, 1));
        if (all == ranks && seen++ == 0 && ek_engine_rank(engine) == 0)
            EK_TRY(ek_report(engine, NULL, 0));
        usleep(2000);
    }
    return EK_OK;
}

/* The test waits for this line before it sends the next signal. */
static ek_status print_report(void *user, uint32_t rank, const void *record, size_t bytes)
{
    (void)user;
    (void)record;
    printf("rank %u reports %zu bytes\n", rank, bytes);
    fflush(stdout);
    return EK_OK;
}

static ek_status ask_at_start(void *user, ek_launcher *launcher)
{
    (void)user;
    ek_launcher_ask(launcher, 5);
    return EK_OK;
}

/* What was asked for before any rank ran is heard by all. */
static ek_status check_asked(ek_engine *engine, void *user)
{
    (void)user;
    for (int naps = 0; ek_engine_asked(engine) != 5 && naps < 1000; naps++) {
        usleep(2000);
        ek_beat(engine, 0);
    }
    CHECK(ek_engine_asked(engine) == 5);
    return EK_OK;
}

/* The launching side of the engine "mpi" listens: where is written into the file "port". */
static ek_status write_port(void *user, ek_launcher *launcher)
{
    (void)user;
    (void)launcher;
    for (int fd = 3; fd < 256; fd++) {
        int listens = 0;
        struct sockaddr_in place;
        socklen_t size = sizeof listens, place_size = sizeof place;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens)
            continue;
        FILE *file = fopen("port.new", "w");
        if (!file || getsockname(fd, (struct sockaddr *)&place, &place_size) != 0)
            return ek_fail(EK_SYSTEM, "no port");
        fprintf(file, "%d\n", ntohs(place.sin_port));
        fclose(file);
        return rename("port.new", "port") == 0 ? EK_OK : ek_fail(EK_SYSTEM, "no file \"port\"");
    }
    return ek_fail(EK_SYSTEM, "nobody listens");
}

static bool await_file(const char *path)
{
    for (int naps = 0; access(path, F_OK) != 0; naps++) {
        if (naps == 2000)
            return false;
        usleep(5000);
    }
    return true;
}

/* Connects where the job's processes do, before the last of them has come, says nothing, and goes when the job runs. */
static void visit(void)
{
    int port = 0, fd = socket(AF_INET, SOCK_STREAM, 0);
    FILE *file = await_file("port") ? fopen("port", "r") : NULL;
    if (!file || fscanf(file, "%d", &port) != 1)
        exit(1);
    fclose(file);
    struct sockaddr_in place = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (struct sockaddr *)&place, sizeof place) != 0)
        exit(1);
    if (fork() == 0)
        _exit(!await_file("begun"));
    close(fd);
}

/* A second of a job that does nothing. */
static ek_status check_visited(ek_engine *engine, void *user)
{
    (void)user;
    FILE *file = ek_engine_rank(engine) == 0 ? fopen("begun", "w") : NULL;
    if (file)
        fclose(file);
    for (int i = 0; i < 100; i++) {
        usleep(10000);
        ek_beat(engine, 0);
    }
    return EK_OK;
}

/* The launching side has slept most of the time. */
static ek_status check_idle(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double seconds = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                     1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    return seconds < 0.3 ? EK_OK : ek_fail(EK_CORRUPT, "the launching side took %.2f s of CPU time", seconds);
}

/* Rank 1 exits, or is killed by the launching side when rank 2 has reported; with ULFM the others go on. */
static ek_status check_loss(ek_engine *engine, void *user)
{
    ek_agreement agreement;
    ek_group *group;
    float one = 1;
    double none;
    EK_TRY(make_world(&group, engine, EK_LANE_COMPUTE, 0));
    ek_beat(engine, 77);
    EK_TRY(ek_vote(engine, 1, NULL, &none, 0));
    if (ek_engine_rank(engine) == 2)
        EK_TRY(ek_report(engine, "now", 3));
    if (ek_engine_rank(engine) == 1 && ((const struct job *)user)->exits)
        _exit(3);
    if (ek_engine_rank(engine) == 1)
        for (;;) {
            usleep(1000);
            ek_beat(engine, 77);
        }
    CHECK_STATUS(ek_all_reduce(group, &one, 1, EK_SUM, NULL), EK_PEER_LOST);
    CHECK_STATUS(ek_vote(engine, 2, NULL, &none, 0), EK_PEER_LOST);
    for (int kind = EK_AGREE_BEGIN; kind <= EK_AGREE_END; kind++) {
        EK_TRY(ek_agree(engine, (ek_agreement_kind)kind, true, &agreement));
        CHECK(agreement.ok == (kind == EK_AGREE_END) && !agreement.live[1] && count_absent(engine, &agreement) == 1);
    }
    ek_group_destroy(group);
    CHECK_STATUS(ek_group_create(&group, engine, EK_LANE_COMPUTE, 0, (uint32_t[]){0, 1, 2, 3}, 4), EK_INVALID);
    EK_TRY(make_survivors(&group, engine, EK_LANE_COMPUTE, 0, &agreement));
    one = 1;
    EK_TRY(ek_all_reduce(group, &one, 1, EK_SUM, NULL));
    CHECK(one == (float)(ek_engine_ranks(engine) - 1));
    ek_group_destroy(group);
    return EK_OK;
}

static ek_status hear_rank_2(void *user, uint32_t rank, const void *record, size_t bytes)
{
    struct job *job = user;
    if (rank != 2 || bytes != 3 || memcmp(record, "now", 3) != 0)
        return ek_fail(EK_CORRUPT, "a report of rank %u, %zu bytes", rank, bytes);
    return job->exits ? EK_OK : ek_launcher_kill(job->launcher, 1);
}

static ek_status keep_loss(void *user, const ek_loss *loss)
{
    ((struct job *)user)->lost = *loss;
    return EK_OK;
}

static ek_status keep_hash(void *user, uint32_t rank, const void *record, size_t bytes)
{
    struct job *job = user;
    if (bytes != sizeof *job->hashes)
        return ek_fail(EK_CORRUPT, "a report of %zu bytes", bytes);
    memcpy(&job->hashes[rank], record, bytes);
    job->reports++;
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------- whole */

static ek_status launch(const char *engine, uint32_t ranks, const char *check, struct job *job)
{
    ek_launch_options options = job_options(ranks, false, check_operations, job);
    options.engine = engine;
    options.timeout_seconds = 20;
    options.heap_bytes = (size_t)1 << 30;
    options.on_start = keep_launcher;
    options.on_lost = keep_loss;
    if (strcmp(check, "sizes") == 0)
        options.main = check_sizes;
    if (strcmp(check, "threads") == 0)
        options.threads = true;
    if (strcmp(check, "signals") == 0) {
        options.main = check_signals;
        options.on_signal = ask_by_signal;
        options.on_report = print_report;
    }
    if (strcmp(check, "asked") == 0) {
        options.main = check_asked;
        options.on_start = ask_at_start;
    }
    if (strcmp(check, "visited") == 0) {
        options.main = check_visited;
        options.on_start = write_port;
    }
    job->exits = strcmp(check, "exit") == 0;
    if (strcmp(check, "kill") == 0 || job->exits) {
        options.main = check_loss;
        options.on_report = hear_rank_2;
    }
    if (strcmp(check, "overlap") == 0) {
        options.main = measure_overlap;
        options.on_report = print_figures;
    }
    if (strcmp(check, "program") == 0) {
        options.main = run_program;
        options.on_report = keep_hash;
    }
    return ek_launch(&options);
}

int main(int argc, char **argv)
{
    struct job job = {.lost = {.rank = EK_NONE}};
    if (argc < 4)
        return 2;
    if (argc > 4)
        job.seed = strtoull(argv[4], NULL, 10);
    ek_place place;
    ek_status status = ek_launch_place(argv[1], &place);
    bool visited = strcmp(argv[3], "visited") == 0;
    if (visited && place.process == 1)
        visit();
    if (status == EK_OK)
        status = launch(argv[1], (uint32_t)strtoul(argv[2], NULL, 10), argv[3], &job);
    if (status == EK_OK && visited && place.process == 0)
        status = check_idle();
    if (place.process > 0 && status == EK_INVALID)
        sleep(2); /* what all refuse, process 0 says, which ends the others */
    if (place.process == 0 && status != EK_OK)
        fprintf(stderr, "ranks: %s: %s\n", ek_status_text(status), ek_error());
    if (place.process == 0 && job.lost.rank != EK_NONE)
        printf("lost: rank %u, cause %d, code %d, note %d\n", job.lost.rank, (int)job.lost.cause, job.lost.code,
               (int)job.lost.note);
    for (uint32_t rank = 0; rank < 64 && job.reports; rank++)
        if (job.hashes[rank])
            printf("rank %u: %016" PRIx64 "\n", rank, job.hashes[rank]);
    return status == EK_OK ? 0 : 1;
}
