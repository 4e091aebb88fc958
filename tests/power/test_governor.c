/* The governor against a simulated job: each replica has true seconds per sample that the governor does not know, what
 * it reports is that at its power and samples, with noise. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "power/governor.h"

#define REPLICAS_MOST 8
#define N_MOST 72
#define TDP 700.0

typedef struct simulation {
    ek_job job;
    ek_unit_group groups[3];
    ek_governor_options options;
    ek_membership *membership;
    ek_governor *governor;
    double seconds[REPLICAS_MOST]; /* the truth: of a sample at the default limit; 0: retired */
    double fixed;                  /* and of every step, whatever its samples */
    double gain;                   /* true speed is the curve's to this power */
    double noise;
    uint64_t seed, draws, step;
    uint32_t changes, changed_at; /* decisions that changed since the reset, and the last step after which they did */
} simulation;

/* ------------------------------------------------------------------------------------------- the world */

static double limit_of(const simulation *world, uint32_t replica)
{
    return fmin(world->options.cap_watts,
                world->options.domain_watts / ek_membership_degree(world->membership, replica));
}

static bool healthy(const simulation *world, uint32_t replica)
{
    for (uint32_t other = 0; other < world->options.replicas; other++)
        if (ek_membership_degree(world->membership, other) > ek_membership_degree(world->membership, replica))
            return false;
    return true;
}

/* The truth about a replica by its units: `bias` shifts the weight between the unit groups, so that the governor's
 * guess from their bytes is off. */
static double true_seconds(const simulation *world, uint32_t replica, const double bias[3])
{
    double slowest = 0;
    uint32_t ranks[N_MOST], degree = ek_membership_replica(world->membership, replica, ranks);
    for (uint32_t i = 0; i < degree; i++) {
        double seconds = 0;
        for (uint32_t group = 0; group < world->job.group_count; group++) {
            uint32_t units;
            ek_membership_units(world->membership, ranks[i], group, &units);
            seconds += 1e-9 * units * (double)world->groups[group].unit_bytes * bias[group];
        }
        slowest = fmax(slowest, seconds);
    }
    return slowest;
}

static double busy(const simulation *world, uint32_t replica, double noise)
{
    ek_decision decision = ek_governor_decision(world->governor, replica);
    double speed = pow(ek_curve_speed(&world->options.curve, decision.watts / TDP), world->gain);
    double seconds = world->fixed + world->seconds[replica] * decision.share.count;
    return seconds / speed * (1 + noise * ek_random_normal(world->seed, world->step, replica));
}

/* What must hold after every decision, whatever was measured. */
static void check_limits(const simulation *world)
{
    uint32_t next = 0, even = world->options.samples / world->options.replicas;
    for (uint32_t i = 0; i < world->options.replicas; i++) {
        ek_decision decision = ek_governor_decision(world->governor, i);
        uint32_t degree = ek_membership_degree(world->membership, i);
        if (degree == 0) {
            assert_true(decision.watts == 0 && decision.share.count == 0);
            continue;
        }
        assert_true(decision.watts >= TDP && decision.watts <= world->options.cap_watts);
        assert_true(degree * decision.watts <= world->options.domain_watts);
        assert_true(!healthy(world, i) || decision.watts == TDP);
        if (world->options.policy == EK_BATCH_SHRINK) {
            assert_true(decision.share.first >= next && decision.share.count <= even + 1);
            assert_true(!healthy(world, i) || decision.share.count >= even);
            next = decision.share.first;
        } else {
            assert_int_equal(decision.share.first, next);
        }
        next += decision.share.count;
    }
    if (world->options.policy != EK_BATCH_SHRINK)
        assert_int_equal(next, world->options.samples);
}

