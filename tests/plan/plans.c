/* Builds inventories and plans for tests. */
#include "plans.h"

#include <stdio.h>
#include <stdlib.h>

static ek_inventory *inventory_of(const test_cluster *cluster)
{
    uint32_t slots = cluster->domains * cluster->domain_slots;
    ek_inventory_row *rows = calloc(slots, sizeof *rows);
    char(*texts)[3][32] = calloc(slots, sizeof *texts);
    assert_true(rows && texts);
    for (uint32_t slot = 0; slot < slots; slot++) {
        uint32_t domain = slot / cluster->domain_slots, in_domain = slot % cluster->domain_slots;
        uint32_t nodes = (cluster->domain_slots - 1) / cluster->node_gpus + 1;
        uint32_t node = domain * nodes + in_domain / cluster->node_gpus, gpu = in_domain % cluster->node_gpus;
        snprintf(texts[slot][0], sizeof texts[slot][0], "domain%03u", domain);
        snprintf(texts[slot][1], sizeof texts[slot][1], "node%03u", node);
        snprintf(texts[slot][2], sizeof texts[slot][2], "0000:%02x:00.0", gpu + 16);
        rows[slot] = (ek_inventory_row){.domain = texts[slot][0],
                                        .node = texts[slot][1],
                                        .gpu = gpu,
                                        .state = cluster->live[slot] == '.' ? EK_SLOT_FAILED : EK_SLOT_LIVE,
                                        .pci = texts[slot][2],
                                        .file = "test"};
    }
    ek_inventory *inventory;
    assert_ok(ek_inventory_create(&inventory, rows, slots));
    free(rows);
    free(texts);
    return inventory;
}

void planned_prepare(test_plan *planned, const test_cluster *cluster, uint32_t dp, uint32_t pp, uint32_t tp,
                     const ek_perf_model *model)
{
    static const ek_perf_model small = {
        .layers = 12, .hidden = 768, .heads = 12, .kv_heads = 12, .ffn = 3072, .vocab = 12288, .sequence = 128};
    const ek_perf_hardware hardware = {.flops_per_second = 1e15,
                                       .matmul_efficiency = 0.7,
                                       .multiprocessors = 100,
                                       .tile_rows = 256,
                                       .tile_columns = 128,
                                       .memory_bytes = 1e14,
                                       .memory_bytes_per_second = 1e12,
                                       .memory_efficiency = 0.8,
                                       .kernel_seconds = 4e-6,
                                       .tdp_watts = 1000,
                                       .domain_slots = cluster->domain_slots,
                                       .scale_up_bytes_per_second = 1e12,
                                       .scale_up_efficiency = 0.8,
                                       .scale_up_seconds = 2e-6,
                                       .scale_out_bytes_per_second = 1e11,
                                       .scale_out_efficiency = 0.8,
                                       .scale_out_seconds = 6e-6,
                                       .overlap = 1};
    *planned = (test_plan){.inventory = inventory_of(cluster),
                           .model = model ? *model : small,
                           .hardware = hardware,
                           .parallel = {.dp = dp,
                                        .tp = tp,
                                        .pp = pp,
                                        .interleave = 1,
                                        .min_tp = 1,
                                        .sequence_parallel = true,
                                        .global_batch = 8 * dp,
                                        .micro_batch = 1}};
    planned->model.top_k = planned->model.moe_every = 1; /* of no matter in a dense model */
    assert_ok(ek_perf_create(&planned->perf, &planned->model, &planned->parallel, &hardware));
    planned->options = (ek_plan_options){.inventory = planned->inventory,
                                         .perf = planned->perf,
                                         .parallel = &planned->parallel,
                                         .hardware = &planned->hardware,
                                         .policy = EK_BATCH_REBALANCE,
                                         .curve = ek_curve_default()};
}

void planned_create(test_plan *planned, const test_cluster *cluster, uint32_t dp, uint32_t pp, uint32_t tp,
                    const ek_perf_model *model)
{
    planned_prepare(planned, cluster, dp, pp, tp, model);
    assert_ok(ek_plan_create(&planned->plan, &planned->options));
}

void planned_destroy(test_plan *planned)
{
    ek_plan_destroy(planned->plan);
    ek_perf_destroy(planned->perf);
    ek_inventory_destroy(planned->inventory);
}
