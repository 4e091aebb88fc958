/* Numbers the ranks of a plan and pads its replicas to one reduced degree. */
#include "plan/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static int ascending(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

/* Puts the first slots of a cell at ranks `first` and on; room is [base_degree]. */
static void number_cell(ek_ranks *ranks, const ek_plan *plan, uint32_t replica, uint32_t stage, uint32_t *room)
{
    const ek_plan_cell *cell = ek_plan_cell_at(plan, replica, stage);
    uint32_t first = ek_ranks_at(ranks, stage, replica, 0), base = plan->base_degree;
    uint32_t begin = plan->inventory->domains[cell->domain].first_slot;
    memcpy(room, cell->slots, cell->degree * sizeof *room);
    qsort(room, cell->degree, sizeof *room, ascending);
    bool in_one_block = (room[0] - begin) / base == (room[cell->degree - 1] - begin) / base;
    for (uint32_t i = 0; i < ek_ranks_degree(ranks, replica); i++) {
        ranks->slots[first + i] = room[i];
        ranks->positions[first + i] = in_one_block ? (room[i] - begin) % base : i;
    }
}

/* They go into scripts and Python text as they are. */
static ek_status check_hosts(const ek_ranks *ranks, const ek_inventory *inventory)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        const char *name = inventory->nodes[inventory->slots[ranks->slots[rank]].node].name;
        if (name[0] == '\0' || name[0] == '-' || strspn(name, allowed) != strlen(name))
            return ek_fail(EK_INVALID,
                           "node \"%.64s\" cannot be the name of a host, which has letters, digits, '.', '_' and '-': "
                           "name it in the inventory as its scheduler does",
                           name);
    }
    return EK_OK;
}

/* How many ranks there are, and of which degrees. */
static void set_sizes(ek_ranks *ranks, const ek_plan *plan)
{
    ranks->replicas = plan->replicas;
    ranks->stages = plan->stages;
    ranks->base_degree = ranks->reduced_degree = plan->base_degree;
    uint32_t live = 0;
    for (uint32_t replica = 0; replica < plan->replicas; replica++) {
        uint32_t least = plan->replica[replica].least_degree;
        ranks->reduced_replicas += least < plan->base_degree;
        ranks->reduced_degree = least < ranks->reduced_degree ? least : ranks->reduced_degree;
        for (uint32_t stage = 0; stage < plan->stages; stage++)
            live += ek_plan_cell_at(plan, replica, stage)->degree;
    }
    uint32_t whole = plan->replicas - ranks->reduced_replicas;
    ranks->count = plan->stages * (ranks->reduced_replicas * ranks->reduced_degree + whole * plan->base_degree);
    ranks->idle_slots = live - ranks->count;
}

static ek_status number(ek_ranks *ranks, const ek_plan *plan)
{
    ranks->slots = calloc(ranks->count, sizeof *ranks->slots);
    ranks->positions = calloc(ranks->count, sizeof *ranks->positions);
    uint32_t *room = calloc(plan->base_degree, sizeof *room);
    if (!ranks->slots || !ranks->positions || !room) {
        free(room);
        return ek_fail(EK_NO_MEMORY, "no memory for %u ranks", ranks->count);
    }
    for (uint32_t replica = 0; replica < plan->replicas; replica++)
        for (uint32_t stage = 0; stage < plan->stages; stage++)
            number_cell(ranks, plan, replica, stage, room);
    free(room);
    return check_hosts(ranks, plan->inventory);
}

ek_status ek_ranks_create(ek_ranks **ranks, const ek_plan *plan)
{
    ek_ranks *created = calloc(1, sizeof *created);
    if (!created)
        return ek_fail(EK_NO_MEMORY, "out of memory");
    set_sizes(created, plan);
    ek_status status = number(created, plan);
    if (status == EK_OK)
        *ranks = created;
    else
        ek_ranks_destroy(created);
    return status;
}

void ek_ranks_destroy(ek_ranks *ranks)
{
    if (!ranks)
        return;
    free(ranks->slots);
    free(ranks->positions);
    free(ranks);
}
