/* Writes a plan as JSON. Values are set without checks on the way: json_object_set_new takes NULL, says so, and leaves
 * the key out, so whether memory sufficed is known from the number of failures. */
#include "plan/json.h"

#include <string.h>

#include "base/error.h"
#include "plan/build.h"

/* Counts what could not be made. */
typedef struct json_writer {
    const ek_plan *plan;
    unsigned failures;
} json_writer;

static void set(json_writer *writer, json_t *object, const char *key, json_t *value)
{
    writer->failures += json_object_set_new_nocheck(object, key, value) != 0;
}

static void append(json_writer *writer, json_t *array, json_t *value)
{
    writer->failures += json_array_append_new(array, value) != 0;
}

static json_t *whole_list(json_writer *writer, const uint32_t *values, uint32_t count)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        append(writer, list, json_integer(values[i]));
    return list;
}

/* ----------------------------------------------------------------------------------------------- the whole */

static json_t *cluster_of(json_writer *writer)
{
    const ek_inventory *inventory = writer->plan->inventory;
    uint32_t states[3] = {0};
    for (uint32_t slot = 0; slot < inventory->slot_count; slot++)
        states[inventory->slots[slot].state]++;
    json_t *cluster = json_object();
    set(writer, cluster, "domains", json_integer(inventory->domain_count));
    set(writer, cluster, "nodes", json_integer(inventory->node_count));
    set(writer, cluster, "slots", json_integer(inventory->slot_count));
    for (ek_slot_state state = EK_SLOT_LIVE; state <= EK_SLOT_DRAINED; state++)
        set(writer, cluster, ek_slot_state_text(state), json_integer(states[state]));
    return cluster;
}

static json_t *job_of(json_writer *writer)
{
    const ek_perf_parallel *parallel = &writer->plan->parallel;
    json_t *job = json_object();
    set(writer, job, "mode", json_string(parallel->mode == EK_PERF_EP ? "ep" : "tp"));
    set(writer, job, "dp", json_integer(parallel->dp));
    set(writer, job, "tp", json_integer(parallel->tp));
    set(writer, job, "pp", json_integer(parallel->pp));
    set(writer, job, "min_tp", json_integer(parallel->min_tp));
    set(writer, job, "least_tp", json_integer(writer->plan->least_degree));
    set(writer, job, "global_batch", json_integer(parallel->global_batch));
    set(writer, job, "micro_batch", json_integer(parallel->micro_batch));
    set(writer, job, "policy", json_string(ek_batch_policy_names[writer->plan->policy]));
    return job;
}

static json_t *summary_of(json_writer *writer)
{
    const ek_plan *plan = writer->plan;
    uint32_t reduced = 0;
    for (uint32_t replica = 0; replica < plan->replicas; replica++)
        reduced += plan->replica[replica].least_degree < plan->base_degree;
    json_t *summary = json_object();
    set(writer, summary, "replicas", json_integer(plan->replicas));
    set(writer, summary, "reduced_replicas", json_integer(reduced));
    set(writer, summary, "missing_replicas", json_integer(plan->parallel.dp - plan->replicas));
    set(writer, summary, "spare_domains_used", json_integer(plan->spare_domains_used));
    set(writer, summary, "spare_domains", json_integer(plan->spare_domain_count));
    set(writer, summary, "spare_slots", json_integer(plan->spare_slots));
    set(writer, summary, "step_seconds", json_real(plan->step_seconds));
    set(writer, summary, "whole_step_seconds", json_real(plan->whole_step_seconds));
    set(writer, summary, "samples_per_second", json_real(plan->samples_per_second));
    set(writer, summary, "whole_samples_per_second", json_real(plan->whole_samples_per_second));
    set(writer, summary, "throughput", json_real(plan->samples_per_second / plan->whole_samples_per_second));
    set(writer, summary, "reshard_bytes", json_real(plan->reshard_bytes));
    set(writer, summary, "reshard_bytes_most", json_real(plan->reshard_bytes_most));
    set(writer, summary, "memory_bytes_most", json_real(plan_most_memory(plan)));
    set(writer, summary, "device_memory_bytes", json_real(plan->device_memory_bytes));
    return summary;
}

/* ------------------------------------------------------------------------------------------------- stages */

/* Units of each role that exists at the level, in ascending order of role. */
static json_t *units_at(json_writer *writer, uint32_t stage, uint32_t level)
{
    const ek_membership *membership = writer->plan->memberships[stage];
    const ek_job *job = ek_membership_job(membership);
    const uint32_t *drop_order = ek_membership_drop_order(membership);
    json_t *units = json_object();
    for (uint32_t group = 0; group < job->group_count; group++) {
        if (ek_perf_group_layers(writer->plan->perf, group, stage) == 0)
            continue;
        json_t *counts = json_array();
        for (uint32_t role = 0; role < job->base_degree; role++) {
            uint32_t dropped = 0;
            while (dropped < level && drop_order[dropped] != role)
                dropped++;
            if (dropped == level)
                append(writer, counts,
                       json_integer(ek_chain_count(ek_membership_chain(membership, group), level, role)));
        }
        set(writer, units, job->groups[group].name, counts);
    }
    return units;
}

