/* Spare domains at a fixed global batch: a job that cannot fill its batch at its usual pace stands still until devices
 * return. How many spare domains does it take to run without a pause?
 *
 * Spares fail like the rest. A history is drawn once, for the most spares there may be; with fewer it is what happens
 * to the domains that are left. At every moment domains are packed as well as can be: dp-drop  needs as many whole TP
 * groups as the job has ntp      makes replicas of all groups, also more than the job has, and counts the samples they
 * are done with ntp-pw   likewise, boosted */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "sim/history.h"
#include "sim/parallel.h"
#include "sim/sampler.h"
#include "sim/study.h"

static const char *const columns[] = {
    "policy",      "spare_domains",   "without_pause", "without_pause_low", "without_pause_high",
    "paused_time", "paused_time_ci95"};
static const char *const least_columns[] = {"policy", "spares_without_pause", "spares_by_time"};
#define COUNT(columns) (sizeof(columns) / sizeof *(columns))

enum { POLICIES = 3 };
static const ek_policy policies[POLICIES] = {EK_POLICY_DROP, EK_POLICY_NTP, EK_POLICY_NTP_PW};

typedef struct spares_run {
    ek_study *study;
    const ek_steps *steps;
    const ek_sampler *tables; /* of the cluster with all spares */
    uint32_t needed, most;    /* domains */
    double *paused_hours;     /* [histories][POLICIES][most + 1] */
} spares_run;

/* ------------------------------------------------------------------------------------------------- one history */

/* Whether the groups of needed + spares domains fill the batch: beyond[level] of them are at that level or deeper. */
static bool fills_batch(const spares_run *run, ek_policy policy, uint32_t spares, const uint32_t *beyond)
{
    const ek_steps *steps = run->steps;
    uint32_t cells = (run->needed + spares) * run->tables->cells, stages = steps->stages;
    if (policy == EK_POLICY_DROP)
        return cells - beyond[1] >= steps->replicas * stages;
    uint32_t replicas = cells / stages, spare = cells % stages, shallower = replicas;
    uint64_t samples = 0;
    for (uint32_t level = 0; level <= steps->levels; level++) {
        uint32_t bad = beyond[level + 1] > spare ? beyond[level + 1] - spare : 0;
        uint32_t deeper = (bad + stages - 1) / stages; /* replicas beyond this level, packed deepest first */
        const ek_level_step *step = &steps->level[level];
        samples += (uint64_t)(shallower - deeper) * (policy == EK_POLICY_NTP ? step->samples : step->boosted_samples);
        shallower = deeper;
    }
    return samples >= (uint64_t)steps->replicas * steps->samples;
}

typedef struct spares_state {
    uint32_t *failed; /* [domains] slots */
    uint32_t *beyond; /* [most + 1][levels + 2] groups by level or deeper, with that many spares */
} spares_state;

static void take_change(const spares_run *run, spares_state *state, const ek_change *change)
{
    uint32_t width = run->steps->levels + 2;
    const uint32_t *before = run->tables->beyond + (size_t)state->failed[change->domain] * width;
    const uint32_t *after = run->tables->beyond + (size_t)change->failed * width;
    uint32_t first = change->domain < run->needed ? 0 : change->domain - run->needed + 1;
    state->failed[change->domain] = change->failed;
    for (uint32_t spares = first; spares <= run->most; spares++)
        for (uint32_t level = 1; level < width; level++)
            state->beyond[(size_t)spares * width + level] += after[level] - before[level];
}

static void pass(const spares_run *run, const spares_state *state, double hours, double *paused_hours)
{
    for (int i = 0; i < POLICIES; i++)
        for (uint32_t spares = 0; spares <= run->most; spares++) {
            const uint32_t *beyond = state->beyond + (size_t)spares * (run->steps->levels + 2);
            if (fills_batch(run, policies[i], spares, beyond))
                break; /* more spares do, too */
            paused_hours[(size_t)i * (run->most + 1) + spares] += hours;
        }
}

static void live_through(const spares_run *run, const ek_history *history, spares_state *state, double *paused_hours)
{
    double horizon_hours = run->study->scenario->study.horizon_days * 24, now = 0;
    for (size_t i = 0; i < history->count; i++) {
        const ek_change *change = &history->changes[i];
        if (change->hours > now) {
            pass(run, state, change->hours - now, paused_hours);
            now = change->hours;
        }
        take_change(run, state, change);
    }
    pass(run, state, horizon_hours - now, paused_hours);
}

static ek_status run_history(void *context, uint32_t number)
{
    const spares_run *run = context;
    uint32_t domains = run->needed + run->most;
    ek_history *history;
    EK_TRY(ek_history_create(&history, run->study->scenario, domains, number));
    spares_state state = {calloc(domains, sizeof *state.failed),
                          calloc((size_t)(run->most + 1) * (run->steps->levels + 2), sizeof *state.beyond)};
    ek_status status = EK_OK;
    if (state.failed && state.beyond)
        live_through(run, history, &state, run->paused_hours + (size_t)number * POLICIES * (run->most + 1));
    else
        status = ek_fail(EK_NO_MEMORY, "no memory for a job on %u domains", domains);
    free(state.failed);
    free(state.beyond);
    ek_history_destroy(history);
    return status;
}

static void show_progress(void *context, uint32_t done)
{
    const spares_run *run = context;
    ek_study_progress(run->study, (double)done / run->study->scenario->study.histories);
}

