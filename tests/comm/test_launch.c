/* The launching process: signals, its own death, reports, what is left behind (nothing), the emulated link, a stopped
 * and continued job. */
#include "jobs.h"

#include "comm/shm.h"
#include "entries.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static ek_status wait_for_ever(ek_engine *engine, void *user)
{
    pid_t *pids = user; /* shared with the test */
    pids[ek_engine_rank(engine)] = getpid();
    ek_group *group;
    ek_request request;
    float one = 1;
    EK_TRY(make_world(&group, engine, EK_LANE_GRADIENT, 0));
    if (ek_engine_rank(engine) != 0)
        EK_TRY(ek_all_reduce(group, &one, 1, EK_SUM, &request));
    for (;;) { /* rank 0 never comes */
        ek_beat(engine, 0);
        usleep(1000);
    }
}

/* ------------------------------------------------------------------------------------ nothing is left */

static ek_status use_a_little(ek_engine *engine, void *user)
{
    (void)user;
    ek_group *group;
    void *memory;
    float one = 1;
    double none;
    EK_TRY(make_world(&group, engine, EK_LANE_GRADIENT, 0));
    EK_TRY(ek_engine_alloc(engine, 100000, &memory));
    ek_request request;
    EK_TRY(ek_all_reduce(group, &one, 1, EK_SUM, &request));
    EK_TRY(ek_wait(engine, EK_LANE_GRADIENT, request));
    EK_TRY(ek_vote(engine, 1, NULL, &none, 0));
    ek_group_destroy(group);
    if (ek_engine_rank(engine) == 1)
        return ek_inject(engine, EK_FAULT_KILL);
    return EK_OK;
}

static void test_nothing_is_left(void **state)
{
    (void)state;
    size_t files = entries_of("/proc/self/fd"), shared = entries_of("/dev/shm");
    FOR_EACH_MODE(threads)
    for (int i = 0; i < 100; i++)
        assert_ok(run_job(3, threads, use_a_little, NULL));
    assert_int_equal(entries_of("/proc/self/fd"), files);
    assert_int_equal(entries_of("/dev/shm"), shared);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

/* --------------------------------------------------------------------------------------------- signals */

static pid_t *share_pids(void)
{
    pid_t *pids = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(pids != MAP_FAILED);
    return pids;
}

/* Launches a job that never ends, in a process of its own, which exits with the status of ek_launch. */
static pid_t fork_launcher(pid_t *pids, double timeout_seconds)
{
    pid_t launcher = fork();
    if (launcher == 0) {
        ek_launch_options options = job_options(3, false, wait_for_ever, pids);
        options.timeout_seconds = timeout_seconds;
        ek_status status = ek_launch(&options);
        _exit(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD ? (int)status : 100);
    }
    while (!((volatile pid_t *)pids)[0] || !((volatile pid_t *)pids)[1] || !((volatile pid_t *)pids)[2])
        usleep(1000);
    return launcher;
}

static void test_signals(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    const int signals[] = {SIGTERM, SIGINT};
    for (int i = 0; i < 2; i++) {
        pid_t *pids = share_pids();
        pid_t launcher = fork_launcher(pids, 5);
        kill(pids[1], signals[i]); /* ranks ignore it: as with Ctrl-C, the supervisor acts */
        usleep(20000);
        assert_int_equal(kill(pids[1], 0), 0);
        kill(launcher, signals[i]);
        int status;
        assert_int_equal(waitpid(launcher, &status, 0), launcher);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), EK_INTERRUPTED);
        for (int rank = 0; rank < 3; rank++)
            assert_int_equal(kill(pids[rank], 0), -1);
        munmap(pids, 4096);
    }
}

/* on_signal decides: the job goes on after SIGUSR1, which does not hurt ranks either, and ends as it says. */
static ek_status count_signals(void *user, int number)
{
    pid_t *pids = user;
    if (number == SIGUSR1) {
        pids[3]++;
        return EK_OK;
    }
    return ek_fail(EK_NO_REPLICA, "ended by %d", number);
}

