/* The chain of layouts of one unit group: who holds which units, in which order, at every level. */
#include "layout/chain.h"

#include "base/error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The first unit of a role at level 0. */
static uint32_t level0_first(const ek_chain *chain, uint32_t role)
{
    return (uint32_t)((uint64_t)role * chain->units / chain->base_degree);
}

/* Sizes at level+1, and where each role's run begins in the list of the dropped role. Dealing one unit at a time to the
 * smallest ends with the same sizes: roles that are already above the quotient get nothing, all others are filled up to
 * it, and what remains goes to the first of them in the order of ties. */
static void deal_counts(ek_chain *chain, uint32_t level)
{
    uint32_t degree = chain->base_degree;
    assert(level + 1 < degree);
    uint32_t quotient = chain->units / (degree - level - 1), larger = chain->units % (degree - level - 1);
    const uint32_t *before = chain->counts + (size_t)level * degree;
    uint32_t *after = chain->counts + (size_t)(level + 1) * degree;
    uint32_t *dealt = chain->dealt + (size_t)level * degree;

    for (uint32_t role = 0; role < degree; role++)
        if (chain->gone_at[role] > level + 1 && before[role] > quotient)
            larger--;

    uint32_t first = 0;
    for (uint32_t i = 0; i < degree; i++) {
        uint32_t role = (uint32_t)(((uint64_t)chain->first_in_ties + i) % degree);
        if (chain->gone_at[role] <= level + 1)
            continue;
        after[role] = quotient + 1;
        if (before[role] <= quotient) {
            if (larger > 0)
                larger--;
            else
                after[role] = quotient;
        }
        dealt[role] = first;
        first += after[role] - before[role];
    }
    assert(first == before[chain->drop_order[level]]);
}

/* Appends the runs of the role that level+1 drops to the lists of the others. */
static void deal_units(ek_chain *chain, uint32_t level)
{
    size_t dropped = chain->offsets[chain->drop_order[level]];
    for (uint32_t role = 0; role < chain->base_degree; role++) {
        if (chain->gone_at[role] <= level + 1)
            continue;
        uint32_t before = chain_count(chain, level, role), after = chain_count(chain, level + 1, role);
        size_t run = dropped + chain_dealt(chain, level, role);
        memcpy(chain->units_of_roles + chain->offsets[role] + before, chain->units_of_roles + run,
               (after - before) * sizeof *chain->units_of_roles);
        for (uint32_t i = 0; i < after - before; i++)
            chain->recipients[run + i] = role;
    }
}

static ek_status check_arguments(uint32_t units, uint32_t base_degree, const uint32_t *drop_order, uint32_t levels)
{
    if (base_degree == 0)
        return ek_fail(EK_INVALID, "a chain needs a base degree of at least 1");
    if (units < base_degree)
        return ek_fail(EK_INVALID, "%u units cannot be shared out to %u roles: each needs at least one", units,
                       base_degree);
    if (levels >= base_degree)
        return ek_fail(EK_INVALID, "a drop order of %u roles leaves none of %u", levels, base_degree);
    for (uint32_t level = 0; level < levels; level++)
        if (drop_order[level] >= base_degree)
            return ek_fail(EK_INVALID, "role %u of the drop order is not below %u", drop_order[level], base_degree);
    return EK_OK;
}

/* Everything but the lists, whose sizes follow from the counts. */
static ek_status build_counts(ek_chain *chain, const uint32_t *drop_order)
{
    size_t degree = chain->base_degree, levels = chain->levels;
    chain->drop_order = calloc(levels + 1, sizeof *chain->drop_order);
    chain->gone_at = calloc(degree, sizeof *chain->gone_at);
    chain->counts = calloc((levels + 1) * degree, sizeof *chain->counts);
    chain->dealt = calloc((levels + 1) * degree, sizeof *chain->dealt);
    chain->offsets = calloc(degree, sizeof *chain->offsets);
    if (!chain->drop_order || !chain->gone_at || !chain->counts || !chain->dealt || !chain->offsets)
        return ek_fail(EK_NO_MEMORY, "no memory for a chain of %zu levels over %zu roles", levels, degree);

    for (uint32_t role = 0; role < degree; role++) {
        chain->gone_at[role] = chain->levels + 1;
        chain->counts[role] = level0_first(chain, role + 1) - level0_first(chain, role);
    }
    for (uint32_t level = 0; level < levels; level++) {
        uint32_t role = drop_order[level];
        if (chain->gone_at[role] <= levels)
            return ek_fail(EK_INVALID, "role %u stands twice in the drop order", role);
        chain->drop_order[level] = role;
        chain->gone_at[role] = level + 1;
    }
    for (uint32_t level = 0; level < levels; level++)
        deal_counts(chain, level);
    return EK_OK;
}

