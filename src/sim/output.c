/* Tables as CSV and JSON, the page as report.html. */
#include "sim/output.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
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

/* A file in the making: what it holds, and what writes that; NULL: it is the page. */
typedef struct output_file {
    char path[PATH_BYTES], temporary[PATH_BYTES];
    const json_t *content;
    void (*write)(FILE *file, const json_t *table);
} output_file;

static ek_status write_file(const output_file *output)
{
    if (!output->write)
        return ek_report_write(output->temporary, output->content);
    FILE *file = fopen(output->temporary, "we");
    if (!file)
        return ek_fail(EK_IO, "%s: cannot be written (%s)", output->path, strerror(errno));
    output->write(file, output->content);
    bool failed = ferror(file) != 0;
    failed = fclose(file) != 0 || failed;
    return failed ? ek_fail(EK_IO, "%s: cannot be written (%s)", output->path, strerror(errno)) : EK_OK;
}

static ek_status name_file(const output_file *output)
{
    if (rename(output->temporary, output->path) != 0)
        return ek_fail(EK_IO, "%s: cannot be written (%s)", output->path, strerror(errno));
    return EK_OK;
}

static ek_status remove_file(const output_file *output)
{
    unlink(output->temporary); /* it need not be there */
    return EK_OK;
}

static ek_status act_on(ek_status (*act)(const output_file *output), const char *folder, const char *name,
                        const char *ending, const json_t *content, void (*write)(FILE *file, const json_t *table))
{
    output_file output = {.content = content, .write = write};
    char unfinished[32];
    snprintf(unfinished, sizeof unfinished, "%s.unfinished", ending);
    EK_TRY(make_path(folder, name, ending, output.path));
    EK_TRY(make_path(folder, name, unfinished, output.temporary));
    return act(&output);
}

/* Acts on every file of the study, the page last, if this build has one; the first failure ends it. */
static ek_status on_each_file(ek_status (*act)(const output_file *output), const char *folder, const ek_study *study,
                              const json_t *page)
{
    const char *name;
    json_t *table;
    json_object_foreach(study->tables, name, table)
    {
        EK_TRY(act_on(act, folder, name, ".csv", table, write_csv));
        EK_TRY(act_on(act, folder, name, ".json", table, write_json));
    }
    return ek_report_included() ? act_on(act, folder, "report", ".html", page, NULL) : EK_OK;
}

ek_status ek_output_write(const char *folder, const ek_study *study)
{
    json_t *page = ek_study_page(study);
    if (!page)
        return ek_fail(EK_NO_MEMORY, "no memory for the page of a study");
    ek_status status = on_each_file(write_file, folder, study, page);
    if (status == EK_OK)
        status = on_each_file(name_file, folder, study, page);
    if (status != EK_OK)
        on_each_file(remove_file, folder, study, page);
    json_decref(page);
    return status;
}
