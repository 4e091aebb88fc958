/* docs/simulator.md has a row for every key of a scenario, with exactly the range, default and meaning that the code
 * knows, and names every ready scenario, conduct and policy. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "scenarios.h"
#include "sim/timeline.h"

static void test_keys(void **state)
{
    (void)state;
    ek_field fields[EK_SCENARIO_FIELDS_MOST];
    size_t count = ek_scenario_fields(fields);
    assert_documented(SIMULATOR_PAGE, fields, count);
}

static void test_names(void **state)
{
    (void)state;
    char *page = read_file(SIMULATOR_PAGE), wanted[300];
    DIR *folder = opendir(EXAMPLES);
    assert_non_null(folder);
    unsigned scenarios = 0;
    for (const struct dirent *entry; (entry = readdir(folder));) {
        if (!strstr(entry->d_name, ".yaml"))
            continue;
        snprintf(wanted, sizeof wanted, "\n| `%.200s` | ", entry->d_name);
        assert_non_null(strstr(page, wanted));
        scenarios++;
    }
    closedir(folder);
    assert_int_equal(scenarios, EK_STUDY_KINDS + 1); /* each study has one, throughput another with experts */
    for (size_t i = 0; i < EK_CONDUCTS; i++) {
        snprintf(wanted, sizeof wanted, "\n| `%s` | ", ek_conducts[i].name);
        assert_non_null(strstr(page, wanted));
    }
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
