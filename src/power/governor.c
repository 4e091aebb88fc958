/* The governor: which power limit and which samples each replica gets. */
#include "power/governor.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "power/estimate.h"

#define CAP_DEFAULT 1.3    /* times the default limit */
#define BAND_LEAST 0.0025  /* smaller corrections are not worth a change */
#define NOISE_ASSUMED 0.02 /* of a measurement, while there are too few to tell */
#define RETREATS_MOST 6
#define LOOK_STEPS 64       /* between late decisions */
#define RESTART_CHANGE 0.05 /* measurements from before a change of speed or samples that is larger do not count */

typedef struct governed {
    uint32_t degree;  /* 0: retired */
    bool healthy;     /* at the highest degree there is: stays at the default limit and sets the pace */
    double work;      /* of its device with most units, against that of a whole replica */
    double limit;     /* watts per device */
    double top_speed; /* at that limit, against the default limit */
    double speed;     /* as decided, and the watts for it; watts 0: retired */
    double watts;
    double seconds;    /* for a sample at the default limit; relative to each other while nothing is measured */
    double error;      /* standard error of seconds, relative */
    uint32_t retreats; /* policy shrink: how often samples had to be given up again */
    double predicted_seconds;
    ek_estimate estimate;
} governed;

struct ek_governor {
    ek_governor_options options;
    uint32_t steps;         /* observed since the reset or the last change of pace */
    bool decided, measured; /* anything, since the reset */
    /* [replicas] each */
    governed *replica;
    bool *active;
    ek_batch_share *shares;    /* as decided */
    ek_batch_share *candidate; /* what they may become */
    ek_batch_share *left;      /* what they were before the last time that rebalance moved samples, */
    double left_seconds;       /* and the step then; 0: not known */
    double *seconds;           /* scratch: for a sample at the power that it may have */
    double seconds_per_work;   /* for a sample at the default limit, as last measured, across resets; 0: never */
};

/* ---------------------------------------------------------------------------------------------- creation */

ek_status ek_governor_complete_options(ek_governor_options *options)
{
    double least = options->default_watts, most = options->default_watts * ek_curve_most_power(&options->curve);
    if (!(options->default_watts > 0 && options->default_watts < INFINITY))
        return ek_fail(EK_INVALID, "power.default_watts: found %g; a number above 0 is needed", options->default_watts);
    if (options->cap_watts == 0)
        options->cap_watts = fmin(CAP_DEFAULT * options->default_watts, most);
    if (!(options->cap_watts >= least && options->cap_watts <= most))
        return ek_fail(EK_INVALID,
                       "power.cap_watts: found %g; %g, the default limit, to %g, where power.curve ends, is allowed",
                       options->cap_watts, least, most);
    if (options->domain_watts == 0)
        options->domain_watts = options->base_degree * options->default_watts;
    if (!(options->domain_watts >= options->base_degree * options->default_watts))
        return ek_fail(EK_INVALID,
                       "power.domain_watts: found %g; at least %g, %u devices at their default limit, is needed",
                       options->domain_watts, options->base_degree * options->default_watts, options->base_degree);
    return EK_OK;
}

ek_status ek_governor_create(ek_governor **governor, const ek_governor_options *options)
{
    ek_governor_options checked = *options;
    EK_TRY(ek_governor_complete_options(&checked));
    ek_governor *created = calloc(1, sizeof *created);
    if (created) {
        created->options = checked;
        created->replica = calloc(checked.replicas, sizeof *created->replica);
        created->active = calloc(checked.replicas, sizeof *created->active);
        created->seconds = calloc(checked.replicas, sizeof *created->seconds);
        created->shares = calloc(checked.replicas, sizeof *created->shares);
        created->candidate = calloc(checked.replicas, sizeof *created->candidate);
        created->left = calloc(checked.replicas, sizeof *created->left);
    }
    if (!created || !created->replica || !created->active || !created->seconds || !created->shares ||
        !created->candidate || !created->left) {
        ek_governor_destroy(created);
        return ek_fail(EK_NO_MEMORY, "no memory for the governor of %u replicas", checked.replicas);
    }
    *governor = created;
    return EK_OK;
}

void ek_governor_destroy(ek_governor *governor)
{
    if (!governor)
        return;
    free(governor->replica);
    free(governor->active);
    free(governor->seconds);
    free(governor->shares);
    free(governor->candidate);
    free(governor->left);
    free(governor);
}

/* ------------------------------------------------------------------------------- how long a sample takes */