/* What the governor makes of a step. */
static void observe(simulation *world, const double *reported)
{
    ek_decision before[REPLICAS_MOST];
    bool changed = false;
    for (uint32_t i = 0; i < world->options.replicas; i++)
        before[i] = ek_governor_decision(world->governor, i);
    ek_governor_observe(world->governor, reported);
    check_limits(world);
    for (uint32_t i = 0; i < world->options.replicas; i++) {
        ek_decision after = ek_governor_decision(world->governor, i);
        changed = changed || after.watts != before[i].watts || after.share.count != before[i].share.count;
    }
    world->changes += changed;
    world->changed_at = changed ? (uint32_t)world->step : world->changed_at;
}

/* What the replicas report for the next step; 0 for a retired one. */
static void report(simulation *world, double *reported)
{
    world->step++;
    for (uint32_t i = 0; i < world->options.replicas; i++)
        reported[i] = world->seconds[i] > 0 ? busy(world, i, world->noise) : 0;
}

static void run_step(simulation *world)
{
    double reported[REPLICAS_MOST];
    report(world, reported);
    observe(world, reported);
}

static void run_steps(simulation *world, uint32_t steps)
{
    for (uint32_t step = 0; step < steps; step++)
        run_step(world);
}

static void reset(simulation *world)
{
    world->step = world->changes = world->changed_at = 0;
    ek_governor_reset(world->governor, world->membership);
    check_limits(world);
}

static void lose(simulation *world, const uint32_t *lost, uint32_t count)
{
    ek_membership *next;
    assert_ok(ek_membership_lose(world->membership, lost, count, &next));
    ek_membership_destroy(world->membership);
    world->membership = next;
}

/* Ready but for options and reset. */
static void build(simulation *world, uint32_t replicas, uint32_t base_degree, uint32_t samples, ek_batch_policy policy)
{
    world->job = (ek_job){.replicas = replicas, .base_degree = base_degree, .groups = world->groups, .group_count = 3};
    world->options = (ek_governor_options){replicas,           base_degree, samples,   policy,
                                           ek_curve_default(), TDP,         1.3 * TDP, base_degree * TDP};
    world->gain = 1;
    assert_ok(ek_membership_create(&world->membership, &world->job));
}

static void start(simulation *world, const double bias[3])
{
    for (uint32_t i = 0; i < world->options.replicas; i++)
        world->seconds[i] = ek_membership_degree(world->membership, i) ? true_seconds(world, i, bias) : 0;
    assert_ok(ek_governor_create(&world->governor, &world->options));
    reset(world);
}

static void end(simulation *world)
{
    ek_governor_destroy(world->governor);
    ek_membership_destroy(world->membership);
}

/* A job of TP8 or so, whose units all divide freely. */
static void fine_world(simulation *world, uint32_t replicas, uint32_t base_degree, uint32_t samples,
                       ek_batch_policy policy)
{
    *world = (simulation){.groups = {{"attention", 840, 4000}, {"ffn", 8400, 1000}, {"vocab", 8400, 100}}};
    build(world, replicas, base_degree, samples, policy);
}

static const double unbiased[3] = {1, 1, 1};

/* A random curve up to 1.3 or more. */
static ek_curve random_curve(uint64_t seed)
{
    ek_curve_point points[9] = {{1, 1}};
    uint32_t count = 2 + ek_random_u64(seed, 0, 0) % 8;
    for (uint32_t i = 1; i < count; i++) {
        double run = (0.3 + 0.4 * ek_random_uniform(seed, 1, 0)) / (count - 1);
        double rise = run * (0.2 + 0.8 * ek_random_uniform(seed, 2, i));
        points[i] = (ek_curve_point){points[i - 1].power + run, points[i - 1].speed + rise};
    }
    ek_curve curve;
    assert_ok(ek_curve_create(&curve, points, count));
    return curve;
}

static uint32_t draw(simulation *world, uint32_t below)
{
    return (uint32_t)(ek_random_u64(world->seed, 7, world->draws++) % below);
}

