/* An inventory of rows: sorted, and no GPU twice. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/inventory_parts.h"

static ek_status refuse_row(const ek_inventory_row *row, const char *format, ...) __attribute__((format(printf, 2, 3)));
static ek_status refuse_row(const ek_inventory_row *row, const char *format, ...)
{
    char text[EK_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (row->line > 0)
        return ek_fail(EK_INVALID, "%s:%u: %s", row->file, row->line, text);
    return ek_fail(EK_INVALID, "%s: %s", row->file, text);
}

static ek_status check_names(const ek_inventory_row *row)
{
    static const char allowed[] = "letters, digits and any of . _ - : / are needed";
    if (!inventory_is_name(row->node))
        return refuse_row(row, "node \"%.60s\" is no host name; %s", row->node, allowed);
    if (!inventory_is_name(row->domain))
        return refuse_row(row, "domain \"%.60s\" is no name; %s", row->domain, allowed);
    return EK_OK;
}

/* strverscmp, quick where neighbours share a text. */
static int compare_texts(const char *a, const char *b)
{
    return a == b ? 0 : strverscmp(a, b);
}

static int compare_rows(const void *a, const void *b)
{
    const ek_inventory_row *left = a, *right = b;
    int order = compare_texts(left->domain, right->domain);
    if (order == 0)
        order = compare_texts(left->node, right->node);
    if (order == 0)
        order = (left->gpu > right->gpu) - (left->gpu < right->gpu);
    if (order == 0) /* so that the second of two is the one refused */
        order = (left->line > right->line) - (left->line < right->line);
    return order;
}

static const char *text_or_none(const char *text)
{
    return text ? text : "";
}

/* What may stand for one GPU, or for one node, alone. */
typedef enum identity_kind { IDENTITY_NODE, IDENTITY_PCI, IDENTITY_SERIAL } identity_kind;

typedef struct identity_order {
    const ek_inventory_row *rows;
    identity_kind identity;
} identity_order;

static const char *text_of(const ek_inventory_row *row, identity_kind identity)
{
    const char *texts[] = {row->node, row->pci, row->serial};
    return text_or_none(texts[identity]);
}

/* 0: they are the same. PCI ids are those of a node. */
static int compare_identity(const ek_inventory_row *left, const ek_inventory_row *right, identity_kind identity)
{
    int order = identity == IDENTITY_PCI ? strcmp(left->node, right->node) : 0;
    return order == 0 ? strcmp(text_of(left, identity), text_of(right, identity)) : order;
}

/* Of indices of rows; the same ones by line. */
static int compare_indices(const void *a, const void *b, void *user)
{
    const identity_order *given = user;
    const ek_inventory_row *left = &given->rows[*(const uint32_t *)a], *right = &given->rows[*(const uint32_t *)b];
    int order = compare_identity(left, right, given->identity);
    return order == 0 ? (left->line > right->line) - (left->line < right->line) : order;
}

/* "first on line 4" or, between files, "first in b.xml". */
static const char *first_place(const ek_inventory_row *row, const ek_inventory_row *first, char text[EK_ERROR_BYTES])
{
    if (row->file == first->file && first->line > 0)
        snprintf(text, EK_ERROR_BYTES, "first on line %u", first->line);
    else
        snprintf(text, EK_ERROR_BYTES, "first in %s", first->file);
    return text;
}

static bool begins_node(const ek_inventory_row *rows, size_t i)
{
    return i == 0 || compare_texts(rows[i - 1].node, rows[i].node) != 0 ||
           compare_texts(rows[i - 1].domain, rows[i].domain) != 0;
}

/* The second of two rows of the same identity, in *second, and the first. indices has room for all rows. */
static bool find_twice(const ek_inventory_row *rows, size_t count, identity_kind identity, uint32_t *indices,
                       const ek_inventory_row **first, const ek_inventory_row **second)
{
    size_t with = 0;
    for (size_t i = 0; i < count; i++)
        if (identity == IDENTITY_NODE ? begins_node(rows, i) : text_of(&rows[i], identity)[0] != '\0')
            indices[with++] = (uint32_t)i;
    identity_order order = {rows, identity};
    qsort_r(indices, with, sizeof *indices, compare_indices, &order);
    for (size_t i = 1; i < with; i++) {
        *first = &rows[indices[i - 1]];
        *second = &rows[indices[i]];
        if (compare_identity(*first, *second, identity) == 0)
            return true;
    }
    return false;
}

