/* Rows of an inventory while its sources are being read, with the texts that they refer to. */
#ifndef EK_PLAN_ROWS_H
#define EK_PLAN_ROWS_H

#include <evenkeel.h>

#include "plan/inventory.h"

typedef struct ek_rows {
    ek_inventory_row *list;
    size_t count, room;
    char **texts;
    size_t text_count, text_room;
} ek_rows;

/* A list begins zeroed. Texts of an added row are the caller's, or kept by ek_rows_keep. */
ek_status ek_rows_add(ek_rows *rows, const ek_inventory_row *row);
/* A copy of a text that lives as long as the rows; NULL: no memory. */
const char *ek_rows_keep(ek_rows *rows, const char *text);
void ek_rows_free(ek_rows *rows);

#endif
