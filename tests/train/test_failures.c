/* Ranks killed and stopped in every phase, alone and together: the small model's losses stay those of one rank, every
 * step is committed once, and after each the state of all ranks is compared (health.compare_every: 1, which ends the
 * run on a difference). */
#include <string.h>

#include "testing.h"
#include "train/training.h"

static training_result one_rank;

static int train_on_one_rank(void **state)
{
    (void)state;
    run_training(&(training_spec){.base = "small", .set = {"parallel.dp=1", "parallel.tp=1"}}, &one_rank);
    return one_rank.status == EK_OK && one_rank.steps == 40 ? 0 : -1;
}

/* Expects the curve of one rank, `failures` losses, and these degrees and samples at the end. */
static void check(const training_spec *training, size_t failures, const char *degrees, const char *samples)
{
    training_result result;
    run_training(training, &result);
    assert_same_curve(&one_rank, &result, 1e-5);
    assert_int_equal(result.failures, failures);
    assert_string_equal(result.degrees, degrees);
    if (samples)
        assert_string_equal(result.samples, samples);
}

static void test_units_that_nothing_divides(void **state)
{
    (void)state;
    const char *sets[][4] = {
        {"parallel.degrees=[4, 3]", NULL},
        {"parallel.dp=3", "parallel.degrees=[4, 3, 2]", NULL},
        {"parallel.tp=3", "parallel.degrees=[3, 2]", NULL}, /* 4 KV heads, 11 FFN blocks, … on 3 and 2 */
        {"model.ffn_block=1", "model.vocab_block=1", "parallel.degrees=[3, 2]", NULL},
    };
    const char *degrees[] = {"4 3", "4 3 2", "3 2", "3 2"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        training_spec training = {.base = "small"};
        memcpy(training.set, sets[i], sizeof sets[i]);
        check(&training, 0, degrees[i], NULL);
    }
}

static void test_samples_that_nothing_divides(void **state)
{
    (void)state;
    training_result expected, result;
    run_training(
        &(training_spec){.base = "small", .set = {"parallel.dp=1", "parallel.tp=1", "batch.global=7", "batch.micro=3"}},
        &expected);
    run_training(&(training_spec){.base = "small", .set = {"parallel.dp=3", "batch.global=7", "batch.micro=3"}},
                 &result);
    assert_same_curve(&expected, &result, 1e-5);
    assert_string_equal(result.samples, "2 2 3");
}

static void test_tied_embeddings(void **state)
{
    (void)state;
    training_result expected, result;
    run_training(
        &(training_spec){.base = "small", .set = {"parallel.dp=1", "parallel.tp=1", "model.tied_embeddings=true"}},
        &expected);
    run_training(&(training_spec){.base = "small",
                                  .set = {"model.tied_embeddings=true"},
                                  .faults = {{.step = 9, .replica = 0, .slot = 1, .phase = EK_PHASE_SYNC}},
                                  .fault_count = 1},
                 &result);
    assert_same_curve(&expected, &result, 1e-5);
}

static void test_kill_in_each_phase(void **state)
{
    (void)state;
    for (int phase = EK_PHASE_FORWARD; phase < EK_PHASE_RECOVERY; phase++)
        check(&(training_spec){.base = "small",
                               .faults = {{.step = 12, .replica = 1, .slot = 2, .phase = (ek_phase)phase}},
                               .fault_count = 1},
              1, "4 3", "4 4");
}

static void test_kill_in_the_first_and_the_last_step(void **state)
{
    (void)state;
    for (int phase = EK_PHASE_FORWARD; phase < EK_PHASE_RECOVERY; phase++)
        check(&(training_spec){.base = "small",
                               .faults = {{.step = 1, .replica = 0, .slot = 3, .phase = (ek_phase)phase},
                                          {.step = 40, .replica = 1, .slot = 0, .phase = (ek_phase)phase}},
                               .fault_count = 2},
              2, phase < EK_PHASE_COMMIT ? "3 3" : "3 4", NULL);
}

static void test_two_ranks_of_one_replica(void **state)
{
    (void)state;
    check(&(training_spec){.base = "small",
                           .faults = {{.step = 7, .replica = 1, .slot = 1, .phase = EK_PHASE_BACKWARD},
                                      {.step = 7, .replica = 1, .slot = 3, .phase = EK_PHASE_BACKWARD}},
                           .fault_count = 2},
          2, "4 2", NULL);
}

static void test_one_rank_in_each_of_two_replicas(void **state)
{
    (void)state;
    check(&(training_spec){.base = "small",
                           .faults = {{.step = 7, .replica = 0, .slot = 1, .phase = EK_PHASE_BACKWARD},
                                      {.step = 7, .replica = 1, .slot = 3, .phase = EK_PHASE_BACKWARD}},
                           .fault_count = 2},
          2, "3 3", NULL);
}

static void test_rank_0(void **state)
{
    (void)state;
    check(&(training_spec){.base = "small", .faults = {{.step = 5, .phase = EK_PHASE_SYNC}}, .fault_count = 1}, 1,
          "3 4", NULL);
}

static void test_a_whole_replica(void **state)
{
    (void)state;
    training_spec training = {.base = "small", .fault_count = 4};
    for (uint32_t slot = 0; slot < 4; slot++)
        training.faults[slot] = (ek_fault_point){.step = 11, .replica = 0, .slot = slot, .phase = EK_PHASE_BACKWARD};
    check(&training, 4, "0 4", "0 8");
}