/* Random shape, units (few: a device has one or two), failures, curve, budget; guesses that are off. */
static void random_world(simulation *world, uint64_t seed, ek_batch_policy policy)
{
    memset(world, 0, sizeof *world);
    world->seed = seed;
    bool small = draw(world, 3) > 0;
    uint32_t n = 2 + draw(world, small ? 7 : N_MOST - 1), replicas = 2 + draw(world, REPLICAS_MOST - 1);
    uint32_t attention = n + draw(world, 3 * n), ffn = 4 * n + draw(world, 12 * n), vocab = 8 * n + draw(world, 20 * n);
    uint32_t samples = 4 * replicas + draw(world, 60 * replicas);
    world->groups[0] = (ek_unit_group){"attention", attention, 40000};
    world->groups[1] = (ek_unit_group){"ffn", ffn, 9000};
    world->groups[2] = (ek_unit_group){"vocab", vocab, 1000};
    build(world, replicas, n, samples, policy);
    world->options.curve = random_curve(seed);
    world->options.domain_watts = n * TDP * (1 + 0.3 * ek_random_uniform(seed, 8, 0));
    uint32_t lost[N_MOST], lost_count = draw(world, n < 8 ? n : 8);
    for (uint32_t i = 0; i < lost_count; i++)
        lost[i] = n + draw(world, (replicas - 1) * n); /* replica 0 stays whole */
    lose(world, lost, lost_count);
    double bias[3];
    for (uint32_t group = 0; group < 3; group++)
        bias[group] = 0.7 + 0.6 * ek_random_uniform(seed, 9, group);
    start(world, bias);
}

/* ---------------------------------------------------------------------------------- what should come out */

static double top_speed(const simulation *world, uint32_t replica)
{
    return pow(ek_curve_speed(&world->options.curve, limit_of(world, replica) / TDP), world->gain);
}

/* A replica's step with so many samples where power does what it may: a healthy one's at the default limit, a reduced
 * one's at its limit, if it need not be slowed to the pace of the healthy. */
static double powered_step(const simulation *world, uint32_t replica, uint32_t samples)
{
    double healthy_seconds = INFINITY, seconds = world->seconds[replica];
    for (uint32_t i = 0; i < world->options.replicas; i++)
        if (world->seconds[i] > 0 && healthy(world, i))
            healthy_seconds = fmin(healthy_seconds, world->seconds[i]);
    if (healthy(world, replica))
        return world->fixed + seconds * samples;
    return fmax(world->fixed + healthy_seconds * samples,
                (world->fixed + seconds * samples) / top_speed(world, replica));
}

/* The shortest step that moving samples can give: they are handed out one by one to whoever is done first. */
static double best_step(const simulation *world)
{
    uint32_t samples[REPLICAS_MOST] = {0};
    double slowest = 0;
    for (uint32_t taken = 0; taken < world->options.samples; taken++) {
        uint32_t next = EK_NONE;
        for (uint32_t i = 0; i < world->options.replicas; i++)
            if (world->seconds[i] > 0 && (next == EK_NONE || powered_step(world, i, samples[i] + 1) <
                                                                 powered_step(world, next, samples[next] + 1)))
                next = i;
        slowest = fmax(slowest, powered_step(world, next, ++samples[next]));
    }
    return slowest;
}

/* How far the true steps are from the best that the policy allows, relative: above 0 where a reduced replica holds up
 * the others though it need not, has more power than it needs or fewer samples than it could do. */
static double worst_excess(const simulation *world)
{
    const ek_governor_options *options = &world->options;
    bool rebalance = options->policy == EK_BATCH_REBALANCE, shrink = options->policy == EK_BATCH_SHRINK;
    double pace = 0;
    for (uint32_t i = 0; i < options->replicas; i++)
        if (world->seconds[i] > 0 && (healthy(world, i) || rebalance))
            pace = fmax(pace, busy(world, i, 0));
    double worst = rebalance ? pace / best_step(world) - 1 : 0;
    for (uint32_t i = 0; i < options->replicas; i++) {
        ek_decision decision = ek_governor_decision(world->governor, i);
        if (!(world->seconds[i] > 0) || healthy(world, i))
            continue;
        uint32_t even = (i + 1) * options->samples / options->replicas - i * options->samples / options->replicas;
        double seconds = busy(world, i, 0), one_more = decision.share.count + 1;
        double at_default = world->fixed + world->seconds[i] * decision.share.count;
        double at_limit = at_default / top_speed(world, i);
        worst = fmax(worst, seconds / fmax(pace, shrink && decision.share.count ? 0 : at_limit) - 1);
        worst = fmax(worst, 1 - seconds / fmin(pace, at_default));
        if (shrink && decision.share.count < even)
            worst = fmax(worst, 1 - (world->fixed + world->seconds[i] * one_more) / top_speed(world, i) / pace);
    }
    return worst;
}

