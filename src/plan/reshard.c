/* What flows between roles in a step: the transfers of each stage's chains, at every level that a replica is at. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/build.h"

/* Gradient bytes of a unit for each byte of its parameters. */
static double gradient_ratio(const ek_perf *perf, uint32_t stage, uint32_t degree)
{
    ek_perf_memory memory;
    ek_perf_rank_memory(perf, stage, degree, &memory);
    return memory.gradients / memory.weights;
}

/* Adds a group's transfers to bytes[extra * N + core]. */
static ek_status add_group(const ek_plan *plan, const ek_plan_reshard *reshard, uint32_t group, double *bytes)
{
    const ek_membership *membership = plan->memberships[reshard->stage];
    uint32_t layers = ek_perf_group_layers(plan->perf, group, reshard->stage);
    if (layers == 0)
        return EK_OK;
    double unit_bytes = (double)ek_membership_job(membership)->groups[group].unit_bytes * layers *
                        gradient_ratio(plan->perf, reshard->stage, plan->base_degree);
    ek_transfer *transfers;
    size_t count;
    EK_TRY(ek_chain_transfers(ek_membership_chain(membership, group), reshard->level,
                              ek_membership_sync_level(membership), &transfers, &count));
    for (size_t i = 0; i < count; i++)
        bytes[(size_t)transfers[i].extra * plan->base_degree + transfers[i].core] += unit_bytes * transfers[i].count;
    ek_free(transfers);
    return EK_OK;
}

/* Makes the list of flows of what is not 0 in bytes[N][N], and the sums. An extra sends before the reduction what it
 * gets back after it, a core role the other way round, so what a device sends in a step is what it gets. */
static ek_status list_flows(const ek_plan *plan, const double *bytes, ek_plan_reshard *reshard)
{
    uint32_t degree = plan->base_degree;
    size_t count = 0;
    for (size_t i = 0; i < (size_t)degree * degree; i++)
        count += bytes[i] > 0;
    reshard->flows = malloc((count + 1) * sizeof *reshard->flows);
    double *sent = calloc(degree, sizeof *sent); /* by role */
    if (!reshard->flows || !sent) {
        free(sent);
        return ek_fail(EK_NO_MEMORY, "no memory for %zu flows", count);
    }
    for (uint32_t extra = 0; extra < degree; extra++) {
        for (uint32_t core = 0; core < degree; core++) {
            double flow = bytes[(size_t)extra * degree + core];
            if (flow == 0)
                continue;
            reshard->flows[reshard->flow_count++] = (ek_plan_flow){extra, core, flow};
            reshard->bytes += 2 * flow;
            sent[extra] += flow;
            sent[core] += flow;
        }
    }
    for (uint32_t role = 0; role < degree; role++)
        reshard->most_bytes = sent[role] > reshard->most_bytes ? sent[role] : reshard->most_bytes;
    free(sent);
    return EK_OK;
}

static uint32_t replicas_at(const ek_plan *plan, uint32_t stage, uint32_t level)
{
    uint32_t count = 0;
    for (uint32_t replica = 0; replica < plan->replicas; replica++)
        count += ek_membership_level(plan->memberships[stage], replica) == level;
    return count;
}

static ek_status add_reshard(ek_plan *plan, uint32_t stage, uint32_t level, double *bytes)
{
    size_t groups = ek_membership_job(plan->memberships[stage])->group_count;
    ek_plan_reshard *reshard = &plan->reshards[plan->reshard_count];
    *reshard = (ek_plan_reshard){.stage = stage, .level = level, .replicas = replicas_at(plan, stage, level)};
    if (reshard->replicas == 0)
        return EK_OK;
    plan->reshard_count++;
    memset(bytes, 0, (size_t)plan->base_degree * plan->base_degree * sizeof *bytes);
    for (uint32_t group = 0; group < groups; group++)
        EK_TRY(add_group(plan, reshard, group, bytes));
    EK_TRY(list_flows(plan, bytes, reshard));
    plan->reshard_bytes += reshard->replicas * reshard->bytes;
    if (reshard->most_bytes > plan->reshard_bytes_most)
        plan->reshard_bytes_most = reshard->most_bytes;
    return EK_OK;
}

ek_status plan_reshards(ek_plan *plan)
{
    size_t most = 0;
    for (uint32_t stage = 0; stage < plan->stages; stage++)
        most += ek_membership_sync_level(plan->memberships[stage]);
    plan->reshards = calloc(most + 1, sizeof *plan->reshards);
    double *bytes = malloc((size_t)plan->base_degree * plan->base_degree * sizeof *bytes);
    ek_status status = EK_OK;
    if (!plan->reshards || !bytes)
        status = ek_fail(EK_NO_MEMORY, "no memory for the flows of %u roles", plan->base_degree);
    for (uint32_t stage = 0; stage < plan->stages && status == EK_OK; stage++)
        for (uint32_t level = 0; level < ek_membership_sync_level(plan->memberships[stage]) && status == EK_OK; level++)
            status = add_reshard(plan, stage, level, bytes);
    free(bytes);
    return status;
}

const ek_plan_reshard *plan_reshard_at(const ek_plan *plan, uint32_t stage, uint32_t level)
{
    for (size_t i = 0; i < plan->reshard_count; i++)
        if (plan->reshards[i].stage == stage && plan->reshards[i].level == level)
            return &plan->reshards[i];
    return NULL;
}