static void test_signals_with_a_callback(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    pid_t *pids = share_pids(), launcher = fork();
    if (launcher == 0) {
        ek_launch_options options = job_options(3, false, wait_for_ever, pids);
        options.on_signal = count_signals;
        _exit((int)ek_launch(&options));
    }
    while (!((volatile pid_t *)pids)[0] || !((volatile pid_t *)pids)[1] || !((volatile pid_t *)pids)[2])
        usleep(1000);
    for (int times = 1; times <= 3; times++) {
        kill(pids[times % 3], SIGUSR1);
        kill(launcher, SIGUSR1);
        while (((volatile pid_t *)pids)[3] < times)
            usleep(1000);
    }
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(kill(pids[rank], 0), 0);
    kill(launcher, SIGHUP);
    int status;
    assert_int_equal(waitpid(launcher, &status, 0), launcher);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == EK_NO_REPLICA);
    munmap(pids, 4096);
}

/* Votes go on from the step that the job goes on from. */
static ek_status vote_from_41(ek_engine *engine, void *user)
{
    (void)user;
    double one = 1.0, sum;
    CHECK(ek_vote(engine, 1, &one, &sum, 1) == EK_INVALID);
    CHECK(ek_vote(engine, 41, &one, &sum, 1) == EK_OK && sum == 3.0);
    ek_agreement agreement;
    CHECK(ek_agree(engine, EK_AGREE_BEGIN, true, &agreement) == EK_OK && agreement.committed_step == 41);
    return ek_agree(engine, EK_AGREE_END, true, &agreement);
}

static void test_committed_step(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        ek_launch_options options = job_options(3, threads, vote_from_41, NULL);
        options.committed_step = 40;
        assert_ok(ek_launch(&options));
    }
}

/* The program's own view of SIGCHLD holds in its ranks and after the job, and does not hide how a rank ended. */
static ek_status die_ignoring_children(ek_engine *engine, void *user)
{
    (void)user;
    struct sigaction action;
    CHECK(sigaction(SIGCHLD, NULL, &action) == 0 && action.sa_handler == SIG_IGN);
    return ek_inject(engine, EK_FAULT_KILL);
}

static ek_status keep_loss(void *user, const ek_loss *loss)
{
    *(ek_loss *)user = *loss;
    return EK_OK;
}

static void test_ignored_children(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    ek_loss loss = {.rank = 1};
    ek_launch_options options = job_options(1, false, die_ignoring_children, &loss);
    options.on_lost = keep_loss;
    signal(SIGCHLD, SIG_IGN);
    ek_status status = ek_launch(&options);
    assert_ptr_equal(signal(SIGCHLD, SIG_DFL), SIG_IGN);
    assert_int_equal(status, EK_PEER_LOST);
    assert_int_equal(loss.cause, EK_LOSS_SIGNAL);
    assert_int_equal(loss.code, SIGKILL);
}

static void test_launcher_killed(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    pid_t *pids = share_pids();
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphans come to this process, which sees them end */
    pid_t launcher = fork_launcher(pids, 5);
    kill(launcher, SIGKILL);
    assert_int_equal(waitpid(launcher, NULL, 0), launcher);
    for (int rank = 0; rank < 3; rank++) {
        int status;
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    munmap(pids, 4096);
}

/* Ctrl-Z on the whole job for longer than the timeout, then fg: nobody is lost. */
static void test_stopped_job(void **state)
{
    (void)state;
    if (UNDER_TSAN)
        skip();
    pid_t *pids = share_pids();
    pid_t launcher = fork_launcher(pids, 0.3);
    kill(launcher, SIGSTOP);
    for (int rank = 0; rank < 3; rank++)
        kill(pids[rank], SIGSTOP);
    usleep(600000);
    kill(launcher, SIGCONT);
    usleep(20000); /* the supervisor looks before the ranks are back */
    for (int rank = 0; rank < 3; rank++)
        kill(pids[rank], SIGCONT);
    usleep(600000);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(kill(pids[rank], 0), 0);
    kill(launcher, SIGTERM);
    int status;
    assert_int_equal(waitpid(launcher, &status, 0), launcher);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == EK_INTERRUPTED);
    munmap(pids, 4096);
}

/* --------------------------------------------------------------------------------------------- reports */

enum { RECORDS = 300 };

