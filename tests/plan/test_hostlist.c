/* Host lists: what they expand to, what is refused, and that lists written for random names expand to these names. */
#include "plan/hostlist.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "testing.h"

/* The expansion, joined by spaces; to be freed. */
static char *expanded(const char *text)
{
    ek_hostlist list = {0};
    assert_ok(ek_hostlist_expand(&list, text));
    char *joined = NULL;
    size_t bytes;
    FILE *file = open_memstream(&joined, &bytes);
    for (size_t i = 0; i < list.count; i++)
        fprintf(file, "%s%s", i > 0 ? " " : "", list.names[i]);
    fclose(file);
    ek_hostlist_free(&list);
    return joined;
}

static void test_expansion(void **state)
{
    (void)state;
    static const struct {
        const char *text, *names;
    } cases[] = {
        {"login", "login"},
        {"a,b2", "a b2"},
        {"node[1-3]", "node1 node2 node3"},
        {"node[001-003,020]", "node001 node002 node003 node020"},
        {"node[8-11]", "node8 node9 node10 node11"},
        {"node[08-11]x,y", "node08x node09x node10x node11x y"},
        {"r[1-2]n[08-09]", "r1n08 r1n09 r2n08 r2n09"},
        {"10.140.71.103,gpu-a-[7]", "10.140.71.103 gpu-a-7"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *names = expanded(cases[i].text);
        assert_string_equal(names, cases[i].names);
        free(names);
    }
    ek_hostlist rack = {0};
    assert_ok(ek_hostlist_expand(&rack, "node[001-018,020]"));
    assert_int_equal(rack.count, 19);
    assert_string_equal(rack.names[17], "node018");
    ek_hostlist_free(&rack);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",        "a,,b",    "node[1-3", "node1-3]", "node[]",          "node[1-]",         "node[3-1]",
        "node[a]", "node[1,", "node[1,]", "node[-1]", "node[1--2]",      "node[0000000001]", "node[0-99999999]",
        "a,",      "[",       "]",        "a[1]b[",   "node[[1-2]-[3]]",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        ek_hostlist list = {0};
        if (ek_hostlist_expand(&list, texts[i]) != EK_INVALID)
            fail_msg("\"%s\" is taken", texts[i]);
        ek_hostlist_free(&list);
    }
}

static void assert_written(const char *const *names, size_t count, const char *text)
{
    char *written = NULL;
    size_t bytes;
    FILE *file = open_memstream(&written, &bytes);
    ek_hostlist_write(names, count, file);
    fclose(file);
    if (text)
        assert_string_equal(written, text);
    ek_hostlist list = {0};
    assert_ok(ek_hostlist_expand(&list, written));
    assert_int_equal(list.count, count);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(list.names[i], names[i]);
    ek_hostlist_free(&list);
    free(written);
}

static void test_writing(void **state)
{
    (void)state;
    assert_written((const char *const[]){"n1", "n2", "n3", "n5", "login"}, 5, "n[1-3,5],login");
    assert_written((const char *const[]){"n08", "n09", "n10", "n100"}, 4, "n[08-10,100]");
    assert_written((const char *const[]){"n9", "n10", "n010"}, 3, "n[9-10,010]");
    assert_written((const char *const[]){"n3", "n2", "n1"}, 3, "n[3,2,1]");
    assert_written((const char *const[]){"a", "b", "n7", "m8"}, 4, "a,b,n7,m8");
    assert_written((const char *const[]){"x12345678901234567890", "x12345678901234567891"}, 2,
                   "x12345678901234567890,x12345678901234567891");
}

static void test_random_names(void **state)
{
    (void)state;
    enum { NAMES = 12 };
    uint64_t draw = 0;
    for (int trial = 0; trial < 20000; trial++) {
        char names[NAMES][16];
        const char *list[NAMES];
        for (int i = 0; i < NAMES; i++) {
            uint64_t random = ek_random_u64(7, 0, draw++);
            /* mostly the next number after the last one */
            unsigned number =
                i > 0 && random % 4 ? (unsigned)strtoul(names[i - 1] + 1, NULL, 10) + 1 : (unsigned)(random >> 8) % 120;
            snprintf(names[i], sizeof names[i], "%c%0*u", "ab"[random >> 16 & 1 & (random >> 20)],
                     1 + (int)((random >> 24) % 8 == 0), number);
            list[i] = names[i];
        }
        assert_written(list, NAMES, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expansion),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_writing),
        cmocka_unit_test(test_random_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
