/* Step times of a job, tabulated. */
#include "sim/steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "power/governor.h"

#define SPEED_ERROR 1e-6     /* of the least speed */
#define SPEED_MOST 4.0       /* no device gets faster than that */
#define GRADIENT_TO_WEIGHT 2 /* bytes: gradients are summed in 32 bits, unit_bytes are of weights in 16 */

const char *ek_name_in_mode(const ek_scenario *scenario, const char *name)
{
    static const char *const names[][2] = {{"ntp", "nep"},
                                           {"ntp-pw", "nep-pw"},
                                           {"ntp-pw-strict", "nep-pw-strict"},
                                           {"ntp-restart", "nep-restart"},
                                           {"ntp-pw-restart", "nep-pw-restart"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (scenario->parallel.mode == EK_PERF_EP && strcmp(name, names[i][0]) == 0)
            return names[i][1];
    return name;
}

const char *ek_policy_name(const ek_scenario *scenario, ek_policy policy)
{
    static const char *const names[EK_POLICIES] = {"dp-drop", "reroute", "ntp", "ntp-pw"};
    return ek_name_in_mode(scenario, names[policy]);
}

double ek_steps_limit_watts(const ek_scenario *scenario, uint32_t level)
{
    uint32_t degree = scenario->parallel.tp - level;
    return ek_governor_limit_watts(scenario->power.cap_watts, scenario->power.domain_watts, degree);
}

/* ----------------------------------------------------------------------------------------------- one replica */

/* What the step of a replica is asked for with: its stages are all alike. */
typedef struct step_asker {
    const ek_scenario *scenario;
    const ek_perf *perf;
    uint32_t *degrees; /* [pp] */
    double *speeds;
} step_asker;

static ek_status ask(const step_asker *asker, uint32_t level, double speed, uint32_t samples, double reshard_bytes,
                     ek_perf_time *time)
{
    const ek_scenario *scenario = asker->scenario;
    for (uint32_t stage = 0; stage < scenario->parallel.pp; stage++) {
        asker->degrees[stage] = scenario->parallel.tp - level;
        asker->speeds[stage] = speed;
    }
    return ek_perf_step(asker->perf,
                        &(ek_perf_replica){.degrees = asker->degrees,
                                           .speeds = asker->speeds,
                                           .samples = samples,
                                           .free_units = scenario->policies.units == EK_UNITS_FREE,
                                           .reshard_bytes = reshard_bytes},
                        time);
}

static ek_status step_seconds(const step_asker *asker, uint32_t level, double speed, uint32_t samples, double *seconds)
{
    ek_perf_time time;
    EK_TRY(ask(asker, level, speed, samples, 0, &time));
    *seconds = time.total;
    return EK_OK;
}

/* The job's step when this is the level that gradients are reduced in: a healthy replica reshards, and takes part in
 * reductions that are as long as the reduced replica's. */
static ek_status synchronised_seconds(const step_asker *asker, uint32_t level, uint32_t samples, double reshard_bytes,
                                      double *seconds)
{
    ek_perf_time whole, reduced;
    EK_TRY(ask(asker, 0, 1, samples, reshard_bytes, &whole));
    EK_TRY(ask(asker, level, 1, samples, 0, &reduced));
    *seconds = whole.total + fmax(reduced.data - whole.data, 0);
    return EK_OK;
}

/* The most samples, up to `most`, that a replica is done with in `pace_seconds`: time grows with samples. */
static ek_status fitting_samples(const step_asker *asker, uint32_t level, double speed, double pace_seconds,
                                 uint32_t most, uint32_t *samples)
{
    uint32_t fits = 0, beyond = most + 1;
    while (beyond - fits > 1) {
        uint32_t middle = fits + (beyond - fits) / 2;
        double seconds;
        EK_TRY(step_seconds(asker, level, speed, middle, &seconds));
        *(seconds <= pace_seconds ? &fits : &beyond) = middle;
    }
    *samples = fits;
    return EK_OK;
}

/* The least speed, from 1 to `most`, at which the samples are done in time; INFINITY if there is none. */
static ek_status least_speed(const step_asker *asker, uint32_t level, uint32_t samples, double pace_seconds,
                             double most, double *speed)
{
    double low = 1, high = most, seconds;
    EK_TRY(step_seconds(asker, level, low, samples, &seconds));
    if (seconds <= pace_seconds)
        high = low;
    EK_TRY(step_seconds(asker, level, high, samples, &seconds));
    *speed = INFINITY;
    if (seconds > pace_seconds)
        return EK_OK;
    while (high - low > SPEED_ERROR) {
        double middle = (low + high) / 2;
        EK_TRY(step_seconds(asker, level, middle, samples, &seconds));
        *(seconds <= pace_seconds ? &high : &low) = middle;
    }
    *speed = high;
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------- resharding */

/* The most units that one device of a whole replica sends or receives when the gradients of a group are resharded from
 * level 0 to `level`, for one layer. */
static ek_status group_reshard_units(const ek_unit_group *group, uint32_t base_degree, uint32_t level, uint32_t ties,
                                     uint32_t *most)
{
    ek_chain *chain = NULL;
    ek_transfer *transfers = NULL;
    size_t count = 0;
    uint32_t *dropped = calloc(base_degree, sizeof *dropped), *moved = calloc(base_degree, sizeof *moved);
    ek_status status = dropped && moved ? EK_OK : ek_fail(EK_NO_MEMORY, "no memory for a chain of %u", base_degree);
    for (uint32_t i = 0; status == EK_OK && i < level; i++)
        dropped[i] = base_degree - 1 - i;
    if (status == EK_OK)
        status = ek_chain_create(&chain, group->units, base_degree, dropped, level, ties);
    if (status == EK_OK)
        status = ek_chain_transfers(chain, 0, level, &transfers, &count);
    *most = 0;
    for (size_t i = 0; status == EK_OK && i < count; i++) {
        uint32_t ends[2] = {transfers[i].extra, transfers[i].core};
        for (int end = 0; end < 2; end++) {
            moved[ends[end]] += transfers[i].count;
            *most = moved[ends[end]] > *most ? moved[ends[end]] : *most;
        }
    }
    ek_free(transfers);
    ek_chain_destroy(chain);
    free(dropped);
    free(moved);
    return status;
}

/* There and back, over the groups and layers of the stage that has most of it. A device may be the busiest in one group
 * and not in another; taking it to be the same errs on the safe side. */
static ek_status reshard_bytes(const ek_perf *perf, const ek_scenario *scenario, uint32_t level, double *bytes)
{
    ek_unit_group groups[EK_PERF_GROUPS_MOST];
    uint32_t count = ek_perf_groups(perf, groups), units[EK_PERF_GROUPS_MOST];
    for (uint32_t group = 0; group < count; group++)
        EK_TRY(group_reshard_units(&groups[group], scenario->parallel.tp, level, group, &units[group]));
    *bytes = 0;
    for (uint32_t stage = 0; stage < scenario->parallel.pp; stage++) {
        double of_stage = 0;
        for (uint32_t group = 0; group < count; group++)
            of_stage += 2.0 * GRADIENT_TO_WEIGHT * units[group] * (double)groups[group].unit_bytes *
                        ek_perf_group_layers(perf, group, stage);
        *bytes = fmax(*bytes, of_stage);
    }
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------- the tables */

/* The deepest level that the job may use: by parallel.min_tp and by the memory of a device. */
static ek_status find_levels(ek_steps *steps, const ek_scenario *scenario, const ek_perf *perf)
{
    uint32_t least = scenario->parallel.min_tp ? scenario->parallel.min_tp : 1, degree = steps->base_degree + 1;
    bool fits = true;
    ek_perf_memory memory = {0};
    while (fits && degree > least) {
        degree--;
        for (uint32_t stage = 0; fits && stage < steps->stages; stage++) {
            ek_perf_rank_memory(perf, stage, degree, &memory);
            fits = memory.total <= scenario->hardware.memory_bytes;
        }
    }
    if (!fits)
        degree++;
    if (degree > steps->base_degree)
        return ek_fail(EK_INVALID,
                       "device.memory_bytes: found %.4g; a rank of this job needs %.4g, so it takes a larger "
                       "parallel.tp or parallel.pp, or more recomputation",
                       scenario->hardware.memory_bytes, memory.total);
    steps->levels = steps->base_degree - degree;
    return EK_OK;
}

static ek_status fill_level(const ek_steps *steps, const step_asker *asker, uint32_t level, double pace_seconds,
                            ek_level_step *step)
{
    const ek_scenario *scenario = asker->scenario;
    const ek_curve *curve = &scenario->power.curve;
    double tdp_watts = scenario->hardware.tdp_watts, speed;
    double limit_watts = level ? ek_steps_limit_watts(scenario, level) : tdp_watts;
    double top_speed = ek_curve_speed(curve, limit_watts / tdp_watts);
    if (level > 0)
        EK_TRY(reshard_bytes(asker->perf, scenario, level, &step->reshard_bytes));
    EK_TRY(synchronised_seconds(asker, level, steps->samples, step->reshard_bytes, &step->step_seconds));
    EK_TRY(fitting_samples(asker, level, 1, pace_seconds, steps->samples, &step->samples));
    EK_TRY(fitting_samples(asker, level, top_speed, pace_seconds, steps->samples, &step->boosted_samples));
    EK_TRY(least_speed(asker, level, step->boosted_samples, pace_seconds, top_speed, &speed));
    step->watts = fmin(tdp_watts * ek_curve_power(curve, speed), limit_watts);
    return least_speed(asker, level, steps->samples, pace_seconds, SPEED_MOST, &step->speed_needed);
}

static ek_status fill_levels(ek_steps *steps, const step_asker *asker)
{
    double whole_seconds;
    EK_TRY(step_seconds(asker, 0, 1, steps->samples, &whole_seconds));
    for (uint32_t level = 0; level <= steps->levels; level++) {
        ek_level_step *step = &steps->level[level];
        EK_TRY(fill_level(steps, asker, level, whole_seconds, step));
        if (level > 0)
            step->step_seconds = fmax(step->step_seconds, step[-1].step_seconds);
        step->pace = whole_seconds / step->step_seconds;
    }
    /* a replica that would do better with a device less leaves one idle */
    for (uint32_t level = steps->levels; level > 1; level--) {
        ek_level_step *step = &steps->level[level - 1];
        if (step->samples < step[1].samples)
            step->samples = step[1].samples;
        if (step->boosted_samples < step[1].boosted_samples) {
            step->boosted_samples = step[1].boosted_samples;
            step->watts = step[1].watts;
        }
    }
    return EK_OK;
}

static ek_status fill_rerouted(ek_steps *steps, const step_asker *asker)
{
    double seconds = 0;
    uint64_t batch = (uint64_t)steps->replicas * steps->samples;
    for (uint32_t replicas = steps->replicas, samples = 0; replicas > 0; replicas--) {
        uint32_t most = (uint32_t)((batch + replicas - 1) / replicas);
        if (most != samples)
            EK_TRY(step_seconds(asker, 0, 1, most, &seconds));
        samples = most;
        steps->rerouted[replicas] = steps->level[0].step_seconds / seconds;
    }
    return EK_OK;
}

ek_status ek_steps_create(ek_steps **created, const ek_scenario *scenario)
{
    const ek_perf_parallel *parallel = &scenario->parallel;
    ek_perf *perf = NULL;
    EK_TRY(ek_perf_create(&perf, &scenario->model, parallel, &scenario->hardware));
    ek_steps *steps = calloc(1, sizeof *steps);
    step_asker asker = {scenario, perf, calloc(parallel->pp, sizeof *asker.degrees),
                        calloc(parallel->pp, sizeof *asker.speeds)};
    if (steps) {
        steps->level = calloc(parallel->tp + 1, sizeof *steps->level);
        steps->rerouted = calloc(parallel->dp + 1, sizeof *steps->rerouted);
    }
    ek_status status = EK_OK;
    if (!steps || !steps->level || !steps->rerouted || !asker.degrees || !asker.speeds) {
        status = ek_fail(EK_NO_MEMORY, "no memory for the step times of %u replicas", parallel->dp);
    } else {
        steps->replicas = parallel->dp;
        steps->stages = parallel->pp;
        steps->base_degree = parallel->tp;
        steps->samples = parallel->global_batch / parallel->dp;
        status = find_levels(steps, scenario, perf);
    }
    if (status == EK_OK)
        status = fill_levels(steps, &asker);
    if (status == EK_OK)
        status = fill_rerouted(steps, &asker);
    free(asker.degrees);
    free(asker.speeds);
    ek_perf_destroy(perf);
    if (status != EK_OK)
        ek_steps_destroy(steps);
    else
        *created = steps;
    return status;
}

void ek_steps_destroy(ek_steps *steps)
{
    if (!steps)
        return;
    free(steps->level);
    free(steps->rerouted);
    free(steps);
}

/* Replicas of ever deeper levels join the whole ones as long as that pays. */
static double with_reduced(const ek_steps *steps, bool boosted, const uint32_t *replicas_at, uint32_t present,
                           double whole_samples, uint32_t *deepest)
{
    double batch = (double)steps->replicas * steps->samples, samples = whole_samples, best = samples / batch;
    *deepest = 0;
    for (uint32_t level = 1; level <= present && level <= steps->levels; level++) {
        const ek_level_step *step = &steps->level[level];
        samples += (double)replicas_at[level] * (boosted ? step->boosted_samples : step->samples);
        double throughput = samples / batch * step->pace;
        if (replicas_at[level] && throughput > best) {
            best = throughput;
            *deepest = level;
        }
    }
    return best;
}

void ek_steps_throughput(const ek_steps *steps, const uint32_t *replicas_at, uint32_t present,
                         double throughput[EK_POLICIES], uint32_t deepest[EK_POLICIES])
{
    uint32_t whole = steps->replicas, levels[EK_POLICIES] = {0};
    for (uint32_t level = 1; level <= present; level++)
        whole -= replicas_at[level];
    double samples = (double)whole * steps->samples;
    throughput[EK_POLICY_DROP] = samples / ((double)steps->replicas * steps->samples);
    throughput[EK_POLICY_REROUTE] = steps->rerouted[whole];
    throughput[EK_POLICY_NTP] = with_reduced(steps, false, replicas_at, present, samples, &levels[EK_POLICY_NTP]);
    throughput[EK_POLICY_NTP_PW] = with_reduced(steps, true, replicas_at, present, samples, &levels[EK_POLICY_NTP_PW]);
    for (int policy = 0; deepest && policy < EK_POLICIES; policy++)
        deepest[policy] = levels[policy];
}