/* The most that a device of the replica holds, in bytes of its units, as a measure of its work. */
static double largest_share(const ek_membership *membership, uint32_t level, uint32_t replica)
{
    const ek_job *job = ek_membership_job(membership);
    double largest = 0;
    for (uint32_t role = 0; role < job->base_degree; role++) {
        if (replica != EK_NONE && ek_membership_rank(membership, replica, role) == EK_NONE)
            continue;
        double share = 0;
        for (uint32_t group = 0; group < job->group_count; group++) {
            uint64_t unit_bytes = job->groups[group].unit_bytes ? job->groups[group].unit_bytes : 1;
            share += (double)unit_bytes * ek_chain_count(ek_membership_chain(membership, group), level, role);
        }
        largest = fmax(largest, share);
    }
    return largest;
}

/* Seconds and error of each replica: as measured; of one that had no samples so far, by its work. */
static void update_seconds(ek_governor *governor)
{
    uint32_t known = 0, noisy = 0;
    double scale = 0, noise = 0;
    for (uint32_t i = 0; i < governor->options.replicas; i++) {
        const governed *replica = &governor->replica[i];
        if (!governor->active[i] || replica->estimate.value == 0)
            continue;
        known++;
        scale += replica->estimate.value / replica->work;
        noisy += replica->estimate.noise_known;
        noise += replica->estimate.noise;
    }
    scale = known ? scale / known : 1;
    if (known)
        governor->seconds_per_work = scale;
    noise = noisy ? noise / noisy : NOISE_ASSUMED;
    for (uint32_t i = 0; i < governor->options.replicas; i++) {
        governed *replica = &governor->replica[i];
        const ek_estimate *estimate = &replica->estimate;
        replica->seconds = estimate->value > 0 ? estimate->value : scale * replica->work;
        /* few measurements may agree by chance: the others tell how noisy it is here */
        replica->error = ek_estimate_error(estimate, fmax(noise, estimate->noise));
    }
}

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double healthy_median(ek_governor *governor)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < governor->options.replicas; i++)
        if (governor->replica[i].healthy)
            governor->seconds[count++] = governor->replica[i].seconds;
    qsort(governor->seconds, count, sizeof *governor->seconds, compare_doubles);
    return (governor->seconds[(count - 1) / 2] + governor->seconds[count / 2]) / 2;
}

/* What a healthy replica is taken to need for a sample: what they all need, unless it is slower or faster beyond doubt.
 * The slowest of many noisy measurements would be too slow a pace. */
static double healthy_seconds(const governed *replica, double median)
{
    double doubt = 2 * replica->error;
    return fmax(fmin(median, replica->seconds * (1 + doubt)), replica->seconds * (1 - doubt));
}

/* ----------------------------------------------------------------------------------------------- deciding */

/* How far a replica may be off its target without a correction. Early the measurements are believed, as what they
 * replace is a guess; later only a deviation of several standard errors counts. */
static double band(const ek_governor *governor, const governed *replica)
{
    if (!governor->decided)
        return 0;
    double errors_allowed = governor->steps <= 4 ? 1 : governor->steps <= LOOK_STEPS ? 2 : 4;
    double healthy_error = 0;
    uint32_t healthy = 0;
    for (uint32_t i = 0; i < governor->options.replicas; i++)
        if (governor->replica[i].healthy) {
            healthy_error += governor->replica[i].error;
            healthy++;
        }
    healthy_error /= healthy;
    double error = sqrt(replica->error * replica->error + healthy_error * healthy_error);
    return fmax(BAND_LEAST, errors_allowed * error);
}

/* The step of the slowest replica with the candidate shares at seconds[] for a sample; of the healthy ones or of all.
 */
static double slowest_step(const ek_governor *governor, const ek_batch_share *shares, bool healthy_alone)
{
    double slowest = 0;
    for (uint32_t i = 0; i < governor->options.replicas; i++)
        if (governor->active[i] && (governor->replica[i].healthy || !healthy_alone))
            slowest = fmax(slowest, governor->seconds[i] * shares[i].count);
    return slowest;
}

/* Sets seconds[] to what each replica needs for a sample where power does what it may: healthy ones at the default
 * limit, the others as fast as the fastest of those or at their limit. Retired: INFINITY. */
static void set_seconds(ek_governor *governor)
{
    double median = healthy_median(governor), fastest = INFINITY;
    for (uint32_t i = 0; i < governor->options.replicas; i++) {
        governor->seconds[i] = INFINITY;
        if (governor->replica[i].healthy)
            governor->seconds[i] = healthy_seconds(&governor->replica[i], median);
        fastest = fmin(fastest, governor->seconds[i]);
    }
    for (uint32_t i = 0; i < governor->options.replicas; i++) {
        const governed *replica = &governor->replica[i];
        if (governor->active[i] && !replica->healthy)
            governor->seconds[i] = fmax(fmin(replica->seconds, fastest), replica->seconds / replica->top_speed);
    }
}

