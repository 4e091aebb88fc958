/* Reads a settings file and overrides with libyaml and hands each node to its field (field.c). */
#include "base/yaml.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "base/error.h"
#include "base/field.h"

#define FILE_BYTES_MOST ((size_t)1 << 20)

/* ----------------------------------------------------------------------------------------------------- keys */

static size_t section_length(const ek_field *field)
{
    return (size_t)(strchr(field->key, '.') - field->key);
}

static bool in_section(const ek_field *field, const char *section, size_t length)
{
    return section_length(field) == length && strncmp(field->key, section, length) == 0;
}

/* The index of the field, or settings->count. */
static size_t find_field(const ek_settings *settings, const char *key, size_t length)
{
    size_t i = 0;
    while (i < settings->count &&
           (strlen(settings->fields[i].key) != length || strncmp(settings->fields[i].key, key, length) != 0))
        i++;
    return i;
}

/* Edits (insert, delete, replace a character) that turn a into b; `most` + 1 or more where either is too long to be a
 * slip of the other. */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    enum { LONGEST = 32 };
    size_t row[LONGEST + 1];
    if (a_length > LONGEST || b_length > LONGEST)
        return LONGEST;
    for (size_t j = 0; j <= b_length; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[b_length];
}

/* The names that may stand where `name` was found: the keys of the section, or the sections if section_bytes is 0.
 * Lists them in `list` and the nearest, if near enough to be meant, in `nearest`. */
static void list_names(const ek_settings *settings, const char *section, size_t section_bytes, const char *name,
                       size_t name_bytes, char list[EK_ERROR_BYTES], char nearest[EK_EXCERPT_BYTES])
{
    size_t least = 3; /* two slips at most, and fewer than the name has letters */
    list[0] = nearest[0] = '\0';
    for (size_t i = 0; i < settings->count; i++) {
        const ek_field *field = &settings->fields[i];
        char candidate[EK_EXCERPT_BYTES];
        size_t length = section_length(field);
        if (section_bytes == 0) {
            if (i > 0 && in_section(&field[-1], field->key, length))
                continue;
            snprintf(candidate, sizeof candidate, "%.*s", (int)length, field->key);
        } else if (in_section(field, section, section_bytes)) {
            snprintf(candidate, sizeof candidate, "%s", field->key + length + 1);
        } else {
            continue;
        }
        ek_append(list, EK_ERROR_BYTES, list[0] ? ", " : "");
        ek_append(list, EK_ERROR_BYTES, candidate);
        size_t distance = edit_distance(name, name_bytes, candidate, strlen(candidate));
        if (distance < least && distance < strlen(candidate)) {
            least = distance;
            memcpy(nearest, candidate, sizeof candidate);
        }
    }
}

static ek_status refuse_section(const ek_settings *settings, ek_origin origin, const char *name, size_t length)
{
    char list[EK_ERROR_BYTES], nearest[EK_EXCERPT_BYTES], shown[EK_EXCERPT_BYTES];
    list_names(settings, NULL, 0, name, length, list, nearest);
    return ek_fail_at(origin, "unknown section \"%s\"; %s%s%sthe sections are %s", ek_excerpt(name, length, shown),
                      nearest[0] ? "did you mean " : "", nearest, nearest[0] ? "? " : "", list);
}

static ek_status refuse_key(const ek_settings *settings, ek_origin origin, const char *section, size_t section_bytes,
                            const char *name, size_t length)
{
    char list[EK_ERROR_BYTES], nearest[EK_EXCERPT_BYTES], shown[EK_EXCERPT_BYTES];
    list_names(settings, section, section_bytes, name, length, list, nearest);
    return ek_fail_at(origin, "unknown key \"%.*s%s%s\"; %s%s%s%.*s has %s", (int)section_bytes, section,
                      length > 0 ? "." : "", ek_excerpt(name, length, shown), nearest[0] ? "did you mean " : "",
                      nearest, nearest[0] ? "? " : "", (int)section_bytes, section, list);
}

