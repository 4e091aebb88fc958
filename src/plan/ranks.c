/* Numbers the ranks of a plan and pads its replicas to one reduced degree. */
#include "plan/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Puts the first slots of a cell that live, in order of position, at ranks `first` and on. */
static void number_cell(ek_ranks *ranks, const ek_plan *plan, uint32_t replica, uint32_t stage, uint32_t first)
{
    uint32_t base = plan->base_degree, degree = ek_ranks_degree(ranks, replica), numbered = 0;
    const uint32_t *slots = plan->positions + ((size_t)replica * plan->stages + stage) * base;
    for (uint32_t position = 0; position < base && numbered < degree; position++) {
        if (slots[position] == EK_NONE)
            continue;
        ranks->slots[first + numbered] = slots[position];
        ranks->positions[first + numbered] = position;
        numbered++;
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

ek_status ek_ranks_create(ek_ranks **created, const ek_plan *plan)
{
    ek_ranks *ranks = calloc(1, sizeof *ranks);
    if (!ranks)
        return ek_fail(EK_NO_MEMORY, "out of memory");
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
    ranks->slots = calloc(ranks->count, sizeof *ranks->slots);
    ranks->positions = calloc(ranks->count, sizeof *ranks->positions);
    if (!ranks->slots || !ranks->positions) {
        ek_ranks_destroy(ranks);
        return ek_fail(EK_NO_MEMORY, "out of memory");
    }
    for (uint32_t replica = 0; replica < plan->replicas; replica++)
        for (uint32_t stage = 0; stage < plan->stages; stage++)
            number_cell(ranks, plan, replica, stage, ek_ranks_at(ranks, stage, replica, 0));
    ek_status status = check_hosts(ranks, plan->inventory);
    if (status != EK_OK) {
        ek_ranks_destroy(ranks);
        return status;
    }
    *created = ranks;
    return EK_OK;
}

void ek_ranks_destroy(ek_ranks *ranks)
{
    if (!ranks)
        return;
    free(ranks->slots);
    free(ranks->positions);
    free(ranks);
}
