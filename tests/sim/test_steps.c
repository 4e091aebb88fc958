/* Tabulated step times: what must hold of any job, and what memory and power allow. */
#include <math.h>

#include "scenarios.h"
#include "sim/steps.h"

/* What the studies' promises rest on: deeper is never better, boosted never worse, and limits hold. */
static void check_monotone(const ek_scenario *scenario, const ek_steps *steps)
{
    assert_int_equal(steps->level[0].samples, steps->samples);
    assert_true(steps->level[0].pace == 1);
    assert_true(steps->rerouted[steps->replicas] == 1);
    for (uint32_t replicas = 1; replicas <= steps->replicas; replicas++)
        assert_true(steps->rerouted[replicas - 1] <= steps->rerouted[replicas]);
    for (uint32_t level = 0; level <= steps->levels; level++) {
        const ek_level_step *step = &steps->level[level];
        assert_true(step->boosted_samples >= step->samples);
        assert_true(step->watts >= scenario->hardware.tdp_watts && step->watts <= scenario->power.cap_watts);
        assert_true(step->speed_needed >= 1);
        if (level == 0)
            continue;
        assert_true(step->samples <= step[-1].samples && step->boosted_samples <= step[-1].boosted_samples);
        assert_true(step->pace <= step[-1].pace);
    }
}

static const char *const units[] = {"policies.units=whole", "policies.units=free"};

static void test_monotone(void **state)
{
    (void)state;
    static const char *const jobs[] = {"model.heads=16", "model.heads=64", "model.hidden=8192"};
    static const char *const budgets[] = {"power.domain_watts=2000", "power.domain_watts=2300",
                                          "power.domain_watts=9000"};
    for (int job = 0; job < 3; job++)
        for (int budget = 0; budget < 3; budget++)
            for (int unit = 0; unit < 2; unit++) {
                ek_scenario *scenario = SMALL(jobs[job], budgets[budget], units[unit], "parallel.min_tp=1");
                ek_steps *steps;
                assert_ok(ek_steps_create(&steps, scenario));
                assert_int_equal(steps->levels, 3);
                check_monotone(scenario, steps);
                ek_steps_destroy(steps);
                ek_scenario_destroy(scenario);
            }
}

static void test_published_job(void **state)
{
    (void)state;
    ek_scenario *scenario = READY("throughput", "parallel.min_tp=1");
    ek_steps *steps;
    assert_ok(ek_steps_create(&steps, scenario));
    check_monotone(scenario, steps);
    /* published: TP30 needs about 1.10 times the power, TP28 about 1.25 times (arXiv 2504.06095) */
    assert_true(fabs(ek_curve_power(&scenario->power.curve, steps->level[2].speed_needed) - 1.10) < 0.02);
    assert_true(fabs(ek_curve_power(&scenario->power.curve, steps->level[4].speed_needed) - 1.25) < 0.05);
    assert_true(fabs(steps->level[2].watts - 1100) < 20);
    for (uint32_t level = 1; level <= steps->levels; level++)
        assert_true(steps->level[level].watts * (32 - level) <= scenario->power.domain_watts);
    ek_steps_destroy(steps);
    ek_scenario_destroy(scenario);
}

/* Without room for more power NTP-PW is NTP. */
static void test_no_power(void **state)
{
    (void)state;
    ek_scenario *scenario = READY("throughput", "power.cap_watts=1000");
    ek_steps *steps;
    assert_ok(ek_steps_create(&steps, scenario));
    for (uint32_t level = 0; level <= steps->levels; level++) {
        assert_int_equal(steps->level[level].boosted_samples, steps->level[level].samples);
        assert_true(steps->level[level].watts == 1000);
    }
    ek_steps_destroy(steps);
    ek_scenario_destroy(scenario);
}

/* A degree at which a rank's share does not fit its memory is not used; a job that does not fit is refused. */
static void test_memory(void **state)
{
    (void)state;
    ek_perf *perf;
    ek_steps *steps;
    ek_perf_memory at[3], of_stage;
    ek_scenario *scenario = SMALL("parallel.min_tp=1");
    assert_ok(ek_perf_create(&perf, &scenario->model, &scenario->parallel, &scenario->hardware));
    for (uint32_t degree = 2; degree <= 4; degree++) {
        ek_perf_rank_memory(perf, 0, degree, &at[degree - 2]);
        ek_perf_rank_memory(perf, 1, degree, &of_stage);
        at[degree - 2].total = fmax(at[degree - 2].total, of_stage.total);
    }
    ek_perf_destroy(perf);
    scenario->hardware.memory_bytes = at[1].total; /* of TP3 */
    assert_ok(ek_steps_create(&steps, scenario));
    assert_int_equal(steps->levels, 1);
    ek_steps_destroy(steps);
    scenario->hardware.memory_bytes = 0.99 * at[2].total;
    assert_int_equal(ek_steps_create(&steps, scenario), EK_INVALID);
    ek_scenario_destroy(scenario);
}

