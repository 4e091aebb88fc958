/* One loss curve: the tiny model's losses do not depend on the layout it is trained on. */
#include "testing.h"
#include "train/training.h"

static training_result one_rank;

static int train_on_one_rank(void **state)
{
    (void)state;
    run_training(&(training_spec){.base = "tiny", .set = {"parallel.dp=1", "parallel.tp=1"}}, &one_rank);
    return one_rank.status == EK_OK && one_rank.steps == 40 ? 0 : -1;
}

static void check(const training_spec *training, const char *degrees)
{
    training_result result;
    run_training(training, &result);
    assert_same_curve(&one_rank, &result, 1e-5);
    assert_string_equal(result.degrees, degrees);
}

static void test_it_learns(void **state)
{
    (void)state;
    assert_true(one_rank.losses[1] > 5.3 && one_rank.losses[1] < 5.8); /* ln 256 = 5.545 */
    assert_true(one_rank.losses[40] < 3.2);
}

static void test_uniform(void **state)
{
    (void)state;
    check(&(training_spec){.base = "tiny"}, "4 4");
}

static void test_two_degrees(void **state)
{
    (void)state;
    check(&(training_spec){.base = "tiny", .set = {"parallel.degrees=[4, 3]"}}, "4 3");
}

static void test_three_degrees(void **state)
{
    (void)state;
    check(&(training_spec){.base = "tiny", .set = {"parallel.dp=3", "parallel.degrees=[4, 3, 2]"}}, "4 3 2");
}

static void test_loss_of_a_rank(void **state)
{
    (void)state;
    check(&(training_spec){.base = "tiny",
                           .faults = {{.step = 20, .replica = 1, .slot = 2, .phase = EK_PHASE_BACKWARD}},
                           .fault_count = 1},
          "4 3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_learns),     cmocka_unit_test(test_uniform),        cmocka_unit_test(test_two_degrees),
        cmocka_unit_test(test_three_degrees), cmocka_unit_test(test_loss_of_a_rank),
    };
    return cmocka_run_group_tests(tests, train_on_one_rank, NULL);
}