/* Below min_tp a replica is retired: its survivors become spares, and one takes the place of a rank lost later. */
static void test_retired_replica_serves_as_spares(void **state)
{
    (void)state;
    check(&(training_spec){.base = "small",
                           .set = {"parallel.dp=3", "parallel.min_tp=3"},
                           .faults = {{.step = 6, .replica = 1, .slot = 0, .phase = EK_PHASE_BACKWARD},
                                      {.step = 6, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD},
                                      {.step = 20, .replica = 2, .slot = 1, .phase = EK_PHASE_BACKWARD}},
                           .fault_count = 3},
          3, "4 0 4", "4 0 4");
}

/* A rank's share of TP3 does not fit into its memory: the replica is retired, as below min_tp. */
static void test_memory_retires_a_replica(void **state)
{
    (void)state;
    check(&(training_spec){.base = "small",
                           .set = {"engine.heap_bytes=1050000"},
                           .faults = {{.step = 6, .replica = 1, .slot = 0, .phase = EK_PHASE_BACKWARD}},
                           .fault_count = 1},
          1, "4 0", "8 0");
    check(&(training_spec){.base = "small",
                           .set = {"engine.heap_bytes=1500000"},
                           .faults = {{.step = 6, .replica = 1, .slot = 0, .phase = EK_PHASE_BACKWARD}},
                           .fault_count = 1},
          1, "4 3", "4 4");
}

static void test_second_kill_during_recovery(void **state)
{
    (void)state;
    for (uint32_t slot = 0; slot < 4; slot++)
        check(
            &(training_spec){
                .base = "small",
                .faults = {{.step = 8, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD},
                           {.step = 8, .replica = slot % 2, .slot = slot == 2 ? 1 : slot, .phase = EK_PHASE_RECOVERY}},
                .fault_count = 2},
            2, slot % 2 ? "4 2" : "3 3", NULL);
}

static void test_hang(void **state)
{
    (void)state;
    for (int phase = EK_PHASE_BACKWARD; phase <= EK_PHASE_COMMIT; phase++)
        check(
            &(training_spec){.base = "small",
                             .faults = {{.hang = true, .step = 10, .replica = 1, .slot = 1, .phase = (ek_phase)phase}},
                             .fault_count = 1},
            1, "4 3", NULL);
}

static void test_failures_one_after_the_other(void **state)
{
    (void)state;
    check(&(training_spec){.base = "small",
                           .set = {"parallel.dp=3"},
                           .faults = {{.step = 3, .replica = 1, .slot = 2, .phase = EK_PHASE_FORWARD},
                                      {.step = 9, .replica = 0, .slot = 0, .phase = EK_PHASE_OPTIMIZER},
                                      {.step = 15, .replica = 1, .slot = 0, .phase = EK_PHASE_COMMIT},
                                      {.step = 16, .replica = 1, .slot = 1, .phase = EK_PHASE_SYNC},
                                      {.step = 30, .replica = 2, .slot = 3, .phase = EK_PHASE_BACKWARD},
                                      {.step = 39, .replica = 0, .slot = 1, .phase = EK_PHASE_BACKWARD}},
                           .fault_count = 6},
          6, "2 1 3", NULL);
}

/* No survivor holds a unit: the run ends and names it. */
static void test_unit_lost(void **state)
{
    (void)state;
    const ek_status expected = training_by_mpirun() ? EK_SYSTEM : EK_UNIT_LOST;
    training_result result;
    run_training(&(training_spec){.base = "small",
                                  .set = {"parallel.dp=1"},
                                  .faults = {{.step = 5, .replica = 0, .slot = 1, .phase = EK_PHASE_BACKWARD}},
                                  .fault_count = 1},
                 &result);
    assert_int_equal(result.status, expected);
    assert_non_null(strstr(result.error, "unit "));
    assert_int_equal(result.steps, 4);
    run_training(&(training_spec){.base = "small",
                                  .faults = {{.step = 5, .replica = 0, .slot = 1, .phase = EK_PHASE_BACKWARD},
                                             {.step = 5, .replica = 1, .slot = 1, .phase = EK_PHASE_RECOVERY}},
                                  .fault_count = 2},
                 &result);
    assert_int_equal(result.status, expected);
    assert_non_null(strstr(result.error, "unit "));
}

static void test_every_rank_lost(void **state)
{
    (void)state;
    training_result result;
    run_training(&(training_spec){.base = "small",
                                  .set = {"parallel.dp=1", "parallel.tp=1"},
                                  .faults = {{.step = 5, .phase = EK_PHASE_BACKWARD}},
                                  .fault_count = 1},
                 &result);
    assert_int_equal(result.status, EK_PEER_LOST);
    assert_int_equal(result.steps, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units_that_nothing_divides),
        cmocka_unit_test(test_samples_that_nothing_divides),
        cmocka_unit_test(test_tied_embeddings),
        cmocka_unit_test(test_kill_in_each_phase),
        cmocka_unit_test(test_kill_in_the_first_and_the_last_step),
        cmocka_unit_test(test_two_ranks_of_one_replica),
        cmocka_unit_test(test_one_rank_in_each_of_two_replicas),
        cmocka_unit_test(test_rank_0),
        cmocka_unit_test(test_a_whole_replica),
        cmocka_unit_test(test_retired_replica_serves_as_spares),
        cmocka_unit_test(test_memory_retires_a_replica),
        cmocka_unit_test(test_second_kill_during_recovery),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_failures_one_after_the_other),
        cmocka_unit_test(test_unit_lost),
        cmocka_unit_test(test_every_rank_lost),
    };
    return cmocka_run_group_tests(tests, train_on_one_rank, NULL);
}