/* ---------------------------------------------------------------------------------------------- the tests */

/* TP8+TP8 becomes TP8+TP7, with a budget of 1.15 x N x TDP: power does it alone. */
static void eight_to_seven_by_power(void **state)
{
    (void)state;
    simulation world;
    fine_world(&world, 2, 8, 32, EK_BATCH_KEEP);
    world.options.domain_watts = 1.15 * 8 * TDP;
    lose(&world, (uint32_t[]){10}, 1);
    start(&world, (double[]){1.1, 1, 1});
    run_steps(&world, 5);
    ek_decision reduced = ek_governor_decision(world.governor, 1);
    assert_int_equal(reduced.share.count, 16);
    assert_true(fabs(busy(&world, 1, 0) / busy(&world, 0, 0) - 1) < 0.01);
    double needed = ek_curve_power(&world.options.curve, world.seconds[1] / world.seconds[0]) * TDP;
    assert_true(fabs(reduced.watts / needed - 1) < 0.01);
    assert_true(fabs(reduced.predicted_seconds / busy(&world, 1, 0) - 1) < 0.005);
    print_message(
        "8 -> 7 at 1.15 x N x TDP: %.1f W, the curve says %.1f W; steps of %.4f and %.4f s, %.4f s predicted\n",
        reduced.watts, needed, busy(&world, 0, 0), busy(&world, 1, 0), reduced.predicted_seconds);
    run_steps(&world, 500);
    assert_in_range(world.changed_at, 0, 5);
    end(&world);
}

/* 4 -> 3 in a budget of N x TDP: power gives what it can, samples do the rest. */
static void four_to_three_by_power_and_samples(void **state)
{
    (void)state;
    static const ek_batch_policy policies[3] = {EK_BATCH_KEEP, EK_BATCH_SHRINK, EK_BATCH_REBALANCE};
    static const uint32_t samples[3][2] = {{16, 16}, {16, 13}, {17, 15}};
    for (int i = 0; i < 3; i++) {
        simulation world;
        fine_world(&world, 2, 4, 32, policies[i]);
        lose(&world, (uint32_t[]){5}, 1);
        start(&world, unbiased);
        run_steps(&world, 5);
        ek_decision whole = ek_governor_decision(world.governor, 0), reduced = ek_governor_decision(world.governor, 1);
        assert_int_equal(whole.share.count, samples[i][0]);
        assert_int_equal(reduced.share.count, samples[i][1]);
        print_message("4 -> 3 at N x TDP, %s: %u + %u samples, %.1f W; steps of %.4f and %.4f s\n",
                      (const char *[]){"keep", "shrink", "rebalance"}[i], whole.share.count, reduced.share.count,
                      reduced.watts, busy(&world, 0, 0), busy(&world, 1, 0));
        assert_true(i == 0 ? reduced.watts == 1.3 * TDP : worst_excess(&world) < 0.01);
        end(&world);
    }
}

static const ek_batch_policy all_policies[] = {EK_BATCH_KEEP, EK_BATCH_SHRINK, EK_BATCH_REBALANCE};

/* Without noise: within 1 % after 5 steps, and then nothing changes any more. */
static void converges_within_five_steps(void **state)
{
    (void)state;
    for (uint64_t trial = 0; trial < 600; trial++) {
        simulation world;
        random_world(&world, trial, all_policies[trial % 3]);
        run_steps(&world, 5);
        double excess = worst_excess(&world);
        if (excess > 0.01)
            fail_msg("trial %d, policy %d: %.2f %% off after 5 steps", (int)trial, (int)(trial % 3), 100 * excess);
        run_steps(&world, 300);
        assert_in_range(world.changed_at, 0, 5);
        end(&world);
    }
}

