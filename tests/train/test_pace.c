/* The reduced replica kept in step, on emulated devices: within what bounds power rises and that it comes back down,
 * what each batch policy does to samples and to the curve, and which settings are refused. How exactly the governor
 * meets the healthy replicas' time is tested on the governor itself (tests/power). */
#include <math.h>
#include <string.h>

#include "power/curve.h"
#include "testing.h"
#include "train/pace.h"
#include "train/training.h"

#define DEFAULT_WATTS 700.0
#define EMULATED "power.backend=emulated", "power.default_watts=700"
#define KILL_AT 12
#define KILLED .faults = {{.step = KILL_AT, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD}}, .fault_count = 1

/* In the step of the kill decisions come from the units that each device holds; later from measured times, which are
 * noisy here, so that less is certain. */

static training_result one_rank;

static int train_on_one_rank(void **state)
{
    (void)state;
    run_training(&(training_spec){.base = "small", .set = {"parallel.dp=1", "parallel.tp=1"}}, &one_rank);
    return one_rank.status == EK_OK ? 0 : -1;
}

/* In every step whole replicas are at the default limit, reduced ones between it and `most_watts` each, and never above
 * what the domain may have together. Returns how many steps a reduced replica had more than the default in. */
static size_t check_watts(const training_result *result, uint32_t replicas, uint32_t base_degree, double domain_watts)
{
    size_t raised = 0;
    for (size_t step = 1; step <= result->steps; step++)
        for (uint32_t r = 0; r < replicas; r++) {
            const training_replica *replica = &result->replicas[step][r];
            if (replica->degree == base_degree)
                assert_true(replica->watts == DEFAULT_WATTS);
            assert_true(replica->watts >= DEFAULT_WATTS);
            assert_true(replica->watts <= 1.3 * DEFAULT_WATTS + 1e-9);
            assert_true(replica->watts * replica->degree <= domain_watts + 1e-9);
            raised += replica->watts > DEFAULT_WATTS;
        }
    return raised;
}

static void test_power_rises_and_comes_back(void **state)
{
    (void)state;
    training_result result;
    run_training(&(training_spec){.base = "small", .set = {EMULATED}, KILLED, .rejoins = {{25, 1, 2}}}, &result);
    assert_same_curve(&one_rank, &result, 1e-5);
    assert_string_equal(result.degrees, "4 4");
    size_t reduced = 0;
    for (size_t step = 1; step <= result.steps; step++)
        reduced += result.replicas[step][1].degree == 3;
    assert_true(reduced >= 25 - KILL_AT);
    assert_true(check_watts(&result, 2, 4, 4 * DEFAULT_WATTS) > 0);
    assert_true(result.replicas[KILL_AT][1].watts > DEFAULT_WATTS);
}

static void test_rebalance_keeps_the_batch(void **state)
{
    (void)state;
    training_result result;
    run_training(&(training_spec){.base = "small", .set = {"batch.policy=rebalance"}, KILLED}, &result);
    assert_same_curve(&one_rank, &result, 1e-5);
    for (size_t step = 1; step <= result.steps; step++) {
        const training_replica *replicas = result.replicas[step];
        assert_int_equal(replicas[0].samples + replicas[1].samples, 8);
    }
    assert_true(result.replicas[KILL_AT][1].samples < result.replicas[KILL_AT][0].samples);
}

static void test_shrink_leaves_samples_out(void **state)
{
    (void)state;
    training_result result;
    run_training(&(training_spec){.base = "small", .set = {"batch.policy=shrink"}, KILLED}, &result);
    assert_ok(result.status);
    assert_int_equal(result.steps, 40);
    for (size_t step = 1; step <= result.steps; step++) {
        const training_replica *replicas = result.replicas[step];
        assert_int_equal(replicas[0].samples, 4);
        if (step < KILL_AT)
            assert_int_equal(replicas[1].samples, 4);
        else
            assert_in_range(replicas[1].samples, 1, step == KILL_AT ? 3 : 4);
        assert_int_equal(result.tokens[step], 32 * (replicas[0].samples + replicas[1].samples));
    }
}

/* TP8 + TP8 of 42 attention, 96 FFN and 280 vocabulary units, in a domain that was built for boosting. */
enum { HIDDEN = 84, HEADS = 42, FFN_BLOCKS = 96, FFN_BLOCK = 4, VOCAB = 280, SEQUENCE = 64, LAYERS = 2 };
#define SIXTEEN                                                                                                        \
    "model.hidden=84", "model.heads=42", "model.kv_heads=42", "model.ffn=384", "model.ffn_block=4", "model.vocab=280", \
        "model.vocab_block=1", "model.sequence=64"

static double share(double units, double degree)
{
    return ceil(units / degree);
}

/* What the fullest device of a replica computes for a sample: 2 operations for each weight and token in forward, 4 in
 * backward, and in attention's core 4 and 8 for each pair of tokens and element of a head. At every degree here at most
 * one kind of units does not divide evenly, so one device has the most of each. */
static double work(double degree)
{
    double T = SEQUENCE, C = HIDDEN, D = C / HEADS;
    double head = LAYERS * (6 * T * 4 * D * C + 12 * T * T * D), block = LAYERS * 6 * T * 3 * FFN_BLOCK * C;
    return share(HEADS, degree) * head + share(FFN_BLOCKS, degree) * block + share(VOCAB, degree) * 6 * T * C;
}

