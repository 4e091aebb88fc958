/* Lists of strings in settings, and what is refused in them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/yaml.h"
#include "testing.h"

typedef struct target {
    char **names;
    size_t name_count;
} target;

static const ek_field fields[] = {{"list.names", .kind = EK_FIELD_STRINGS, .offset = offsetof(target, names),
                                   .count_offset = offsetof(target, name_count), .otherwise = "[]", .help = "names"}};

static ek_status read_value(target *read, const char *value)
{
    static char override[400], path[] = "/tmp/evenkeel-settings-XXXXXX";
    static ek_origin origins[1];
    strcpy(path + strlen(path) - 6, "XXXXXX");
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, "list: {}\n", 9), 9);
    close(file);
    *read = (target){0};
    origins[0] = (ek_origin){0};
    snprintf(override, sizeof override, "list.names=%s", value);
    const ek_settings settings = {fields, 1, read, path, origins};
    ek_status status = ek_settings_read(&settings, (const char *const[]){override}, 1);
    remove(path);
    return status;
}

static void test_lists(void **state)
{
    (void)state;
    target read;
    assert_ok(read_value(&read, "[]"));
    assert_int_equal(read.name_count, 0);
    assert_non_null(read.names);
    ek_settings_free(fields, 1, &read);
    assert_null(read.names);
    assert_ok(read_value(&read, "[3.10, \"7\", a b, 'it''s']")); /* what looks like a number is its text */
    assert_int_equal(read.name_count, 4);
    assert_string_equal(read.names[0], "3.10");
    assert_string_equal(read.names[1], "7");
    assert_string_equal(read.names[2], "a b");
    assert_string_equal(read.names[3], "it's");
    ek_settings_free(fields, 1, &read);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *value, *error;
    } refused[] = {
        {"a", "list.names: found \"a\"; a list of strings is needed"},
        {"{a: 1}", "list.names: found a mapping; a list of strings is needed"},
        {"[a, ~]", "list.names[1]: found nothing; a string is needed"},
        {"[\"\"]", "list.names[0]: found \"\" in quotes; a string is needed"},
        {"[[a]]", "list.names[0]: found a list; a string is needed"},
        {"[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]", "list.names[0]: found a list; a string is needed"},
        {"[[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]]",
         "lists and mappings are more than 16 levels deep; that is no configuration"},
        {"[!x a]", "list.names[0]: found \"a\" with a tag; a string is needed"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        target read;
        char expected[300];
        assert_int_equal(read_value(&read, refused[i].value), EK_INVALID);
        snprintf(expected, sizeof expected, "--set list.names=%s: %s", refused[i].value, refused[i].error);
        assert_string_equal(ek_error(), expected);
        ek_settings_free(fields, 1, &read);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