/* --------------------------------------------------------------------------------------------------- the results */

/* The 95 % interval of a proportion (Wilson's score). */
static void proportion_interval(uint32_t hits, uint32_t count, double *low, double *high)
{
    double n = count, p = hits / n, z = 1.96;
    double centre = (p + z * z / (2 * n)) / (1 + z * z / n);
    double half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n));
    *low = fmax(centre - half, 0);
    *high = fmin(centre + half, 1);
}

/* Of all histories: how many never paused, and the part of the time that was paused. */
static uint32_t summarise(const spares_run *run, int policy, uint32_t spares, ek_mean *paused)
{
    uint32_t histories = run->study->scenario->study.histories, without = 0;
    double horizon_hours = run->study->scenario->study.horizon_days * 24, sum = 0, squares = 0;
    for (uint32_t i = 0; i < histories; i++) {
        double hours = run->paused_hours[((size_t)i * POLICIES + (size_t)policy) * (run->most + 1) + spares];
        without += hours == 0;
        sum += hours / horizon_hours;
        squares += hours / horizon_hours * (hours / horizon_hours);
    }
    *paused = ek_mean_of_sums(sum, squares, histories);
    return without;
}

static json_t *number_or_none(uint32_t spares, uint32_t most)
{
    return spares <= most ? json_integer(spares) : json_null();
}

static ek_status add_policy(const spares_run *run, int policy, json_t *table, json_t *least, json_t *chart)
{
    const ek_study_settings *settings = &run->study->scenario->study;
    const char *name = ek_policy_name(run->study->scenario, policies[policy]);
    uint32_t none = run->most + 1, enough = none, enough_by_time = none;
    json_t *series;
    EK_TRY(ek_study_series(chart, name, &series));
    for (uint32_t spares = 0; spares <= run->most; spares++) {
        ek_mean paused;
        uint32_t without = summarise(run, policy, spares, &paused);
        double part = (double)without / settings->histories, low, high;
        proportion_interval(without, settings->histories, &low, &high);
        if (part >= settings->quantile && spares < enough)
            enough = spares;
        if (1 - paused.mean >= settings->quantile && spares < enough_by_time)
            enough_by_time = spares;
        EK_TRY(ek_study_add(ek_study_rows(table), json_pack("[s, i, f, f, f, f, f]", name, (int)spares, part, low, high,
                                                            paused.mean, paused.half_width)));
        EK_TRY(ek_study_band(series, spares, 100 * part, 100 * low, 100 * high));
    }
    if (enough <= run->most)
        EK_TRY(ek_study_fact(run->study, name, "%u spare domains", enough));
    else
        EK_TRY(ek_study_fact(run->study, name, "more than %u spare domains", run->most));
    return ek_study_add(ek_study_rows(least), json_pack("[s, o, o]", name, number_or_none(enough, run->most),
                                                        number_or_none(enough_by_time, run->most)));
}

static ek_status add_results(const spares_run *run)
{
    const ek_study_settings *settings = &run->study->scenario->study;
    json_t *table = ek_study_table(run->study, "spares", columns, COUNT(columns)), *section, *chart;
    json_t *least = ek_study_table(run->study, "spares_needed", least_columns, COUNT(least_columns));
    EK_TRY(ek_study_section(run->study, "Histories without a pause",
                            "At a fixed global batch the job stands still while it cannot fill it. "
                            "spares_without_pause: enough for study.quantile of the histories to run through without a "
                            "pause; spares_by_time: enough for the job to run in that part of the time.",
                            &section));
    EK_TRY(ek_study_chart(section, "line", "spare domains", "histories without a pause, %", &chart));
    EK_TRY(ek_study_fact(run->study, "no pause", "in %g %% of histories of %g days", 100 * settings->quantile,
                         settings->horizon_days));
    for (int policy = 0; policy < POLICIES; policy++)
        EK_TRY(add_policy(run, policy, table, least, chart));
    return ek_study_show(section, least);
}

ek_status ek_study_spares(ek_study *study)
{
    const ek_scenario *scenario = study->scenario;
    ek_steps *steps;
    ek_sampler *tables = NULL;
    if (scenario->failures.events_path)
        return ek_fail(EK_INVALID,
                       "failures.events: the spares study draws histories; one that happened has no quantile");
    EK_TRY(ek_steps_create(&steps, scenario));
    spares_run run = {.study = study,
                      .steps = steps,
                      .needed = ek_scenario_needed_domains(scenario),
                      .most = scenario->study.spares_most};
    ek_status status = ek_sampler_create(&tables, steps, run.needed + run.most, scenario->hardware.domain_slots, 1);
    run.tables = tables;
    run.paused_hours = calloc((size_t)scenario->study.histories * POLICIES * (run.most + 1), sizeof *run.paused_hours);
    if (status == EK_OK && !run.paused_hours)
        status = ek_fail(EK_NO_MEMORY, "no memory for %u histories", scenario->study.histories);
    if (status == EK_OK)
        status = ek_parallel_run(&(ek_parallel){.threads = study->threads,
                                                .run = run_history,
                                                .context = &run,
                                                .progress = show_progress,
                                                .progress_context = &run},
                                 scenario->study.histories);
    if (status == EK_OK)
        status = add_results(&run);
    free(run.paused_hours);
    ek_sampler_destroy(tables);
    ek_steps_destroy(steps);
    return status;
}