/* A curve that is wrong (true speed is the curve's to the power 0.7 to 1.3) and a fixed part in every step, which makes
 * measurements depend on what was decided: corrected step by step, and no cycle. */
static void wrong_curves_are_corrected(void **state)
{
    (void)state;
    for (uint64_t trial = 0; trial < 300; trial++) {
        simulation world;
        random_world(&world, 100000 + trial, all_policies[trial % 3]);
        world.gain = 0.7 + 0.6 * ek_random_uniform(5, trial, 0);
        world.fixed =
            0.15 * ek_random_uniform(6, trial, 0) * world.seconds[0] * world.options.samples / world.options.replicas;
        run_steps(&world, 5);
        assert_true(worst_excess(&world) < 0.04);
        run_steps(&world, 59);
        assert_true(worst_excess(&world) < 0.015);
        uint32_t changes = world.changes;
        run_steps(&world, 640);
        assert_in_range(world.changes - changes, 0, 1);
        end(&world);
    }
}

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* With noise of 0.5 to 3 %: five steps cannot tell more than the noise lets them. 95 of 100 jobs are within 1 % and
 * 1.5 standard deviations after 5 steps, and within 1 % and a fifth of one after 500; it decides at most 7 times in the
 * first 64 steps and then hardly ever. */
static void noise_is_averaged(void **state)
{
    (void)state;
    enum { TRIALS = 150 };
    for (int level = 0; level < 3; level++) {
        double noise = (const double[]){0.005, 0.01, 0.03}[level], early[TRIALS], late[TRIALS];
        uint32_t late_changes = 0;
        for (uint64_t trial = 0; trial < TRIALS; trial++) {
            simulation world;
            random_world(&world, 1000 * level + trial, all_policies[trial % 3]);
            world.noise = noise;
            run_steps(&world, 5);
            early[trial] = worst_excess(&world);
            run_steps(&world, 59);
            assert_in_range(world.changes, 0, 7);
            late_changes -= world.changes;
            run_steps(&world, 436);
            late_changes += world.changes;
            late[trial] = worst_excess(&world);
            end(&world);
        }
        qsort(early, TRIALS, sizeof *early, compare_doubles);
        qsort(late, TRIALS, sizeof *late, compare_doubles);
        size_t most = TRIALS * 95 / 100;
        print_message(
            "noise %.1f %%: off by %.2f %% after 5 steps, %.2f %% after 500 (95th percentiles); %u changes in "
            "%d x 436 later steps\n",
            100 * noise, 100 * early[most], 100 * late[most], late_changes, TRIALS);
        assert_true(early[most] < 0.01 + 1.5 * noise);
        assert_true(late[most] < 0.01 + 0.2 * noise);
        assert_true(late_changes < TRIALS / 3);
    }
}

/* A reduced replica slows by 20 % and recovers, a healthy one does; one single step is twice as long. */
static void real_changes_are_followed(void **state)
{
    (void)state;
    for (uint64_t trial = 0; trial < 150; trial++) {
        simulation world;
        random_world(&world, 200000 + trial, all_policies[trial % 3]);
        world.noise = 0.002;
        run_steps(&world, 100);
        uint32_t last = world.options.replicas - 1;
        for (int event = 0; event < 4; event++) {
            double *seconds = &world.seconds[event < 2 ? last : 0];
            *seconds *= event % 2 ? 1 / 1.2 : 1.2;
            run_steps(&world, 8);
            double excess = worst_excess(&world);
            if (excess > 0.015)
                fail_msg("trial %d, event %d: %.2f %% off 8 steps later", (int)trial, event, 100 * excess);
            run_steps(&world, 60);
        }
        world.changes = 0;
        run_steps(&world, 60);
        world.seconds[last] *= 2;
        run_step(&world);
        world.seconds[last] /= 2;
        run_steps(&world, 20);
        assert_in_range(world.changes, 0, 1);
        end(&world);
    }
}

