/* Ranks that come back: killed in each phase, several at once, while others die, again and again, as spares and into
 * retired replicas. The small model's losses stay those of one rank, the replicas become whole again, and after every
 * step the state of all ranks is compared. */
#include "testing.h"
#include "train/training.h"

/* Draws out the steps, without work: a rank that is started again needs some time to come back, the more the busier the
 * machine is. */
#define LATENCY_SECONDS 5e-4

static training_result one_rank, result; /* result: of the last check */

static int train_on_one_rank(void **state)
{
    (void)state;
    run_training(&(training_spec){.base = "small", .set = {"parallel.dp=1", "parallel.tp=1", "train.steps=60"}},
                 &one_rank);
    return one_rank.status == EK_OK && one_rank.steps == 60 ? 0 : -1;
}

/* Trains for 60 steps; expects the curve of one rank, so many losses and returns, and these degrees at the end. */
static void check(training_spec training, size_t failures, size_t rejoined, const char *degrees)
{
    size_t overrides = 0;
    while (training.set[overrides])
        overrides++;
    training.set[overrides] = "train.steps=60";
    training.link_latency_seconds = LATENCY_SECONDS;
    run_training(&training, &result);
    assert_same_curve(&one_rank, &result, 1e-5);
    assert_int_equal(result.failures, failures);
    assert_int_equal(result.rejoined, rejoined);
    assert_string_equal(result.degrees, degrees);
}

/* The least degree of a replica in any step. */
static uint32_t least_degree(uint32_t replica)
{
    uint32_t least = UINT32_MAX;
    for (size_t step = 1; step <= result.steps; step++)
        if (result.replicas[step][replica].degree < least)
            least = result.replicas[step][replica].degree;
    return least;
}

static void test_after_each_phase(void **state)
{
    (void)state;
    for (int phase = EK_PHASE_FORWARD; phase < EK_PHASE_RECOVERY; phase++) {
        check((training_spec){.base = "small",
                              .faults = {{.step = 12, .replica = 1, .slot = 2, .phase = (ek_phase)phase}},
                              .fault_count = 1,
                              .rejoins = {{.step = 14, .replica = 1, .slot = 2}}},
              1, 1, "4 4");
        assert_int_equal(least_degree(1), 3);
    }
}

static void test_several_at_once(void **state)
{
    (void)state;
    check((training_spec){.base = "small",
                          .faults = {{.step = 7, .replica = 1, .slot = 1, .phase = EK_PHASE_BACKWARD},
                                     {.step = 8, .replica = 1, .slot = 3, .phase = EK_PHASE_SYNC},
                                     {.step = 9, .replica = 0, .slot = 2, .phase = EK_PHASE_FORWARD}},
                          .fault_count = 3,
                          .rejoins = {{.step = 20, .replica = 1, .slot = 3},
                                      {.step = 20, .replica = 0, .slot = 2},
                                      {.step = 20, .replica = 1, .slot = 1}}},
          3, 3, "4 4");
    assert_int_equal(least_degree(0), 3);
    assert_int_equal(least_degree(1), 2);
}

static void test_rank_0(void **state)
{
    (void)state;
    check((training_spec){.base = "small",
                          .faults = {{.step = 5, .phase = EK_PHASE_SYNC}},
                          .fault_count = 1,
                          .rejoins = {{.step = 7}}},
          1, 1, "4 4");
}

static void test_after_a_hang(void **state)
{
    (void)state;
    check((training_spec){.base = "small",
                          .faults = {{.hang = true, .step = 10, .replica = 1, .slot = 1, .phase = EK_PHASE_BACKWARD}},
                          .fault_count = 1,
                          .rejoins = {{.step = 12, .replica = 1, .slot = 1}}},
          1, 1, "4 4");
}

/* Nobody asks for it: every lost rank comes back by itself. */
static void test_respawn(void **state)
{
    (void)state;
    check((training_spec){.base = "small",
                          .set = {"recovery.respawn_seconds=0.05"},
                          .faults = {{.step = 5, .replica = 0, .slot = 0, .phase = EK_PHASE_COMMIT},
                                     {.step = 12, .replica = 1, .slot = 3, .phase = EK_PHASE_BACKWARD}},
                          .fault_count = 2},
          2, 2, "4 4");
}

static void test_killed_again(void **state)
{
    (void)state;
    check((training_spec){.base = "small",
                          .faults = {{.step = 6, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD},
                                     {.step = 30, .replica = 1, .slot = 2, .phase = EK_PHASE_OPTIMIZER}},
                          .fault_count = 2,
                          .rejoins = {{.step = 8, .replica = 1, .slot = 2}, {.step = 32, .replica = 1, .slot = 2}}},
          2, 2, "4 4");
}

