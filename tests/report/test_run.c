/* Reports of metrics files: what is read, and what is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "report/goodput.h"
#include "report/run.h"
#include "testing.h"

static char folder[] = "/tmp/evenkeel-report-XXXXXX";
static char run_path[64];

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(run_path, sizeof run_path, "%s/run.jsonl", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(run_path);
    return rmdir(folder);
}

static void write_run(const char *text)
{
    FILE *file = fopen(run_path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static json_t *describe(void)
{
    json_t *page;
    assert_ok(ek_run_describe(run_path, NULL, &page));
    return page;
}

#define REPLICA(id, tp)                                                                                                \
    "{\"id\": " #id ", \"tp\": " #tp ", \"samples\": 8, \"busy_seconds\": 0.3, \"power_watts\": 700.0}"
#define STEP(step, at, seconds, replicas)                                                                              \
    "{\"step\": " #step ", \"loss\": 2.5, \"tokens\": 100, \"seconds\": " #seconds                                     \
    ", \"tokens_per_second\": 100, \"at\": " #at ", \"replicas\": [" replicas "]}\n"
#define BOTH REPLICA(0, 4) ", " REPLICA(1, 4)
#define REDUCED REPLICA(0, 4) ", " REPLICA(1, 3)
#define FAILURE                                                                                                        \
    "{\"event\": \"failure\", \"step\": 2, \"replica\": 1, \"slot\": 2, \"phase\": \"backward\", \"cause\": "          \
    "\"signal 9, Killed\", \"at\": 2.0}\n"
#define RECOVERED                                                                                                      \
    "{\"event\": \"recovered\", \"step\": 2, \"replica\": 1, \"tp\": 3, \"seconds\": 0.25, \"bytes\": 1000000, "       \
    "\"redone_steps\": 1, \"at\": 2.25}\n"
#define END "{\"event\": \"end\", \"status\": \"done\", \"steps\": 2, \"loss\": 2.5, \"seconds\": 4.0}\n"
#define RUN STEP(1, 1.5, 1.0, BOTH) FAILURE RECOVERED STEP(2, 3.75, 1.5, REDUCED) END

/* --------------------------------------------------------------------------------------------- what is read */

static json_t *section_of(const json_t *page, size_t section)
{
    return json_array_get(json_object_get(page, "sections"), section);
}

static json_t *rows_of(const json_t *page, size_t section)
{
    return json_object_get(json_object_get(section_of(page, section), "table"), "rows");
}

static const char *fact(const json_t *page, size_t index)
{
    return json_string_value(json_object_get(json_array_get(json_object_get(page, "facts"), index), "value"));
}

static void test_whole_run(void **state)
{
    (void)state;
    write_run(RUN);
    json_t *page = describe();
    assert_string_equal(fact(page, 0), "done");
    assert_string_equal(fact(page, 1), "2");
    assert_string_equal(fact(page, 2), "4.0 s");
    assert_string_equal(fact(page, 3), "62.5 %");
    assert_string_equal(fact(page, 4), "2.5000 → 2.5000");
    assert_int_equal(json_array_size(json_object_get(page, "text")), 0);
    static const double parts[] = {2.0, 0.5, 0.5, 0.25, 0.5, 0.25, 4.0}; /* the last is the total */
    for (size_t part = 0; part <= EK_GOODPUT_PARTS; part++)
        assert_true(json_real_value(json_array_get(json_array_get(rows_of(page, 0), part), 1)) == parts[part]);
    json_t *events = rows_of(page, 2);
    assert_int_equal(json_array_size(events), 2);
    assert_string_equal(json_string_value(json_array_get(json_array_get(events, 0), 3)),
                        "replica 1 slot 2 lost in backward (signal 9, Killed)");
    assert_string_equal(json_string_value(json_array_get(json_array_get(events, 1), 3)),
                        "replica 1 goes on as TP3 after 250.0 ms, 1.00 MB moved, the step is redone");
    assert_int_equal(json_array_size(json_object_get(section_of(page, 1), "charts")), 7);
    assert_int_equal(json_array_size(json_object_get(section_of(page, 1), "events")), 2);
    json_decref(page);
}