static void assert_same_decisions(const ek_governor *a, const ek_governor *b, uint32_t replicas, bool predictions)
{
    for (uint32_t i = 0; i < replicas; i++) {
        ek_decision left = ek_governor_decision(a, i), right = ek_governor_decision(b, i);
        assert_true(left.watts == right.watts);
        assert_true(!predictions || left.predicted_seconds == right.predicted_seconds);
        assert_memory_equal(&left.share, &right.share, sizeof left.share);
    }
}

/* A rank that joins at a reset has seen nothing of what was before, and decides the same bits from then on. It alone
 * has no prediction yet. */
static void only_what_came_since_the_reset_counts(void **state)
{
    (void)state;
    for (uint64_t trial = 0; trial < 60; trial++) {
        simulation world;
        random_world(&world, 300000 + trial, all_policies[trial % 3]);
        world.noise = 0.02;
        run_steps(&world, 70);
        uint32_t lost = world.options.base_degree * world.options.replicas - 1 - draw(&world, 2);
        lose(&world, &lost, 1);
        for (uint32_t i = 0; i < world.options.replicas; i++)
            world.seconds[i] = ek_membership_degree(world.membership, i) ? true_seconds(&world, i, unbiased) : 0;
        reset(&world);
        ek_governor *joined;
        assert_ok(ek_governor_create(&joined, &world.options));
        ek_governor_reset(joined, world.membership);
        assert_same_decisions(world.governor, joined, world.options.replicas, false);
        assert_true(ek_governor_decision(joined, 0).predicted_seconds == 0);
        for (int step = 0; step < 40; step++) {
            double reported[REPLICAS_MOST];
            report(&world, reported);
            observe(&world, reported);
            ek_governor_observe(joined, reported);
            assert_same_decisions(world.governor, joined, world.options.replicas, true);
        }
        ek_governor_destroy(joined);
        end(&world);
    }
}

/* Retired replicas get nothing: under shrink nobody takes their samples, else the others do. Where no replica is whole
 * the least reduced ones set the pace, at the default limit. */
static void retired_and_no_whole_replica(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        simulation world;
        fine_world(&world, 3, 4, 48, all_policies[i]);
        world.options.domain_watts = 4 * 1.3 * TDP;
        lose(&world, (uint32_t[]){0, 1, 2, 3, 4, 9, 10}, 7); /* leaves 0, 3 and 2 */
        start(&world, unbiased);
        run_steps(&world, 5);
        ek_decision least = ek_governor_decision(world.governor, 1), most = ek_governor_decision(world.governor, 2);
        assert_true(least.watts == TDP && most.watts > TDP);
        uint32_t taken = least.share.count + most.share.count;
        assert_true(i == 1 ? least.share.first == 16 && least.share.count == 16 && most.share.count < 16 : taken == 48);
        assert_true(worst_excess(&world) < 0.01);
        end(&world);
    }
}

/* A job without control over power: the cap is the default limit. */
static void samples_alone(void **state)
{
    (void)state;
    simulation world;
    fine_world(&world, 2, 4, 28, EK_BATCH_REBALANCE);
    world.options.cap_watts = TDP;
    lose(&world, (uint32_t[]){5}, 1);
    start(&world, unbiased);
    assert_int_equal(ek_governor_decision(world.governor, 0).share.count, 16);
    assert_int_equal(ek_governor_decision(world.governor, 1).share.count, 12);
    assert_true(ek_governor_decision(world.governor, 1).predicted_seconds == 0);
    run_step(&world);
    assert_true(fabs(ek_governor_decision(world.governor, 1).predicted_seconds / busy(&world, 1, 0) - 1) < 1e-9);
    end(&world);
}

/* With a reset it is foretold at once what the next step will take, from what was measured before, also if that is two
 * resets ago. */