/* Finds the field of "section.name", refusing what is unknown. */
static ek_status find_key(const ek_settings *settings, ek_origin origin, const char *key, size_t length, size_t *index)
{
    *index = find_field(settings, key, length);
    if (*index < settings->count)
        return EK_OK;
    const char *dot = memchr(key, '.', length);
    size_t section_bytes = dot ? (size_t)(dot - key) : length;
    size_t i = 0;
    while (i < settings->count && !in_section(&settings->fields[i], key, section_bytes))
        i++;
    if (i == settings->count)
        return refuse_section(settings, origin, key, section_bytes);
    size_t name_bytes = dot ? length - section_bytes - 1 : 0;
    return refuse_key(settings, origin, key, section_bytes, dot ? dot + 1 : "", name_bytes);
}

/* ---------------------------------------------------------------------------------------------- the document */

/* libyaml takes time with the square of the depth, so what is deeper than settings ever are is not loaded. Broken YAML
 * is left to load(). */
static ek_status check_depth(const char *text, size_t length, ek_origin origin)
{
    enum { LEVELS_MOST = 16 };
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser))
        return ek_fail(EK_NO_MEMORY, "no memory for a YAML parser");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    ek_status status = EK_OK;
    yaml_event_t event;
    for (int levels = 0; status == EK_OK && yaml_parser_parse(&parser, &event) && event.type != YAML_NO_EVENT;) {
        levels += event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
        levels -= event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
        if (origin.line > 0)
            origin.line = (unsigned)event.start_mark.line + 1;
        if (levels > LEVELS_MOST)
            status = ek_fail_at(origin, "lists and mappings are more than %d levels deep; that is no configuration",
                                LEVELS_MOST);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return status;
}

/* Parses text into *document, whose root is then not NULL. Refuses broken YAML, nothing at all, and more than one
 * document. */
static ek_status load(const char *text, size_t length, ek_origin origin, yaml_document_t *document)
{
    yaml_parser_t parser;
    yaml_document_t second;
    EK_TRY(check_depth(text, length, origin));
    if (!yaml_parser_initialize(&parser))
        return ek_fail(EK_NO_MEMORY, "no memory for a YAML parser");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    ek_status status = EK_OK;
    bool loaded = yaml_parser_load(&parser, document);
    bool more = loaded && yaml_document_get_root_node(document) && yaml_parser_load(&parser, &second);
    if (parser.error == YAML_MEMORY_ERROR) {
        status = ek_fail(EK_NO_MEMORY, "no memory for a YAML document");
    } else if (parser.error != YAML_NO_ERROR) {
        if (origin.line > 0)
            origin.line = (unsigned)parser.problem_mark.line + 1;
        for (size_t i = 0; parser.error == YAML_READER_ERROR && i < parser.problem_offset && i < length; i++)
            origin.line += origin.line > 0 && text[i] == '\n'; /* the reader knows offsets alone */
        status = ek_fail_at(origin, "not YAML: %s", parser.problem);
    } else if (more) {
        const yaml_node_t *root = yaml_document_get_root_node(&second);
        if (root) {
            if (origin.line > 0)
                origin.line = (unsigned)root->start_mark.line + 1;
            status = ek_fail_at(origin, "a second document begins here; one is allowed");
        }
        yaml_document_delete(&second);
    }
    if (status != EK_OK && loaded)
        yaml_document_delete(document);
    yaml_parser_delete(&parser);
    return status;
}

/* Refuses a key of a mapping that is not a string, or that stood before. */
static ek_status check_key(const ek_settings *settings, yaml_document_t *document, const yaml_node_t *mapping,
                           const yaml_node_pair_t *pair, const char *section)
{
    const yaml_node_t *key = yaml_document_get_node(document, pair->key);
    ek_origin origin = {settings->path, (unsigned)key->start_mark.line + 1};
    char shown[EK_FOUND_BYTES];
    if (!ek_is_scalar(key))
        return ek_fail_at(origin, "found %s where a key is needed", ek_found(key, shown));
    for (const yaml_node_pair_t *before = mapping->data.mapping.pairs.start; before < pair; before++) {
        const yaml_node_t *other = yaml_document_get_node(document, before->key);
        if (strcmp(ek_scalar_text(other), ek_scalar_text(key)) == 0)
            return ek_fail_at(origin, "%s%s%s is given twice; first on line %u", section, section[0] ? "." : "",
                              ek_scalar_text(key), (unsigned)other->start_mark.line + 1);
    }
    return EK_OK;
}

