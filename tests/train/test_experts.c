/* One loss curve of a mixture of experts, in both modes: with the choices of a run on one rank replayed, every layout,
 * loss and return of ranks gives its losses; free choices give them until the first one that differs. After every step
 * the state of all ranks is compared (health.compare_every: 1). */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "testing.h"
#include "train/training.h"

enum { STEPS = 40, ROUTED_PER_STEP = 10 * 32 * 8 }; /* samples, tokens, layers */

static const char *const modes[] = {"parallel.mode=tp", "parallel.mode=ep"};

static char routes[64];
static training_result one_rank;

static int record_one_rank(void **state)
{
    (void)state;
    snprintf(routes, sizeof routes, "/tmp/evenkeel-test-%d-routes", getpid());
    run_training(&(training_spec){.base = "experts",
                                  .set = {"parallel.dp=1", "parallel.tp=1"},
                                  .routes = EK_ROUTES_RECORD,
                                  .routes_path = routes},
                 &one_rank);
    return one_rank.status == EK_OK && one_rank.steps == STEPS ? 0 : -1;
}

static int remove_routes(void **state)
{
    (void)state;
    return unlink(routes);
}

static void set(training_spec *training, const char *override)
{
    size_t count = 0;
    while (training->set[count])
        count++;
    training->set[count] = override;
}

static void assert_same_aux_losses(const training_result *result)
{
    for (size_t step = 1; step <= STEPS; step++)
        if (!(fabs(result->aux_losses[step] / one_rank.aux_losses[step] - 1.0) <= 1e-5))
            fail_msg("step %zu: aux_loss %.9f, expected %.9f", step, result->aux_losses[step],
                     one_rank.aux_losses[step]);
}

static void check(training_spec training, int mode, size_t failures, const char *degrees)
{
    static training_result result;
    set(&training, modes[mode]);
    training.routes = EK_ROUTES_REPLAY;
    training.routes_path = routes;
    run_training(&training, &result);
    assert_same_curve(&one_rank, &result, 1e-5);
    assert_same_aux_losses(&result);
    assert_int_equal(result.failures, failures);
    assert_string_equal(result.degrees, degrees);
}

static void test_it_learns(void **state)
{
    (void)state;
    assert_true(one_rank.losses[1] > 5.3 && one_rank.losses[1] < 5.8); /* ln 256 = 5.545 */
    assert_true(one_rank.losses[STEPS] < 4.3);
    assert_true(one_rank.aux_losses[1] > 1.0 && one_rank.aux_losses[1] < 1.5); /* nearly balanced at first */
    for (size_t step = 1; step <= STEPS; step++)
        assert_int_equal(one_rank.route_flips[step], 0);
}

static void test_layouts(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        check((training_spec){.base = "experts"}, mode, 0, "4 4");
        check((training_spec){.base = "experts", .set = {"parallel.degrees=[4, 3]"}}, mode, 0, "4 3");
        check((training_spec){.base = "experts", .set = {"parallel.dp=3", "parallel.degrees=[4, 3, 2]"}}, mode, 0,
              "4 3 2");
    }
}

static void test_kill_in_each_phase(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        for (int phase = EK_PHASE_FORWARD; phase < EK_PHASE_RECOVERY; phase++)
            check((training_spec){.base = "experts",
                                  .faults = {{.step = 12, .replica = 1, .slot = 2, .phase = (ek_phase)phase}},
                                  .fault_count = 1},
                  mode, 1, "4 3");
        check((training_spec){.base = "experts",
                              .faults = {{.step = 8, .replica = 1, .slot = 0, .phase = EK_PHASE_BACKWARD},
                                         {.step = 8, .replica = 0, .slot = 3, .phase = EK_PHASE_RECOVERY}},
                              .fault_count = 2},
              mode, 2, "3 3");
    }
}

static void test_hang(void **state)
{
    (void)state;
    check((training_spec){.base = "experts",
                          .set = {"engine.timeout_seconds=1"},
                          .faults = {{.hang = true, .step = 10, .replica = 0, .slot = 1, .phase = EK_PHASE_FORWARD}},
                          .fault_count = 1},
          1, 1, "3 4");
}

/* Two ranks of three replicas lost, one comes back; a spare takes the place of another. */
static void test_returns_and_spares(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        if (!training_by_mpirun())
            check((training_spec){.base = "experts",
                                  .set = {"parallel.dp=3"},
                                  .faults = {{.step = 5, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD},
                                             {.step = 9, .replica = 2, .slot = 0, .phase = EK_PHASE_SYNC}},
                                  .fault_count = 2,
                                  .rejoins = {{.step = 12, .replica = 1, .slot = 2}},
                                  .link_latency_seconds = 5e-4},
                  mode, 2, "4 4 3");
        check((training_spec){.base = "experts",
                              .set = {"recovery.spares=1"},
                              .faults = {{.step = 5, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD},
                                         {.step = 9, .replica = 1, .slot = 0, .phase = EK_PHASE_FORWARD}},
                              .fault_count = 2},
              mode, 2, "4 3");
    }
}