static void predictions_outlive_resets(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        simulation world;
        fine_world(&world, 2, 8, 32, all_policies[i]);
        world.options.domain_watts = 1.15 * 8 * TDP;
        start(&world, unbiased);
        assert_true(ek_governor_decision(world.governor, 1).predicted_seconds == 0);
        run_steps(&world, 3);
        for (uint32_t lost = 10; lost < 12; lost++) {
            lose(&world, &lost, 1);
            world.seconds[1] = true_seconds(&world, 1, unbiased);
            reset(&world);
            for (uint32_t r = 0; r < 2; r++)
                assert_true(fabs(ek_governor_decision(world.governor, r).predicted_seconds / busy(&world, r, 0) - 1) <
                            1e-9);
        }
        end(&world);
    }
}

static void stragglers_get_what_is_left(void **state)
{
    (void)state;
    simulation world;
    fine_world(&world, 2, 4, 32, EK_BATCH_KEEP);
    start(&world, unbiased);
    /* a whole domain at N x TDP has nothing to spare */
    assert_true(ek_governor_straggler_watts(world.governor, 0, 1.2, 1) == TDP);
    end(&world);

    fine_world(&world, 2, 4, 32, EK_BATCH_KEEP);
    world.options.domain_watts = 4 * TDP + 200;
    start(&world, unbiased);
    double one = ek_governor_straggler_watts(world.governor, 0, 1.1, 1);
    assert_true(fabs(one - ek_curve_power(&world.options.curve, 1.1) * TDP) < 1e-9);
    assert_true(fabs(ek_governor_straggler_watts(world.governor, 0, 1.1, 2) - (TDP + 100)) < 1e-9);
    assert_true(fabs(ek_governor_straggler_watts(world.governor, 0, 2, 1) - (TDP + 200)) < 1e-9);
    end(&world);

    fine_world(&world, 2, 4, 32, EK_BATCH_KEEP);
    world.options.domain_watts = 4 * TDP + 1000;
    start(&world, unbiased);
    assert_true(ek_governor_straggler_watts(world.governor, 0, 2, 1) == 1.3 * TDP);
    end(&world);
}

static void assert_refused(ek_governor_options options, const char *text)
{
    ek_governor *governor = NULL;
    assert_int_equal(ek_governor_create(&governor, &options), EK_INVALID);
    assert_null(governor);
    assert_string_equal(ek_error(), text);
}

static void bad_options_are_refused(void **state)
{
    (void)state;
    ek_governor_options good = {2, 8, 32, EK_BATCH_KEEP, ek_curve_default(), TDP, 0, 0}, bad = good;
    ek_governor *governor;
    assert_ok(ek_governor_create(&governor, &good));
    ek_governor_destroy(governor);
    ek_governor_destroy(NULL);
    bad.default_watts = 0;
    assert_refused(bad, "power.default_watts: found 0; a number above 0 is needed");
    bad = good;
    bad.cap_watts = 600;
    assert_refused(bad,
                   "power.cap_watts: found 600; 700, the default limit, to 910, where power.curve ends, is allowed");
    bad.cap_watts = 950;
    assert_refused(bad,
                   "power.cap_watts: found 950; 700, the default limit, to 910, where power.curve ends, is allowed");
    bad = good;
    bad.domain_watts = 5599;
    assert_refused(bad, "power.domain_watts: found 5599; at least 5600, 8 devices at their default limit, is needed");
    bad.domain_watts = NAN;
    assert_refused(bad, "power.domain_watts: found nan; at least 5600, 8 devices at their default limit, is needed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_to_seven_by_power),
        cmocka_unit_test(four_to_three_by_power_and_samples),
        cmocka_unit_test(converges_within_five_steps),
        cmocka_unit_test(wrong_curves_are_corrected),
        cmocka_unit_test(noise_is_averaged),
        cmocka_unit_test(real_changes_are_followed),
        cmocka_unit_test(only_what_came_since_the_reset_counts),
        cmocka_unit_test(retired_and_no_whole_replica),
        cmocka_unit_test(samples_alone),
        cmocka_unit_test(predictions_outlive_resets),
        cmocka_unit_test(stragglers_get_what_is_left),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
