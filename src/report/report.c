/* Puts a description into the page. The page lies in the program (page.S) with a mark where the description goes: an
 * element whose text is data. JSON can hold "<" in strings only, and there it may be written as an escape, so that no
 * text can end the element. */
#include "report/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

#ifdef EK_REPORT

#define MARK "@DESCRIPTION@"

extern const char ek_report_page[];
extern const uint32_t ek_report_page_bytes;

static int write_escaped(const char *text, size_t size, void *file)
{
    for (const char *end = text + size; text < end;) {
        const char *bracket = memchr(text, '<', (size_t)(end - text));
        size_t plain = (size_t)((bracket ? bracket : end) - text);
        if (fwrite(text, 1, plain, file) != plain || (bracket && fputs("\\u003c", file) < 0))
            return -1;
        text += plain + (bracket != NULL);
    }
    return 0;
}

static bool write_page(FILE *file, const json_t *page)
{
    size_t bytes = ek_report_page_bytes;
    const char *mark = memmem(ek_report_page, bytes, MARK, strlen(MARK));
    size_t before = (size_t)(mark - ek_report_page), after = bytes - before - strlen(MARK);
    return fwrite(ek_report_page, 1, before, file) == before &&
           json_dump_callback(page, write_escaped, file, JSON_COMPACT | JSON_REAL_PRECISION(10)) == 0 &&
           fwrite(mark + strlen(MARK), 1, after, file) == after;
}

/* What is no regular file (/dev/null), a link too (/dev/stdout), must not be replaced by one. */
static ek_status check_target(const char *path)
{
    struct stat found;
    if (lstat(path, &found) == 0 && !S_ISREG(found.st_mode))
        return ek_fail(EK_IO, "%s: is no regular file; name a file that can be written", path);
    return EK_OK;
}

ek_status ek_report_write(const char *path, const json_t *page)
{
    EK_TRY(check_target(path));
    char *part = NULL;
    if (asprintf(&part, "%s.%d.part", path, (int)getpid()) < 0)
        return ek_fail(EK_NO_MEMORY, "out of memory for a file name");
    ek_status status = EK_OK;
    FILE *file = fopen(part, "wxe");
    bool written = file && write_page(file, page);
    int error = errno;
    if (file && fclose(file) != 0 && written) {
        written = false;
        error = errno;
    }
    if (written && rename(part, path) != 0) {
        written = false;
        error = errno;
    }
    if (!written) {
        status = ek_fail(EK_IO, "%s: cannot be written: %s; name a file that can be written", path, strerror(error));
        if (file)
            unlink(part);
    }
    free(part);
    return status;
}

bool ek_report_included(void)
{
    return true;
}

#else

bool ek_report_included(void)
{
    return false;
}

ek_status ek_report_write(const char *path, const json_t *page)
{
    (void)path;
    (void)page;
    return ek_fail(EK_INVALID, "this build carries no page for reports; build with -DEK_REPORT=ON");
}

#endif
