/* Written pages: the description is in them whatever it says, and a file that takes no more is an error. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/whole_file.h"
#include "files.h"
#include "report/report.h"

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

static ek_status write_page(const json_t *page)
{
    ek_whole_file file;
    EK_TRY(ek_whole_file_open(&file, page_path));
    return ek_whole_file_end(&file, ek_report_write(file.file, page));
}

static void test_page(void **state)
{
    (void)state;
#define HOSTILE "</script><script>alert(1)</script><!-- \"'&\xe2\x80\xa8@DESCRIPTION@"
    json_t *page = json_pack("{s:s, s:f}", "title", HOSTILE, "number", 0.1), *back;
    assert_ok(write_page(page));
    char *text = read_file(page_path);
    assert_true(strlen(text) > 100000);
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

/* Failures in the page as the program has it, in the description, and behind it. */
static void test_no_room(void **state)
{
    (void)state;
    json_t *page = json_object();
    struct stat whole;
    struct rlimit before;
    assert_ok(write_page(page));
    assert_int_equal(stat(page_path, &whole), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t room = 0; room < (rlim_t)whole.st_size; room += (rlim_t)whole.st_size / 7) {
        const struct rlimit tight = {room, before.rlim_max};
        FILE *file = tmpfile();
        assert_non_null(file);
        setvbuf(file, NULL, _IONBF, 0);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
        ek_status status = ek_report_write(file, page);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(status, EK_IO);
        assert_string_equal(ek_error(), "the page cannot be written (File too large)");
        fclose(file);
    }
    json_decref(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