static void test_retired_replica(void **state)
{
    (void)state;
    check((training_spec){.base = "experts",
                          .set = {"parallel.min_tp=4"},
                          .faults = {{.step = 5, .replica = 0, .slot = 2, .phase = EK_PHASE_BACKWARD}},
                          .fault_count = 1},
          1, 1, "0 4");
}

/* Fewer samples than ranks, one replica without any, and micro-batches of one. */
static void test_samples_that_nothing_divides(void **state)
{
    (void)state;
    const char *sets[][3] = {{"batch.global=2", "parallel.degrees=[4, 3]", NULL},
                             {"batch.global=7", "batch.micro=1", "parallel.degrees=[3, 4]"}};
    for (size_t i = 0; i < 2; i++) {
        training_result expected, result;
        training_spec training = {.base = "experts", .set = {sets[i][0], "parallel.dp=1", "parallel.tp=1"}};
        char path[80];
        snprintf(path, sizeof path, "%s-samples", routes);
        training.routes = EK_ROUTES_RECORD;
        training.routes_path = path;
        run_training(&training, &expected);
        training = (training_spec){.base = "experts", .set = {"parallel.mode=ep"}, .routes = EK_ROUTES_REPLAY};
        for (size_t j = 0; j < 3 && sets[i][j]; j++)
            set(&training, sets[i][j]);
        training.routes_path = path;
        run_training(&training, &result);
        unlink(path);
        assert_same_curve(&expected, &result, 1e-5);
    }
}

/* 13 experts, which neither 4 nor 3 divides, every other layer, a shared one besides, three choices. */
static void test_experts_that_nothing_divides(void **state)
{
    (void)state;
    const char *const model[] = {"model.experts=13", "model.top_k=3", "model.moe_every=2", "model.shared_expert=true",
                                 "model.tied_embeddings=true"};
    char path[80];
    snprintf(path, sizeof path, "%s-13", routes);
    training_result expected, result;
    training_spec training = {.base = "experts", .set = {"parallel.dp=1", "parallel.tp=1"}};
    training_spec reduced = {.base = "experts", .set = {"parallel.mode=ep", "parallel.degrees=[4, 3]"}};
    for (size_t i = 0; i < sizeof model / sizeof *model; i++) {
        set(&training, model[i]);
        set(&reduced, model[i]);
    }
    training.routes = EK_ROUTES_RECORD;
    reduced.routes = EK_ROUTES_REPLAY;
    training.routes_path = reduced.routes_path = path;
    run_training(&training, &expected);
    run_training(&reduced, &result);
    unlink(path);
    assert_same_curve(&expected, &result, 1e-5);
}

/* Choices are discrete: two experts that are nearly as probable change places by the order of a sum, and then the
 * losses that follow are those of another run, though one as good. */
static void test_free_choices(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        training_result result;
        run_training(&(training_spec){.base = "experts",
                                      .set = {modes[mode], "parallel.degrees=[4, 3]"},
                                      .routes = EK_ROUTES_COMPARE,
                                      .routes_path = routes},
                     &result);
        assert_ok(result.status);
        uint64_t flips = 0;
        for (size_t step = 1; step <= STEPS; step++) {
            double difference = fabs(result.losses[step] / one_rank.losses[step] - 1.0);
            if (!(difference <= (flips ? 1e-2 : 1e-4)))
                fail_msg("step %zu: %g apart after %llu flips", step, difference, (unsigned long long)flips);
            assert_true(result.route_flips[step] <= ROUTED_PER_STEP);
            flips += result.route_flips[step];
        }
        assert_true(flips < STEPS * ROUTED_PER_STEP / 100);
    }
}

/* Another seed has other weights, and so other choices: they are counted, and can be replayed all the same. */
static void test_flips_are_counted(void **state)
{
    (void)state;
    training_result compared, replayed;
    training_spec training = {.base = "experts",
                              .set = {"train.seed=2", "parallel.mode=ep"},
                              .routes = EK_ROUTES_COMPARE,
                              .routes_path = routes};
    run_training(&training, &compared);
    training.routes = EK_ROUTES_REPLAY;
    run_training(&training, &replayed);
    assert_ok(compared.status);
    assert_ok(replayed.status);
    assert_in_range(compared.route_flips[1], ROUTED_PER_STEP / 2, ROUTED_PER_STEP);
    assert_true(replayed.route_flips[1] > 0 && replayed.losses[1] != compared.losses[1]);
}