/* Each of these sets the candidate shares after a policy and returns the seconds of a step that reduced replicas are
 * to keep to. */

static double keep(ek_governor *governor)
{
    ek_batch_split(governor->options.samples, governor->active, governor->options.replicas, governor->candidate);
    return slowest_step(governor, governor->candidate, true);
}

/* A reduced replica takes what it can in the step of the healthy ones. One whose present samples are within the band of
 * that keeps them. Each time it has had to give up samples that seemed to fit, more room is asked for the next time: a
 * wrong curve would otherwise have them come and go for ever. */
static double shrink(ek_governor *governor)
{
    uint32_t replicas = governor->options.replicas;
    ek_batch_shrink(governor->options.samples, governor->seconds, DBL_MAX, replicas, governor->candidate);
    double step_seconds = slowest_step(governor, governor->candidate, true);
    for (uint32_t i = 0; i < replicas; i++) {
        const governed *replica = &governor->replica[i];
        if (governor->active[i]) /* 0: takes its whole range */
            governor->seconds[i] = replica->healthy ? 0 : replica->seconds / replica->top_speed;
    }
    ek_batch_shrink(governor->options.samples, governor->seconds, step_seconds, replicas, governor->candidate);
    for (uint32_t i = 0; i < replicas && governor->decided; i++) {
        governed *replica = &governor->replica[i];
        double margin = band(governor, replica), room = margin * (1 << replica->retreats);
        double present = governor->seconds[i] * governor->shares[i].count;
        bool fits = present <= step_seconds * (1 + margin);
        bool one_more_fits = present + governor->seconds[i] <= step_seconds * (1 - room);
        if (governor->active[i] && fits && !one_more_fits)
            governor->candidate[i] = governor->shares[i];
        replica->retreats += !fits && replica->retreats < RETREATS_MOST;
    }
    return step_seconds;
}

/* Samples move only where that gains more than the widest band. The split that was left last is judged by what it took
 * and not by what it should take: with a wrong curve each of two might seem the better one while the other is tried. */
static double rebalance(ek_governor *governor)
{
    size_t bytes = governor->options.replicas * sizeof *governor->shares;
    ek_batch_rebalance(governor->options.samples, governor->seconds, governor->options.replicas, governor->candidate);
    double step_seconds = slowest_step(governor, governor->candidate, false);
    if (!governor->decided)
        return step_seconds;
    double margin = 0, present = slowest_step(governor, governor->shares, false), expected = step_seconds;
    for (uint32_t i = 0; i < governor->options.replicas; i++)
        if (governor->active[i])
            margin = fmax(margin, band(governor, &governor->replica[i]));
    if (memcmp(governor->candidate, governor->left, bytes) == 0)
        expected = fmax(expected, governor->left_seconds);
    if (expected < present * (1 - margin)) {
        memcpy(governor->left, governor->shares, bytes);
        governor->left_seconds = present;
        return step_seconds;
    }
    memcpy(governor->candidate, governor->shares, bytes);
    return present;
}

/* Gives a replica the least power with which `samples` take step_seconds, if that is outside the band of what it has,
 * and the samples. True if anything changed. */
static bool adopt(ek_governor *governor, uint32_t i, double step_seconds)
{
    governed *replica = &governor->replica[i];
    uint32_t before = governor->shares[i].count, samples = governor->candidate[i].count;
    double speed = 1;
    if (!replica->healthy && samples)
        speed = fmin(fmax(replica->seconds * samples / step_seconds, 1), replica->top_speed);
    bool moved = samples != before;
    bool corrected = !governor->decided || moved || fabs(speed / replica->speed - 1) > band(governor, replica);
    governor->shares[i] = governor->candidate[i];
    if (!corrected)
        return false;
    double slower = replica->speed / speed, larger = before ? (double)samples / before : 0;
    if (fabs(slower - 1) > RESTART_CHANGE || fabs(larger - 1) > RESTART_CHANGE)
        ek_estimate_restart(&replica->estimate);
    bool changed = moved || speed != replica->speed;
    replica->speed = speed;
    double power = ek_curve_power(&governor->options.curve, speed), default_watts = governor->options.default_watts;
    replica->watts = fmax(fmin(power * default_watts, replica->limit), default_watts);
    return changed;
}

