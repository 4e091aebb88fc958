/* The model's times beside published measurements. Four rows must agree within 10 % (arXiv 2205.05198, table 5, 175B
 * and 530B); for the others docs/simulator.md ("Beside published times") states how far off they may be, and why. */
#include <math.h>
#include <stdio.h>

#include "perf/published.h"
#include "testing.h"

/* Model time over measured time, with the gradient communication not hidden and hidden. */
static void compare(const char *name, double ratios[2])
{
    published_job job;
    ek_perf_hardware hardware;
    published_read(name, &job);
    published_hardware("a100-80gb", &hardware);
    ek_perf_time times[2];
    for (int overlap = 0; overlap < 2; overlap++) {
        hardware.overlap = overlap;
        published_step(&job, &hardware, &times[overlap]);
        ratios[overlap] = times[overlap].total / job.seconds;
    }
    const ek_perf_time *t = &times[0];
    print_message("%-20s %7.2f s, model %7.2f (%+5.1f %%), hidden %7.2f (%+5.1f %%); compute %.2f tensor %.2f pipeline "
                  "%.2f bubble %.2f data %.2f optimizer %.2f\n",
                  name, job.seconds, times[0].total, 100 * (ratios[0] - 1), times[1].total, 100 * (ratios[1] - 1),
                  t->compute, t->tensor, t->pipeline, t->bubble, t->data, t->optimizer);
    published_free(&job);
}

static void four_rows_agree_within_a_tenth(void **state)
{
    (void)state;
    static const char *const names[] = {"175b-full", "175b-selective", "530b-full", "530b-selective"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double ratios[2];
        compare(names[i], ratios);
        for (int overlap = 0; overlap < 2; overlap++)
            assert_true(fabs(ratios[overlap] - 1) < 0.1);
    }
}

static void other_rows(void **state)
{
    (void)state;
    static const char *const names[] = {"22b-full",       "22b-selective",      "1t-full",        "1t-selective",
                                        "530b-full-dp8",  "530b-selective-dp8", "mt-nlg-dp8",     "mt-nlg-dp10",
                                        "mt-nlg-dp12",    "scaling-146b",       "scaling-310b",   "scaling-530b",
                                        "scaling-1t",     "megascale-256",      "megascale-512",  "megascale-1024",
                                        "megascale-3072", "megascale-6144",     "megascale-12288"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double ratios[2];
        compare(names[i], ratios);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_rows_agree_within_a_tenth),
        cmocka_unit_test(other_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
