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

/* One step and what the governor makes of it. */
static void run_step(simulation *world)
{
    double reported[REPLICAS_MOST] = {0};
    ek_decision before[REPLICAS_MOST];
    world->step++;
    for (uint32_t i = 0; i < world->options.replicas; i++) {
        before[i] = ek_governor_decision(world->governor, i);
        if (world->seconds[i] > 0)
            reported[i] = busy(world, i, world->noise);
    }
    ek_governor_observe(world->governor, reported);
    check_limits(world);
    bool changed = false;
    for (uint32_t i = 0; i < world->options.replicas; i++) {
        ek_decision after = ek_governor_decision(world->governor, i);
        changed = changed || after.watts != before[i].watts || after.share.count != before[i].share.count;
    }
    world->changes += changed;
    world->changed_at = changed ? (uint32_t)world->step : world->changed_at;
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
        uint32_t next = 0;
        for (uint32_t i = 1; i < world->options.replicas; i++)
            if (world->seconds[i] > 0 &&
                powered_step(world, i, samples[i] + 1) < powered_step(world, next, samples[next] + 1))
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
        double least = (world->fixed + world->seconds[i] * decision.share.count) / top_speed(world, i);
        worst = fmax(worst, seconds / fmax(pace, shrink && decision.share.count ? 0 : least) - 1);
        if (decision.watts > TDP)
            worst = fmax(worst, 1 - seconds / pace);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_to_seven_by_power),
        cmocka_unit_test(four_to_three_by_power_and_samples),
        cmocka_unit_test(converges_within_five_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
