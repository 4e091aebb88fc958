/* Files are replaced as a whole or stay as they were, and nothing else is left beside them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/whole_file.h"
#include "testing.h"

static char folder[] = "/tmp/evenkeel-whole-file-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("/") == 0 ? rmdir(folder) : -1; /* fails if anything was left behind */
}

static void expect(const char *path, const char *text)
{
    char found[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    found[fread(found, 1, sizeof found - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(found, text);
}

static ek_status write_file(const char *path, const char *text, ek_status status)
{
    ek_whole_file file;
    EK_TRY(ek_whole_file_open(&file, path));
    fputs(text, file.file);
    return ek_whole_file_end(&file, status);
}

static void test_replaced_as_a_whole(void **state)
{
    (void)state;
    ek_whole_file file;
    assert_ok(write_file("a", "first", EK_OK));
    expect("a", "first");
    assert_ok(ek_whole_file_open(&file, "a"));
    fputs("second", file.file);
    assert_int_equal(fflush(file.file), 0);
    expect("a", "first");
    assert_ok(ek_whole_file_close(&file));
    expect("a", "first");
    assert_ok(ek_whole_file_name(&file));
    expect("a", "second");
    assert_int_equal(unlink("a"), 0);
}

/* At every point at which one may be given up. */
static void test_given_up(void **state)
{
    (void)state;
    assert_ok(write_file("a", "first", EK_OK));
    for (int closed = 0; closed < 2; closed++) {
        ek_whole_file file;
        assert_ok(ek_whole_file_open(&file, "a"));
        fputs("second", file.file);
        if (closed)
            assert_ok(ek_whole_file_close(&file));
        assert_int_equal(ek_whole_file_end(&file, EK_INVALID), EK_INVALID);
        expect("a", "first");
    }
    assert_int_equal(unlink("a"), 0);
    assert_int_equal(write_file("b", "x", EK_IO), EK_IO);
    assert_int_equal(access("b", F_OK), -1);
}

static void test_links(void **state)
{
    (void)state;
    struct stat found;
    assert_int_equal(mkdir("elsewhere", 0700), 0);
    assert_ok(write_file("elsewhere/a", "first", EK_OK));
    assert_int_equal(symlink("elsewhere/a", "link"), 0);
    assert_int_equal(symlink("link", "link_to_link"), 0);
    assert_ok(write_file("link_to_link", "second", EK_OK));
    expect("elsewhere/a", "second");
    assert_int_equal(write_file("link_to_link", "third", EK_IO), EK_IO);
    expect("elsewhere/a", "second");
    assert_int_equal(lstat("link", &found), 0);
    assert_true(S_ISLNK(found.st_mode));
    assert_int_equal(unlink("elsewhere/a"), 0);
    assert_ok(write_file("link", "fourth", EK_OK)); /* leads nowhere until now */
    expect("elsewhere/a", "fourth");
    assert_int_equal(unlink("elsewhere/a") | rmdir("elsewhere") | unlink("link") | unlink("link_to_link"), 0);
}

/* A device or a pipe stays what it is; so does standard output in a file without a name. */
static void test_written_as_they_are(void **state)
{
    (void)state;
    struct stat null, before;
    assert_int_equal(stat("/dev/null", &before), 0);
    assert_ok(write_file("/dev/null", "text", EK_OK));
    assert_int_equal(write_file("/dev/null", "text", EK_INVALID), EK_INVALID);
    assert_int_equal(stat("/dev/null", &null), 0);
    assert_int_equal(null.st_ino, before.st_ino);

    FILE *nameless = tmpfile();
    char path[64], text[16] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(nameless));
    assert_ok(write_file(path, "text", EK_OK));
    rewind(nameless);
    assert_int_equal(fread(text, 1, sizeof text, nameless), 4);
    assert_string_equal(text, "text");
    fclose(nameless);
}

static void assert_refused(const char *path, const char *reason)
{
    char error[256];
    assert_int_equal(write_file(path, "text", EK_OK), EK_IO);
    snprintf(error, sizeof error, "%s: cannot be written (%s); name a file that can be written", path, reason);
    assert_string_equal(ek_error(), error);
}

static void test_refused(void **state)
{
    (void)state;
    assert_refused("missing/a", "No such file or directory");
    assert_refused("/dev/full", "No space left on device");
    assert_int_equal(mkdir("a", 0700), 0);
    assert_refused("a", "Is a directory");
    assert_int_equal(rmdir("a"), 0);
    assert_refused("a/", "No such file or directory");
}

/* More than a buffer holds, so that the write fails before the file is closed; and less. */
static void test_no_room(void **state)
{
    (void)state;
    static char text[1 << 16];
    const size_t sizes[] = {2, sizeof text - 1};
    const struct rlimit tight = {1, RLIM_INFINITY};
    struct rlimit before;
    assert_ok(write_file("a", "first", EK_OK));
    memset(text, 'x', sizeof text - 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
        ek_status status = write_file("a", text + sizeof text - 1 - sizes[i], EK_OK);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(status, EK_IO);
        assert_string_equal(ek_error(), "a: cannot be written (File too large); name a file that can be written");
        expect("a", "first");
    }
    assert_int_equal(unlink("a"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replaced_as_a_whole), cmocka_unit_test(test_given_up), cmocka_unit_test(test_links),
        cmocka_unit_test(test_written_as_they_are), cmocka_unit_test(test_refused),  cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
