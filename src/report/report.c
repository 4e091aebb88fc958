/* Puts a description into the page. The page lies in the program (page.S) with a mark where the description goes: an
 * element whose text is data. JSON can hold "<" in strings only, and there it may be written as an escape, so that no
 * text can end the element. */
#include "report/report.h"

#include <errno.h>
#include <string.h>

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

ek_status ek_report_write(FILE *file, const json_t *page)
{
    size_t bytes = ek_report_page_bytes;
    const char *mark = memmem(ek_report_page, bytes, MARK, strlen(MARK));
    size_t before = (size_t)(mark - ek_report_page), after = bytes - before - strlen(MARK);
    if (fwrite(ek_report_page, 1, before, file) == before &&
        json_dump_callback(page, write_escaped, file, JSON_COMPACT | JSON_REAL_PRECISION(10)) == 0 &&
        fwrite(mark + strlen(MARK), 1, after, file) == after)
        return EK_OK;
    return ferror(file) ? ek_fail(EK_IO, "the page cannot be written (%s)", strerror(errno))
                        : ek_fail(EK_NO_MEMORY, "no memory for the page");
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

ek_status ek_report_write(FILE *file, const json_t *page)
{
    (void)file;
    (void)page;
    return ek_fail(EK_INVALID, "this build carries no page for reports; build with -DEK_REPORT=ON");
}

#endif
