/* A folder for a test, gone with it. */
#include "folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void folder_create(char folder[FOLDER_BYTES])
{
    snprintf(folder, FOLDER_BYTES, "/tmp/evenkeel-plan-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

void folder_remove(const char *folder)
{
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));)
        unlinkat(dirfd(directory), entry->d_name, 0);
    closedir(directory);
    assert_int_equal(rmdir(folder), 0);
}

void folder_write(const char *folder, const char *name, const char *text, size_t bytes, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}