/* Each event that metrics.md knows, one that it does not, and several of a name in one step. */
static void test_every_event(void **state)
{
    (void)state;
    static const char *const told[] = {
        "replica 1: TP3, 766 W, 7 samples, 45.1 ms busy predicted",
        "replica 0: TP4, 700 W, 9 samples",
        "spare 1 is back",
        "replica 0 slot 3 is slower than its peers: 120.0 ms busy",
        "replica 1 slot 1: unit 2 of layer.2.qkv was corrupt, healed from rank 5",
        "some device: Xid 63, <b>",
        "path \"/x\", bytes 5",
        "1.50 MB in 0.31 s, training stood still for 12.0 ms",
        "no room",
    };
    write_run(STEP(1, 1.0, 1.0, BOTH) //
              "{\"event\": \"adjusted\", \"step\": 2, \"replica\": 1, \"tp\": 3, \"power_watts\": 766.3, \"samples\": "
              "7, \"predicted_seconds\": 0.0451, \"at\": 1}\n"
              "{\"event\": \"adjusted\", \"step\": 2, \"replica\": 0, \"tp\": 4, \"power_watts\": 700, \"samples\": "
              "9, \"predicted_seconds\": 0, \"at\": 1}\n"
              "{\"event\": \"rejoined\", \"step\": 2, \"spare\": 1, \"at\": 1}\n"
              "{\"event\": \"straggler\", \"step\": 2, \"replica\": 0, \"slot\": 3, \"busy_seconds\": 0.12}\n"
              "{\"event\": \"healed\", \"step\": 2, \"replica\": 1, \"slot\": 1, \"tensor\": \"layer.2.qkv\", "
              "\"unit\": 2, \"from_rank\": 5}\n"
              "{\"event\": \"device_error\", \"step\": 2, \"xid\": 63, \"text\": \"<b>\"}\n"
              "{\"event\": \"exported\", \"path\": \"/x\", \"bytes\": 5}\n"
              "{\"event\": \"checkpoint\", \"step\": 2, \"bytes\": 1500000, \"seconds\": 0.31, "
              "\"stood_seconds\": 0.012}\n"
              "{\"event\": \"checkpoint_failed\", \"step\": 2, \"reason\": \"no room\"}\n");
    json_t *page = describe();
    json_t *rows = rows_of(page, 2);
    assert_int_equal(json_array_size(rows), sizeof told / sizeof *told);
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        assert_string_equal(json_string_value(json_array_get(json_array_get(rows, i), 3)), told[i]);
        assert_true(json_real_value(json_array_get(json_array_get(rows, i), 0)) == 2.0);
    }
    json_t *marks = json_object_get(section_of(page, 1), "events");
    assert_int_equal(json_array_size(marks), sizeof told / sizeof *told - 1); /* both adjusted are one */
    json_decref(page);
}

static void test_unfinished_runs(void **state)
{
    (void)state;
    write_run(STEP(1, 1.5, 1.0, BOTH) "{\"step\": 2, \"lo");
    json_t *page = describe();
    assert_string_equal(fact(page, 0), "no end: killed, or still going");
    assert_non_null(strstr(json_string_value(json_array_get(json_object_get(page, "text"), 0)), "torn"));
    json_decref(page);
    write_run(STEP(1, 1.5, 1.0, BOTH) //
              "{\"event\": \"end\", \"status\": \"failed\", \"reason\": \"out of devices\", \"seconds\": 2}\n");
    page = describe();
    assert_string_equal(fact(page, 0), "failed");
    assert_string_equal(json_string_value(json_array_get(json_object_get(page, "text"), 0)),
                        "The run failed: out of devices.");
    json_decref(page);
}

#define RESUMED(step, at) "{\"event\": \"resumed\", \"step\": " #step ", \"at\": " #at "}\n"
#define GIVEN_UP "{\"event\": \"end\", \"status\": \"failed\", \"steps\": 1, \"loss\": 2.5, \"seconds\": 2.0}\n"

/* Runs that go on from a checkpoint, on other replicas too: of steps that were done again the later lines count, and
 * the times of launches are put one behind the other. */
