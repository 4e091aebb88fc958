/* Reads where an earlier plan put each role. */
#include "plan/placement.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/input.h"
#include "base/text.h"
#include "plan/json.h"

void ek_plan_placement_destroy(ek_plan_placement *placement)
{
    if (!placement)
        return;
    free(placement->lists);
    free(placement->cells);
    free(placement->drop_orders);
    free(placement->sync_levels);
    free(placement);
}

/* With no slots in any cell; their lists have room for base_degree each. */
static ek_status allocate(ek_plan_placement **placement, uint32_t replicas, uint32_t stages, uint32_t base_degree)
{
    size_t cells = (size_t)replicas * stages;
    ek_plan_placement *created = calloc(1, sizeof *created);
    if (created) {
        created->lists = malloc((2 * cells * base_degree + 1) * sizeof *created->lists);
        created->replicas = replicas;
        created->stages = stages;
        created->base_degree = base_degree;
        created->cells = calloc(cells + 1, sizeof *created->cells);
        created->drop_orders = calloc((size_t)stages * base_degree, sizeof *created->drop_orders);
        created->sync_levels = calloc(stages, sizeof *created->sync_levels);
    }
    if (!created || !created->lists || !created->cells || !created->drop_orders || !created->sync_levels) {
        ek_plan_placement_destroy(created);
        return ek_fail(EK_NO_MEMORY, "no memory for the placement of %u replicas", replicas);
    }
    uint32_t *lists = created->lists;
    for (size_t cell = 0; cell < cells; cell++, lists += 2 * (size_t)base_degree) {
        created->cells[cell].slots = lists;
        created->cells[cell].roles = lists + base_degree;
    }
    *placement = created;
    return EK_OK;
}

/* A slot that is not live, or not in the domain of those before it, holds nothing any more. Slots stay in ascending
 * order. */
static void add_slot(ek_placed_cell *cell, const ek_inventory *inventory, uint32_t slot, uint32_t role)
{
    if (inventory->slots[slot].state != EK_SLOT_LIVE ||
        (cell->count > 0 && inventory->slots[cell->slots[0]].domain != inventory->slots[slot].domain))
        return;
    uint32_t at = cell->count++;
    for (; at > 0 && cell->slots[at - 1] > slot; at--) {
        cell->slots[at] = cell->slots[at - 1];
        cell->roles[at] = cell->roles[at - 1];
    }
    cell->slots[at] = slot;
    cell->roles[at] = role;
}

ek_status ek_plan_placement_of(ek_plan_placement **placement, const ek_plan *plan, const ek_inventory *inventory)
{
    ek_plan_placement *created;
    EK_TRY(allocate(&created, plan->replicas, plan->stages, plan->base_degree));
    for (size_t i = 0; i < (size_t)plan->replicas * plan->stages; i++) {
        const ek_plan_cell *cell = &plan->cells[i];
        created->cells[i].degree = cell->degree;
        for (uint32_t slot = 0; slot < cell->degree; slot++)
            add_slot(&created->cells[i], inventory, cell->slots[slot], cell->roles[slot]);
    }
    for (uint32_t stage = 0; stage < plan->stages; stage++) {
        created->sync_levels[stage] = ek_membership_sync_level(plan->memberships[stage]);
        memcpy(created->drop_orders + (size_t)stage * plan->base_degree,
               ek_membership_drop_order(plan->memberships[stage]),
               created->sync_levels[stage] * sizeof *created->drop_orders);
    }
    *placement = created;
    return EK_OK;
}

/* ---------------------------------------------------------------------------------------------------- JSON */

typedef struct json_reading {
    const char *path;
    const ek_inventory *inventory;
    ek_plan_placement *placement;
    uint32_t *by_name; /* nodes in the order of their names */
    bool *named;       /* [slots] by the file */
    bool *held;        /* [N] roles of the cell that is being read */
} json_reading;

static ek_status refuse(const json_reading *reading, const char *where, const char *what)
{
    return ek_fail(EK_INVALID, "%s: %s: %s; the output of evenkeel plan --format json is needed", reading->path, where,
                   what);
}

/* A list of whole numbers below `below`. */
static ek_status take_whole(const json_reading *reading, const char *where, const json_t *value, uint32_t below,
                            uint32_t *whole)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) >= below)
        return refuse(reading, where, "a whole number in range is missing");
    *whole = (uint32_t)json_integer_value(value);
    return EK_OK;
}

static int compare_nodes(const void *a, const void *b, void *user)
{
    const ek_inventory *inventory = user;
    return strcmp(inventory->nodes[*(const uint32_t *)a].name, inventory->nodes[*(const uint32_t *)b].name);
}

