/* Tables as CSV and JSON, the page as report.html. */
#include "sim/output.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/whole_file.h"
#include "report/report.h"

#define PATH_BYTES 4096
#define DIGITS 10 /* of a number: sampled values have fewer */

static ek_status make_path(const char *folder, const char *name, const char *ending, char path[PATH_BYTES])
{
    if (snprintf(path, PATH_BYTES, "%s/%s%s", folder, name, ending) >= PATH_BYTES)
        return ek_fail(EK_INVALID, "--out %.60s...: the path is too long", folder);
    return EK_OK;
}

static bool has_file(const char *folder, const char *name, const char *ending)
{
    char path[PATH_BYTES];
    return snprintf(path, sizeof path, "%s/%s%s", folder, name, ending) < PATH_BYTES && access(path, F_OK) == 0;
}

/* A page, or where the build that made them has none, a table as CSV and as JSON. */
static bool holds_results(const char *folder)
{
    bool found = has_file(folder, "report", ".html");
    DIR *directory = opendir(folder);
    for (const struct dirent *entry; !found && directory && (entry = readdir(directory));) {
        size_t length = strlen(entry->d_name), stem = length > 4 ? length - 4 : 0;
        char name[sizeof entry->d_name];
        snprintf(name, sizeof name, "%.*s", (int)stem, entry->d_name);
        found = stem > 0 && strcmp(entry->d_name + stem, ".csv") == 0 && has_file(folder, name, ".json");
    }
    if (directory)
        closedir(directory);
    return found;
}

ek_status ek_output_prepare(const char *folder, bool overwrite)
{
    struct stat found;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return ek_fail(EK_IO, "--out %s: the folder cannot be made (%s)", folder, strerror(errno));
    if (stat(folder, &found) != 0 || !S_ISDIR(found.st_mode))
        return ek_fail(EK_INVALID, "--out %s: is no folder", folder);
    if (access(folder, W_OK | X_OK) != 0)
        return ek_fail(EK_IO, "--out %s: cannot be written to (%s)", folder, strerror(errno));
    if (!overwrite && holds_results(folder))
        return ek_fail(EK_INVALID, "--out %s: holds the results of a study; name another folder, or add --overwrite",
                       folder);
    return EK_OK;
}

void ek_output_abandon(const char *folder)
{
    rmdir(folder);
}

/* Text as RFC 4180 has it: in quotes where it needs them. */
static void write_text(FILE *file, const char *text)
{
    bool quoted = text[strcspn(text, ",\"\r\n")] != '\0';
    fputs(quoted ? "\"" : "", file);
    for (; *text; text++)
        fputs(*text == '"' ? "\"\"" : (char[]){*text, '\0'}, file);
    fputs(quoted ? "\"" : "", file);
}

/* A field of a CSV line. */
static void write_field(FILE *file, const json_t *value)
{
    if (json_is_string(value))
        write_text(file, json_string_value(value));
    else if (json_is_integer(value))
        fprintf(file, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        fprintf(file, "%.*g", DIGITS, json_real_value(value));
    else if (json_is_boolean(value))
        fputs(json_is_true(value) ? "true" : "false", file);
}

static void write_line(FILE *file, const json_t *fields)
{
    size_t i;
    json_t *value;
    json_array_foreach(fields, i, value)
    {
        fputs(i > 0 ? "," : "", file);
        write_field(file, value);
    }
    fputc('\n', file);
}

static void write_csv(FILE *file, const json_t *table)
{
    size_t i;
    json_t *row;
    write_line(file, json_object_get(table, "columns"));
    json_array_foreach(json_object_get(table, "rows"), i, row)
    {
        write_line(file, row);
    }
}

static void write_json(FILE *file, const json_t *table)
{
    json_dumpf(table, file, JSON_INDENT(1) | JSON_REAL_PRECISION(DIGITS) | JSON_PRESERVE_ORDER);
    fputc('\n', file);
}

/* ------------------------------------------------------------------------------------------------------ the files */

/* The files of a study in the making. */
typedef struct output_set {
    ek_whole_file *files; /* [count] */
    size_t count;
} output_set;

static ek_status write_table_or_page(FILE *file, const char *ending, const json_t *content)
{
    if (strcmp(ending, ".html") == 0)
        return ek_report_write(file, content);
    (strcmp(ending, ".csv") == 0 ? write_csv : write_json)(file, content);
    return EK_OK;
}

static ek_status write_file(output_set *set, const char *folder, const char *name, const char *ending,
                            const json_t *content)
{
    char path[PATH_BYTES];
    ek_whole_file *file = &set->files[set->count];
    EK_TRY(make_path(folder, name, ending, path));
    EK_TRY(ek_whole_file_open(file, path));
    set->count++;
    EK_TRY(write_table_or_page(file->file, ending, content));
    return ek_whole_file_close(file);
}

/* The page last, if this build has one. */
static ek_status write_files(output_set *set, const char *folder, const ek_study *study, const json_t *page)
{
    const char *name;
    json_t *table;
    json_object_foreach(study->tables, name, table)
    {
        EK_TRY(write_file(set, folder, name, ".csv", table));
        EK_TRY(write_file(set, folder, name, ".json", table));
    }
    return ek_report_included() ? write_file(set, folder, "report", ".html", page) : EK_OK;
}

ek_status ek_output_write(const char *folder, const ek_study *study)
{
    json_t *page = ek_study_page(study);
    output_set set = {calloc(2 * json_object_size(study->tables) + 1, sizeof *set.files), 0};
    ek_status status = page && set.files ? write_files(&set, folder, study, page)
                                         : ek_fail(EK_NO_MEMORY, "no memory for the results of a study");
    for (size_t i = 0; i < set.count && status == EK_OK; i++)
        status = ek_whole_file_name(&set.files[i]);
    for (size_t i = 0; i < set.count && status != EK_OK; i++)
        ek_whole_file_end(&set.files[i], status);
    free(set.files);
    json_decref(page);
    return status;
}
