/* See restarts.h. mpirun's exit status says little: it may be 0 when it has given up, and another after a loss that the
 * job has recovered from. What counts is the last record of the job's metrics. */
#include "launch/restarts.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "launch/mpirun.h"
#include "launch/record.h"

#define POLL_MS 100
#define GRACE_SECONDS 10.0  /* for mpirun to end when the job has; for the job when it is told to; for stragglers */
#define RECORD_SECONDS 5.0  /* for the last record to be seen when mpirun has ended */
#define PROBE_SECONDS 8.0   /* for a host to answer */
#define LEADER_SECONDS 15.0 /* between looks at the host of the leading process */
#define PAUSE_MOST_SECONDS 60.0
#define WORD_BYTES 64
#define REFUSED 2 /* exit status of the trainer */

typedef struct restarts {
    const ek_restarts_options *options;
    unsigned mpirun_major;
    ek_mpirun mpirun;
    ek_record record;
    uint32_t *slots, *used; /* [hosts] */
    ek_fit fit;
    unsigned starts;
    bool begun;       /* the job has: what is there is its own */
    bool stopping;    /* by SIGTERM: the job makes a checkpoint and ends */
    bool interrupted; /* it ends at once */
    double killed_at; /* when mpirun was told to end; 0: it was not */
} restarts;

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* --------------------------------------------------------------------------------------------- command line */

struct words {
    char **list;
    size_t count;
    bool failed;
};

static void add_word(struct words *words, const char *word)
{
    char **list = realloc(words->list, (words->count + 2) * sizeof *list), *copy = strdup(word);
    if (list)
        words->list = list;
    if (!list || !copy) {
        free(copy);
        words->failed = true;
        return;
    }
    words->list[words->count++] = copy;
    words->list[words->count] = NULL;
}

static void add_words(struct words *words, const char *const *more)
{
    for (; more && *more; more++)
        add_word(words, *more);
}

static void free_words(struct words *words)
{
    for (size_t i = 0; i < words->count; i++)
        free(words->list[i]);
    free(words->list);
}

/* "a:4,b:3": as many slots as are used, so that ranks fall where they were fitted. */
static char *list_hosts(const restarts *state)
{
    const ek_hosts *hosts = state->options->hosts;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    const char *comma = "";
    for (size_t h = 0; file && h < hosts->count; h++) {
        if (state->used[h] == 0)
            continue;
        fprintf(file, "%s%s:%u", comma, hosts->list[h].name, state->used[h]);
        comma = ",";
    }
    if (!file || fclose(file) != 0)
        return NULL;
    return text;
}

/* What the configuration is given over what the file says, where not the whole job fits. */
static void add_fit(struct words *words, const restarts *state)
{
    const ek_fit *fit = &state->fit;
    char word[WORD_BYTES + EK_FIT_REPLICAS_MOST * 8];
    if (ek_fit_is_whole(fit, &state->options->job))
        return;
    snprintf(word, sizeof word, "--set=parallel.dp=%u", fit->dp);
    add_word(words, word);
    size_t length = (size_t)snprintf(word, sizeof word, "--set=parallel.degrees=[");
    for (uint32_t r = 0; r < fit->dp; r++)
        length += (size_t)snprintf(word + length, sizeof word - length, "%s%u", r > 0 ? ", " : "", fit->degrees[r]);
    snprintf(word + length, sizeof word - length, "]");
    add_word(words, word);
    snprintf(word, sizeof word, "--set=recovery.spares=%u", fit->spares);
    add_word(words, word);
}

static void make_words(struct words *words, const restarts *state)
{
    const ek_restarts_options *options = state->options;
    char ranks[WORD_BYTES], *hosts = list_hosts(state);
    snprintf(ranks, sizeof ranks, "%u", state->fit.ranks);
    add_word(words, "mpirun");
    if (state->mpirun_major >= 5)
        add_words(words, (const char *const[]){"--with-ft", "ulfm", NULL});
    add_words(words, (const char *const[]){"--host", hosts ? hosts : "", "-n", ranks, NULL});
    add_words(words, options->mpirun_words);
    add_words(words, state->begun ? options->again_words : options->first_words);
    add_fit(words, state);
    words->failed |= !hosts;
    free(hosts);
}