/* A rank dies in the recovery that brings another back: a peer in its replica, one in the other, or the newcomer, which
 * then has returned but once. Back again, none of them dies of the same fault once more, though that is due in any
 * recovery from step 14 on. */
static void test_kill_during_the_return(void **state)
{
    (void)state;
    const ek_rejoin places[] = {{20, 1, 1}, {20, 0, 2}, {20, 1, 2}};
    const size_t rejoined[] = {2, 2, 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        check((training_spec){.base = "small",
                              .faults = {{.step = 12, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD},
                                         {.step = 14,
                                          .replica = places[i].replica,
                                          .slot = places[i].slot,
                                          .phase = EK_PHASE_RECOVERY}},
                              .fault_count = 2,
                              .rejoins = {{.step = 14, .replica = 1, .slot = 2}, places[i]}},
              2, rejoined[i], "4 4");
}

static void test_from_far_below(void **state)
{
    (void)state;
    check((training_spec){.base = "small",
                          .set = {"parallel.dp=3"},
                          .faults = {{.step = 4, .replica = 2, .slot = 1, .phase = EK_PHASE_BACKWARD},
                                     {.step = 6, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD},
                                     {.step = 8, .replica = 2, .slot = 3, .phase = EK_PHASE_BACKWARD}},
                          .fault_count = 3,
                          .rejoins = {{.step = 15, .replica = 2, .slot = 1},
                                      {.step = 20, .replica = 2, .slot = 3},
                                      {.step = 25, .replica = 1, .slot = 2}}},
          3, 3, "4 4 4");
    const training_replica *at_12 = result.replicas[12];
    assert_int_equal(at_12[0].degree, 4);
    assert_int_equal(at_12[1].degree, 3);
    assert_int_equal(at_12[2].degree, 2);
}

/* The spare (of replica 2, which is none) takes the role of a lost rank at once; the lost one comes back as a spare and
 * takes that of the first spare when it dies. */
static void test_spare(void **state)
{
    (void)state;
    check((training_spec){.base = "small",
                          .set = {"recovery.spares=1"},
                          .faults = {{.step = 8, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD},
                                     {.step = 30, .replica = 2, .slot = 0, .phase = EK_PHASE_BACKWARD}},
                          .fault_count = 2,
                          .rejoins = {{.step = 10, .replica = 1, .slot = 2}}},
          2, 1, "4 4");
    assert_int_equal(least_degree(0), 4);
    assert_int_equal(least_degree(1), 4);
}

/* The last two ranks die one after the other while the first is to come back: the job ends and says so. The step that
 * one of them has reported is closed when no rank runs any more, and nobody is there then to start one. */
static void test_all_lost(void **state)
{
    (void)state;
    run_training(&(training_spec){.base = "small",
                                  .set = {"parallel.tp=1", "train.steps=10"},
                                  .faults = {{.step = 5, .replica = 1, .phase = EK_PHASE_OPTIMIZER},
                                             {.step = 4, .replica = 0, .phase = EK_PHASE_RECOVERY}},
                                  .fault_count = 2,
                                  .rejoins = {{.step = 6, .replica = 1}, {.step = 6, .replica = 0}}},
                 &result);
    assert_int_equal(result.status, EK_PEER_LOST);
    assert_int_equal(result.steps, 5);
    assert_int_equal(result.failures, 2);
}

static void test_retired_replica(void **state)
{
    (void)state;
    check((training_spec){.base = "small",
                          .set = {"parallel.dp=3", "parallel.min_tp=3"},
                          .faults = {{.step = 6, .replica = 1, .slot = 0, .phase = EK_PHASE_BACKWARD},
                                     {.step = 6, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD}},
                          .fault_count = 2,
                          .rejoins = {{.step = 15, .replica = 1, .slot = 0}, {.step = 25, .replica = 1, .slot = 2}}},
          2, 2, "4 4 4");
    assert_int_equal(result.replicas[12][1].degree, 0);
    assert_int_equal(result.replicas[12][0].degree, 4);
    assert_int_equal(result.replicas[12][2].degree, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_after_each_phase),
        cmocka_unit_test(test_several_at_once),
        cmocka_unit_test(test_rank_0),
        cmocka_unit_test(test_after_a_hang),
        cmocka_unit_test(test_respawn),
        cmocka_unit_test(test_killed_again),
        cmocka_unit_test(test_kill_during_the_return),
        cmocka_unit_test(test_from_far_below),
        cmocka_unit_test(test_spare),
        cmocka_unit_test(test_all_lost),
        cmocka_unit_test(test_retired_replica),
    };
    return cmocka_run_group_tests(tests, train_on_one_rank, NULL);
}
