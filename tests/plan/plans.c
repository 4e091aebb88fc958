/* Builds inventories and plans for tests. */
#include "plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ek_inventory *inventory_of(uint32_t domains, uint32_t base, uint32_t node_gpus, const char *live)
{
    ek_inventory_row *rows = calloc((size_t)domains * base, sizeof *rows);
    char(*texts)[3][32] = calloc((size_t)domains * base, sizeof *texts);
    assert_true(rows && texts);
    for (uint32_t slot = 0; slot < domains * base; slot++) {
        uint32_t domain = slot / base, nodes = (base + node_gpus - 1) / node_gpus;
        uint32_t node = domain * nodes + slot % base / node_gpus, gpu = slot % base % node_gpus;
        snprintf(texts[slot][0], sizeof texts[slot][0], "domain%03u", domain);
        snprintf(texts[slot][1], sizeof texts[slot][1], "node%03u", node);
        snprintf(texts[slot][2], sizeof texts[slot][2], "0000:%02x:00.0", gpu + 16);
        rows[slot] = (ek_inventory_row){.domain = texts[slot][0],
                                        .node = texts[slot][1],
                                        .gpu = gpu,
                                        .state = live[slot] == '.' ? EK_SLOT_FAILED : EK_SLOT_LIVE,
                                        .pci = texts[slot][2],
                                        .file = "test"};
    }
    ek_inventory *inventory;
    assert_ok(ek_inventory_create(&inventory, rows, (size_t)domains * base));
    free(rows);
    free(texts);
    return inventory;
}

static uint32_t live_in(const ek_inventory *inventory, uint32_t replica, uint32_t stages)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t stage = 0; stage < stages; stage++) {
        uint32_t live = inventory->domains[replica * stages + stage].live;
        least = live < least ? live : least;
    }
    return least;
}

void planned_create(test_plan *planned, uint32_t replicas, uint32_t stages, uint32_t base, uint32_t node_gpus,
                    const char *live)
{
    *planned = (struct test_plan){.inventory = inventory_of(replicas * stages, base, node_gpus, live)};
    ek_plan *plan = planned->plan = calloc(1, sizeof *plan);
    assert_non_null(plan);
    *plan = (ek_plan){.inventory = planned->inventory, .replicas = replicas, .stages = stages, .base_degree = base};
    plan->cells = calloc((size_t)replicas * stages, sizeof *plan->cells);
    plan->replica = calloc(replicas, sizeof *plan->replica);
    plan->positions = calloc((size_t)replicas * stages * base, sizeof *plan->positions);
    assert_true(plan->cells && plan->replica && plan->positions);
    uint32_t replica = 0;
    for (uint32_t degree = 0; degree <= base; degree++)
        for (uint32_t i = 0; i < replicas; i++) {
            if (live_in(planned->inventory, i, stages) != degree)
                continue;
            plan->replica[replica].least_degree = degree;
            for (uint32_t stage = 0; stage < stages; stage++) {
                const ek_domain *domain = &planned->inventory->domains[i * stages + stage];
                ek_plan_cell *cell = &plan->cells[replica * stages + stage];
                cell->domain = i * stages + stage;
                cell->degree = domain->live;
                for (uint32_t slot = 0; slot < base; slot++)
                    plan->positions[(replica * stages + stage) * base + slot] =
                        planned->inventory->slots[domain->first_slot + slot].state == EK_SLOT_LIVE
                            ? domain->first_slot + slot
                            : EK_NONE;
            }
            replica++;
        }
}

void planned_destroy(test_plan *planned)
{
    free(planned->plan->cells);
    free(planned->plan->replica);
    free(planned->plan->positions);
    free(planned->plan);
    ek_inventory_destroy(planned->inventory);
}
