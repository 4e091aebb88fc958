/* Inventories: made from rows or from numbers, looked up, and slots taken out of use. */
#include "plan/inventory.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Texts live in blocks that are freed together. */
struct ek_inventory_memory {
    struct ek_inventory_memory *next;
    char text[];
};

static char *take_memory(ek_inventory *inventory, size_t bytes)
{
    struct ek_inventory_memory *block = malloc(sizeof *block + bytes);
    if (!block)
        return NULL;
    block->next = inventory->memory;
    inventory->memory = block;
    return block->text;
}

void ek_inventory_destroy(ek_inventory *inventory)
{
    if (!inventory)
        return;
    for (struct ek_inventory_memory *block = inventory->memory, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    free(inventory->domains);
    free(inventory->nodes);
    free(inventory->slots);
    free(inventory);
}

/* With room for so many, and none of them yet. */
static ek_status allocate(ek_inventory **inventory, size_t domains, size_t nodes, size_t slots)
{
    ek_inventory *created = calloc(1, sizeof *created);
    if (created) {
        created->domains = calloc(domains, sizeof *created->domains);
        created->nodes = calloc(nodes, sizeof *created->nodes);
        created->slots = calloc(slots, sizeof *created->slots);
    }
    if (!created || !created->domains || !created->nodes || !created->slots) {
        ek_inventory_destroy(created);
        return ek_fail(EK_NO_MEMORY, "no memory for an inventory of %zu GPUs", slots);
    }
    *inventory = created;
    return EK_OK;
}

ek_status ek_inventory_copy(ek_inventory **copy, const ek_inventory *inventory)
{
    ek_inventory *created;
    EK_TRY(allocate(&created, inventory->domain_count, inventory->node_count, inventory->slot_count));
    memcpy(created->domains, inventory->domains, inventory->domain_count * sizeof *inventory->domains);
    memcpy(created->nodes, inventory->nodes, inventory->node_count * sizeof *inventory->nodes);
    memcpy(created->slots, inventory->slots, inventory->slot_count * sizeof *inventory->slots);
    created->domain_count = inventory->domain_count;
    created->node_count = inventory->node_count;
    created->slot_count = inventory->slot_count;
    *copy = created;
    return EK_OK;
}

const char *ek_slot_state_text(ek_slot_state state)
{
    static const char *const texts[] = {"live", "failed", "drained"};
    return texts[state];
}

/* ----------------------------------------------------------------------------------------------- from rows */

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

/* Names go into tables and into shell scripts: nothing there may be taken for anything else. */
static bool is_name(const char *name)
{
    for (const char *at = name; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("._-:/", *at))
            return false;
    return name[0] != '\0' && name[0] != '-';
}

static ek_status check_names(const ek_inventory_row *row)
{
    static const char allowed[] = "letters, digits and any of . _ - : / are needed";
    if (!is_name(row->node))
        return refuse_row(row, "node \"%.60s\" is no host name; %s", row->node, allowed);
    if (!is_name(row->domain))
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

static const char *copy_text(char **end, const char *text)
{
    if (!text || text[0] == '\0')
        return "";
    char *copy = *end;
    *end = stpcpy(copy, text) + 1;
    return copy;
}

/* Appends a slot; the domain and the node before it, or a new one. */
static void append_row(ek_inventory *inventory, const ek_inventory_row *row, const ek_inventory_row *before, char **end)
{
    bool new_domain = !before || compare_texts(before->domain, row->domain) != 0;
    if (new_domain)
        inventory->domains[inventory->domain_count++] =
            (ek_domain){.name = copy_text(end, row->domain), .first_slot = inventory->slot_count};
    if (new_domain || compare_texts(before->node, row->node) != 0)
        inventory->nodes[inventory->node_count++] = (ek_node){.name = copy_text(end, row->node),
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
                                                          .pci = copy_text(end, row->pci),
                                                          .serial = copy_text(end, row->serial),
                                                          .reason = copy_text(end, row->reason)};
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
    EK_TRY(allocate(&created, domains, nodes, count));
    char *end = take_memory(created, bytes);
    if (!end) {
        ek_inventory_destroy(created);
        return ek_fail(EK_NO_MEMORY, "no memory for an inventory of %zu GPUs", count);
    }
    for (size_t i = 0; i < count; i++)
        append_row(created, &rows[i], i > 0 ? &rows[i - 1] : NULL, &end);
    *inventory = created;
    return EK_OK;
}

/* -------------------------------------------------------------------------------------------- from numbers */

#define GPUS_MOST (1u << 24)
#define WIDTH_MOST 9
#define HOST_BYTES 256

/* Where "{what}" or "{what:WIDTH}" stands in the pattern and how long it is; NULL: it does not. */
static const char *find_number(const char *pattern, const char *what, size_t *length, int *width)
{
    size_t letters = strlen(what);
    for (const char *at = pattern; (at = strchr(at, '{')); at++) {
        if (strncmp(at + 1, what, letters) != 0)
            continue;
        const char *end = at + 1 + letters;
        *width = 0;
        if (end[0] == ':' && end[1] >= '1' && end[1] <= '0' + WIDTH_MOST) {
            *width = end[1] - '0';
            end += 2;
        }
        *length = (size_t)(end + 1 - at);
        if (*end == '}')
            return at;
    }
    return NULL;
}

/* The name of a node by the pattern. */
static void write_host(char host[HOST_BYTES], const char *pattern, uint32_t domain, uint32_t node)
{
    size_t used = 0;
    while (*pattern && used + 1 < HOST_BYTES) {
        size_t length = 0;
        int width = 0;
        bool is_domain = find_number(pattern, "domain", &length, &width) == pattern;
        if (!is_domain && find_number(pattern, "node", &length, &width) != pattern) {
            host[used++] = *pattern++;
            continue;
        }
        int written = snprintf(host + used, HOST_BYTES - used, "%0*u", width, is_domain ? domain : node);
        used = used + (size_t)written < HOST_BYTES ? used + (size_t)written : HOST_BYTES - 1;
        pattern += length;
    }
    host[used] = '\0';
}

static ek_status check_host(const ek_inventory_numbers *numbers)
{
    const char *pattern = numbers->host;
    size_t domain_length = 0, node_length = 0;
    int width;
    const char *domain = find_number(pattern, "domain", &domain_length, &width);
    const char *node = find_number(pattern, "node", &node_length, &width);
    bool many_nodes = numbers->domain_slots > numbers->node_gpus;
    if ((!domain && numbers->domains > 1) || (!node && many_nodes))
        return ek_fail(EK_INVALID,
                       "cluster.host: found \"%.60s\"; {domain} and {node} are needed in it, as in d{domain}-n{node}",
                       pattern);
    if (domain && node) {
        const char *from = domain < node ? domain + domain_length : node + node_length;
        const char *to = domain < node ? node : domain;
        while (from < to && isdigit((unsigned char)*from))
            from++;
        if (from == to)
            return ek_fail(
                EK_INVALID,
                "cluster.host: found \"%.60s\"; a letter or dash is needed between {domain} and {node}, or two nodes "
                "could have one name",
                pattern);
    }
    char host[HOST_BYTES];
    write_host(host, pattern, 0, 0);
    if (!is_name(host) || strlen(host) > 200)
        return ek_fail(EK_INVALID, "cluster.host: found \"%.60s\"; letters, digits and any of . _ - : / are needed",
                       pattern);
    return EK_OK;
}

static ek_status check_numbers(const ek_inventory_numbers *numbers)
{
    uint64_t slots = (uint64_t)numbers->domains * numbers->domain_slots;
    if (slots > GPUS_MOST)
        return ek_fail(EK_INVALID, "cluster.domains: %u domains of %u slots are %llu GPUs; at most %u are allowed",
                       numbers->domains, numbers->domain_slots, (unsigned long long)slots, GPUS_MOST);
    if (numbers->domain_slots % numbers->node_gpus != 0)
        return ek_fail(EK_INVALID, "cluster.node_gpus: found %u; it must divide cluster.domain_slots, %u",
                       numbers->node_gpus, numbers->domain_slots);
    return check_host(numbers);
}

/* Fills a domain and its nodes and slots; names go to `end`. */
static void generate_domain(ek_inventory *inventory, const ek_inventory_numbers *numbers, uint32_t domain, char **end)
{
    char *name = *end;
    *end += sprintf(name, "%u", domain) + 1;
    inventory->domains[domain] =
        (ek_domain){name, domain * numbers->domain_slots, numbers->domain_slots, numbers->domain_slots};
    for (uint32_t i = 0; i < numbers->domain_slots; i++) {
        if (i % numbers->node_gpus == 0) {
            char host[HOST_BYTES];
            write_host(host, numbers->host, domain, i / numbers->node_gpus);
            inventory->nodes[inventory->node_count++] = (ek_node){.name = copy_text(end, host),
                                                                  .domain = domain,
                                                                  .gpus = numbers->node_gpus,
                                                                  .slots = numbers->node_gpus,
                                                                  .first_slot = inventory->slot_count};
        }
        inventory->slots[inventory->slot_count++] = (ek_slot){.domain = domain,
                                                              .node = inventory->node_count - 1,
                                                              .gpu = i % numbers->node_gpus,
                                                              .pci = "",
                                                              .serial = "",
                                                              .reason = ""};
    }
}

ek_status ek_inventory_generate(ek_inventory **inventory, const ek_inventory_numbers *numbers)
{
    EK_TRY(check_numbers(numbers));
    size_t nodes = (size_t)numbers->domains * (numbers->domain_slots / numbers->node_gpus);
    ek_inventory *created;
    EK_TRY(allocate(&created, numbers->domains, nodes, (size_t)numbers->domains * numbers->domain_slots));
    size_t host_bytes =
        strlen(numbers->host) + 2 * sizeof "4294967295" + 1; /* a number may be longer than its {name} */
    char *end = take_memory(created, nodes * host_bytes + numbers->domains * sizeof "4294967295");
    if (!end) {
        ek_inventory_destroy(created);
        return ek_fail(EK_NO_MEMORY, "no memory for the names of %zu nodes", nodes);
    }
    created->domain_count = numbers->domains;
    for (uint32_t domain = 0; domain < numbers->domains; domain++)
        generate_domain(created, numbers, domain, &end);
    *inventory = created;
    return EK_OK;
}

/* ------------------------------------------------------------------------------------ look-ups and marks */

static int compare_domain_name(const void *name, const void *domain)
{
    return strverscmp(name, ((const ek_domain *)domain)->name);
}

static const ek_domain *find_domain(const ek_inventory *inventory, const char *name)
{
    return bsearch(name, inventory->domains, inventory->domain_count, sizeof *inventory->domains, compare_domain_name);
}

/* DOMAIN.SLOT; a domain's name may have dots in it too. */
static bool find_slot(const ek_inventory *inventory, const char *name, uint32_t *slot)
{
    const char *dot = strrchr(name, '.');
    if (!dot || dot[1] == '\0' || strspn(dot + 1, "0123456789") != strlen(dot + 1))
        return false;
    char *domain_name = strndup(name, (size_t)(dot - name));
    const ek_domain *domain = domain_name ? find_domain(inventory, domain_name) : NULL;
    free(domain_name);
    errno = 0;
    unsigned long index = strtoul(dot + 1, NULL, 10);
    if (!domain || errno != 0 || index >= domain->slots)
        return false;
    *slot = domain->first_slot + (uint32_t)index;
    return true;
}

bool ek_inventory_find(const ek_inventory *inventory, const char *name, uint32_t *first_slot, uint32_t *slots)
{
    const ek_domain *domain = find_domain(inventory, name);
    if (domain) {
        *first_slot = domain->first_slot;
        *slots = domain->slots;
        return true;
    }
    if (find_slot(inventory, name, first_slot)) {
        *slots = 1;
        return true;
    }
    for (uint32_t node = 0; node < inventory->node_count; node++) {
        if (strcmp(inventory->nodes[node].name, name) == 0) {
            *first_slot = inventory->nodes[node].first_slot;
            *slots = inventory->nodes[node].slots;
            return true;
        }
    }
    return false;
}

ek_status ek_inventory_mark(ek_inventory *inventory, uint32_t first_slot, uint32_t slots, ek_slot_state state,
                            const char *reason)
{
    size_t bytes = strlen(reason) + 1;
    char *copy = take_memory(inventory, bytes);
    if (!copy)
        return ek_fail(EK_NO_MEMORY, "no memory to mark slots");
    memcpy(copy, reason, bytes);
    for (ek_slot *slot = inventory->slots + first_slot; slot < inventory->slots + first_slot + slots; slot++) {
        if (slot->state != EK_SLOT_LIVE)
            continue;
        slot->state = state;
        slot->reason = copy;
        inventory->domains[slot->domain].live--;
    }
    return EK_OK;
}
