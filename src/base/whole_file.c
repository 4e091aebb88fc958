/* Writes files under another name, and renames them when they are complete. */
#include "base/whole_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

static ek_status no_memory(void)
{
    return ek_fail(EK_NO_MEMORY, "no memory for the name of a file");
}

static ek_status cannot_write(const char *path)
{
    return ek_fail(EK_IO, "%s: cannot be written (%s); name a file that can be written", path, strerror(errno));
}

/* Whether a file of another name can take this one's place, and where that is: behind all links. A link that leads
 * nowhere, or to a file that has no name any more (/dev/stdout may), has no such place. */
static bool find_place(const char *path, char **place)
{
    struct stat found;
    if (lstat(path, &found) != 0)
        *place = strdup(path);
    else if (S_ISLNK(found.st_mode))
        *place = stat(path, &found) == 0 && S_ISREG(found.st_mode) ? realpath(path, NULL) : NULL;
    else
        *place = S_ISREG(found.st_mode) ? strdup(path) : NULL;
    return *place != NULL;
}

static void release(ek_whole_file *whole)
{
    free(whole->path);
    free(whole->part);
    *whole = (ek_whole_file){0};
}

static ek_status open_file(ek_whole_file *whole, const char *path)
{
    bool replaces = find_place(path, &whole->path);
    if (!replaces)
        whole->path = strdup(path);
    if (!whole->path)
        return no_memory();
    if (replaces && asprintf(&whole->part, "%s.%d.part", whole->path, (int)getpid()) < 0) {
        whole->part = NULL;
        return no_memory();
    }
    whole->file = fopen(replaces ? whole->part : path, replaces ? "wxe" : "we");
    return whole->file ? EK_OK : cannot_write(path);
}

ek_status ek_whole_file_open(ek_whole_file *whole, const char *path)
{
    *whole = (ek_whole_file){0};
    ek_status status = open_file(whole, path);
    if (status != EK_OK)
        release(whole);
    return status;
}

ek_status ek_whole_file_close(ek_whole_file *whole)
{
    bool failed = ferror(whole->file) != 0;
    failed = fclose(whole->file) != 0 || failed;
    whole->file = NULL;
    return failed ? cannot_write(whole->path) : EK_OK;
}

ek_status ek_whole_file_name(ek_whole_file *whole)
{
    if (whole->part && rename(whole->part, whole->path) != 0)
        return cannot_write(whole->path);
    release(whole);
    return EK_OK;
}

static void discard(ek_whole_file *whole)
{
    if (whole->file)
        fclose(whole->file);
    if (whole->part)
        unlink(whole->part);
    release(whole);
}

ek_status ek_whole_file_end(ek_whole_file *whole, ek_status status)
{
    if (status == EK_OK)
        status = ek_whole_file_close(whole);
    if (status == EK_OK)
        status = ek_whole_file_name(whole);
    if (status != EK_OK)
        discard(whole);
    return status;
}

/* The same file under whatever names, or the same name of one that is not there yet. Devices hold nothing to be lost.
 */
static bool are_same(const char *a, const char *b)
{
    struct stat first, second;
    if (stat(a, &first) != 0 || stat(b, &second) != 0)
        return strcmp(a, b) == 0;
    return S_ISREG(first.st_mode) && first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

ek_status ek_output_check(const char *option, const char *path, const char *const *inputs, size_t input_count)
{
    for (size_t i = 0; i < input_count; i++)
        if (inputs[i] && are_same(path, inputs[i]))
            return ek_fail(EK_INVALID, "%s %s: that is %s, which is used too; name another file", option, path,
                           inputs[i]);
    return EK_OK;
}