/* `scale` makes seconds of what is only relative. */
static void predict(ek_governor *governor, double scale)
{
    for (uint32_t i = 0; i < governor->options.replicas; i++) {
        governed *replica = &governor->replica[i];
        if (governor->active[i])
            replica->predicted_seconds = scale * replica->seconds * governor->shares[i].count / replica->speed;
    }
}

/* True if anything changed. */
static bool decide(ek_governor *governor)
{
    update_seconds(governor);
    set_seconds(governor);
    double step_seconds = 0;
    switch (governor->options.policy) {
    case EK_BATCH_KEEP:
        step_seconds = keep(governor);
        break;
    case EK_BATCH_SHRINK:
        step_seconds = shrink(governor);
        break;
    case EK_BATCH_REBALANCE:
        step_seconds = rebalance(governor);
        break;
    }
    bool changed = false;
    for (uint32_t i = 0; i < governor->options.replicas; i++)
        if (governor->active[i])
            changed = adopt(governor, i, step_seconds) || changed;
    return changed;
}

/* -------------------------------------------------------------------------------------------- the interface */

double ek_governor_limit_watts(double cap_watts, double domain_watts, uint32_t degree)
{
    double each = domain_watts / degree;
    while (each * degree > domain_watts)
        each = nextafter(each, 0);
    return fmin(cap_watts, each);
}

void ek_governor_reset(ek_governor *governor, const ek_membership *membership)
{
    const ek_governor_options *options = &governor->options;
    uint32_t best_degree = 0;
    for (uint32_t i = 0; i < options->replicas; i++)
        best_degree =
            best_degree > ek_membership_degree(membership, i) ? best_degree : ek_membership_degree(membership, i);
    double whole = largest_share(membership, 0, EK_NONE);
    for (uint32_t i = 0; i < options->replicas; i++) {
        uint32_t degree = ek_membership_degree(membership, i);
        governed *replica = &governor->replica[i];
        *replica = (governed){.degree = degree, .healthy = degree == best_degree};
        governor->active[i] = degree > 0;
        governor->shares[i] = (ek_batch_share){0};
        if (degree == 0)
            continue;
        replica->work = largest_share(membership, ek_membership_level(membership, i), i) / whole;
        replica->limit = options->default_watts;
        replica->top_speed = replica->speed = 1;
        if (replica->healthy)
            continue;
        replica->limit = ek_governor_limit_watts(options->cap_watts, options->domain_watts, degree);
        replica->top_speed = ek_curve_speed(&options->curve, replica->limit / options->default_watts);
    }
    governor->steps = 0;
    governor->decided = governor->measured = false;
    governor->left_seconds = 0;
    decide(governor);
    predict(governor, governor->seconds_per_work); /* nothing is measured: seconds are the work */
    governor->decided = true;
}

/* What did not work may work at another pace. */
static void forget_failures(ek_governor *governor)
{
    governor->left_seconds = 0;
    for (uint32_t i = 0; i < governor->options.replicas; i++)
        governor->replica[i].retreats = 0;
}

void ek_governor_observe(ek_governor *governor, const double *busy_seconds)
{
    bool pace_changed = false, measured = false;
    for (uint32_t i = 0; i < governor->options.replicas; i++) {
        governed *replica = &governor->replica[i];
        uint32_t samples = governor->shares[i].count;
        if (!samples || !(busy_seconds[i] > 0 && busy_seconds[i] < INFINITY))
            continue;
        double seconds = busy_seconds[i] * replica->speed / samples;
        pace_changed = ek_estimate_add(&replica->estimate, seconds) || pace_changed;
        measured = true;
    }
    governor->steps = pace_changed ? 0 : governor->steps + 1;
    if (pace_changed)
        forget_failures(governor);
    bool due = (governor->steps & (governor->steps - 1)) == 0 || governor->steps % LOOK_STEPS == 0;
    if (!measured || !(due || !governor->measured))
        return;
    if (decide(governor) || !governor->measured)
        predict(governor, 1);
    governor->measured = true;
}

ek_decision ek_governor_decision(const ek_governor *governor, uint32_t i)
{
    const governed *replica = &governor->replica[i];
    return (ek_decision){replica->watts, governor->shares[i], replica->predicted_seconds};
}

double ek_governor_straggler_watts(const ek_governor *governor, uint32_t i, double slowdown, uint32_t stragglers)
{
    const ek_governor_options *options = &governor->options;
    const governed *replica = &governor->replica[i];
    double others = (replica->degree - stragglers) * replica->watts;
    double limit = ek_governor_limit_watts(options->cap_watts, options->domain_watts - others, stragglers);
    double wanted = ek_curve_power(&options->curve, replica->speed * slowdown) * options->default_watts;
    return fmax(fmin(wanted, limit), replica->watts);
}
