/* From the section "cluster" to an inventory. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "plan/input.h"

/* One of the sources, and what it needs beside. */
static ek_status check_source(const ek_plan_cluster *cluster)
{
    const struct {
        const char *key;
        bool given;
    } sources[] = {{"cluster.domains", cluster->domains > 0},
                   {"cluster.inventory", cluster->inventory != NULL},
                   {"cluster.nvidia_smi", cluster->nvidia_smi != NULL},
                   {"cluster.scontrol", cluster->scontrol != NULL}};
    const char *first = NULL;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        if (sources[i].given && first)
            return ek_fail(EK_INVALID, "%s: stands beside %s; one source of the inventory is needed", sources[i].key,
                           first);
        if (sources[i].given)
            first = sources[i].key;
    }
    if (!first)
        return ek_fail(EK_INVALID, "cluster.domains: is missing; it, or cluster.inventory, cluster.nvidia_smi or "
                                   "cluster.scontrol with cluster.topology, is needed");
    if ((cluster->domains > 0 || cluster->nvidia_smi) && cluster->node_gpus == 0)
        return ek_fail(EK_INVALID, "cluster.node_gpus: is missing; the GPUs that a node should have are needed with %s",
                       first);
    if ((cluster->scontrol != NULL) != (cluster->topology != NULL))
        return ek_fail(EK_INVALID, "%s: is missing; it is needed with %s",
                       cluster->scontrol ? "cluster.topology" : "cluster.scontrol",
                       cluster->scontrol ? "cluster.scontrol" : "cluster.topology");
    return EK_OK;
}

static ek_status read_source(const ek_plan_cluster *cluster, uint32_t domain_slots, ek_inventory **inventory)
{
    if (cluster->inventory)
        return ek_inventory_read_csv(inventory, cluster->inventory);
    if (cluster->nvidia_smi)
        return ek_inventory_read_nvidia_smi(inventory, cluster->nvidia_smi, cluster->node_gpus);
    if (cluster->scontrol)
        return ek_inventory_read_scontrol(inventory, cluster->scontrol, cluster->topology, cluster->node_gpus);
    const ek_inventory_numbers numbers = {.domains = cluster->domains,
                                          .domain_slots = cluster->domain_slots ? cluster->domain_slots : domain_slots,
                                          .node_gpus = cluster->node_gpus,
                                          .host = cluster->host};
    return ek_inventory_generate(inventory, &numbers);
}

static ek_status mark(ek_inventory *inventory, const char *key, char **names, size_t count, ek_slot_state state)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t first, slots;
        if (!ek_inventory_find(inventory, names[i], &first, &slots))
            return ek_fail(
                EK_INVALID,
                "%s: found \"%.60s\"; a domain (%s to %s), DOMAIN.SLOT as in %s.0, or a node of the cluster is "
                "needed",
                key, names[i], inventory->domains[0].name, inventory->domains[inventory->domain_count - 1].name,
                inventory->domains[0].name);
        EK_TRY(ek_inventory_mark(inventory, first, slots, state, key));
    }
    return EK_OK;
}

ek_status ek_plan_cluster_inventory(const ek_plan_cluster *cluster, uint32_t domain_slots, ek_inventory **inventory)
{
    EK_TRY(check_source(cluster));
    ek_inventory *read;
    EK_TRY(read_source(cluster, domain_slots, &read));
    ek_status status = mark(read, "cluster.failed", cluster->failed, cluster->failed_count, EK_SLOT_FAILED);
    if (status == EK_OK)
        status = mark(read, "cluster.drained", cluster->drained, cluster->drained_count, EK_SLOT_DRAINED);
    if (status != EK_OK) {
        ek_inventory_destroy(read);
        return status;
    }
    *inventory = read;
    return EK_OK;
}
