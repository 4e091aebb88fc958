/* Reads files for tests. */
#include "files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("%s: %s", path, strerror(errno));
    char *text = NULL;
    size_t room = 0;
    if (getdelim(&text, &room, '\0', file) < 0) { /* it is empty */
        assert_true(feof(file));
        free(text);
        text = strdup("");
    }
    fclose(file);
    assert_non_null(text);
    return text;
}

void assert_documented(const char *page_path, const ek_field *fields, size_t count)
{
    char *page = read_file(page_path);
    for (const ek_field *field = fields; field < fields + count; field++) {
        char row[1000], allowed[EK_ALLOWED_BYTES];
        const char *quote = field->otherwise ? "`" : "";
        ek_field_allowed(field, allowed);
        snprintf(row, sizeof row, "\n| `%s` | %s | %s%s%s | %s |\n", field->key, allowed, quote,
                 field->otherwise ? field->otherwise
                 : field->derived ? field->derived
                                  : "required",
                 quote, field->help);
        if (!strstr(page, row))
            fail_msg("%s lacks the row%s", page_path, row);
    }
    free(page);
}
