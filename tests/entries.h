/* What tests look at to see that nothing was left behind. */
#ifndef TESTS_ENTRIES_H
#define TESTS_ENTRIES_H

#include <dirent.h>

#include "testing.h"

/* The number of entries of a folder, "." and ".." among them. */
static inline size_t entries_of(const char *path)
{
    DIR *folder = opendir(path);
    assert_non_null(folder);
    size_t count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

#endif
