/* docs/configuration.md has a row for every key, with exactly the range, default and meaning that the code knows. */
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "train/config.h"

static void test_configuration_page(void **state)
{
    (void)state;
    char *page = read_file(CONFIGURATION_PAGE);
    size_t count, rows = 0;
    const ek_field *fields = ek_config_fields(&count);
    assert_documented(CONFIGURATION_PAGE, fields, count);
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
