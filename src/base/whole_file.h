/* Files that are there as a whole or not at all: written under another name (PATH.PID.part) and renamed when complete.
 * A link is followed, so that it stays a link and what it leads to is replaced. What is no regular file (a pipe, a
 * terminal, /dev/null, /dev/stdout) cannot be replaced and is written as it is. */
#ifndef EK_BASE_WHOLE_FILE_H
#define EK_BASE_WHOLE_FILE_H

#include <stdio.h>

#include <evenkeel.h>

typedef struct ek_whole_file {
    FILE *file; /* to be written to; its errors need no checking before it is closed */
    char *path; /* links followed */
    char *part; /* its name until it is complete; NULL: written as it is */
} ek_whole_file;

/* EK_IO, EK_NO_MEMORY: there is no file, and nothing to end. */
ek_status ek_whole_file_open(ek_whole_file *whole, const char *path);

/* Ends what was opened. After EK_OK the file is closed and gets its name; after any other status, or when that fails,
 * nothing of it is left, and what was there before is as it was. Returns `status` or EK_IO: "PATH: what is wrong". */
ek_status ek_whole_file_end(ek_whole_file *whole, ek_status status);

/* The two halves of an end, for several files that appear together: first all are closed, then all get their names. A
 * failure of either leaves the file to be ended with it. */
ek_status ek_whole_file_close(ek_whole_file *whole);
ek_status ek_whole_file_name(ek_whole_file *whole);

/* Refuses to write to one of inputs[] (each may be NULL), which are used too: EK_INVALID, with the `option` that named
 * the output. */
ek_status ek_output_check(const char *option, const char *path, const char *const *inputs, size_t input_count);

#endif