/* Samples move between replicas and back into the same sums; power is raised, in expert parallelism too. */
static void test_policies(void **state)
{
    (void)state;
    static training_result result;
    training_spec training = {.base = "experts",
                              .set = {"parallel.mode=ep", "batch.policy=rebalance", "power.backend=emulated",
                                      "power.emulated_flops_per_second=1e9"},
                              .faults = {{.step = 8, .replica = 1, .slot = 1, .phase = EK_PHASE_BACKWARD},
                                         {.step = 12, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD}},
                              .fault_count = 2,
                              .routes = EK_ROUTES_REPLAY,
                              .routes_path = routes};
    run_training(&training, &result);
    assert_same_curve(&one_rank, &result, 1e-5);
    assert_string_equal(result.degrees, "4 2");
    assert_true(result.replicas[STEPS][1].watts > 700.0);
    assert_true(result.replicas[STEPS][1].samples < 5 && result.replicas[STEPS][0].samples > 5);
    training.set[1] = "batch.policy=shrink";
    run_training(&training, &result);
    assert_ok(result.status);
    assert_true(result.replicas[STEPS][1].samples < 5);
    assert_int_equal(result.replicas[STEPS][0].samples, 5);
    assert_true(result.tokens[STEPS] < 10 * 32);
}

/* A flipped bit strikes an expert here: of three copies two agree, of two none can be trusted. */
static void test_corrupt_expert(void **state)
{
    (void)state;
    if (training_by_mpirun())
        skip(); /* no matter of the engine */
    training_result result;
    training_spec training = {.base = "experts", .set = {"parallel.mode=ep"}, .flips = {{10, 1, 2}}};
    run_training(&training, &result);
    assert_int_equal(result.status, EK_CORRUPT);
    assert_non_null(strstr(result.error, "after step 10: unit "));
    assert_non_null(strstr(result.error, "experts"));
    set(&training, "parallel.dp=3");
    run_training(&training, &result);
    assert_ok(result.status);
    assert_int_equal(result.healed, 1);
}

static void refuse(training_spec training, const char *text)
{
    training_result result;
    run_training(&training, &result);
    assert_int_equal(result.status, EK_INVALID);
    if (!strstr(result.error, text))
        fail_msg("\"%s\" does not say \"%s\"", result.error, text);
}

static void test_files_that_cannot_be_followed(void **state)
{
    (void)state;
    if (training_by_mpirun())
        skip(); /* no matter of the engine */
    training_spec training = {.base = "experts", .routes = EK_ROUTES_REPLAY, .routes_path = "/nowhere/routes"};
    refuse(training, "--routes: /nowhere/routes: cannot be opened: No such file or directory");
    training.routes_path = "/proc/self/cmdline";
    refuse(training, "not a file that --routes record has written");
    training.routes_path = routes;
    training.set[0] = "model.experts=13";
    refuse(training, "of a run with 12 experts, top_k 2, 8 layers with experts, sequence 32, batch 10; this one has "
                     "13, 2, 8, 32, 10");
    training.set[0] = "batch.global=11";
    refuse(training, "batch 10; this one has 12, 2, 8, 32, 11");
    training.set[0] = "train.steps=41";
    refuse(training, "ends before step 41 (train.steps); record a whole run");
    training.set[0] = "model.experts=0";
    refuse(training, "--routes: the model has no experts (model.experts)");
    training.set[0] = NULL;
    training.routes = EK_ROUTES_RECORD;
    training.routes_path = "/nowhere/routes";
    refuse(training, "--routes: /nowhere/routes: cannot be opened: No such file or directory");
}

/* A hole, as in the record of a run that left out samples, and numbers that are no experts. */
static void test_damaged_routes(void **state)
{
    (void)state;
    if (training_by_mpirun())
        skip(); /* no matter of the engine */
    char path[80], block[4096];
    snprintf(path, sizeof path, "%s-damaged", routes);
    static const uint32_t damage[] = {0, 13, UINT32_MAX};
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        int from = open(routes, O_RDONLY), to = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        ssize_t bytes;
        while ((bytes = read(from, block, sizeof block)) > 0)
            assert_int_equal(write(to, block, (size_t)bytes), bytes);
        off_t size = lseek(to, 0, SEEK_END);
        assert_int_equal(pwrite(to, &damage[i], sizeof damage[i], size / 2 / 4 * 4), sizeof damage[i]);
        close(from);
        close(to);
        training_result result;
        run_training(&(training_spec){.base = "experts", .routes = EK_ROUTES_REPLAY, .routes_path = path}, &result);
        assert_int_equal(result.status, EK_IO);
        assert_non_null(strstr(result.error, "-damaged: does not hold what a sample of this step chose"));
        assert_int_equal(result.steps, STEPS / 2 - 1); /* the header shifts the middle into that step */
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_learns),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_kill_in_each_phase),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_returns_and_spares),
        cmocka_unit_test(test_retired_replica),
        cmocka_unit_test(test_samples_that_nothing_divides),
        cmocka_unit_test(test_experts_that_nothing_divides),
        cmocka_unit_test(test_free_choices),
        cmocka_unit_test(test_flips_are_counted),
        cmocka_unit_test(test_policies),
        cmocka_unit_test(test_corrupt_expert),
        cmocka_unit_test(test_files_that_cannot_be_followed),
        cmocka_unit_test(test_damaged_routes),
    };
    return cmocka_run_group_tests(tests, record_one_rank, remove_routes);
}