static json_t *memory_at(json_writer *writer, uint32_t stage, uint32_t degree)
{
    ek_perf_memory held;
    ek_perf_rank_memory(writer->plan->perf, stage, degree, &held);
    json_t *memory = json_object();
    set(writer, memory, "weights", json_real(held.weights));
    set(writer, memory, "gradients", json_real(held.gradients));
    set(writer, memory, "optimizer", json_real(held.optimizer));
    set(writer, memory, "activations", json_real(held.activations));
    set(writer, memory, "total", json_real(held.total));
    return memory;
}

static json_t *dispatch_at(json_writer *writer, uint32_t degree)
{
    ek_perf_dispatch dispatch;
    ek_perf_dispatch_at(writer->plan->perf, degree, &dispatch);
    json_t *object = json_object();
    set(writer, object, "ranks", json_real(dispatch.ranks));
    set(writer, object, "crossing", json_real(dispatch.crossing));
    set(writer, object, "bytes", json_real(dispatch.bytes));
    set(writer, object, "imbalance", json_real(dispatch.imbalance));
    return object;
}

static json_t *reshard_at(json_writer *writer, const ek_plan_reshard *reshard)
{
    json_t *object = json_object(), *flows = json_array();
    set(writer, object, "bytes", json_real(reshard->bytes));
    set(writer, object, "bytes_most", json_real(reshard->most_bytes));
    for (size_t i = 0; i < reshard->flow_count; i++) {
        json_t *flow = json_array();
        append(writer, flow, json_integer(reshard->flows[i].extra));
        append(writer, flow, json_integer(reshard->flows[i].core));
        append(writer, flow, json_real(reshard->flows[i].bytes));
        append(writer, flows, flow);
    }
    set(writer, object, "flows", flows);
    return object;
}

static json_t *degree_of(json_writer *writer, uint32_t stage, uint32_t level, uint32_t replicas)
{
    const ek_plan *plan = writer->plan;
    const ek_plan_reshard *reshard = plan_reshard_at(plan, stage, level);
    json_t *object = json_object();
    set(writer, object, "degree", json_integer(plan->base_degree - level));
    set(writer, object, "replicas", json_integer(replicas));
    set(writer, object, "units", units_at(writer, stage, level));
    set(writer, object, "memory_bytes", memory_at(writer, stage, plan->base_degree - level));
    if (plan->parallel.mode == EK_PERF_EP)
        set(writer, object, "dispatch", dispatch_at(writer, plan->base_degree - level));
    set(writer, object, "reshard", reshard ? reshard_at(writer, reshard) : json_null());
    return object;
}

static json_t *groups_of(json_writer *writer, uint32_t stage)
{
    const ek_job *job = ek_membership_job(writer->plan->memberships[stage]);
    json_t *groups = json_array();
    for (uint32_t group = 0; group < job->group_count; group++) {
        uint32_t layers = ek_perf_group_layers(writer->plan->perf, group, stage);
        if (layers == 0)
            continue;
        json_t *object = json_object();
        set(writer, object, "name", json_string(job->groups[group].name));
        set(writer, object, "units", json_integer(job->groups[group].units));
        set(writer, object, "unit_bytes", json_integer((json_int_t)job->groups[group].unit_bytes));
        set(writer, object, "layers", json_integer(layers));
        append(writer, groups, object);
    }
    return groups;
}

static json_t *stage_of(json_writer *writer, uint32_t stage)
{
    const ek_plan *plan = writer->plan;
    const ek_membership *membership = plan->memberships[stage];
    uint32_t sync_level = ek_membership_sync_level(membership);
    json_t *object = json_object(), *degrees = json_array();
    set(writer, object, "stage", json_integer(stage));
    set(writer, object, "sync_level", json_integer(sync_level));
    set(writer, object, "drop_order", whole_list(writer, ek_membership_drop_order(membership), sync_level));
    set(writer, object, "groups", groups_of(writer, stage));
    for (uint32_t level = 0; level <= sync_level; level++) {
        uint32_t replicas = 0;
        for (uint32_t replica = 0; replica < plan->replicas; replica++)
            replicas += ek_membership_level(membership, replica) == level;
        if (replicas > 0)
            append(writer, degrees, degree_of(writer, stage, level, replicas));
    }
    set(writer, object, "degrees", degrees);
    return object;
}

/* ------------------------------------------------------------------------------------------------ replicas */

