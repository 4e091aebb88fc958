/* How one field of a settings table takes a YAML node: kinds of values, ranges, refusals. */
#include "base/field.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* ------------------------------------------------------------------------------------------- texts of refusals */

const char *ek_excerpt(const char *text, size_t length, char out[EK_EXCERPT_BYTES])
{
    size_t n = length;
    if (n > EK_EXCERPT_BYTES - 1) {
        n = EK_EXCERPT_BYTES - 4;
        while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) /* not in the middle of a UTF-8 character */
            n--;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = iscntrl((unsigned char)text[i]) ? '?' : text[i];
    memcpy(out + n, length > n ? "..." : "", length > n ? 4 : 1);
    return out;
}

ek_status ek_fail_at(ek_origin origin, const char *format, ...)
{
    char text[EK_ERROR_BYTES], shown[EK_EXCERPT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (origin.line > 0)
        return ek_fail(EK_INVALID, "%s:%u: %s", origin.text, origin.line, text);
    return ek_fail(EK_INVALID, "--set %s: %s", ek_excerpt(origin.text, strlen(origin.text), shown), text);
}

void ek_append(char *text, size_t bytes, const char *more)
{
    size_t length = strlen(text);
    snprintf(text + length, bytes - length, "%s", more);
}

void ek_field_allowed(const ek_field *field, char text[EK_ALLOWED_BYTES])
{
    switch (field->kind) {
    case EK_FIELD_WHOLE:
        snprintf(text, EK_ALLOWED_BYTES, "a whole number from %llu to %llu", (unsigned long long)field->least,
                 (unsigned long long)field->most);
        return;
    case EK_FIELD_WHOLES:
        snprintf(text, EK_ALLOWED_BYTES, "a list of whole numbers from %llu to %llu", (unsigned long long)field->least,
                 (unsigned long long)field->most);
        return;
    case EK_FIELD_STRINGS:
        snprintf(text, EK_ALLOWED_BYTES, "a list of strings");
        return;
    case EK_FIELD_PAIRS:
        snprintf(text, EK_ALLOWED_BYTES, "a list of pairs of numbers from %g to %.7g", field->least_real,
                 field->most_real);
        return;
    case EK_FIELD_REAL:
        snprintf(text, EK_ALLOWED_BYTES, "a number from %g to %.7g", field->least_real, field->most_real);
        return;
    case EK_FIELD_BOOLEAN:
        snprintf(text, EK_ALLOWED_BYTES, "true or false");
        return;
    case EK_FIELD_STRING:
    case EK_FIELD_CHOICE:
        break;
    }
    snprintf(text, EK_ALLOWED_BYTES, "%s", field->choices ? "" : "a string");
    for (size_t i = 0; field->choices && field->choices[i]; i++) {
        ek_append(text, EK_ALLOWED_BYTES, i == 0 ? "" : field->choices[i + 1] ? ", " : " or ");
        ek_append(text, EK_ALLOWED_BYTES, field->choices[i]);
    }
}

static bool is_tagged(const yaml_node_t *node)
{
    return strcmp((const char *)node->tag, YAML_STR_TAG) != 0;
}

bool ek_is_scalar(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE && !is_tagged(node) &&
           strlen((const char *)node->data.scalar.value) == node->data.scalar.length;
}

static bool is_plain(const yaml_node_t *node)
{
    return ek_is_scalar(node) && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

const char *ek_scalar_text(const yaml_node_t *node)
{
    return (const char *)node->data.scalar.value;
}

bool ek_is_nothing(const yaml_node_t *node)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    for (size_t i = 0; is_plain(node) && i < sizeof nulls / sizeof *nulls; i++)
        if (strcmp(ek_scalar_text(node), nulls[i]) == 0)
            return true;
    return false;
}

const char *ek_found(const yaml_node_t *node, char text[EK_FOUND_BYTES])
{
    char shown[EK_EXCERPT_BYTES];
    if (ek_is_nothing(node))
        return "nothing";
    if (node->type == YAML_MAPPING_NODE)
        return "a mapping";
    if (node->type == YAML_SEQUENCE_NODE)
        return "a list";
    snprintf(text, EK_FOUND_BYTES, "\"%s\"%s", ek_excerpt(ek_scalar_text(node), node->data.scalar.length, shown),
             is_tagged(node)   ? " with a tag"
             : !is_plain(node) ? " in quotes"
                               : "");
    return text;
}

static ek_status refuse_value(ek_origin origin, const ek_field *field, const yaml_node_t *node)
{
    char allowed[EK_ALLOWED_BYTES], text[EK_FOUND_BYTES];
    ek_field_allowed(field, allowed);
    return ek_fail_at(origin, "%s: found %s; %s is needed", field->key, ek_found(node, text), allowed);
}

/* -------------------------------------------------------------------------------------------------- scalars */

static bool parse_whole(const yaml_node_t *node, uint64_t least, uint64_t most, uint64_t *value)
{
    if (!is_plain(node))
        return false;
    const char *text = ek_scalar_text(node);
    if (text[0] == '\0' || strspn(text, "0123456789") != node->data.scalar.length || (text[0] == '0' && text[1]))
        return false;
    errno = 0;
    unsigned long long number = strtoull(text, NULL, 10);
    if (errno != 0 || number < least || number > most)
        return false;
    *value = number;
    return true;
}

static bool parse_real(const yaml_node_t *node, double least, double most, double *value)
{
    if (!is_plain(node))
        return false;
    /* strtod takes more than we do: hexadecimal, infinities, leading blanks */
    const char *text = ek_scalar_text(node);
    if (text[0] == '\0' || strspn(text, "0123456789.eE+-") != node->data.scalar.length)
        return false;
    char *end;
    double number = strtod(text, &end);
    if (*end != '\0' || end == text || !(number >= least && number <= most))
        return false;
    *value = number;
    return true;
}

static bool parse_choice(const ek_field *field, const yaml_node_t *node, uint32_t *choice)
{
    for (uint32_t i = 0; ek_is_scalar(node) && field->choices[i]; i++) {
        if (strcmp(field->choices[i], ek_scalar_text(node)) == 0) {
            *choice = i;
            return true;
        }
    }
    return false;
}

/* True for what a string may be: nothing else that could be meant, and not empty. */
static bool is_string(const yaml_node_t *node)
{
    return ek_is_scalar(node) && !ek_is_nothing(node) && node->data.scalar.length > 0;
}

static ek_status set_string(ek_origin origin, const ek_field *field, const yaml_node_t *node, char **value)
{
    uint32_t choice;
    if (!is_string(node) || (field->choices && !parse_choice(field, node, &choice)))
        return refuse_value(origin, field, node);
    char *copy = strdup(ek_scalar_text(node));
    if (!copy)
        return ek_fail(EK_NO_MEMORY, "no memory for %s", field->key);
    free(*value);
    *value = copy;
    return EK_OK;
}

static ek_status set_wholes(ek_origin origin, const ek_field *field, yaml_document_t *document, const yaml_node_t *node,
                            uint32_t **values, size_t *count)
{
    if (node->type != YAML_SEQUENCE_NODE)
        return refuse_value(origin, field, node);
    size_t length = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    uint32_t *list = malloc((length + 1) * sizeof *list); /* + 1: an empty list is not NULL */
    if (!list)
        return ek_fail(EK_NO_MEMORY, "no memory for %s", field->key);
    for (size_t i = 0; i < length; i++) {
        const yaml_node_t *item = yaml_document_get_node(document, node->data.sequence.items.start[i]);
        uint64_t value;
        if (!parse_whole(item, field->least, field->most, &value)) {
            char text[EK_FOUND_BYTES];
            free(list);
            return ek_fail_at(origin, "%s[%zu]: found %s; a whole number from %llu to %llu is needed", field->key, i,
                              ek_found(item, text), (unsigned long long)field->least, (unsigned long long)field->most);
        }
        list[i] = (uint32_t)value;
    }
    free(*values);
    *values = list;
    *count = length;
    return EK_OK;
}

static ek_status set_strings(ek_origin origin, const ek_field *field, yaml_document_t *document,
                             const yaml_node_t *node, char ***values, size_t *count)
{
    if (node->type != YAML_SEQUENCE_NODE)
        return refuse_value(origin, field, node);
    const yaml_node_item_t *items = node->data.sequence.items.start;
    size_t length = (size_t)(node->data.sequence.items.top - items), bytes = 1; /* an empty list is not NULL */
    for (size_t i = 0; i < length; i++) {
        const yaml_node_t *item = yaml_document_get_node(document, items[i]);
        char text[EK_FOUND_BYTES];
        if (!is_string(item))
            return ek_fail_at(origin, "%s[%zu]: found %s; a string is needed", field->key, i, ek_found(item, text));
        bytes += sizeof(char *) + item->data.scalar.length + 1;
    }
    char **list = malloc(bytes);
    if (!list)
        return ek_fail(EK_NO_MEMORY, "no memory for %s", field->key);
    char *end = (char *)(list + length);
    for (size_t i = 0; i < length; i++) {
        list[i] = end;
        end = stpcpy(end, ek_scalar_text(yaml_document_get_node(document, items[i]))) + 1;
    }
    free(*values);
    *values = list;
    *count = length;
    return EK_OK;
}

static bool parse_pair(const ek_field *field, yaml_document_t *document, const yaml_node_t *node, double pair[2])
{
    if (node->type != YAML_SEQUENCE_NODE || node->data.sequence.items.top - node->data.sequence.items.start != 2)
        return false;
    for (size_t i = 0; i < 2; i++)
        if (!parse_real(yaml_document_get_node(document, node->data.sequence.items.start[i]), field->least_real,
                        field->most_real, &pair[i]))
            return false;
    return true;
}

static ek_status set_pairs(ek_origin origin, const ek_field *field, yaml_document_t *document, const yaml_node_t *node,
                           double **values, size_t *count)
{
    if (node->type != YAML_SEQUENCE_NODE)
        return refuse_value(origin, field, node);
    size_t length = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    double *list = malloc((length + 1) * 2 * sizeof *list);
    if (!list)
        return ek_fail(EK_NO_MEMORY, "no memory for %s", field->key);
    for (size_t i = 0; i < length; i++) {
        const yaml_node_t *item = yaml_document_get_node(document, node->data.sequence.items.start[i]);
        if (!parse_pair(field, document, item, list + 2 * i)) {
            char text[EK_FOUND_BYTES];
            free(list);
            return ek_fail_at(origin, "%s[%zu]: found %s; a pair of numbers from %g to %.7g is needed", field->key, i,
                              ek_found(item, text), field->least_real, field->most_real);
        }
    }
    free(*values);
    *values = list;
    *count = length;
    return EK_OK;
}

/* Puts a number of type `type` where the field says. */
#define STORE(type, value)                                                                                             \
    do {                                                                                                               \
        type store_value = (type)(value);                                                                              \
        memcpy(place, &store_value, sizeof store_value);                                                               \
    } while (0)

ek_status ek_field_set(const ek_settings *settings, size_t index, ek_origin origin, yaml_document_t *document,
                       const yaml_node_t *node)
{
    const ek_field *field = &settings->fields[index];
    void *place = (char *)settings->target + field->offset;
    uint64_t whole;
    uint32_t choice;
    double real;
    switch (field->kind) {
    case EK_FIELD_WHOLE:
        if (!parse_whole(node, field->least, field->most, &whole))
            return refuse_value(origin, field, node);
        if (field->bytes == sizeof(uint32_t))
            STORE(uint32_t, whole);
        else
            STORE(uint64_t, whole);
        break;
    case EK_FIELD_REAL:
        if (!parse_real(node, field->least_real, field->most_real, &real))
            return refuse_value(origin, field, node);
        if (field->bytes == sizeof(float))
            STORE(float, real);
        else
            STORE(double, real);
        break;
    case EK_FIELD_BOOLEAN:
        if (!is_plain(node) ||
            (strcmp(ek_scalar_text(node), "true") != 0 && strcmp(ek_scalar_text(node), "false") != 0))
            return refuse_value(origin, field, node);
        STORE(bool, ek_scalar_text(node)[0] == 't');
        break;
    case EK_FIELD_CHOICE:
        if (!parse_choice(field, node, &choice))
            return refuse_value(origin, field, node);
        STORE(uint32_t, choice);
        break;
    case EK_FIELD_STRING:
        EK_TRY(set_string(origin, field, node, place));
        break;
    case EK_FIELD_WHOLES:
        EK_TRY(set_wholes(origin, field, document, node, place,
                          (size_t *)(void *)((char *)settings->target + field->count_offset)));
        break;
    case EK_FIELD_STRINGS:
        EK_TRY(set_strings(origin, field, document, node, place,
                           (size_t *)(void *)((char *)settings->target + field->count_offset)));
        break;
    case EK_FIELD_PAIRS:
        EK_TRY(set_pairs(origin, field, document, node, place,
                         (size_t *)(void *)((char *)settings->target + field->count_offset)));
        break;
    }
    settings->origins[index] = origin;
    return EK_OK;
}
