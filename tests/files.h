/* Files that tests look into. */
#ifndef TESTS_FILES_H
#define TESTS_FILES_H

#include "base/yaml.h"
#include "testing.h"

/* The text of a file, without zeros in it; the caller's to free. Fails the test if the file cannot be read. */
char *read_file(const char *path) __attribute__((returns_nonnull));

/* The page has a row in its tables for each of the keys, with exactly the range, default and meaning that the code
 * knows. */
void assert_documented(const char *page_path, const ek_field *fields, size_t count);

#endif
