/* The runs by which a replica reshards its gradients from its own level to the sync level, and back. */
#include "layout/chain.h"

#include "base/error.h"

#include <stdlib.h>

typedef struct transfer_list {
    ek_transfer *items;
    size_t count, capacity;
} transfer_list;

static ek_status append(transfer_list *list, ek_transfer transfer)
{
    ek_transfer *last = list->count > 0 ? &list->items[list->count - 1] : NULL;
    if (last && last->extra == transfer.extra && last->core == transfer.core &&
        last->extra_first + last->count == transfer.extra_first &&
        last->core_first + last->count == transfer.core_first) {
        last->count += transfer.count;
        return EK_OK;
    }
    if (list->count == list->capacity) {
        size_t capacity = list->capacity > 0 ? 2 * list->capacity : 64;
        ek_transfer *items = realloc(list->items, capacity * sizeof *items);
        if (!items)
            return ek_fail(EK_NO_MEMORY, "no memory for %zu transfers", capacity);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = transfer;
    return EK_OK;
}

/* Positions first … first+count-1 of `role` are positions core_first … of `core`. What `role` holds at `level` comes
 * from itself; what it was dealt later comes from the roles that were dropped since, and is followed back to them. */
static ek_status trace(const ek_chain *chain, uint32_t level, uint32_t role, uint32_t first, uint32_t count,
                       uint32_t core, uint32_t core_first, transfer_list *list)
{
    uint32_t held = chain_count(chain, level, role);
    if (first < held && count > 0) {
        uint32_t part = count < held - first ? count : held - first;
        EK_TRY(append(list, (ek_transfer){role, core, first, core_first, part}));
        first += part;
        core_first += part;
        count -= part;
    }
    for (uint32_t from = level; count > 0; from++) {
        uint32_t begin = chain_count(chain, from, role), end = chain_count(chain, from + 1, role);
        if (first >= end)
            continue;
        uint32_t part = count < end - first ? count : end - first;
        EK_TRY(trace(chain, level, chain->drop_order[from], chain_dealt(chain, from, role) + first - begin, part, core,
                     core_first, list));
        first += part;
        core_first += part;
        count -= part;
    }
    return EK_OK;
}

ek_status ek_chain_transfers(const ek_chain *chain, uint32_t level, uint32_t sync_level, ek_transfer **transfers,
                             size_t *count)
{
    if (level > sync_level || sync_level > chain->levels)
        return ek_fail(EK_INVALID, "no transfers from level %u to level %u in a chain of %u levels", level, sync_level,
                       chain->levels);
    transfer_list list = {0};
    for (uint32_t core = 0; core < chain->base_degree; core++) {
        if (chain->gone_at[core] <= sync_level)
            continue;
        uint32_t own = chain_count(chain, level, core);
        ek_status status = trace(chain, level, core, own, chain_count(chain, sync_level, core) - own, core, own, &list);
        if (status != EK_OK) {
            free(list.items);
            return status;
        }
    }
    *transfers = list.items;
    *count = list.count;
    return EK_OK;
}