static json_t *nodes_of(json_writer *writer, const ek_plan_cell *cell)
{
    const ek_inventory *inventory = writer->plan->inventory;
    json_t *nodes = json_array(), *gpus = NULL, *roles = NULL;
    uint32_t node = EK_NONE;
    for (uint32_t i = 0; i < cell->degree; i++) {
        const ek_slot *slot = &inventory->slots[cell->slots[i]];
        if (slot->node != node) {
            node = slot->node;
            json_t *object = json_object();
            gpus = json_array();
            roles = json_array();
            set(writer, object, "node", json_string_nocheck(inventory->nodes[node].name));
            set(writer, object, "gpus", gpus);
            set(writer, object, "roles", roles);
            append(writer, nodes, object);
        }
        append(writer, gpus, json_integer(slot->gpu));
        append(writer, roles, json_integer(cell->roles[i]));
    }
    return nodes;
}

static json_t *cell_of(json_writer *writer, uint32_t replica, uint32_t stage)
{
    const ek_plan_cell *cell = ek_plan_cell_at(writer->plan, replica, stage);
    json_t *object = json_object();
    set(writer, object, "stage", json_integer(stage));
    set(writer, object, "domain", json_string_nocheck(writer->plan->inventory->domains[cell->domain].name));
    set(writer, object, "degree", json_integer(cell->degree));
    set(writer, object, "watts", json_real(cell->watts));
    set(writer, object, "nodes", nodes_of(writer, cell));
    return object;
}

static json_t *replica_of(json_writer *writer, uint32_t index)
{
    const ek_plan *plan = writer->plan;
    const ek_plan_replica *replica = &plan->replica[index];
    json_t *object = json_object(), *seconds = json_object(), *stages = json_array();
    set(writer, object, "replica", json_integer(index));
    set(writer, object, "least_degree", json_integer(replica->least_degree));
    set(writer, object, "first_sample", json_integer(replica->share.first));
    set(writer, object, "samples", json_integer(replica->share.count));
    set(writer, object, "watts", json_real(replica->watts));
    set(writer, seconds, "compute", json_real(replica->time.compute));
    set(writer, seconds, "tensor", json_real(replica->time.tensor));
    set(writer, seconds, "pipeline", json_real(replica->time.pipeline));
    set(writer, seconds, "bubble", json_real(replica->time.bubble));
    set(writer, seconds, "data", json_real(replica->time.data));
    set(writer, seconds, "optimizer", json_real(replica->time.optimizer));
    set(writer, seconds, "total", json_real(replica->time.total));
    set(writer, object, "seconds", seconds);
    for (uint32_t stage = 0; stage < plan->stages; stage++)
        append(writer, stages, cell_of(writer, index, stage));
    set(writer, object, "stages", stages);
    return object;
}

/* -------------------------------------------------------------------------------------------- the rest of it */

static json_t *spares_of(json_writer *writer)
{
    const ek_plan *plan = writer->plan;
    json_t *spares = json_array();
    for (uint32_t i = 0; i < plan->spare_domain_count; i++)
        append(writer, spares, json_string_nocheck(plan->inventory->domains[plan->spare_domains[i]].name));
    return spares;
}

static json_t *not_live_of(json_writer *writer)
{
    const ek_inventory *inventory = writer->plan->inventory;
    json_t *list = json_array();
    for (uint32_t i = 0; i < inventory->slot_count; i++) {
        const ek_slot *slot = &inventory->slots[i];
        if (slot->state == EK_SLOT_LIVE)
            continue;
        const ek_domain *domain = &inventory->domains[slot->domain];
        json_t *object = json_object();
        set(writer, object, "domain", json_string_nocheck(domain->name));
        set(writer, object, "slot", json_integer(i - domain->first_slot));
        set(writer, object, "node", json_string_nocheck(inventory->nodes[slot->node].name));
        set(writer, object, "gpu", json_integer(slot->gpu));
        set(writer, object, "state", json_string(ek_slot_state_text(slot->state)));
        set(writer, object, "reason", json_string(slot->reason));
        append(writer, list, object);
    }
    return list;
}

ek_status ek_plan_json(const ek_plan *plan, json_t **json)
{
    json_writer writer = {.plan = plan};
    json_t *root = json_object(), *stages = json_array(), *replicas = json_array();
    set(&writer, root, "evenkeel_plan", json_integer(EK_PLAN_JSON_VERSION));
    set(&writer, root, "cluster", cluster_of(&writer));
    set(&writer, root, "job", job_of(&writer));
    set(&writer, root, "summary", summary_of(&writer));
    for (uint32_t stage = 0; stage < plan->stages; stage++)
        append(&writer, stages, stage_of(&writer, stage));
    set(&writer, root, "stages", stages);
    for (uint32_t replica = 0; replica < plan->replicas; replica++)
        append(&writer, replicas, replica_of(&writer, replica));
    set(&writer, root, "replicas", replicas);
    set(&writer, root, "spare_domains", spares_of(&writer));
    set(&writer, root, "not_live", not_live_of(&writer));
    if (writer.failures > 0) {
        json_decref(root);
        return ek_fail(EK_NO_MEMORY, "no memory for the plan as JSON");
    }
    *json = root;
    return EK_OK;
}
