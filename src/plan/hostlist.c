/* Expands and writes host lists. */
#include "plan/hostlist.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define NAME_BYTES 256

/* ------------------------------------------------------------------------------------------------ expanding */

static ek_status append(ek_hostlist *list, const char *name)
{
    if (name[0] == '\0')
        return ek_fail(EK_INVALID, "an empty host name in the list");
    if (list->count == EK_HOSTLIST_MOST)
        return ek_fail(EK_INVALID, "a list of more than %zu hosts", EK_HOSTLIST_MOST);
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 64;
        char **names = realloc(list->names, room * sizeof *names);
        if (!names)
            return ek_fail(EK_NO_MEMORY, "out of memory");
        list->names = names;
        list->room = room;
    }
    char *copy = strdup(name);
    if (!copy)
        return ek_fail(EK_NO_MEMORY, "out of memory");
    list->names[list->count++] = copy;
    return EK_OK;
}

/* One number of a range and where it ends; at most nine digits, so that it fits. */
static bool read_number(const char **text, unsigned *number, int *width)
{
    size_t digits = strspn(*text, "0123456789");
    if (digits == 0 || digits > 9)
        return false;
    *number = (unsigned)strtoul(*text, NULL, 10);
    *width = (int)digits;
    *text += digits;
    return true;
}

static ek_status expand_name(ek_hostlist *list, const char *done, const char *rest, size_t length);

/* `ranges` is what stands in the brackets; `after` what follows them. */
static ek_status expand_ranges(ek_hostlist *list, const char *done, const char *ranges, size_t ranges_length,
                               const char *after, size_t after_length)
{
    const char *at = ranges, *end = ranges + ranges_length;
    do {
        unsigned first = 0, last;
        int width = 0, last_width;
        bool good = read_number(&at, &first, &width);
        last = first;
        if (good && *at == '-') {
            at++;
            good = read_number(&at, &last, &last_width);
        }
        if (!good || last < first || (at != end && *at != ','))
            return ek_fail(EK_INVALID, "\"[%.*s]\" is no list of ranges as 001-018,020", (int)ranges_length, ranges);
        for (unsigned number = first; number <= last; number++) {
            char name[NAME_BYTES];
            if (snprintf(name, sizeof name, "%s%0*u", done, width, number) >= (int)sizeof name)
                return ek_fail(EK_INVALID, "a host name of more than %d characters", NAME_BYTES - 1);
            EK_TRY(expand_name(list, name, after, after_length));
        }
    } while (*at++ == ',');
    return EK_OK;
}

/* Appends all names that begin with `done` and go on as rest[length] says. */
static ek_status expand_name(ek_hostlist *list, const char *done, const char *rest, size_t length)
{
    const char *open = memchr(rest, '[', length);
    size_t plain = open ? (size_t)(open - rest) : length;
    char name[NAME_BYTES];
    if (snprintf(name, sizeof name, "%s%.*s", done, (int)plain, rest) >= (int)sizeof name)
        return ek_fail(EK_INVALID, "a host name of more than %d characters", NAME_BYTES - 1);
    if (memchr(rest, ']', plain))
        return ek_fail(EK_INVALID, "a ] without its [");
    if (!open)
        return append(list, name);
    const char *close = memchr(open, ']', length - plain);
    if (!close)
        return ek_fail(EK_INVALID, "a [ without its ]");
    return expand_ranges(list, name, open + 1, (size_t)(close - open - 1), close + 1,
                         (size_t)(rest + length - close - 1));
}

ek_status ek_hostlist_expand(ek_hostlist *list, const char *text)
{
    for (;;) {
        size_t length = 0; /* to the next comma outside brackets */
        bool inside = false;
        while (text[length] && (inside || text[length] != ',')) {
            inside = text[length] == '[' || (inside && text[length] != ']');
            length++;
        }
        EK_TRY(expand_name(list, "", text, length));
        if (text[length] == '\0')
            return EK_OK;
        text += length + 1;
    }
}

void ek_hostlist_free(ek_hostlist *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->names[i]);
    free(list->names);
    *list = (ek_hostlist){0};
}

/* -------------------------------------------------------------------------------------------------- writing */

typedef struct numbered {
    const char *name;
    size_t prefix; /* characters before the number at the end */
    unsigned number;
    int width; /* 0: the name does not end with a number that fits */
} numbered;

static numbered split(const char *name)
{
    size_t prefix = strlen(name);
    while (prefix > 0 && isdigit((unsigned char)name[prefix - 1]))
        prefix--;
    numbered result = {name, prefix, 0, 0};
    const char *digits = name + prefix;
    if (!read_number(&digits, &result.number, &result.width))
        result.width = 0;
    return result;
}

static bool share_prefix(const numbered *a, const numbered *b)
{
    return a->width > 0 && b->width > 0 && a->prefix == b->prefix && strncmp(a->name, b->name, a->prefix) == 0;
}

/* Whether `next` is what a range that began with `first` and has come to `last` gives next. */
static bool follows(const numbered *first, const numbered *last, const numbered *next)
{
    char expected[16];
    snprintf(expected, sizeof expected, "%0*u", first->width, last->number + 1);
    return share_prefix(last, next) && strcmp(next->name + next->prefix, expected) == 0;
}

void ek_hostlist_write(const char *const *names, size_t count, FILE *file)
{
    for (size_t i = 0; i < count;) {
        numbered first = split(names[i]), last = first, next = {0};
        fprintf(file, "%s%.*s", i > 0 ? "," : "", (int)first.prefix, first.name);
        bool many = i + 1 < count && (next = split(names[i + 1]), share_prefix(&first, &next));
        fprintf(file, "%s%s", many ? "[" : "", first.name + first.prefix);
        for (i++; i < count; i++) {
            next = split(names[i]);
            if (!share_prefix(&last, &next))
                break;
            bool in_range = follows(&first, &last, &next);
            if (!in_range) {
                if (last.number != first.number)
                    fprintf(file, "-%s", last.name + last.prefix);
                fprintf(file, ",%s", next.name + next.prefix);
                first = next;
            }
            last = next;
        }
        if (last.number != first.number)
            fprintf(file, "-%s", last.name + last.prefix);
        fprintf(file, "%s", many ? "]" : "");
    }
}
