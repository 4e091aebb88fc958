/* Growing lists of rows and of their texts. */
#include "plan/rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static bool make_room(void **list, size_t count, size_t *room, size_t bytes)
{
    if (count < *room)
        return true;
    size_t larger_room = *room ? 2 * *room : 64;
    void *larger = realloc(*list, larger_room * bytes);
    if (!larger)
        return false;
    *list = larger;
    *room = larger_room;
    return true;
}

ek_status ek_rows_add(ek_rows *rows, const ek_inventory_row *row)
{
    void *list = rows->list;
    if (!make_room(&list, rows->count, &rows->room, sizeof *rows->list))
        return ek_fail(EK_NO_MEMORY, "out of memory");
    rows->list = list;
    rows->list[rows->count++] = *row;
    return EK_OK;
}

const char *ek_rows_keep(ek_rows *rows, const char *text)
{
    void *list = rows->texts;
    if (!make_room(&list, rows->text_count, &rows->text_room, sizeof *rows->texts))
        return NULL;
    rows->texts = list;
    char *copy = strdup(text);
    if (copy)
        rows->texts[rows->text_count++] = copy;
    return copy;
}

void ek_rows_free(ek_rows *rows)
{
    for (size_t i = 0; i < rows->text_count; i++)
        free(rows->texts[i]);
    free(rows->texts);
    free(rows->list);
    *rows = (ek_rows){0};
}