struct received {
    uint32_t next[4]; /* by rank */
    bool disorder, late;
    bool lost[4];
};

static ek_status receive(void *user, uint32_t rank, const void *record, size_t bytes)
{
    struct received *received = user;
    const unsigned char *data = record;
    uint32_t number;
    received->disorder |= bytes < sizeof number;
    memcpy(&number, record, sizeof number);
    received->disorder |= number != received->next[rank]++ || bytes != sizeof number + number * 7 % 2000;
    for (size_t i = sizeof number; i < bytes; i++)
        received->disorder |= data[i] != (unsigned char)(rank + number);
    received->late |= received->lost[rank];
    return EK_OK;
}

static ek_status note_loss(void *user, const ek_loss *loss)
{
    ((struct received *)user)->lost[loss->rank] = true;
    return EK_OK;
}

static ek_status report_much(ek_engine *engine, void *user)
{
    (void)user;
    unsigned char record[EK_REPORT_BYTES];
    for (uint32_t number = 0; number < RECORDS; number++) {
        size_t bytes = number * 7 % 2000;
        memcpy(record, &number, sizeof number);
        memset(record + sizeof number, (int)(ek_engine_rank(engine) + number), bytes);
        EK_TRY(ek_report(engine, record, sizeof number + bytes));
    }
    return ek_engine_rank(engine) == 2 ? ek_inject(engine, EK_FAULT_KILL) : EK_OK;
}

static void test_reports(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        struct received received = {.disorder = false};
        ek_launch_options options = job_options(4, threads, report_much, &received);
        options.on_report = receive;
        options.on_lost = note_loss;
        assert_ok(ek_launch(&options));
        assert_false(received.disorder);
        assert_false(received.late);
        assert_true(received.lost[2]);
        for (int rank = 0; rank < 4; rank++)
            assert_int_equal(received.next[rank], RECORDS);
    }
}

/* Rank 0 ends the job while the others fill the pipe. */
static ek_status report_for_ever(ek_engine *engine, void *user)
{
    (void)user;
    unsigned char record[EK_REPORT_BYTES] = {0};
    if (ek_engine_rank(engine) == 0)
        return ek_fail(EK_CORRUPT, "enough");
    ek_status status = EK_OK;
    while (status == EK_OK)
        status = ek_report(engine, record, sizeof record);
    return status;
}

static void test_end_while_reporting(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    for (int i = 0; i < 10; i++) {
        assert_int_equal(run_job(4, threads, report_for_ever, NULL), EK_CORRUPT);
        assert_string_equal(ek_error(), "enough");
    }
}

/* What a rank that has gone astray may write into the pipe: no more is believed than a report can be. */
static ek_status write_astray(ek_engine *engine, void *user)
{
    struct {
        struct shm_report_header header;
        unsigned char record[EK_REPORT_BYTES + 1000];
    } message = {.header = *(const struct shm_report_header *)user};
    CHECK(write(((struct shm_engine *)engine)->job->report_fd, &message, sizeof message) == sizeof message);
    return EK_OK;
}

static void test_damaged_report(void **state)
{
    (void)state;
    struct shm_report_header headers[] = {{.rank = 0, .bytes = EK_REPORT_BYTES + 1000}, {.rank = 2, .bytes = 1}};
    FOR_EACH_MODE(threads)
    for (int i = 0; i < 2; i++) {
        ek_launch_options options = job_options(1, threads, write_astray, &headers[i]);
        assert_int_equal(ek_launch(&options), EK_CORRUPT);
    }
}

/* --------------------------------------------------------------------------------------------- few files */

/* Sets how many files the process may open; what it was before. */
static rlim_t limit_files(rlim_t count)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = count;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return before;
}

static ek_status do_nothing(ek_engine *engine, void *user)
{
    (void)engine;
    (void)user;
    return EK_OK;
}

/* More ranks than files, but only two of them are there. */
static void test_more_ranks_than_files(void **state)
{
    (void)state;
    bool absent[100];
    for (size_t rank = 0; rank < 100; rank++)
        absent[rank] = rank % 50 != 7;
    FOR_EACH_MODE(threads)
    {
        ek_launch_options options = job_options(100, threads, do_nothing, NULL);
        options.absent = absent;
        rlim_t before = limit_files(60);
        ek_status status = ek_launch(&options);
        limit_files(before);
        assert_ok(status);
    }
}