static void test_resumed_runs(void **state)
{
    (void)state;
    static const struct {
        const char *text, *steps, *times;
        double parts[EK_GOODPUT_PARTS + 1]; /* productive, slower, lost, recovery, start, other; the total */
    } runs[] = {
        /* killed, and launched again on one replica */
        {STEP(1, 1.5, 1.0, BOTH) STEP(2, 2.5, 1.0, BOTH) STEP(3, 3.5, 1.0, BOTH) RESUMED(1, 0.25)
             STEP(2, 1.5, 1.0, REPLICA(0, 4)) "{\"event\": \"end\", \"status\": \"done\", \"seconds\": 2.0}\n",
         "2",
         "1",
         {2.0, 0.0, 2.0, 0.0, 1.0, 0.5, 5.5}},
        /* the last copy of a unit was lost: the same launch goes on */
        {STEP(1, 1.5, 1.0, BOTH) STEP(2, 2.0, 0.5, BOTH) FAILURE RESUMED(1, 2.25) STEP(2, 3.5, 1.0, REDUCED) END,
         "2",
         "1",
         {2.0, 0.0, 1.0, 0.0, 0.5, 0.5, 4.0}},
        /* ended by a signal, with a checkpoint: nothing was lost */
        {STEP(1, 1.5, 1.0, BOTH) GIVEN_UP RESUMED(1, 0.0) STEP(2, 1.5, 1.0, BOTH) END,
         "2",
         "1",
         {2.0, 0.0, 0.0, 0.0, 1.0, 3.0, 6.0}},
        /* no checkpoint yet */
        {STEP(1, 1.5, 1.0, BOTH) RESUMED(0, 0.0) STEP(1, 1.5, 1.0, BOTH) STEP(2, 2.5, 1.0, BOTH),
         "2",
         "1",
         {2.0, 0.0, 1.5, 0.0, 0.5, 0.0, 4.0}},
        /* the second checkpoint that it went on from was the older one */
        {STEP(1, 1.0, 1.0, BOTH) STEP(2, 2.0, 1.0, BOTH) STEP(3, 3.0, 1.0, BOTH) RESUMED(2, 0.0) STEP(3, 1.0, 1.0, BOTH)
             RESUMED(1, 0.0) STEP(2, 1.0, 1.0, BOTH),
         "2",
         "2",
         {2.0, 0.0, 3.0, 0.0, 0.0, 0.0, 5.0}},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        write_run(runs[i].text);
        json_t *page = describe();
        assert_string_equal(fact(page, 1), runs[i].steps);
        assert_string_equal(fact(page, 8), runs[i].times);
        for (size_t part = 0; part <= EK_GOODPUT_PARTS; part++)
            assert_true(json_real_value(json_array_get(json_array_get(rows_of(page, 0), part), 1)) ==
                        runs[i].parts[part]);
        json_t *loss = json_array_get(json_object_get(section_of(page, 1), "charts"), 0);
        json_t *points = json_object_get(json_array_get(json_object_get(loss, "series"), 0), "points");
        assert_int_equal(json_array_size(points), 2);
        json_decref(page);
    }
}

/* More replicas than lines can be told apart: three lines sum them up. */
static void test_many_replicas(void **state)
{
    (void)state;
    write_run(STEP(1, 1.0, 1.0,
                   REPLICA(0, 4) ", " REPLICA(1, 2) ", " REPLICA(2, 4) ", " REPLICA(3, 4) ", " REPLICA(
                       4, 4) ", " REPLICA(5, 1) ", " REPLICA(6, 3) ", " REPLICA(7, 3) ", " REPLICA(8, 4)));
    json_t *page = describe();
    json_t *degrees = json_object_get(json_array_get(json_object_get(section_of(page, 1), "charts"), 3), "series");
    assert_int_equal(json_array_size(degrees), 3);
    static const double expected[] = {1.0, 4.0, 4.0}; /* lowest, median, highest */
    for (size_t line = 0; line < 3; line++) {
        json_t *points = json_object_get(json_array_get(degrees, line), "points");
        assert_true(json_real_value(json_array_get(json_array_get(points, 0), 1)) == expected[line]);
    }
    json_decref(page);
}