/* ------------------------------------------------------------------------------------------------- one run */

/* SIGTERM reaches the leading process as SIGUSR2, since mpirun acts on SIGTERM itself. */
static void pass_on(restarts *state, int signal)
{
    if (signal == SIGUSR1) {
        ek_mpirun_signal(&state->mpirun, SIGUSR1);
    } else if (signal == SIGTERM || signal == SIGUSR2) {
        state->stopping = true;
        ek_mpirun_signal(&state->mpirun, SIGUSR2);
    } else if (signal == SIGINT || signal == SIGHUP) {
        state->interrupted = true;
    }
}

/* mpirun is told to end, and is killed if it does not within a while. */
static void end_mpirun(restarts *state)
{
    double now = now_seconds();
    if (state->killed_at == 0.0) {
        state->killed_at = now;
        ek_mpirun_signal(&state->mpirun, SIGTERM);
    } else if (now > state->killed_at + GRACE_SECONDS) {
        ek_mpirun_signal(&state->mpirun, SIGKILL);
    }
}

/* The host of the leading process, if it is another one: when it is gone, nobody writes the last record. */
static size_t find_leader(const restarts *state)
{
    size_t h = 0;
    while (state->used[h] == 0)
        h++;
    return ek_host_is_here(state->options->hosts->list[h].name) ? state->options->hosts->count : h;
}

static bool leader_answers(const restarts *state, size_t leader)
{
    const ek_restarts_options *options = state->options;
    if (leader == options->hosts->count)
        return true;
    ek_hosts_probe(options->hosts, leader, 1, options->probe, PROBE_SECONDS);
    return options->hosts->list[leader].answers;
}

/* Until mpirun has ended. When the job has, it is given some time, and then made to end. A leading host that does not
 * answer is a job that has ended: its heart stops within timeout_seconds on all hosts. */
static void watch(restarts *state)
{
    double over_at = INFINITY, look_at = now_seconds() + LEADER_SECONDS;
    size_t leader = find_leader(state);
    while (state->mpirun.pid > 0) {
        pass_on(state, ek_mpirun_await(&state->mpirun, POLL_MS));
        ek_record_read(&state->record);
        double now = now_seconds();
        if (state->record.ended)
            over_at = fmin(over_at, now + GRACE_SECONDS);
        if (now > look_at) {
            bool answers = leader_answers(state, leader);
            over_at = answers ? (state->record.ended ? over_at : INFINITY)
                              : fmin(over_at, now + state->options->timeout_seconds + GRACE_SECONDS);
            look_at = now_seconds() + LEADER_SECONDS;
        }
        if (state->interrupted || now > over_at)
            end_mpirun(state);
    }
}

/* mpirun is gone. The leading process may go on a while, here or elsewhere; then nothing does. */
static void clear_up(restarts *state)
{
    double begun = now_seconds();
    ek_record_read(&state->record);
    while ((ek_mpirun_has_left(&state->mpirun) && now_seconds() < begun + GRACE_SECONDS) ||
           (!state->record.ended && now_seconds() < begun + RECORD_SECONDS && state->mpirun.exit_status != REFUSED)) {
        pass_on(state, ek_mpirun_await(&state->mpirun, POLL_MS));
        ek_record_read(&state->record);
    }
    ek_mpirun_sweep(&state->mpirun);
    ek_record_read(&state->record);
}

static ek_status run_once(restarts *state)
{
    struct words words = {0};
    make_words(&words, state);
    ek_record_begin(&state->record);
    state->killed_at = 0.0;
    ek_status status = words.failed ? ek_fail(EK_NO_MEMORY, "out of memory for a command line")
                                    : ek_mpirun_start(&state->mpirun, words.list, state->options->agent);
    free_words(&words);
    EK_TRY(status);
    watch(state);
    clear_up(state);
    return EK_OK;
}

/* ----------------------------------------------------------------------------------------------- all of them */

static ek_status fit_hosts(restarts *state)
{
    const ek_hosts *hosts = state->options->hosts;
    for (size_t h = 0; h < hosts->count; h++)
        state->slots[h] = hosts->list[h].answers ? hosts->list[h].slots : 0;
    return ek_fit_make(&state->options->job, state->slots, hosts->count, &state->fit, state->used);
}