/* The node of that name, or EK_NONE. */
static uint32_t find_node(const json_reading *reading, const char *name)
{
    uint32_t first = 0, end = reading->inventory->node_count;
    while (first < end) {
        uint32_t middle = (first + end) / 2;
        int order = strcmp(reading->inventory->nodes[reading->by_name[middle]].name, name);
        if (order == 0)
            return reading->by_name[middle];
        if (order < 0)
            first = middle + 1;
        else
            end = middle;
    }
    return EK_NONE;
}

static uint32_t find_slot(const ek_inventory *inventory, uint32_t node, json_int_t gpu)
{
    uint32_t first = inventory->nodes[node].first_slot;
    for (uint32_t slot = first; slot < first + inventory->nodes[node].slots; slot++)
        if (inventory->slots[slot].gpu == gpu)
            return slot;
    return EK_NONE;
}

/* The devices of one node of a cell. A node or GPU that is no longer in the inventory holds nothing. */
static ek_status read_node(json_reading *reading, const char *where, const json_t *object, ek_placed_cell *cell)
{
    const json_t *name = json_object_get(object, "node"), *gpus = json_object_get(object, "gpus");
    const json_t *roles = json_object_get(object, "roles");
    if (!json_is_string(name) || !json_is_array(gpus) || !json_is_array(roles) ||
        json_array_size(gpus) != json_array_size(roles))
        return refuse(reading, where, "a node needs node, and as many gpus as roles");
    uint32_t node = find_node(reading, json_string_value(name));
    for (size_t i = 0; i < json_array_size(gpus); i++) {
        uint32_t gpu, role;
        EK_TRY(take_whole(reading, where, json_array_get(gpus, i), UINT32_MAX, &gpu));
        EK_TRY(take_whole(reading, where, json_array_get(roles, i), reading->placement->base_degree, &role));
        if (reading->held[role])
            return refuse(reading, where, "two GPUs have one role");
        reading->held[role] = true;
        cell->degree++;
        uint32_t slot = node == EK_NONE ? EK_NONE : find_slot(reading->inventory, node, gpu);
        if (slot == EK_NONE)
            continue;
        if (reading->named[slot])
            return refuse(reading, where, "a GPU has two roles");
        reading->named[slot] = true;
        add_slot(cell, reading->inventory, slot, role);
    }
    return EK_OK;
}

static ek_status read_cell(json_reading *reading, uint32_t replica, uint32_t stage, const json_t *object)
{
    char where[60];
    snprintf(where, sizeof where, "replica %u, stage %u", replica, stage);
    const json_t *nodes = json_object_get(object, "nodes");
    ek_placed_cell *cell = &reading->placement->cells[(size_t)replica * reading->placement->stages + stage];
    if (!json_is_array(nodes))
        return refuse(reading, where, "nodes are missing");
    memset(reading->held, 0, reading->placement->base_degree * sizeof *reading->held);
    for (size_t i = 0; i < json_array_size(nodes); i++)
        EK_TRY(read_node(reading, where, json_array_get(nodes, i), cell));
    return cell->degree > 0 ? EK_OK : refuse(reading, where, "it has no GPUs");
}

/* The roles that a degree lacks must be the first of the drop order, or chains could not be made from it. */
static ek_status read_drop_order(json_reading *reading, uint32_t stage, const json_t *object)
{
    ek_plan_placement *placement = reading->placement;
    uint32_t *drop_order = placement->drop_orders + (size_t)stage * placement->base_degree;
    const json_t *list = json_object_get(object, "drop_order");
    char where[40];
    snprintf(where, sizeof where, "stages[%u].drop_order", stage);
    if (!json_is_array(list) || json_array_size(list) >= placement->base_degree)
        return refuse(reading, where, "a list of fewer roles than tp is missing");
    placement->sync_levels[stage] = (uint32_t)json_array_size(list);
    memset(reading->held, 0, placement->base_degree * sizeof *reading->held);
    for (uint32_t i = 0; i < placement->sync_levels[stage]; i++) {
        EK_TRY(take_whole(reading, where, json_array_get(list, i), placement->base_degree, &drop_order[i]));
        if (reading->held[drop_order[i]])
            return refuse(reading, where, "a role stands in it twice");
        reading->held[drop_order[i]] = true;
    }
    for (uint32_t replica = 0; replica < placement->replicas; replica++)
        if (placement->base_degree - ek_placed_at(placement, replica, stage)->degree > placement->sync_levels[stage])
            return refuse(reading, where, "a replica is below the sync level");
    return EK_OK;
}

