/* Reads tables in text files, and refuses lines that are torn. */
#include "base/csv.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

ek_status ek_csv_refuse(const ek_csv *csv, const char *format, ...)
{
    char text[EK_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return ek_fail(EK_INVALID, "%s:%u: %s", csv->path, csv->line, text);
}

/* The whole file, with a zero behind it. */
static ek_status read_text(const char *path, char **text, size_t *length)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return ek_fail(EK_IO, "%s: cannot be opened (%s); a CSV file is needed", path, strerror(errno));
    size_t capacity = 1 << 16, filled = 0, got;
    char *buffer = malloc(capacity);
    while (buffer && (got = fread(buffer + filled, 1, capacity - filled - 1, file)) > 0) {
        filled += got;
        if (filled + 1 < capacity)
            continue;
        char *larger = realloc(buffer, capacity *= 2);
        if (!larger)
            free(buffer);
        buffer = larger;
    }
    int error = ferror(file) ? errno : 0;
    fclose(file);
    if (!buffer)
        return ek_fail(EK_NO_MEMORY, "no memory to read %s", path);
    if (error) {
        free(buffer);
        return ek_fail(EK_IO, "%s: cannot be read (%s)", path, strerror(error));
    }
    buffer[filled] = '\0';
    *text = buffer;
    *length = filled;
    return EK_OK;
}

/* Takes the next line, without its end. */
static ek_status take_line(ek_csv *csv, char **line)
{
    csv->line++;
    char *end = strchr(csv->next, '\n');
    if (!end)
        return ek_csv_refuse(csv, "the last line has no line end: the file may have been cut short; if it is complete, "
                                  "add one");
    *line = csv->next;
    csv->next = end + 1;
    *end = '\0';
    if (end > *line && end[-1] == '\r')
        end[-1] = '\0';
    if (strchr(*line, '"'))
        return ek_csv_refuse(csv, "found a quote; fields without quotes and commas are needed");
    return EK_OK;
}

/* Cuts a line at its commas; returns how many fields it has, of which as many as there is room for are set. */
static size_t cut(char *line, const char **fields, size_t room)
{
    size_t count = 0;
    for (char *field; (field = strsep(&line, ",")); count++)
        if (count < room)
            fields[count] = field;
    return count;
}

static void list_columns(const ek_csv *csv, size_t count, char text[EK_ERROR_BYTES])
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count && used < EK_ERROR_BYTES; i++)
        used += (size_t)snprintf(text + used, EK_ERROR_BYTES - used, "%s%s", i > 0 ? ", " : "", csv->columns[i]);
}

static ek_status read_header(ek_csv *csv, size_t required)
{
    char *line = NULL, list[EK_ERROR_BYTES];
    const char *names[EK_CSV_COLUMNS_MOST];
    bool given[EK_CSV_COLUMNS_MOST] = {false};
    EK_TRY(take_line(csv, &line));
    csv->fields = cut(line, names, EK_CSV_COLUMNS_MOST);
    list_columns(csv, csv->column_count, list);
    for (size_t i = 0; i < csv->fields; i++) {
        size_t column = 0;
        while (i < EK_CSV_COLUMNS_MOST && column < csv->column_count && strcmp(csv->columns[column], names[i]) != 0)
            column++;
        if (i >= EK_CSV_COLUMNS_MOST || column == csv->column_count)
            return ek_csv_refuse(csv, "unknown column \"%.60s\"; the first line names the columns: %s",
                                 i < EK_CSV_COLUMNS_MOST ? names[i] : "…", list);
        if (given[column])
            return ek_csv_refuse(csv, "column %s is named twice", names[i]);
        given[column] = true;
        csv->order[i] = column;
    }
    list_columns(csv, required, list);
    for (size_t column = 0; column < required; column++)
        if (!given[column])
            return ek_csv_refuse(csv, "column %s is missing; the first line must name %s", csv->columns[column], list);
    return EK_OK;
}

ek_status ek_csv_open(ek_csv *csv, const char *path, const char *const *columns, size_t required)
{
    ek_csv opened = {.path = path, .columns = columns};
    while (columns[opened.column_count])
        opened.column_count++;
    size_t length;
    EK_TRY(read_text(path, &opened.text, &length));
    opened.next = opened.text;
    ek_status status = EK_OK;
    if (length == 0)
        status = ek_fail(EK_INVALID, "%s: the file is empty; the first line must name the columns", path);
    else if (strlen(opened.text) != length)
        status = ek_fail(EK_INVALID, "%s: not text: it has zero bytes in it", path);
    if (status == EK_OK)
        status = read_header(&opened, required);
    if (status != EK_OK) {
        free(opened.text);
        return status;
    }
    *csv = opened;
    return EK_OK;
}

void ek_csv_close(ek_csv *csv)
{
    free(csv->text);
    csv->text = NULL;
}

ek_status ek_csv_next(ek_csv *csv, const char **values, bool *more)
{
    char *line = NULL;
    const char *fields[EK_CSV_COLUMNS_MOST];
    *more = *csv->next != '\0';
    if (!*more)
        return EK_OK;
    EK_TRY(take_line(csv, &line));
    size_t count = cut(line, fields, EK_CSV_COLUMNS_MOST);
    if (count != csv->fields)
        return ek_csv_refuse(csv, "found %zu field%s where the first line names %zu columns; the line may be torn",
                             count, count == 1 ? "" : "s", csv->fields);
    for (size_t column = 0; column < csv->column_count; column++)
        values[column] = "";
    for (size_t i = 0; i < count; i++)
        values[csv->order[i]] = fields[i];
    return EK_OK;
}
