/* The table of phases: what is a phase, what it is said to have cost, and that it stays narrow and bounded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "testing.h"
#include "train/phases.h"

static ek_phases *phases;

static void begin(uint32_t replicas, uint32_t base_degree, uint32_t samples, double default_watts)
{
    ek_phase_job job = {.replicas = replicas,
                        .base_degree = base_degree,
                        .samples = samples,
                        .default_watts = default_watts,
                        .parallelism = "TP"};
    assert_ok(ek_phases_create(&phases, &job));
}

/* Without a straggler: every device of a replica has the same limit. */
static ek_phase_replica replica(uint32_t degree, uint32_t samples, double watts, double predicted, double busy)
{
    return (ek_phase_replica){degree, samples, watts, watts * degree, predicted, busy};
}

static char *print(void)
{
    char *text;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    assert_non_null(file);
    ek_phases_print(phases, file);
    assert_int_equal(fclose(file), 0);
    return text;
}

static void assert_table(const char *expected)
{
    char *text = print();
    assert_string_equal(text, expected);
    free(text);
    ek_phases_destroy(phases);
}

/* Two replicas of four devices, eight samples each; one loses a device: first at raised power with its samples, then
 * with fewer; at last it comes back. */
static void costs(void **state)
{
    (void)state;
    begin(2, 4, 16, 700);
    ek_phase_replica whole = replica(4, 8, 700, 0, 0.08), foreseen = replica(4, 8, 700, 0.08, 0.08);
    assert_true(ek_phases_add(phases, 1, (ek_phase_replica[]){whole, whole}));
    assert_false(ek_phases_add(phases, 2, (ek_phase_replica[]){foreseen, foreseen}));
    ek_phase_replica slow = replica(3, 8, 910, 0.09, 0.1), slower = replica(3, 8, 910, 0.09, 0.12);
    assert_true(ek_phases_add(phases, 3, (ek_phase_replica[]){foreseen, slow}));
    assert_false(ek_phases_add(phases, 4, (ek_phase_replica[]){foreseen, slower}));
    ek_phase_replica more = replica(4, 9, 700, 0.09, 0.09), fewer = replica(3, 7, 700.4, 0.07, 0.08);
    assert_true(ek_phases_add(phases, 5, (ek_phase_replica[]){more, fewer}));
    ek_phase_replica left_out = replica(3, 5, 700.4, 0.07, 0.07);
    assert_true(ek_phases_add(phases, 6, (ek_phase_replica[]){foreseen, left_out}));
    assert_true(ek_phases_add(phases, 7, (ek_phase_replica[]){foreseen, foreseen}));
    assert_table("                  busy, ms          against no failures\n"
                 "steps  predicted  reported   time, %  samples  power, W  replicas (W of a device, samples)\n"
                 "  1-2       80.0      80.0       0.0        0         0  2xTP4 (700 W, 8)\n"
                 "  3-4       90.0     110.0     +37.5        0       -70  TP4 (700 W, 8) + TP3 (910 W, 8)\n"
                 "  5-5       90.0      90.0     +12.5        0      -699  TP4 (700 W, 9) + TP3 (700 W, 7)\n"
                 "  6-6       80.0      80.0       0.0       -3      -699  TP4 (700 W, 8) + TP3 (700 W, 5)\n"
                 "  7-7       80.0      80.0       0.0        0         0  2xTP4 (700 W, 8)\n\n");
}

/* Where no replica is whole, what whole ones took before counts; if there never were any, nothing is said. Power that
 * nobody governs is not spoken of, a retired replica is called that. */
static void without_whole_replicas(void **state)
{
    (void)state;
    ek_phase_replica whole = replica(4, 5, 0, 0, 0.05), reduced = replica(3, 5, 0, 0, 0.06), retired = {0};
    begin(3, 4, 15, 0);
    ek_phases_add(phases, 8, (ek_phase_replica[]){reduced, reduced, reduced});
    ek_phases_add(phases, 9, (ek_phase_replica[]){reduced, whole, retired});
    ek_phases_add(phases, 10, (ek_phase_replica[]){reduced, retired, retired});
    assert_table("                  busy, ms          against no failures\n"
                 "steps  predicted  reported   time, %  samples  power, W  replicas (samples)\n"
                 "  8-8                 60.0                  0            3xTP3 (5)\n"
                 "  9-9                 60.0     +20.0       -5            TP3 (5) + TP4 (5) + retired\n"
                 "10-10                 60.0     +20.0      -10            TP3 (5) + 2xretired\n\n");
}

/* A straggler that is given more power: another phase, though no replica's samples or degree changed. */
static void stragglers_cost_power(void **state)
{
    (void)state;
    begin(1, 4, 8, 700);
    ek_phase_replica step = replica(4, 8, 700, 0, 0.08);
    assert_true(ek_phases_add(phases, 1, &step));
    step.watts = 900;
    step.total_watts = 3 * 700 + 900;
    assert_true(ek_phases_add(phases, 2, &step));
    step.total_watts = 2 * 700 + 2 * 900;
    assert_true(ek_phases_add(phases, 3, &step));
    assert_table("                  busy, ms          against no failures\n"
                 "steps  predicted  reported   time, %  samples  power, W  replicas (W of a device, samples)\n"
                 "  1-1                 80.0       0.0        0         0  TP4 (700 W, 8)\n"
                 "  2-2                 80.0       0.0        0      +200  TP4 (900 W, 8)\n"
                 "  3-3                 80.0       0.0        0      +400  TP4 (900 W, 8)\n\n");
}

/* Thousands of phases of many unlike replicas: as many lines as fit the bound, none too wide; every change is told of,
 * and nothing else is. */
static void bounded(void **state)
{
    (void)state;
    enum { REPLICAS = 40, PHASES = 3000 };
    begin(REPLICAS, 72, 4000, 1000);
    ek_phase_replica replicas[REPLICAS];
    uint64_t step = 0;
    for (uint64_t phase = 0; phase < PHASES; phase++) {
        for (uint32_t r = 0; r < REPLICAS; r++) {
            uint64_t draw = ek_random_u64(1, phase, r % 2 ? r : 0);
            replicas[r] = replica(draw % 9 ? 72 - draw % 5 : 0, 90 + draw % 11, 1000 + (double)(draw % 300), 0.1, 0.1);
        }
        for (uint64_t steps = 1 + phase % 3; steps > 0; steps--)
            assert_int_equal(ek_phases_add(phases, ++step, replicas), steps == 1 + phase % 3);
    }
    char *text = print(), *rest = text;
    assert_non_null(strstr(text, "\n… and 2936 changes more\n"));
    assert_non_null(strstr(text, " + …\n"));
    size_t lines = 0;
    for (char *line; (line = strsep(&rest, "\n")); lines++)
        assert_in_range(strlen(line), 0, 100 + 2); /* "…" is three bytes */
    assert_in_range(lines, 64, 64 * 8);
    free(text);
    ek_phases_destroy(phases);
}

static void nothing_happened(void **state)
{
    (void)state;
    begin(1, 1, 1, 700);
    assert_table("");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs),
        cmocka_unit_test(without_whole_replicas),
        cmocka_unit_test(bounded),
        cmocka_unit_test(stragglers_cost_power),
        cmocka_unit_test(nothing_happened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
