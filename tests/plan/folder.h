/* A folder of a test's own, for files that inventories are read from. */
#ifndef TESTS_PLAN_FOLDER_H
#define TESTS_PLAN_FOLDER_H

#include "testing.h"

/* A new one under /tmp; its path in `folder`. */
#define FOLDER_BYTES 64
void folder_create(char folder[FOLDER_BYTES]);
/* With the files that are in it. */
void folder_remove(const char *folder);

/* Writes the first `bytes` of a text into a file of the folder; its path in `path`. */
#define PATH_BYTES 200
void folder_write(const char *folder, const char *name, const char *text, size_t bytes, char path[PATH_BYTES]);

#endif
