/* What the makers of inventories share. */
#ifndef EK_PLAN_INVENTORY_PARTS_H
#define EK_PLAN_INVENTORY_PARTS_H

#include <stddef.h>

#include "plan/inventory.h"

/* With room for so many, and none of them yet. */
ek_status inventory_allocate(ek_inventory **inventory, size_t domains, size_t nodes, size_t slots);

/* Memory for texts that lives as long as the inventory; NULL: there is none. */
char *inventory_memory(ek_inventory *inventory, size_t bytes);

/* Copies a text to *end and moves *end behind it; "" for NULL and "". */
const char *inventory_text(char **end, const char *text);

/* Names go into tables and into shell scripts: nothing there may be taken for anything else. */
bool inventory_is_name(const char *name);

#endif