/* No identity may stand for two GPUs, no node in two domains. */
static ek_status check_identities(const ek_inventory_row *rows, size_t count, uint32_t *indices)
{
    const ek_inventory_row *first, *second;
    char place[EK_ERROR_BYTES];
    if (find_twice(rows, count, IDENTITY_NODE, indices, &first, &second))
        return refuse_row(second, "node %s is in domain %s and in domain %s (%s); a node has one domain", second->node,
                          second->domain, first->domain, first_place(second, first, place));
    if (find_twice(rows, count, IDENTITY_PCI, indices, &first, &second))
        return refuse_row(second, "PCI id %s of node %s is listed twice (%s); remove one of the two", second->pci,
                          second->node, first_place(second, first, place));
    if (find_twice(rows, count, IDENTITY_SERIAL, indices, &first, &second))
        return refuse_row(second, "serial number %s is listed twice (%s); remove one of the two", second->serial,
                          first_place(second, first, place));
    return EK_OK;
}

/* Rows are sorted. */
static ek_status check_rows(const ek_inventory_row *rows, size_t count)
{
    char place[EK_ERROR_BYTES];
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || rows[i - 1].node != rows[i].node || rows[i - 1].domain != rows[i].domain)
            EK_TRY(check_names(&rows[i]));
        if (i > 0 && rows[i - 1].gpu == rows[i].gpu && compare_texts(rows[i - 1].node, rows[i].node) == 0 &&
            compare_texts(rows[i - 1].domain, rows[i].domain) == 0)
            return refuse_row(&rows[i], "GPU %u of node %s is listed twice (%s); remove one of the two", rows[i].gpu,
                              rows[i].node, first_place(&rows[i], &rows[i - 1], place));
    }
    uint32_t *indices = malloc(count * sizeof *indices);
    if (!indices)
        return ek_fail(EK_NO_MEMORY, "no memory for an inventory of %zu GPUs", count);
    ek_status status = check_identities(rows, count, indices);
    free(indices);
    return status;
}

/* Appends a slot; the domain and the node before it, or a new one. */
static void append_row(ek_inventory *inventory, const ek_inventory_row *row, const ek_inventory_row *before, char **end)
{
    bool new_domain = !before || compare_texts(before->domain, row->domain) != 0;
    if (new_domain)
        inventory->domains[inventory->domain_count++] =
            (ek_domain){.name = inventory_text(end, row->domain), .first_slot = inventory->slot_count};
    if (new_domain || compare_texts(before->node, row->node) != 0)
        inventory->nodes[inventory->node_count++] = (ek_node){.name = inventory_text(end, row->node),
                                                              .domain = inventory->domain_count - 1,
                                                              .first_slot = inventory->slot_count};
    ek_domain *domain = &inventory->domains[inventory->domain_count - 1];
    ek_node *node = &inventory->nodes[inventory->node_count - 1];
    domain->slots++;
    domain->live += row->state == EK_SLOT_LIVE;
    node->slots++;
    node->gpus++;
    inventory->slots[inventory->slot_count++] = (ek_slot){.domain = inventory->domain_count - 1,
                                                          .node = inventory->node_count - 1,
                                                          .gpu = row->gpu,
                                                          .state = row->state,
                                                          .pci = inventory_text(end, row->pci),
                                                          .serial = inventory_text(end, row->serial),
                                                          .reason = inventory_text(end, row->reason)};
}

ek_status ek_inventory_create(ek_inventory **inventory, ek_inventory_row *rows, size_t count)
{
    if (count == 0)
        return ek_fail(EK_INVALID, "the inventory has no GPUs; at least one is needed");
    if (count >= UINT32_MAX)
        return ek_fail(EK_INVALID, "the inventory has %zu GPUs; fewer than 2^32 are allowed", count);
    qsort(rows, count, sizeof *rows, compare_rows);
    EK_TRY(check_rows(rows, count));
    size_t domains = 0, nodes = 0, bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bool new_domain = i == 0 || compare_texts(rows[i - 1].domain, rows[i].domain) != 0;
        bool new_node = new_domain || compare_texts(rows[i - 1].node, rows[i].node) != 0;
        domains += new_domain;
        nodes += new_node;
        bytes += new_domain ? strlen(rows[i].domain) + 1 : 0;
        bytes += new_node ? strlen(rows[i].node) + 1 : 0;
        bytes += strlen(text_or_none(rows[i].pci)) + strlen(text_or_none(rows[i].serial)) +
                 strlen(text_or_none(rows[i].reason)) + 3;
    }
    ek_inventory *created;
    EK_TRY(inventory_allocate(&created, domains, nodes, count));
    char *end = inventory_memory(created, bytes);
    if (!end) {
        ek_inventory_destroy(created);
        return ek_fail(EK_NO_MEMORY, "no memory for an inventory of %zu GPUs", count);
    }
    for (size_t i = 0; i < count; i++)
        append_row(created, &rows[i], i > 0 ? &rows[i - 1] : NULL, &end);
    *inventory = created;
    return EK_OK;
}