/* Which hosts are not there, as "; b and 2 more do not answer". */
static void describe_silent(const ek_hosts *hosts, char *text, size_t size)
{
    size_t silent = 0;
    const char *name = NULL;
    text[0] = '\0';
    for (size_t h = 0; h < hosts->count; h++) {
        if (hosts->list[h].answers)
            continue;
        name = name ? name : hosts->list[h].name;
        silent++;
    }
    if (silent == 1)
        snprintf(text, size, "; %s does not answer", name);
    else if (silent > 1)
        snprintf(text, size, "; %s and %zu more do not answer", name, silent - 1);
}

/* Where the job runs now, for who watches. */
static void announce(const restarts *state)
{
    const ek_hosts *hosts = state->options->hosts;
    char layout[256], silent[300];
    size_t used = 0;
    for (size_t h = 0; h < hosts->count; h++)
        used += state->used[h] > 0;
    ek_fit_describe(&state->fit, state->options->parallelism, layout, sizeof layout);
    describe_silent(hosts, silent, sizeof silent);
    fprintf(stderr, "evenkeel: start %u: %u ranks on %zu %s, %s%s\n", state->starts, state->fit.ranks, used,
            used == 1 ? "host" : "hosts", layout, silent);
}

/* Longer with every start in vain: what keeps the job from running may pass. */
static void pause_before(restarts *state, unsigned failures)
{
    double until = now_seconds() + fmin(PAUSE_MOST_SECONDS, ldexp(0.5, (int)failures));
    while (!state->stopping && !state->interrupted && now_seconds() < until)
        pass_on(state, ek_mpirun_await(&state->mpirun, POLL_MS));
}

/* What one run has come to; *again: another one has sense. */
static ek_status judge(const restarts *state, bool *again)
{
    const ek_record *record = &state->record;
    const char *reason = record->reason[0] ? record->reason : "no last record in its metrics";
    *again = false;
    if (record->done)
        return EK_OK;
    if (state->interrupted || state->stopping)
        return ek_fail(EK_INTERRUPTED, "the job was ended from outside: %s", reason);
    if (!state->begun && state->mpirun.exit_status == REFUSED)
        return ek_fail(EK_INVALID, "the job was refused");
    *again = true;
    return ek_fail(EK_PEER_LOST, "%s", reason);
}

static ek_status run_again_and_again(restarts *state)
{
    const ek_restarts_options *options = state->options;
    unsigned failures = 0;
    uint64_t step = 0;
    for (;;) {
        if (fit_hosts(state) != EK_OK) /* hosts that were too few from the beginning are an input that is refused */
            return state->starts > 0 ? EK_SYSTEM : EK_INVALID;
        state->starts++;
        announce(state);
        EK_TRY(run_once(state));
        state->begun |= state->record.any;
        bool again;
        ek_status status = judge(state, &again);
        failures = state->record.step > step ? 1 : failures + 1;
        step = state->record.step;
        if (!again)
            return status;
        if (failures > options->restarts_most)
            return ek_fail_prefix(status, "no restart any more (--max-restarts %u): ", options->restarts_most);
        fprintf(stderr, "evenkeel: the job ended after step %llu: %s\n", (unsigned long long)step, ek_error());
        pause_before(state, failures);
        if (state->interrupted || state->stopping)
            return ek_fail(EK_INTERRUPTED, "the job was ended from outside");
        EK_TRY(ek_hosts_probe(options->hosts, 0, options->hosts->count, options->probe, PROBE_SECONDS));
    }
}

ek_status ek_restarts_run(const ek_restarts_options *options)
{
    restarts state = {.options = options, .record = {.path = options->metrics_path}};
    state.slots = calloc(options->hosts->count, sizeof *state.slots);
    state.used = calloc(options->hosts->count, sizeof *state.used);
    ek_status status = state.slots && state.used ? EK_OK : ek_fail(EK_NO_MEMORY, "out of memory for the hosts");
    if (status == EK_OK)
        status = ek_mpirun_prepare();
    if (status == EK_OK)
        status = ek_mpirun_version(&state.mpirun_major);
    if (status == EK_OK)
        status = run_again_and_again(&state);
    free(state.slots);
    free(state.used);
    return status;
}
