/* Error texts: one line, whatever a file or the command line has put into them. */
#include "base/error.h"
#include "testing.h"

static void test_one_line(void **state)
{
    (void)state;
    assert_int_equal(ek_fail(EK_INVALID, "found \"%s\"", "a\nb\r\t\x1B[2J\x7F é…"), EK_INVALID);
    assert_string_equal(ek_error(), "found \"a?b???[2J? é…\"");
    assert_int_equal(ek_fail_prefix(EK_IO, "%s: ", "new\nline.csv"), EK_IO);
    assert_string_equal(ek_error(), "new?line.csv: found \"a?b???[2J? é…\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
