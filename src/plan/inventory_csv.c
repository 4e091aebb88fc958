/* An inventory from a CSV file with a line for each GPU. */
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "base/error.h"
#include "plan/inventory.h"

enum { DOMAIN, NODE, GPU, STATE, PCI, SERIAL, COLUMNS };
static const char *const columns[COLUMNS + 1] = {"domain", "node", "gpu", "state", "pci", "serial", NULL};
#define REQUIRED PCI /* the columns before it */
#define GPU_MOST 65535

static ek_status parse_gpu(const ek_csv *csv, const char *text, uint32_t *gpu)
{
    unsigned long number = strtoul(text, NULL, 10);
    if (strspn(text, "0123456789") != strlen(text) || number > GPU_MOST)
        return ek_csv_refuse(csv, "gpu: found \"%.60s\"; its index in the node, a whole number from 0 to %d, is needed",
                             text, GPU_MOST);
    *gpu = (uint32_t)number;
    return EK_OK;
}

static ek_status parse_state(const ek_csv *csv, const char *text, ek_slot_state *state)
{
    for (*state = EK_SLOT_LIVE; *state <= EK_SLOT_DRAINED; ++*state)
        if (strcmp(text, ek_slot_state_text(*state)) == 0)
            return EK_OK;
    return ek_csv_refuse(csv, "state: found \"%.60s\"; live, failed or drained is needed", text);
}

static ek_status parse_row(const ek_csv *csv, const char *const *values, ek_inventory_row *row)
{
    *row = (ek_inventory_row){.domain = values[DOMAIN],
                              .node = values[NODE],
                              .pci = values[PCI],
                              .serial = values[SERIAL],
                              .file = csv->path,
                              .line = csv->line};
    for (size_t column = 0; column < REQUIRED; column++)
        if (values[column][0] == '\0')
            return ek_csv_refuse(csv, "%s is empty; the line may be torn", columns[column]);
    EK_TRY(parse_gpu(csv, values[GPU], &row->gpu));
    EK_TRY(parse_state(csv, values[STATE], &row->state));
    row->reason = row->state == EK_SLOT_LIVE ? "" : "as listed";
    return EK_OK;
}

static ek_status read_rows(ek_csv *csv, ek_inventory_row **rows, size_t *count)
{
    size_t capacity = 0;
    for (;;) {
        const char *values[COLUMNS] = {NULL};
        bool more;
        EK_TRY(ek_csv_next(csv, values, &more));
        if (!more)
            break;
        if (*count == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            ek_inventory_row *larger = realloc(*rows, capacity * sizeof **rows);
            if (!larger)
                return ek_fail(EK_NO_MEMORY, "no memory for an inventory of %zu GPUs", capacity);
            *rows = larger;
        }
        EK_TRY(parse_row(csv, values, &(*rows)[*count]));
        /* neighbours share their names, which makes sorting quick */
        ek_inventory_row *row = &(*rows)[*count], *before = row - 1;
        if (*count > 0 && strcmp(before->domain, row->domain) == 0)
            row->domain = before->domain;
        if (*count > 0 && strcmp(before->node, row->node) == 0)
            row->node = before->node;
        ++*count;
    }
    return *count > 0 ? EK_OK : ek_csv_refuse(csv, "no GPUs follow; a line for each is needed");
}

ek_status ek_inventory_read_csv(ek_inventory **inventory, const char *path)
{
    ek_csv csv;
    EK_TRY(ek_csv_open(&csv, path, columns, REQUIRED));
    ek_inventory_row *rows = NULL;
    size_t count = 0;
    ek_status status = read_rows(&csv, &rows, &count);
    if (status == EK_OK)
        status = ek_inventory_create(inventory, rows, count);
    free(rows);
    ek_csv_close(&csv);
    return status;
}
