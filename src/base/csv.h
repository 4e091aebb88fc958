/* Tables in text files: lines of fields with commas between them; the first line names the columns, in any order.
 * Fields have no commas, quotes or line ends in them. Every line ends with a line end (\n or \r\n), so that a file that
 * was cut short is seen. */
#ifndef EK_BASE_CSV_H
#define EK_BASE_CSV_H

#include <evenkeel.h>

#define EK_CSV_COLUMNS_MOST 16

typedef struct ek_csv {
    const char *path;
    const char *const *columns; /* known ones, ends with NULL */
    size_t column_count;
    char *text, *next;                 /* the whole file; where the next line begins */
    unsigned line;                     /* of the row last read */
    size_t fields;                     /* in a line of this file */
    size_t order[EK_CSV_COLUMNS_MOST]; /* [fields] which column each is */
} ek_csv;

/* Reads the file and its first line. The first `required` of columns[] must be there, others may. EK_IO where the file
 * cannot be read; EK_INVALID: "FILE:LINE: what was found; what is needed". */
ek_status ek_csv_open(ek_csv *csv, const char *path, const char *const *columns, size_t required);
void ek_csv_close(ek_csv *csv);

/* The next row: values[] gets a text for each of columns[], "" for those that the file lacks; they live as long as the
 * csv. *more is false when there was none. */
ek_status ek_csv_next(ek_csv *csv, const char **values, bool *more);

/* EK_INVALID about the row last read: "FILE:LINE: …". */
ek_status ek_csv_refuse(const ek_csv *csv, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
