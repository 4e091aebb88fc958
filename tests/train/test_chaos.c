/* 100 short jobs with schedules of failures drawn from a seed: all finish with the losses of one rank. */
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "testing.h"
#include "train/training.h"

enum { JOBS = 100, STEPS = 8, FAULTS_MOST = 4, TP = 4 };
#define SEED 20261130

static uint32_t draw(uint64_t job, uint64_t *counter, uint32_t below)
{
    return (uint32_t)(ek_random_u64(SEED, job, (*counter)++) % below);
}

/* One to four faults. One replica is left alone, so a holder of every unit is left whichever way the losses fall
 * together. */
static void draw_schedule(uint64_t job, training_spec *training, uint32_t dp)
{
    uint64_t counter = 2; /* 0 and 1 chose the layout */
    uint32_t spared = draw(job, &counter, dp);
    training->fault_count = 1 + draw(job, &counter, FAULTS_MOST);
    for (size_t i = 0; i < training->fault_count; i++) {
        uint32_t replica = draw(job, &counter, dp - 1);
        training->faults[i] = (ek_fault_point){
            .step = 1 + draw(job, &counter, STEPS),
            .replica = replica + (replica >= spared),
            .slot = draw(job, &counter, TP),
            .phase = (ek_phase)draw(job, &counter, EK_PHASES),
        };
    }
}

static void test_chaos(void **state)
{
    (void)state;
    training_result one_rank;
    run_training(
        &(training_spec){.base = "small",
                         .set = {"parallel.dp=1", "parallel.tp=1", "train.steps=8", "optimizer.warmup_steps=2"}},
        &one_rank);
    assert_int_equal(one_rank.status, EK_OK);
    size_t failures = 0;
    for (uint64_t job = 0; job < JOBS; job++) {
        uint64_t counter = 0;
        uint32_t dp = 2 + draw(job, &counter, 2);
        training_spec training = {.base = "small",
                                  .set = {"train.steps=8", "optimizer.warmup_steps=2",
                                          dp == 2 ? "parallel.dp=2" : "parallel.dp=3",
                                          draw(job, &counter, 2) ? "parallel.min_tp=1" : "parallel.min_tp=3"}};
        draw_schedule(job, &training, dp);
        training_result result;
        run_training(&training, &result);
        if (result.status != EK_OK)
            print_message("job %u: %zu faults\n", (unsigned)job, training.fault_count);
        assert_same_curve(&one_rank, &result, 1e-5);
        failures += result.failures;
    }
    print_message("%d jobs, %zu ranks lost\n", JOBS, failures);
    assert_true(failures > JOBS);
}

/* A rank dies, and before its units are fetched from their only other holder that one dies too: the run says which are
 * lost. */
static void test_chaos_that_loses_a_unit(void **state)
{
    (void)state;
    for (uint64_t job = JOBS; job < JOBS + 5; job++) {
        uint64_t counter = 0;
        uint32_t slot = draw(job, &counter, TP), step = 1 + draw(job, &counter, STEPS);
        ek_phase phase = (ek_phase)draw(job, &counter, EK_PHASE_COMMIT);
        training_spec training = {.base = "small",
                                  .set = {"train.steps=8", "optimizer.warmup_steps=2"},
                                  .faults = {{.step = step, .replica = 0, .slot = slot, .phase = phase},
                                             {.step = step, .replica = 1, .slot = slot, .phase = EK_PHASE_RECOVERY}},
                                  .fault_count = 2};
        training_result result;
        run_training(&training, &result);
        assert_int_equal(result.status, EK_UNIT_LOST);
        assert_non_null(strstr(result.error, "unit "));
        assert_int_equal(result.steps, step - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chaos), cmocka_unit_test(test_chaos_that_loses_a_unit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