static ek_status build_lists(ek_chain *chain)
{
    size_t total = 0;
    for (uint32_t role = 0; role < chain->base_degree; role++) {
        chain->offsets[role] = total;
        total += chain_count(chain, chain->gone_at[role] - 1, role);
    }
    chain->units_of_roles = malloc(total * sizeof *chain->units_of_roles);
    chain->recipients = malloc(total * sizeof *chain->recipients);
    if (!chain->units_of_roles || !chain->recipients)
        return ek_fail(EK_NO_MEMORY, "no memory for the lists of %u units", chain->units);

    for (uint32_t role = 0; role < chain->base_degree; role++)
        for (uint32_t i = 0; i < chain->counts[role]; i++)
            chain->units_of_roles[chain->offsets[role] + i] = level0_first(chain, role) + i;
    for (uint32_t level = 0; level < chain->levels; level++)
        deal_units(chain, level);
    return EK_OK;
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* How far apart the orders of ties of two successive unit groups begin: about 0.38 of the circle (the golden section),
 * so that the first few are far from each other, and coprime to the degree, so that none repeats before all roles have
 * been first. */
static uint32_t tie_stride(uint32_t base_degree)
{
    uint32_t stride = (uint32_t)(0.382 * base_degree + 0.5);
    stride = stride ? stride : 1;
    while (common_divisor(stride, base_degree) != 1)
        stride++;
    return stride;
}

ek_status ek_chain_create(ek_chain **chain, uint32_t units, uint32_t base_degree, const uint32_t *drop_order,
                          uint32_t levels, uint32_t ties)
{
    EK_TRY(check_arguments(units, base_degree, drop_order, levels));
    ek_chain *created = calloc(1, sizeof *created);
    if (!created)
        return ek_fail(EK_NO_MEMORY, "no memory for a chain");
    created->units = units;
    created->base_degree = base_degree;
    created->levels = levels;
    created->first_in_ties = (uint32_t)((uint64_t)ties % base_degree * tie_stride(base_degree) % base_degree);

    ek_status status = build_counts(created, drop_order);
    if (status == EK_OK)
        status = build_lists(created);
    if (status != EK_OK) {
        ek_chain_destroy(created);
        return status;
    }
    *chain = created;
    return EK_OK;
}

void ek_chain_destroy(ek_chain *chain)
{
    if (!chain)
        return;
    free(chain->drop_order);
    free(chain->gone_at);
    free(chain->counts);
    free(chain->dealt);
    free(chain->offsets);
    free(chain->units_of_roles);
    free(chain->recipients);
    free(chain);
}

uint32_t ek_chain_total_units(const ek_chain *chain)
{
    return chain->units;
}

uint32_t ek_chain_base_degree(const ek_chain *chain)
{
    return chain->base_degree;
}

uint32_t ek_chain_levels(const ek_chain *chain)
{
    return chain->levels;
}

uint32_t ek_chain_count(const ek_chain *chain, uint32_t level, uint32_t role)
{
    assert(level <= chain->levels && role < chain->base_degree);
    return chain_count(chain, level, role);
}

const uint32_t *ek_chain_list(const ek_chain *chain, uint32_t role)
{
    assert(role < chain->base_degree);
    return chain->units_of_roles + chain->offsets[role];
}

uint32_t ek_chain_owner(const ek_chain *chain, uint32_t level, uint32_t unit, uint32_t *position)
{
    assert(level <= chain->levels && unit < chain->units);
    uint32_t role = (uint32_t)((((uint64_t)unit + 1) * chain->base_degree - 1) / chain->units);
    uint32_t place = unit - level0_first(chain, role);
    while (chain->gone_at[role] <= level) {
        uint32_t dropped_from = chain->gone_at[role] - 1;
        uint32_t recipient = chain->recipients[chain->offsets[role] + place];
        place += chain_count(chain, dropped_from, recipient) - chain_dealt(chain, dropped_from, recipient);
        role = recipient;
    }
    if (position)
        *position = place;
    return role;
}
