/* What every test includes: cmocka with the headers it wants first. */
#ifndef TESTS_TESTING_H
#define TESTS_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <evenkeel.h>

/* Fails the test with the library's own error text. */
#define assert_ok(expression)                                                                                          \
    do {                                                                                                               \
        ek_status assert_ok_status = (expression);                                                                     \
        if (assert_ok_status != EK_OK)                                                                                 \
            fail_msg("%s: %s: %s", #expression, ek_status_text(assert_ok_status), ek_error());                         \
    } while (0)

#endif