static double seconds_of(const ek_scenario *scenario, const ek_perf *perf, uint32_t level, double speed,
                         uint32_t samples)
{
    ek_perf_time time;
    const uint32_t degree = scenario->parallel.tp - level;
    assert_ok(ek_perf_step(perf, &(ek_perf_replica){.degrees = &degree, .speeds = &speed, .samples = samples}, &time));
    return time.total;
}

/* Expert-parallel replicas: what they are tabulated with fits into a whole one's step, and one sample more does not. */
static void test_experts(void **state)
{
    (void)state;
    static const char *const experts[] = {"model.experts=224", "model.experts=128"};
    for (int i = 0; i < 2; i++) {
        ek_scenario *scenario = READY("experts", experts[i], "parallel.min_tp=26");
        ek_perf *perf;
        ek_steps *steps;
        assert_ok(ek_perf_create(&perf, &scenario->model, &scenario->parallel, &scenario->hardware));
        assert_ok(ek_steps_create(&steps, scenario));
        assert_int_equal(steps->levels, 6);
        check_monotone(scenario, steps);
        double pace = seconds_of(scenario, perf, 0, 1, 256);
        assert_true(seconds_of(scenario, perf, 4, 1, 256) > 1.1 * pace);
        const ek_level_step *deepest = &steps->level[6], *reduced = &steps->level[4];
        assert_true(seconds_of(scenario, perf, 6, 1, deepest->samples) <= pace);
        assert_true(seconds_of(scenario, perf, 6, 1, deepest->samples + 1) > pace);
        double speed = ek_curve_speed(&scenario->power.curve, reduced->watts / scenario->hardware.tdp_watts);
        assert_true(reduced->boosted_samples > reduced->samples && reduced->watts > scenario->hardware.tdp_watts);
        assert_true(seconds_of(scenario, perf, 4, speed, reduced->boosted_samples) <= pace * (1 + 1e-9));
        assert_true(reduced->watts * 28 <= scenario->power.domain_watts);
        /* 28 ranks with eight of 224 experts each: the four extras hand over all of theirs, seven, in 48 layers */
        if (i == 0)
            assert_true(reduced->reshard_bytes == 2.0 * 4 * 7 * 48 * 3 * 5120 * 1536);
        assert_string_equal(ek_policy_name(scenario, EK_POLICY_NTP), "nep");
        assert_string_equal(ek_policy_name(scenario, EK_POLICY_DROP), "dp-drop");
        ek_steps_destroy(steps);
        ek_perf_destroy(perf);
        ek_scenario_destroy(scenario);
    }
}

/* The same on the small job, with experts that no degree divides, in every kind of units. */
static void test_small_experts(void **state)
{
    (void)state;
    static const char *const batches[] = {"batch.global=32", "batch.global=64", "batch.global=148"};
    for (int unit = 0; unit < 2; unit++)
        for (int batch = 0; batch < 3; batch++) {
            ek_scenario *scenario = SMALL("parallel.mode=ep", "model.experts=13", "model.top_k=2", units[unit],
                                          batches[batch], "parallel.min_tp=1", "power.domain_watts=9000");
            ek_steps *steps;
            assert_ok(ek_steps_create(&steps, scenario));
            assert_int_equal(steps->levels, 3);
            check_monotone(scenario, steps);
            ek_steps_destroy(steps);
            ek_scenario_destroy(scenario);
        }
}

/* The job retires a replica that costs it more than it brings. */
static void test_retires(void **state)
{
    (void)state;
    ek_level_step levels[] = {{1, 1, 8, 8, 1, 1, 0}, {1.01, 1 / 1.01, 7, 8, 1, 1, 0}, {2, 0.5, 1, 1, 1, 1, 0}};
    double rerouted[] = {0, 0.25, 0.5, 0.75, 1}, throughput[EK_POLICIES];
    const ek_steps steps = {4, 1, 3, 2, 8, levels, rerouted};
    uint32_t deepest[EK_POLICIES];
    ek_steps_throughput(&steps, (const uint32_t[]){0, 1, 1, 0}, 3, throughput, deepest);
    assert_true(throughput[EK_POLICY_DROP] == 0.5 && throughput[EK_POLICY_REROUTE] == 0.5);
    assert_true(fabs(throughput[EK_POLICY_NTP] - 23.0 / 32 / 1.01) < 1e-12);
    assert_true(fabs(throughput[EK_POLICY_NTP_PW] - 24.0 / 32 / 1.01) < 1e-12);
    assert_int_equal(deepest[EK_POLICY_NTP], 1);
    assert_int_equal(deepest[EK_POLICY_DROP], 0);
    ek_steps_throughput(&steps, (const uint32_t[]){0, 0, 3, 1}, 3, throughput, deepest);
    for (int policy = 0; policy < EK_POLICIES; policy++)
        assert_true(throughput[policy] == 0.0 || policy >= EK_POLICY_NTP);
    assert_true(throughput[EK_POLICY_NTP] == 3.0 / 32 / 2); /* slow is better than nothing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_monotone),      cmocka_unit_test(test_published_job), cmocka_unit_test(test_no_power),
        cmocka_unit_test(test_memory),        cmocka_unit_test(test_retires),       cmocka_unit_test(test_experts),
        cmocka_unit_test(test_small_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
