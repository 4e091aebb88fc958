/* Written pages: the description is in them whatever it says, and nothing is left behind where one cannot be written.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report/report.h"
#include "testing.h"

static char folder[] = "/tmp/evenkeel-page-XXXXXX";
static char page_path[64];

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(page_path, sizeof page_path, "%s/run.html", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(page_path);
    return rmdir(folder); /* fails if anything else was left behind */
}

static void test_page(void **state)
{
    (void)state;
#define HOSTILE "</script><script>alert(1)</script><!-- \"'&\xe2\x80\xa8@DESCRIPTION@"
    json_t *page = json_pack("{s:s, s:f}", "title", HOSTILE, "number", 0.1), *back;
    assert_ok(ek_report_write(page_path, page));
    FILE *file = fopen(page_path, "r");
    assert_non_null(file);
    char *text = NULL;
    size_t room = 0;
    assert_true(getdelim(&text, &room, '\0', file) > 100000);
    fclose(file);
    assert_null(strstr(text, "alert(1)</script>"));
    char *begin = strstr(text, "<script type=\"application/json\" id=\"description\">");
    assert_non_null(begin);
    begin = strchr(begin, '>') + 1;
    back = json_loadb(begin, (size_t)(strstr(begin, "</script>") - begin), 0, NULL);
    assert_true(json_equal(page, back));
    json_decref(back);
    json_decref(page);
    free(text);
}

static void test_targets_that_cannot_be_written(void **state)
{
    (void)state;
    json_t *page = json_object();
    char path[128], error[300];
    snprintf(path, sizeof path, "%s/missing/run.html", folder);
    assert_int_equal(ek_report_write(path, page), EK_IO);
    snprintf(error, sizeof error, "%s: cannot be written: No such file or directory; name a file that can be written",
             path);
    assert_string_equal(ek_error(), error);
    assert_int_equal(ek_report_write("/dev/null", page), EK_IO);
    assert_string_equal(ek_error(), "/dev/null: is no regular file; name a file that can be written");
    struct stat null;
    assert_int_equal(stat("/dev/null", &null), 0);
    assert_true(S_ISCHR(null.st_mode));
    json_decref(page);
}

/* Nothing is left behind where a file may not become large enough; tear_down would find it. */
static void test_no_room(void **state)
{
    (void)state;
    json_t *page = json_object();
    struct rlimit before, tight;
    getrlimit(RLIMIT_FSIZE, &before);
    tight = (struct rlimit){.rlim_cur = 100000, .rlim_max = before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    unlink(page_path);
    ek_status status = ek_report_write(page_path, page);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, EK_IO);
    assert_non_null(strstr(ek_error(), "cannot be written: File too large"));
    assert_int_equal(access(page_path, F_OK), -1);
    json_decref(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_targets_that_cannot_be_written),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