/* 200,000 steps with 4,000 failures make a description of a megabyte. */
static void test_long_run(void **state)
{
    (void)state;
    FILE *file = fopen(run_path, "w");
    assert_non_null(file);
    for (unsigned step = 1; step <= 200000; step++) {
        if (step % 50 == 0)
            fprintf(file, "{\"event\": \"failure\", \"step\": %u, \"replica\": 1, \"slot\": 2, \"at\": %u}\n", step,
                    step - 1);
        fprintf(file,
                "{\"step\": %u, \"loss\": %.6f, \"tokens\": 100, \"seconds\": 1, \"tokens_per_second\": 100, \"at\": "
                "%u, \"replicas\": [" REPLICA(0, 4) ", {\"id\": 1, \"tp\": %d, \"samples\": 8, \"busy_seconds\": "
                                                    "%.5f, \"power_watts\": 700}]}\n",
                step, 2.0 + 3.0 / step, step, step % 50 < 20 ? 3 : 4, 0.3 + 1e-5 * (step % 997));
    }
    assert_int_equal(fclose(file), 0);
    json_t *page = describe();
    assert_string_equal(fact(page, 2), "55 h 33 min");
    assert_int_equal(json_array_size(rows_of(page, 2)), 1000);
    assert_in_range(json_array_size(json_object_get(section_of(page, 1), "events")), 100, 200);
    json_t *degree =
        json_array_get(json_object_get(json_array_get(json_object_get(section_of(page, 1), "charts"), 3), "series"), 1);
    assert_string_equal(json_string_value(json_object_get(degree, "kind")), "line");
    json_t *band = json_array_get(json_object_get(degree, "band"), 7);
    assert_true(json_real_value(json_array_get(band, 1)) == 3.0 && json_real_value(json_array_get(band, 2)) == 4.0);
    assert_in_range(json_dumpb(page, NULL, 0, JSON_COMPACT | JSON_REAL_PRECISION(10)), 100000, 1500000);
    json_decref(page);
}

/* ------------------------------------------------------------------------------------------- what is refused */

#define NEEDED "; a file that evenkeel train --metrics wrote is needed"
static const struct {
    const char *text, *error; /* behind the path */
} refusals[] = {
    {"", ": holds no committed step" NEEDED},
    {END, ": holds no committed step" NEEDED},
    {"{\"step\": 2, \"lo", ": holds no committed step" NEEDED},
    {"\n", ":1: no JSON object ('[' or '{' expected near end of file)" NEEDED},
    {"model: {layers: 4}\n", ":1: no JSON object ('[' or '{' expected near 'model')" NEEDED},
    {"[1, 2]\n", ":1: no JSON object (another kind of value)" NEEDED},
    {RUN "{\"step\": 3, \"lo\n" END, ":6: no JSON object (unexpected newline near '\"lo')" NEEDED},
    {"{\"answer\": 42}\n", ":1: a step needs \"step\", a number that is not negative" NEEDED},
    {"{\"step\": \"1\"}\n", ":1: a step needs \"step\", a number that is not negative" NEEDED},
    {"{\"step\": 1, \"at\": -1}\n", ":1: a step needs \"at\", a number that is not negative" NEEDED},
    {STEP(1, 1, 1, ""), ":1: a step needs \"replicas\", a list of 1 to 4096; found 0"},
    {STEP(1, 1, 1, "{\"tp\": 4}"), ":1: a replica needs \"power_watts\", a number that is not negative" NEEDED},
    {STEP(1, 1, 1, BOTH) STEP(2, 2, 1, REPLICA(0, 4)), ":2: a step of 1 replicas; the steps before have 2"},
    {RUN RUN, ":6: step 1 at 1.5 s after step 2 at 3.75 s; the metrics of one run are needed"},
    {STEP(1, 1, 1, BOTH) RESUMED(1, 0) STEP(1, 1, 1, BOTH),
     ":3: step 1 at 2 s after step 1 at 1 s; the metrics of one run are needed"},
    {"{\"event\": \"resumed\"}\n", ":1: a resumed run needs \"step\", a number that is not negative" NEEDED},
    {"{\"event\": \"end\"}\n", ":1: the end needs \"seconds\", a number that is not negative" NEEDED},
};

static void assert_refused(ek_status expected, const char *error)
{
    json_t *page = NULL;
    char text[600];
    snprintf(text, sizeof text, "%s%s", run_path, error);
    assert_int_equal(ek_run_describe(run_path, NULL, &page), expected);
    assert_string_equal(ek_error(), text);
    assert_null(page);
}

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        write_run(refusals[i].text);
        assert_refused(EK_INVALID, refusals[i].error);
    }
    unlink(run_path);
    assert_refused(EK_IO, ": cannot be opened: No such file or directory" NEEDED);
    assert_int_equal(mkdir(run_path, 0777), 0);
    assert_refused(EK_IO, ": cannot be read: Is a directory");
    assert_int_equal(rmdir(run_path), 0);
    json_t *page;
    assert_int_equal(ek_run_describe(run_path, "\xff", &page), EK_INVALID);
    assert_string_equal(ek_error(), "the title is no UTF-8 text");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_run),       cmocka_unit_test(test_every_event),
        cmocka_unit_test(test_unfinished_runs), cmocka_unit_test(test_many_replicas),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_long_run),
        cmocka_unit_test(test_resumed_runs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
