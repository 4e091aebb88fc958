/* Inventories: their memory, look-ups, and slots taken out of use. */
#include "plan/inventory_parts.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Texts live in blocks that are freed together. */
struct ek_inventory_memory {
    struct ek_inventory_memory *next;
    char text[];
};

char *inventory_memory(ek_inventory *inventory, size_t bytes)
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

ek_status inventory_allocate(ek_inventory **inventory, size_t domains, size_t nodes, size_t slots)
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
    EK_TRY(inventory_allocate(&created, inventory->domain_count, inventory->node_count, inventory->slot_count));
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

bool inventory_is_name(const char *name)
{
    for (const char *at = name; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("._-:/", *at))
            return false;
    return name[0] != '\0' && name[0] != '-';
}

const char *inventory_text(char **end, const char *text)
{
    if (!text || text[0] == '\0')
        return "";
    char *copy = *end;
    *end = stpcpy(copy, text) + 1;
    return copy;
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
    char *copy = inventory_memory(inventory, bytes);
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