static ek_status read_section(const ek_settings *settings, yaml_document_t *document, const yaml_node_t *key,
                              const yaml_node_t *section)
{
    const char *name = ek_scalar_text(key);
    ek_origin origin = {settings->path, (unsigned)key->start_mark.line + 1};
    size_t i = 0;
    while (i < settings->count && !in_section(&settings->fields[i], name, key->data.scalar.length))
        i++;
    if (i == settings->count)
        return refuse_section(settings, origin, name, key->data.scalar.length);
    if (section->type != YAML_MAPPING_NODE) {
        char shown[EK_FOUND_BYTES], list[EK_ERROR_BYTES], nearest[EK_EXCERPT_BYTES];
        list_names(settings, name, strlen(name), "", 0, list, nearest);
        return ek_fail_at(origin, "%s: found %s; a mapping of %s is needed", name, ek_found(section, shown), list);
    }
    const yaml_node_pair_t *end = section->data.mapping.pairs.top;
    for (const yaml_node_pair_t *pair = section->data.mapping.pairs.start; pair < end; pair++) {
        EK_TRY(check_key(settings, document, section, pair, name));
        const yaml_node_t *word = yaml_document_get_node(document, pair->key);
        const yaml_node_t *value = yaml_document_get_node(document, pair->value);
        origin.line = (unsigned)word->start_mark.line + 1;
        char dotted[2 * EK_EXCERPT_BYTES];
        int length = snprintf(dotted, sizeof dotted, "%s.%s", name, ek_scalar_text(word));
        size_t index = length < (int)sizeof dotted ? find_field(settings, dotted, (size_t)length) : settings->count;
        if (index == settings->count)
            return refuse_key(settings, origin, name, strlen(name), ek_scalar_text(word), word->data.scalar.length);
        EK_TRY(ek_field_set(settings, index, origin, document, value));
    }
    return EK_OK;
}

static ek_status read_document(const ek_settings *settings, yaml_document_t *document)
{
    const yaml_node_t *root = yaml_document_get_root_node(document);
    char shown[EK_FOUND_BYTES], list[EK_ERROR_BYTES], nearest[EK_EXCERPT_BYTES];
    list_names(settings, NULL, 0, "", 0, list, nearest);
    if (!root || ek_is_nothing(root))
        return ek_fail(EK_INVALID, "%s: the file is empty; the sections are %s", settings->path, list);
    ek_origin origin = {settings->path, (unsigned)root->start_mark.line + 1};
    if (root->type != YAML_MAPPING_NODE)
        return ek_fail_at(origin, "found %s; a mapping of the sections %s is needed", ek_found(root, shown), list);
    const yaml_node_pair_t *end = root->data.mapping.pairs.top;
    for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < end; pair++) {
        EK_TRY(check_key(settings, document, root, pair, ""));
        EK_TRY(read_section(settings, document, yaml_document_get_node(document, pair->key),
                            yaml_document_get_node(document, pair->value)));
    }
    return EK_OK;
}

/* The whole file. */
static ek_status read_file(const char *path, char **text, size_t *length)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return ek_fail(EK_IO, "%s: cannot be opened (%s); a YAML file is needed", path, strerror(errno));
    struct stat information;
    ek_status status = EK_OK;
    char *buffer = NULL;
    size_t filled = 0;
    if (fstat(file, &information) == 0 && S_ISDIR(information.st_mode)) {
        status = ek_fail(EK_IO, "%s: is a directory; a YAML file is needed", path);
    } else if (!(buffer = malloc(FILE_BYTES_MOST + 1))) {
        status = ek_fail(EK_NO_MEMORY, "no memory to read %s", path);
    }
    while (status == EK_OK) {
        ssize_t got = read(file, buffer + filled, FILE_BYTES_MOST + 1 - filled);
        if (got == 0)
            break;
        if (got < 0 && errno != EINTR)
            status = ek_fail(EK_IO, "%s: cannot be read (%s)", path, strerror(errno));
        filled += got > 0 ? (size_t)got : 0;
        if (filled > FILE_BYTES_MOST)
            status = ek_fail(EK_INVALID, "%s: larger than %zu bytes; that is no configuration", path, FILE_BYTES_MOST);
    }
    close(file);
    if (status != EK_OK) {
        free(buffer);
        return status;
    }
    *text = buffer;
    *length = filled;
    return EK_OK;
}

