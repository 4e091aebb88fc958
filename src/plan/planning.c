/* Makes a plan and, where there is one to compare with, says what it changes. */
#include "plan/planning.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/json.h"
#include "plan/table.h"

void ek_planning_destroy(ek_planning *planning)
{
    if (!planning)
        return;
    ek_plan_change_destroy(planning->change);
    ek_plan_destroy(planning->in_place);
    ek_plan_destroy(planning->plan);
    ek_plan_destroy(planning->before);
    ek_plan_placement_destroy(planning->placement);
    ek_inventory_destroy(planning->drained);
    free(planning);
}

static ek_status make_plan(const ek_plan_input *input, const ek_plan_options *options, ek_plan **plan)
{
    ek_status status = ek_plan_create(plan, options);
    return status == EK_OK ? EK_OK : ek_plan_input_locate(input, status);
}

/* The inventory without what is to be drained. */
static ek_status drain(ek_planning *planning, const char *list)
{
    EK_TRY(ek_inventory_copy(&planning->drained, planning->input->inventory));
    char *names = strdup(list);
    if (!names)
        return ek_fail(EK_NO_MEMORY, "no memory for --drain");
    ek_status status = EK_OK;
    char *rest = names;
    for (const char *name; status == EK_OK && (name = strsep(&rest, ","));) {
        uint32_t first, slots;
        if (ek_inventory_find(planning->drained, name, &first, &slots))
            status = ek_inventory_mark(planning->drained, first, slots, EK_SLOT_DRAINED, "--drain");
        else
            status = ek_fail(EK_INVALID,
                             "--drain: found \"%.60s\"; a domain, DOMAIN.SLOT or a node of the cluster is needed, with "
                             "commas between them",
                             name);
    }
    free(names);
    return status;
}

/* The plan from the placement, the one without moves, and the difference. */
static ek_status make_change(ek_planning *planning, ek_plan_options *options)
{
    const ek_plan_input *input = planning->input;
    options->from = planning->placement;
    EK_TRY(make_plan(input, options, &planning->plan));
    options->in_place = true;
    ek_status status = make_plan(input, options, &planning->in_place);
    if (status != EK_OK && status != EK_NO_REPLICA)
        return status;
    const ek_perf_hardware *hardware = &input->hardware;
    const ek_plan_change_options change = {.repair_hours = input->cluster.repair_hours,
                                           .restart_seconds = input->cluster.restart_seconds,
                                           .bytes_per_second =
                                               hardware->scale_out_bytes_per_second * hardware->scale_out_efficiency};
    return ek_plan_change_create(&planning->change, planning->plan, planning->in_place, planning->placement, &change);
}

/* What stood before the drain: a replan of `from`, or the plan that the job would have. */
static ek_status plan_before(ek_planning *planning, const char *from)
{
    const ek_plan_input *input = planning->input;
    ek_plan_options options = input->options;
    ek_plan_placement *placement = NULL;
    if (from)
        EK_TRY(ek_plan_placement_read(&placement, from, input->inventory, &input->parallel));
    options.from = placement;
    ek_status status = make_plan(input, &options, &planning->before);
    ek_plan_placement_destroy(placement);
    return status;
}

static ek_status run(ek_planning *planning, const char *from, const char *list)
{
    const ek_plan_input *input = planning->input;
    ek_plan_options options = input->options;
    if (list) {
        EK_TRY(drain(planning, list));
        EK_TRY(plan_before(planning, from));
        options.inventory = planning->drained;
    }
    if (from)
        EK_TRY(ek_plan_placement_read(&planning->placement, from, options.inventory, &input->parallel));
    else if (list)
        EK_TRY(ek_plan_placement_of(&planning->placement, planning->before, options.inventory));
    return planning->placement ? make_change(planning, &options) : make_plan(input, &options, &planning->plan);
}

ek_status ek_planning_create(ek_planning **planning, const ek_plan_input *input, const char *from, const char *drain)
{
    ek_planning *created = calloc(1, sizeof *created);
    if (!created)
        return ek_fail(EK_NO_MEMORY, "no memory for a plan");
    created->input = input;
    ek_status status = run(created, from, drain);
    if (status != EK_OK) {
        ek_planning_destroy(created);
        return status;
    }
    *planning = created;
    return EK_OK;
}

void ek_planning_print(const ek_planning *planning, FILE *file)
{
    const ek_plan *plan = planning->plan, *before = planning->before;
    ek_plan_print_table(plan, file);
    if (before)
        fprintf(file, "\ndrain       costs %.2f %% of throughput: %.4g samples/s with it, %.4g without\n",
                100 * (1 - plan->samples_per_second / before->samples_per_second), plan->samples_per_second,
                before->samples_per_second);
    if (planning->change)
        ek_plan_print_change(planning->change, plan, file);
}

/* json[key] = value, which is taken. */
static ek_status add(json_t *json, const char *key, json_t *value)
{
    return json_object_set_new(json, key, value) == 0 ? EK_OK : ek_fail(EK_NO_MEMORY, "no memory for the plan as JSON");
}

static ek_status add_change(const ek_planning *planning, json_t *root)
{
    json_t *change = NULL;
    if (planning->before)
        EK_TRY(add(root, "undrained_samples_per_second", json_real(planning->before->samples_per_second)));
    if (!planning->change)
        return EK_OK;
    EK_TRY(ek_plan_change_json(planning->change, planning->plan, &change));
    return add(root, "change", change);
}

ek_status ek_planning_json(const ek_planning *planning, json_t **json)
{
    json_t *root;
    EK_TRY(ek_plan_json(planning->plan, &root));
    ek_status status = add_change(planning, root);
    if (status != EK_OK) {
        json_decref(root);
        return status;
    }
    *json = root;
    return EK_OK;
}
