/* JSON lines, read one at a time. */
#include "report/lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "base/error.h"

static ek_status visit_line(const char *text, size_t bytes, ek_line_visit visit, void *user, bool *torn)
{
    json_error_t error;
    json_t *object = json_loadb(text, bytes, 0, &error);
    if (!object && text[bytes - 1] != '\n') {
        *torn = true;
        return EK_OK;
    }
    ek_status status;
    if (json_is_object(object))
        status = visit(user, object);
    else
        status = ek_fail(EK_INVALID, "no JSON object (%s); a file that evenkeel train --metrics wrote is needed",
                         object ? "another kind of value" : error.text);
    json_decref(object);
    return status;
}

ek_status ek_lines_read(const char *path, ek_line_visit visit, void *user, bool *torn)
{
    *torn = false;
    FILE *file = fopen(path, "re");
    if (!file)
        return ek_fail(EK_IO, "%s: cannot be opened: %s; a file that evenkeel train --metrics wrote is needed", path,
                       strerror(errno));
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    unsigned long number = 0;
    ek_status status = EK_OK;
    while (status == EK_OK && (bytes = getline(&line, &room, file)) > 0) {
        number++;
        status = visit_line(line, (size_t)bytes, visit, user, torn);
        if (status != EK_OK)
            status = ek_fail_prefix(status, "%s:%lu: ", path, number);
    }
    if (status == EK_OK && !feof(file))
        status = ek_fail(EK_IO, "%s: cannot be read: %s", path, strerror(errno));
    free(line);
    fclose(file);
    return status;
}