/* The reduced replica falls behind by what its units say, 11.6 %, and the least power that makes that up is found. Of
 * what it decides by before it has measured, the bytes of the units, it would be 2 % too much. Reported times are exact
 * here, so what is decided then stays. */
static void test_sixteen_ranks(void **state)
{
    (void)state;
    enum { RETURN_AT = 30, STEPS_TO_CONVERGE = 5 };
    training_result alone, result;
    run_training(&(training_spec){.base = "small", .set = {"parallel.dp=1", "parallel.tp=1", SIXTEEN}}, &alone);
    run_training(&(training_spec){.base = "small",
                                  .set = {EMULATED, "power.emulated_flops_per_second=1e9", "power.domain_watts=6440",
                                          "parallel.tp=8", SIXTEEN},
                                  KILLED,
                                  .rejoins = {{RETURN_AT, 1, 2}}},
                 &result);
    assert_same_curve(&alone, &result, 1e-5);
    assert_string_equal(result.degrees, "8 8");
    assert_true(check_watts(&result, 2, 8, 6440) > 0);

    ek_curve curve = ek_curve_default();
    double needed = DEFAULT_WATTS * ek_curve_power(&curve, work(7) / work(8)), step_seconds = 4 * work(8) / 1e9;
    assert_true(fabs(result.replicas[KILL_AT][1].watts / needed - 1) > 0.01);
    for (uint32_t r = 0; r < 2; r++) { /* foreseen at once, from the times before and the bytes of the units */
        const training_replica *replica = &result.replicas[KILL_AT][r];
        assert_true(fabs(replica->predicted_seconds / replica->busy_seconds - 1) < 0.02);
    }
    size_t settled = KILL_AT + STEPS_TO_CONVERGE, step = settled;
    for (; result.replicas[step][1].degree == 7; step++) {
        const training_replica *whole = &result.replicas[step][0], *reduced = &result.replicas[step][1];
        assert_true(fabs(whole->busy_seconds / step_seconds - 1) < 1e-9);
        assert_true(fabs(reduced->busy_seconds / whole->busy_seconds - 1) <= 0.01);
        assert_true(fabs(reduced->watts / needed - 1) <= 0.01);
        assert_true(reduced->watts == result.replicas[settled][1].watts);
        assert_true(whole->samples == 4 && reduced->samples == 4);
    }
    print_message("TP7 at %.1f W, the curve says %.1f W: steps of %.4f and %.4f ms\n",
                  result.replicas[settled][1].watts, needed, 1e3 * result.replicas[settled][0].busy_seconds,
                  1e3 * result.replicas[settled][1].busy_seconds);
    assert_true(step >= RETURN_AT && step < result.steps); /* a step or so later it is back */
    for (; step <= result.steps; step++)
        for (uint32_t r = 0; r < 2; r++) {
            assert_true(result.replicas[step][r].watts == DEFAULT_WATTS);
            assert_true(fabs(result.replicas[step][r].busy_seconds / step_seconds - 1) < 1e-9);
        }
}

/* The first step of a membership may take any time: nothing is decided or foretold by it. */
static void test_cold_steps(void **state)
{
    (void)state;
    enum { RANKS = 8 };
    ek_unit_group groups[] = {{.name = "ffn", .units = 64, .unit_bytes = 1000}};
    ek_job job = {.replicas = 2, .base_degree = 4, .groups = groups, .group_count = 1};
    ek_config config = {.batch = {.global = 16, .policy = EK_BATCH_REBALANCE}};
    ek_membership *membership;
    ek_pace *pace;
    assert_ok(ek_membership_create(&membership, &job));
    assert_ok(ek_pace_create(&pace, &config, &job, DEFAULT_WATTS, false));
    for (int run = 0; run < 2; run++) {
        ek_pace_reset(pace, membership);
        double before = ek_pace_decision(pace, 0).predicted_seconds; /* 0, then 1 */
        for (int step = 0; step < 3; step++) {
            double busy[RANKS];
            for (uint32_t rank = 0; rank < RANKS; rank++)
                busy[rank] = step == 0 && rank < 4 ? 3.0 : 1.0;
            ek_pace_observe(pace, busy);
            for (uint32_t r = 0; r < 2; r++) {
                assert_int_equal(ek_pace_decision(pace, r).share.count, 8);
                assert_true(ek_pace_decision(pace, r).predicted_seconds == (step == 0 ? before : 1.0));
            }
        }
    }
    ek_pace_destroy(pace);
    ek_membership_destroy(membership);
}

static void test_refusals(void **state)
{
    (void)state;
    const char *sets[][2] = {
        {"power.curve=[[0.8, 0.9], [1, 1], [1.2, 0.95]]", "power.curve"},
        {"power.cap_watts=600", "power.cap_watts"},
        {"power.domain_watts=2799", "power.domain_watts"},
    };
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        training_result result;
        run_training(&(training_spec){.base = "small", .set = {EMULATED, sets[i][0]}}, &result);
        assert_int_equal(result.status, EK_INVALID);
        assert_non_null(strstr(result.error, sets[i][1]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_power_rises_and_comes_back),
        cmocka_unit_test(test_rebalance_keeps_the_batch),
        cmocka_unit_test(test_shrink_leaves_samples_out),
        cmocka_unit_test(test_sixteen_ranks),
        cmocka_unit_test(test_cold_steps),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, train_on_one_rank, NULL);
}
