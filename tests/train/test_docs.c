/* docs/configuration.md has a row for every key, with exactly the range, default and meaning that the code knows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testing.h"
#include "train/config.h"

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = NULL;
    size_t room = 0;
    assert_true(getdelim(&text, &room, '\0', file) > 0);
    fclose(file);
    return text;
}

static void test_configuration_page(void **state)
{
    (void)state;
    char *page = read_file(CONFIGURATION_PAGE);
    size_t count, rows = 0;
    const ek_field *fields = ek_config_fields(&count);
    for (size_t i = 0; i < count; i++) {
        const ek_field *field = &fields[i];
        char row[1000], allowed[EK_ALLOWED_BYTES];
        const char *quote = field->otherwise ? "`" : "";
        ek_field_allowed(field, allowed);
        snprintf(row, sizeof row, "\n| `%s` | %s | %s%s%s | %s |\n", field->key, allowed, quote,
                 field->otherwise ? field->otherwise
                 : field->derived ? field->derived
                                  : "required",
                 quote, field->help);
        if (!strstr(page, row))
            fail_msg("docs/configuration.md lacks the row%s", row);
    }
    /* and no row for a key that there is not: key rows are those with a dot in their first cell */
    for (const char *row = page; (row = strstr(row, "\n| `")); row++)
        rows += strcspn(row + 4, ".") < strcspn(row + 4, "`");
    assert_int_equal(rows, count);
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_configuration_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
