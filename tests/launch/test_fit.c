/* How a job fits on hosts: known cases, and random ones against what fit.h promises. */
#include "launch/fit.h"

#include <string.h>

#include "base/rng.h"
#include "testing.h"

#define HOSTS_MOST 12

static void assert_fit(ek_fit_job job, const uint32_t *slots, size_t hosts, const char *layout,
                       const uint32_t *expected)
{
    ek_fit fit;
    uint32_t used[HOSTS_MOST];
    char text[256];
    assert_ok(ek_fit_make(&job, slots, hosts, &fit, used));
    ek_fit_describe(&fit, "TP", text, sizeof text);
    assert_string_equal(text, layout);
    assert_memory_equal(used, expected, hosts * sizeof *used);
}
#define SLOTS(...) ((const uint32_t[]){__VA_ARGS__})

static void test_known(void **state)
{
    (void)state;
    const ek_fit_job job = {.dp = 2, .tp = 4, .min_tp = 2};
    assert_fit(job, SLOTS(4, 4), 2, "TP4+TP4", SLOTS(4, 4));
    assert_fit(job, SLOTS(8), 1, "TP4+TP4", SLOTS(8));
    assert_fit(job, SLOTS(16, 16), 2, "TP4+TP4", SLOTS(8, 0)); /* no more than the job has */
    assert_fit(job, SLOTS(4, 0), 2, "TP4", SLOTS(4, 0));       /* a host is gone */
    assert_fit(job, SLOTS(0, 7), 2, "TP4+TP3", SLOTS(0, 7));
    assert_fit(job, SLOTS(3, 4), 2, "TP3+TP4", SLOTS(3, 4));       /* in the order of hosts */
    assert_fit(job, SLOTS(3, 4, 4), 3, "TP4+TP4", SLOTS(0, 4, 4)); /* whole ones first */
    assert_fit(job, SLOTS(2, 3, 3), 3, "TP3+TP3", SLOTS(0, 3, 3)); /* then the largest */
    assert_fit(job, SLOTS(3, 1), 2, "TP3", SLOTS(3, 0));           /* a group lies inside one host */
    assert_fit(job, SLOTS(5, 5), 2, "TP4+TP4", SLOTS(4, 4));
    const ek_fit_job spares = {.dp = 2, .tp = 4, .min_tp = 2, .spares = 2};
    assert_fit(spares, SLOTS(8, 4), 2, "TP4+TP4, 2 spares", SLOTS(8, 2));
    assert_fit(spares, SLOTS(5, 5), 2, "TP4+TP4, 1 spare", SLOTS(4, 5)); /* ranks of the first host come before */
    assert_fit(spares, SLOTS(4, 4), 2, "TP4+TP4", SLOTS(4, 4));
}

static void test_nothing_fits(void **state)
{
    (void)state;
    ek_fit fit;
    uint32_t used[2];
    const ek_fit_job job = {.dp = 2, .tp = 4, .min_tp = 3};
    assert_int_equal(ek_fit_make(&job, SLOTS(2, 2), 2, &fit, used), EK_INVALID);
    assert_string_equal(ek_error(), "no host has 3 slots, what the smallest replica needs (parallel.min_tp)");
}

/* What the rule gives at best, by itself: whole replicas of all hosts, and reduced ones of those that have a rest. */
static void assert_best(const ek_fit_job *job, const uint32_t *slots, size_t hosts, const ek_fit *fit)
{
    uint32_t whole = 0, rests = 0, is_whole = 0;
    for (size_t h = 0; h < hosts; h++) {
        whole += slots[h] / job->tp;
        rests += slots[h] % job->tp >= job->min_tp;
    }
    whole = whole < job->dp ? whole : job->dp;
    for (uint32_t r = 0; r < fit->dp; r++)
        is_whole += fit->degrees[r] == job->tp;
    assert_int_equal(is_whole, whole);
    assert_int_equal(fit->dp, whole + rests < job->dp ? whole + rests : job->dp);
}

/* Replicas in order fill the used slots of hosts in order, none across two. */
static void assert_placed(const ek_fit_job *job, const uint32_t *slots, size_t hosts, const ek_fit *fit,
                          const uint32_t *used)
{
    uint32_t r = 0, ranks = 0, spares = 0;
    for (size_t h = 0; h < hosts; h++) {
        uint32_t filled = 0;
        assert_true(used[h] <= slots[h]);
        for (; r < fit->dp && filled + fit->degrees[r] <= used[h]; r++) {
            assert_in_range(fit->degrees[r], job->min_tp, job->tp);
            filled += fit->degrees[r];
        }
        assert_true(filled == used[h] || r == fit->dp); /* what is left are spares, behind all replicas */
        spares += used[h] - filled;
        ranks += used[h];
    }
    assert_int_equal(r, fit->dp);
    assert_int_equal(spares, fit->spares);
    assert_true(spares <= job->spares);
    assert_int_equal(ranks, fit->ranks);
    uint32_t whole_ranks = job->dp * job->tp + job->spares;
    assert_int_equal(ek_fit_is_whole(fit, job), ranks == whole_ranks);
}

static uint32_t draw(uint64_t *drawn, uint32_t below)
{
    return (uint32_t)(ek_random_u64(20270301, 0, (*drawn)++) % below);
}

static void test_random(void **state)
{
    (void)state;
    uint64_t drawn = 0;
    for (int round = 0; round < 200000; round++) {
        size_t hosts = 1 + draw(&drawn, HOSTS_MOST);
        uint32_t tp = 1 + draw(&drawn, 8), slots[HOSTS_MOST], used[HOSTS_MOST], most = 0;
        const ek_fit_job job = {
            .dp = 1 + draw(&drawn, 20), .tp = tp, .min_tp = 1 + draw(&drawn, tp), .spares = draw(&drawn, 4)};
        for (size_t h = 0; h < hosts; h++) {
            slots[h] = draw(&drawn, 20);
            most = slots[h] > most ? slots[h] : most;
        }
        ek_fit fit;
        ek_status status = ek_fit_make(&job, slots, hosts, &fit, used);
        assert_int_equal(status, most >= job.min_tp ? EK_OK : EK_INVALID);
        if (status != EK_OK)
            continue;
        assert_best(&job, slots, hosts, &fit);
        assert_placed(&job, slots, hosts, &fit, used);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_nothing_fits),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