static ek_status read_contents(json_reading *reading, const json_t *root)
{
    ek_plan_placement *placement = reading->placement;
    const json_t *replicas = json_object_get(root, "replicas"), *stages = json_object_get(root, "stages");
    for (uint32_t replica = 0; replica < placement->replicas; replica++) {
        const json_t *cells = json_object_get(json_array_get(replicas, replica), "stages");
        if (!json_is_array(cells) || json_array_size(cells) != placement->stages)
            return refuse(reading, "replicas", "one lacks stages");
        for (uint32_t stage = 0; stage < placement->stages; stage++)
            EK_TRY(read_cell(reading, replica, stage, json_array_get(cells, stage)));
    }
    for (uint32_t stage = 0; stage < placement->stages; stage++)
        EK_TRY(read_drop_order(reading, stage, json_array_get(stages, stage)));
    return EK_OK;
}

/* Plans that lack the key are of mode tp. */
static bool was_ep(const json_t *job)
{
    const char *mode = json_string_value(json_object_get(job, "mode"));
    return mode && strcmp(mode, "ep") == 0;
}

static ek_status check_shape(const json_reading *reading, const json_t *root, const ek_perf_parallel *parallel)
{
    const json_t *version = json_object_get(root, "evenkeel_plan"), *job = json_object_get(root, "job");
    if (!json_is_integer(version))
        return refuse(reading, "evenkeel_plan", "is missing");
    if (json_integer_value(version) != EK_PLAN_JSON_VERSION)
        return ek_fail(EK_INVALID, "%s: evenkeel_plan: found version %lld; %d is needed", reading->path,
                       (long long)json_integer_value(version), EK_PLAN_JSON_VERSION);
    if (!json_is_array(json_object_get(root, "replicas")) || !json_is_array(json_object_get(root, "stages")))
        return refuse(reading, "replicas, stages", "lists of them are missing");
    json_int_t tp = json_integer_value(json_object_get(job, "tp")), pp = json_integer_value(json_object_get(job, "pp"));
    ek_perf_mode mode = was_ep(job) ? EK_PERF_EP : EK_PERF_TP;
    if (mode != parallel->mode || tp != parallel->tp || pp != parallel->pp ||
        json_array_size(json_object_get(root, "stages")) != parallel->pp)
        return ek_fail(
            EK_INVALID,
            "%s: job: a plan of %s%lld and %lld stage%s cannot become one of %s%u and %u stage%s; plan without --from",
            reading->path, ek_perf_mode_text(mode), (long long)tp, (long long)pp, ek_plural((uint64_t)pp),
            ek_perf_mode_text(parallel->mode), parallel->tp, parallel->pp, ek_plural(parallel->pp));
    if (json_array_size(json_object_get(root, "replicas")) * parallel->pp > UINT32_MAX / 2 / parallel->tp)
        return refuse(reading, "replicas", "there are too many");
    return EK_OK;
}

static ek_status read_root(json_reading *reading, const json_t *root, const ek_perf_parallel *parallel)
{
    const ek_inventory *inventory = reading->inventory;
    EK_TRY(check_shape(reading, root, parallel));
    size_t replicas = json_array_size(json_object_get(root, "replicas"));
    EK_TRY(allocate(&reading->placement, (uint32_t)replicas, parallel->pp, parallel->tp));
    reading->by_name = malloc(inventory->node_count * sizeof *reading->by_name);
    reading->named = calloc(inventory->slot_count, sizeof *reading->named);
    reading->held = malloc(parallel->tp * sizeof *reading->held);
    if (!reading->by_name || !reading->named || !reading->held)
        return ek_fail(EK_NO_MEMORY, "no memory for %u nodes", inventory->node_count);
    for (uint32_t node = 0; node < inventory->node_count; node++)
        reading->by_name[node] = node;
    qsort_r(reading->by_name, inventory->node_count, sizeof *reading->by_name, compare_nodes, (void *)inventory);
    return read_contents(reading, root);
}

ek_status ek_plan_placement_read(ek_plan_placement **placement, const char *path, const ek_inventory *inventory,
                                 const ek_perf_parallel *parallel)
{
    json_error_t error;
    int file;
    if (ek_input_open(path, &file) != EK_OK)
        return ek_fail(EK_IO, "%s; the output of evenkeel plan --format json is needed", ek_error());
    json_t *root = json_loadfd(file, JSON_REJECT_DUPLICATES, &error);
    close(file);
    if (!root)
        return ek_fail(EK_INVALID, "%s:%d: not JSON: %s", path, error.line, error.text);
    json_reading work = {.path = path, .inventory = inventory};
    ek_status status = read_root(&work, root, parallel);
    json_decref(root);
    free(work.by_name);
    free(work.named);
    free(work.held);
    if (status != EK_OK) {
        ek_plan_placement_destroy(work.placement);
        return status;
    }
    *placement = work.placement;
    return EK_OK;
}
