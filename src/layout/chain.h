/* The inside of a chain of layouts, shared by the files of src/layout. The interface is in evenkeel.h. */
#ifndef EK_LAYOUT_CHAIN_H
#define EK_LAYOUT_CHAIN_H

#include <evenkeel.h>

/* Thanks to the prefix property one list per role serves all levels: a role's units at a level are the first so many of
 * its list. N is base_degree. */
struct ek_chain {
    uint32_t units, base_degree, levels;
    uint32_t first_in_ties; /* ties are broken in the order first_in_ties, +1, … (mod N) */
    uint32_t *drop_order;   /* [levels] */
    uint32_t *gone_at;      /* [N] the first level at which the role does not exist; levels + 1: it stays */
    uint32_t *counts;       /* [levels + 1][N] units of each role at each level */
    uint32_t *dealt;        /* [levels][N] where the role's run begins in the list of the role that level k+1 drops */
    size_t *offsets;        /* [N] where the role's list begins in units_of_roles */
    uint32_t *units_of_roles;
    uint32_t *recipients; /* beside units_of_roles, for dropped roles: the role that is dealt the unit */
};

static inline uint32_t chain_count(const ek_chain *chain, uint32_t level, uint32_t role)
{
    return chain->counts[(size_t)level * chain->base_degree + role];
}

static inline uint32_t chain_dealt(const ek_chain *chain, uint32_t level, uint32_t role)
{
    return chain->dealt[(size_t)level * chain->base_degree + role];
}

#endif
