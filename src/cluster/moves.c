/* State motion: which units every rank fetches from whom when one membership follows another.
 *
 * First the needs are listed, run by run. A unit that the rank itself or a rank of its own replica holds is settled at
 * once: there is only one such holder. The other units are open. They can be had from any replica, and the bytes are to
 * be spread evenly without chopping the runs: so each source is given a fair share, an equal part of every open unit
 * that it holds, and an open run is then cut only where a source has served its share of the run, or of all runs. */
#include "cluster/membership.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text of EK_UNIT_LOST names at most so many of the ranks that held the unit. */
#define LOST_RANKS_NAMED 8

typedef struct move_list {
    ek_move *items;
    size_t count, capacity;
} move_list;

/* Replicas at the same level hold a unit in the same role: the holders of a level and a role are one class. */
typedef struct holder_class {
    size_t first; /* its ranks are plan.holders[first …], by replica */
    uint32_t count;
    double share, served; /* bytes, all its ranks together; summed in a fixed order, so the same on every rank */
    double owed;          /* the part of the share that comes from the runs so far, less what was served */
} holder_class;

struct plan {
    const ek_membership *old, *next;
    bool *serves;          /* [ranks] had a role in `old` and is known to `next` */
    holder_class *classes; /* [levels of old + 1][N] */
    uint32_t *holders;     /* [ranks] */
    uint32_t *helpers;     /* [R] where the search for the next source of replicated tensors begins */
    uint32_t last_helper;  /* the same across replicas */
    move_list needs;       /* open ones with source EK_NONE */
    move_list moves;
};