static ek_status apply_file(const ek_settings *settings)
{
    char *text = NULL;
    size_t length = 0;
    EK_TRY(read_file(settings->path, &text, &length));
    yaml_document_t document;
    ek_status status = load(text, length, (ek_origin){settings->path, 1}, &document);
    if (status == EK_OK) {
        status = read_document(settings, &document);
        yaml_document_delete(&document);
    }
    free(text);
    return status;
}

/* The value of a default or an override. */
static ek_status apply_value(const ek_settings *settings, size_t index, ek_origin origin, const char *value)
{
    yaml_document_t document;
    EK_TRY(load(value, strlen(value), origin, &document));
    const yaml_node_t *root = yaml_document_get_root_node(&document);
    ek_status status;
    if (root) {
        status = ek_field_set(settings, index, origin, &document, root);
    } else {
        char allowed[EK_ALLOWED_BYTES];
        ek_field_allowed(&settings->fields[index], allowed);
        status = ek_fail_at(origin, "%s: found nothing; %s is needed", settings->fields[index].key, allowed);
    }
    yaml_document_delete(&document);
    return status;
}

static ek_status apply_override(const ek_settings *settings, const char *override)
{
    ek_origin origin = {override, 0};
    const char *equals = strchr(override, '=');
    if (!equals)
        return ek_fail_at(origin, "KEY=VALUE is needed, as in --set %s=VALUE", settings->fields[0].key);
    size_t index;
    EK_TRY(find_key(settings, origin, override, (size_t)(equals - override), &index));
    return apply_value(settings, index, origin, equals + 1);
}

/* ------------------------------------------------------------------------------------------------ interface */

ek_status ek_settings_read(const ek_settings *settings, const char *const *overrides, size_t override_count)
{
    for (size_t i = 0; i < settings->count; i++)
        if (settings->fields[i].otherwise)
            EK_TRY(apply_value(settings, i, (ek_origin){0}, settings->fields[i].otherwise));
    EK_TRY(apply_file(settings));
    for (size_t i = 0; i < override_count; i++)
        EK_TRY(apply_override(settings, overrides[i]));
    for (size_t i = 0; i < settings->count; i++) {
        const ek_field *field = &settings->fields[i];
        if (!field->otherwise && !field->derived && !settings->origins[i].text) {
            char allowed[EK_ALLOWED_BYTES];
            ek_field_allowed(field, allowed);
            return ek_fail(EK_INVALID, "%s: %s is missing (%s); %s is needed", settings->path, field->key, field->help,
                           allowed);
        }
    }
    return EK_OK;
}

void ek_settings_free(const ek_field *fields, size_t count, void *target)
{
    for (size_t i = 0; i < count; i++) {
        if (fields[i].kind != EK_FIELD_STRING && fields[i].kind != EK_FIELD_WHOLES &&
            fields[i].kind != EK_FIELD_STRINGS && fields[i].kind != EK_FIELD_PAIRS)
            continue;
        void **place = (void **)(void *)((char *)target + fields[i].offset);
        free(*place);
        *place = NULL;
    }
}

bool ek_settings_given(const ek_settings *settings, const char *key)
{
    return settings->origins[find_field(settings, key, strlen(key))].text != NULL;
}

ek_status ek_settings_refuse(const ek_settings *settings, const char *key, const char *format, ...)
{
    char text[EK_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ek_fail(EK_INVALID, "%s: %s", key, text);
    return ek_settings_locate(settings, EK_INVALID);
}

/* Of the key that the current error text begins with; count if there is none. */
static size_t find_blamed(const ek_settings *settings)
{
    return find_field(settings, ek_error(), strcspn(ek_error(), ":"));
}

bool ek_settings_blamed(const ek_settings *settings)
{
    return find_blamed(settings) < settings->count;
}

ek_status ek_settings_locate(const ek_settings *settings, ek_status status)
{
    size_t index = find_blamed(settings);
    ek_origin origin = {0};
    if (index < settings->count)
        origin = settings->origins[index];
    char shown[EK_EXCERPT_BYTES];
    if (!origin.text)
        return ek_fail_prefix(status, "%s: ", settings->path);
    if (origin.line > 0)
        return ek_fail_prefix(status, "%s:%u: ", origin.text, origin.line);
    return ek_fail_prefix(status, "--set %s: ", ek_excerpt(origin.text, strlen(origin.text), shown));
}