/* No file may be opened or polled from now on. */
static ek_status forbid_files(void *user, uint32_t rank, const void *record, size_t bytes)
{
    (void)user, (void)rank, (void)record, (void)bytes;
    limit_files(1);
    return EK_OK;
}

static ek_status report_and_wait(ek_engine *engine, void *user)
{
    (void)user;
    ek_group *group;
    EK_TRY(make_world(&group, engine, EK_LANE_COMPUTE, 0));
    if (ek_engine_rank(engine) == 0)
        EK_TRY(ek_report(engine, "", 1));
    double none;
    ek_status status = ek_engine_rank(engine) == 0 ? ek_vote(engine, 1, NULL, &none, 0) : ek_barrier(group, NULL);
    ek_group_destroy(group);
    return status;
}

/* Where the ranks can no longer be watched the job ends, and leaves nothing behind. */
static void test_poll_fails(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        ek_launch_options options = job_options(3, threads, report_and_wait, NULL);
        options.timeout_seconds = 0;
        options.on_report = forbid_files;
        rlim_t before = limit_files(60);
        ek_status status = ek_launch(&options);
        limit_files(before);
        assert_int_equal(status, EK_SYSTEM);
        assert_non_null(strstr(ek_error(), "cannot watch the ranks"));
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    }
}

/* ------------------------------------------------------------------------------------------------ link */

enum { LINK_FLOATS = 25000 }; /* 100 kB: 0.1 s at 1 MB/s */

static ek_status use_slow_link(ek_engine *engine, void *user)
{
    (void)user;
    ek_group *slow, *fast;
    ek_request request;
    EK_TRY(make_world(&slow, engine, EK_LANE_GRADIENT, 0));
    EK_TRY(make_world(&fast, engine, EK_LANE_COMPUTE, 0));
    float *own;
    void *memory;
    EK_TRY(ek_engine_alloc(engine, LINK_FLOATS * sizeof *own, &memory));
    own = memory;
    if (ek_engine_rank(engine) == 1)
        usleep(50000);
    EK_TRY(ek_barrier(fast, NULL));
    double start = now_seconds();
    EK_TRY(ek_all_reduce(slow, own, LINK_FLOATS, EK_SUM, &request)); /* 2 × 1/2 × 100 kB */
    EK_TRY(ek_barrier(fast, NULL));
    CHECK(now_seconds() - start < 0.1); /* the other lane is free: 10 ms of latency */
    EK_TRY(ek_wait(engine, EK_LANE_GRADIENT, request));
    double seconds = now_seconds() - start;
    CHECK(seconds > 0.109 && seconds < 10); /* an upper bound that a loaded machine keeps */
    start = now_seconds();
    uint32_t peer = 1 - ek_engine_rank(engine);
    ek_message message = {.peer = peer, .data = own, .bytes = 50000};
    bool sender = ek_engine_rank(engine) == 0;
    EK_TRY(ek_exchange(engine, EK_LANE_COMPUTE, &message, sender, &message, !sender, NULL));
    seconds = now_seconds() - start;
    CHECK(seconds > 0.059 && seconds < 10);
    ek_group_destroy(slow);
    ek_group_destroy(fast);
    return EK_OK;
}

static void test_link(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        ek_launch_options options = job_options(2, threads, use_slow_link, NULL);
        options.link_bytes_per_second = 1e6;
        options.link_latency_seconds = 0.01;
        assert_ok(ek_launch(&options));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_left),
        cmocka_unit_test(test_reports),
        cmocka_unit_test(test_end_while_reporting),
        cmocka_unit_test(test_damaged_report),
        cmocka_unit_test(test_more_ranks_than_files),
        cmocka_unit_test(test_poll_fails),
        cmocka_unit_test(test_link),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_signals_with_a_callback),
        cmocka_unit_test(test_committed_step),
        cmocka_unit_test(test_ignored_children),
        cmocka_unit_test(test_launcher_killed),
        cmocka_unit_test(test_stopped_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