static ek_status append(move_list *list, ek_move move)
{
    ek_move *last = list->count > 0 ? &list->items[list->count - 1] : NULL;
    if (last && last->group == move.group && last->source == move.source && last->destination == move.destination &&
        last->destination_first + last->count == move.destination_first &&
        (move.source == EK_NONE || last->source_first + last->count == move.source_first)) {
        last->count += move.count;
        return EK_OK;
    }
    if (list->count == list->capacity) {
        size_t capacity = list->capacity > 0 ? 2 * list->capacity : 256;
        ek_move *items = realloc(list->items, capacity * sizeof *items);
        if (!items)
            return ek_fail(EK_NO_MEMORY, "no memory for %zu moves", capacity);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = move;
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------ holders */

static holder_class *class_of(const struct plan *plan, uint32_t level, uint32_t role)
{
    return &plan->classes[(size_t)level * plan->old->job.base_degree + role];
}

static void sort_holders(struct plan *plan)
{
    const ek_membership *old = plan->old;
    uint32_t replica, role, ranks = ek_membership_ranks(old);
    for (uint32_t rank = 0; rank < ranks; rank++)
        plan->serves[rank] = ek_membership_place(old, rank, NULL, NULL) && plan->next->places[rank] != PLACE_ABSENT;
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (plan->serves[rank] && ek_membership_place(old, rank, &replica, &role))
            class_of(plan, ek_membership_level(old, replica), role)->count++;
    size_t total = 0, class_count = (size_t)(old->sync_level + 1) * old->job.base_degree;
    for (size_t i = 0; i < class_count; i++) {
        plan->classes[i].first = total;
        total += plan->classes[i].count;
        plan->classes[i].count = 0;
    }
    for (uint32_t place = 0; place < old->job.replicas * old->job.base_degree; place++) {
        uint32_t rank = old->ranks[place];
        if (rank == EK_NONE || !plan->serves[rank])
            continue;
        holder_class *class =
            class_of(plan, ek_membership_level(old, place / old->job.base_degree), place % old->job.base_degree);
        plan->holders[class->first + class->count++] = rank;
    }
}

static ek_status begin(struct plan *plan)
{
    const ek_membership *old = plan->old;
    size_t ranks = ek_membership_ranks(old);
    plan->serves = calloc(ranks, sizeof *plan->serves);
    plan->holders = calloc(ranks, sizeof *plan->holders);
    plan->classes = calloc((size_t)(old->sync_level + 1) * old->job.base_degree, sizeof *plan->classes);
    plan->helpers = calloc(old->job.replicas, sizeof *plan->helpers);
    if (!plan->serves || !plan->holders || !plan->classes || !plan->helpers)
        return ek_fail(EK_NO_MEMORY, "no memory to plan the motion of state among %zu ranks", ranks);
    sort_holders(plan);
    return EK_OK;
}

static void end(struct plan *plan)
{
    free(plan->serves);
    free(plan->holders);
    free(plan->classes);
    free(plan->helpers);
    free(plan->needs.items);
}

static uint64_t unit_bytes(const struct plan *plan, uint32_t group)
{
    uint64_t bytes = plan->old->job.groups[group].unit_bytes;
    return bytes > 0 ? bytes : 1;
}

/* -------------------------------------------------------------------------------------------------- needs */

/* The rank of a replica that holds a unit and can serve it, and where; or EK_NONE. */
static uint32_t find_in_replica(const struct plan *plan, uint32_t replica, uint32_t group, uint32_t unit,
                                uint32_t *position)
{
    uint32_t level = ek_membership_level(plan->old, replica);
    if (level == EK_NONE)
        return EK_NONE;
    uint32_t role = ek_chain_owner(plan->old->chains[group], level, unit, position);
    uint32_t rank = ek_membership_rank(plan->old, replica, role);
    return rank != EK_NONE && plan->serves[rank] ? rank : EK_NONE;
}

/* How many roles the two drop orders begin with in common: up to that level their lists are the same. */
static uint32_t common_levels(const ek_membership *a, const ek_membership *b)
{
    uint32_t level = 0;
    while (level < a->sync_level && level < b->sync_level && a->drop_order[level] == b->drop_order[level])
        level++;
    return level;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* How far a rank's list surely is what it was, so that looking unit by unit begins there. */
static uint32_t kept_in_place(const struct plan *plan, uint32_t rank, uint32_t group)
{
    uint32_t old_replica, old_role, replica, role;
    if (!ek_membership_place(plan->old, rank, &old_replica, &old_role) ||
        !ek_membership_place(plan->next, rank, &replica, &role) || role != old_role)
        return 0;
    uint32_t level = least(ek_membership_level(plan->old, old_replica), ek_membership_level(plan->next, replica));
    level = least(level, common_levels(plan->old, plan->next));
    return ek_chain_count(plan->next->chains[group], level, role);
}

static ek_status list_units(struct plan *plan, uint32_t rank, uint32_t group)
{
    uint32_t home = EK_NONE, replica, count, position = 0;
    const uint32_t *units = ek_membership_units(plan->next, rank, group, &count);
    ek_membership_place(plan->next, rank, &replica, NULL);
    bool had_role = ek_membership_place(plan->old, rank, &home, NULL);
    for (uint32_t i = kept_in_place(plan, rank, group); i < count; i++) {
        uint32_t source = had_role ? find_in_replica(plan, home, group, units[i], &position) : EK_NONE;
        if (source == rank && position == i)
            continue;
        if (source != rank && replica != home)
            source = find_in_replica(plan, replica, group, units[i], &position);
        if (source == EK_NONE)
            position = 0;
        EK_TRY(append(&plan->needs, (ek_move){group, source, rank, position, i, 1}));
    }
    return EK_OK;
}

/* A rank that had no role gets the replicated tensors from a rank of its replica, in turn, or else from any. */
static ek_status list_replicated(struct plan *plan, uint32_t rank)
{
    uint32_t replica, source = EK_NONE, degree = plan->old->job.base_degree, ranks = ek_membership_ranks(plan->old);
    ek_membership_place(plan->next, rank, &replica, NULL);
    for (uint32_t i = 0; i < degree && source == EK_NONE; i++) {
        uint32_t candidate = ek_membership_rank(plan->old, replica, plan->helpers[replica]++ % degree);
        if (candidate != EK_NONE && plan->serves[candidate])
            source = candidate;
    }
    for (uint32_t i = 0; i < ranks && source == EK_NONE; i++) {
        uint32_t candidate = plan->last_helper++ % ranks;
        if (plan->serves[candidate])
            source = candidate;
    }
    if (source == EK_NONE)
        return ek_fail(EK_UNIT_LOST, "no survivor holds the replicated tensors");
    return append(&plan->needs, (ek_move){EK_REPLICATED, source, rank, 0, 0, 1});
}

static ek_status list_needs(struct plan *plan)
{
    for (uint32_t rank = 0; rank < ek_membership_ranks(plan->next); rank++) {
        if (!ek_membership_place(plan->next, rank, NULL, NULL))
            continue;
        for (uint32_t group = 0; group < plan->next->job.group_count; group++)
            EK_TRY(list_units(plan, rank, group));
        if (!ek_membership_place(plan->old, rank, NULL, NULL))
            EK_TRY(list_replicated(plan, rank));
    }
    return EK_OK;
}

/* --------------------------------------------------------------------------------------------- open needs */

/* Names the unit and the first few of the ranks that held it. */
static ek_status fail_lost(const struct plan *plan, uint32_t group, uint32_t unit)
{
    const ek_membership *old = plan->old;
    char ranks[LOST_RANKS_NAMED * 12 + 1] = "", more[24] = "";
    size_t length = 0;
    uint32_t holders = 0;
    for (uint32_t replica = 0; replica < old->job.replicas; replica++) {
        uint32_t level = ek_membership_level(old, replica);
        if (level == EK_NONE || ++holders > LOST_RANKS_NAMED)
            continue;
        uint32_t rank = ek_membership_rank(old, replica, ek_chain_owner(old->chains[group], level, unit, NULL));
        length += (size_t)snprintf(ranks + length, sizeof ranks - length, "%s%u", length > 0 ? ", " : "", rank);
    }
    if (holders > LOST_RANKS_NAMED)
        snprintf(more, sizeof more, " and %u more", holders - LOST_RANKS_NAMED);
    return ek_fail(EK_UNIT_LOST, "no survivor holds unit %u of %s (lost with %s %s%s)", unit,
                   old->job.groups[group].name, holders > 1 ? "ranks" : "rank", ranks, more);
}

static const uint32_t *units_needed(const struct plan *plan, const ek_move *need)
{
    uint32_t count;
    return ek_membership_units(plan->next, need->destination, need->group, &count) + need->destination_first;
}

/* Adds each class's equal part of an open run to what it is owed. */
static ek_status owe(struct plan *plan, const ek_move *need)
{
    const ek_chain *chain = plan->old->chains[need->group];
    const uint32_t *units = units_needed(plan, need);
    double bytes = (double)unit_bytes(plan, need->group);
    for (uint32_t i = 0; i < need->count; i++) {
        uint32_t holders = 0;
        for (uint32_t level = 0; level <= plan->old->sync_level; level++)
            holders += class_of(plan, level, ek_chain_owner(chain, level, units[i], NULL))->count;
        if (holders == 0)
            return fail_lost(plan, need->group, units[i]);
        for (uint32_t level = 0; level <= plan->old->sync_level; level++) {
            holder_class *class = class_of(plan, level, ek_chain_owner(chain, level, units[i], NULL));
            class->owed += bytes * class->count / holders;
        }
    }
    return EK_OK;
}

/* The whole of every class's share. */
static ek_status share_out(struct plan *plan)
{
    for (size_t i = 0; i < plan->needs.count; i++)
        if (plan->needs.items[i].source == EK_NONE)
            EK_TRY(owe(plan, &plan->needs.items[i]));
    size_t class_count = (size_t)(plan->old->sync_level + 1) * plan->old->job.base_degree;
    for (size_t i = 0; i < class_count; i++) {
        plan->classes[i].share = plan->classes[i].owed;
        plan->classes[i].owed = 0;
    }
    return EK_OK;
}

/* The level at which the holders of a unit are owed the most. */
static uint32_t choose_level(const struct plan *plan, const ek_chain *chain, uint32_t unit)
{
    uint32_t chosen = EK_NONE;
    double most = 0;
    for (uint32_t level = 0; level <= plan->old->sync_level; level++) {
        const holder_class *class = class_of(plan, level, ek_chain_owner(chain, level, unit, NULL));
        if (class->count > 0 && (chosen == EK_NONE || class->owed > most)) {
            most = class->owed;
            chosen = level;
        }
    }
    return chosen;
}

/* The holder whose turn it is: they serve their shares one after the other, to the nearest unit. */
static uint32_t turn_of(const holder_class *class, double bytes)
{
    double turn = (class->served + bytes / 2) / class->share * class->count;
    return turn < class->count ? (uint32_t)turn : class->count - 1;
}

/* Cuts an open run into pieces, each from one source. */
static ek_status find_sources(struct plan *plan, const ek_move *need)
{
    const ek_chain *chain = plan->old->chains[need->group];
    const uint32_t *units = units_needed(plan, need);
    double bytes = (double)unit_bytes(plan, need->group);
    uint32_t position, next_position;
    for (uint32_t done = 0; done < need->count;) {
        uint32_t level = choose_level(plan, chain, units[done]);
        uint32_t role = ek_chain_owner(chain, level, units[done], &position);
        holder_class *class = class_of(plan, level, role);
        uint32_t turn = turn_of(class, bytes), count = 0;
        do {
            class->served += bytes;
            class->owed -= bytes;
            count++;
        } while (done + count < need->count && class->owed >= bytes / 2 && turn_of(class, bytes) == turn &&
                 ek_chain_owner(chain, level, units[done + count], &next_position) == role &&
                 next_position == position + count);
        EK_TRY(append(&plan->moves, (ek_move){need->group, plan->holders[class->first + turn], need->destination,
                                              position, need->destination_first + done, count}));
        done += count;
    }
    return EK_OK;
}

static ek_status settle_open_needs(struct plan *plan)
{
    EK_TRY(share_out(plan));
    for (size_t i = 0; i < plan->needs.count; i++) {
        const ek_move *need = &plan->needs.items[i];
        if (need->source != EK_NONE) {
            EK_TRY(append(&plan->moves, *need));
            continue;
        }
        EK_TRY(owe(plan, need));
        EK_TRY(find_sources(plan, need));
    }
    return EK_OK;
}

/* ---------------------------------------------------------------------------------------------- interface */

ek_status ek_membership_moves(const ek_membership *old, const ek_membership *next, ek_move **moves, size_t *count)
{
    struct plan plan = {.old = old, .next = next};
    ek_status status = begin(&plan);
    if (status == EK_OK)
        status = list_needs(&plan);
    if (status == EK_OK)
        status = settle_open_needs(&plan);
    end(&plan);
    if (status != EK_OK) {
        free(plan.moves.items);
        return status;
    }
    *moves = plan.moves.items;
    *count = plan.moves.count;
    return EK_OK;
}
