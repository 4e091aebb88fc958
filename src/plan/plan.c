/* Makes plans: checks that the job fits the cluster, then the steps of build.h. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "plan/build.h"

/* -------------------------------------------------------------------------------------------- does it fit? */

/* Refuses a job that the cluster could not hold if nothing had failed. */
static ek_status check_size(const ek_plan_options *options)
{
    const ek_inventory *inventory = options->inventory;
    const ek_perf_parallel *parallel = options->parallel;
    uint64_t room = 0, cells = (uint64_t)parallel->dp * parallel->pp;
    uint32_t largest = 0;
    const char *mode = ek_perf_mode_text(parallel->mode);
    for (uint32_t domain = 0; domain < inventory->domain_count; domain++) {
        uint32_t slots = inventory->domains[domain].slots;
        room += slots / parallel->tp;
        largest = slots > largest ? slots : largest;
    }
    if (parallel->tp > largest)
        return ek_fail(EK_INVALID, "parallel.tp: found %u; the largest domain has %u slots: at most that is allowed",
                       parallel->tp, largest);
    uint64_t missing = cells > room ? (cells - room) * parallel->tp : 0, replicas = room / parallel->pp;
    if (cells > room)
        return ek_fail(EK_INVALID,
                       "parallel.dp: %u replica%s of %u stage%s of %s%u need%s %llu %s groups, %llu GPUs; the cluster "
                       "has room for "
                       "%llu group%s: %llu GPU%s too few; at most %llu replica%s fit",
                       parallel->dp, ek_plural(parallel->dp), parallel->pp, ek_plural(parallel->pp), mode, parallel->tp,
                       parallel->dp == 1 ? "s" : "", (unsigned long long)cells, mode,
                       (unsigned long long)(cells * parallel->tp), (unsigned long long)room, ek_plural(room),
                       (unsigned long long)missing, ek_plural(missing), (unsigned long long)replicas,
                       ek_plural(replicas));
    return EK_OK;
}

static double most_memory(const ek_perf *perf, uint32_t stages, uint32_t degree)
{
    double most = 0;
    for (uint32_t stage = 0; stage < stages; stage++) {
        ek_perf_memory memory;
        ek_perf_rank_memory(perf, stage, degree, &memory);
        most = memory.total > most ? memory.total : most;
    }
    return most;
}

/* The least degree at which a cell may have any stage: parallel.min_tp, or above it the least that fits the memory, as
 * all above it do. (Experts that do not divide make it possible that a lower one fits again.) */
static ek_status find_least_degree(const ek_plan_options *options, uint32_t *least_degree)
{
    const ek_perf_parallel *parallel = options->parallel;
    double room = options->hardware->memory_bytes;
    double whole = most_memory(options->perf, parallel->pp, parallel->tp);
    if (whole > room)
        return ek_fail(
            EK_INVALID,
            "device.memory_bytes: found %.4g; the fullest rank needs %.4g at %s%u; raise parallel.tp or parallel.pp, "
            "or recompute more (parallel.recompute)",
            room, whole, ek_perf_mode_text(parallel->mode), parallel->tp);
    uint32_t least = parallel->min_tp > 1 ? parallel->min_tp : 1, fits = parallel->tp;
    while (fits > least && most_memory(options->perf, parallel->pp, fits - 1) <= room)
        fits--;
    *least_degree = fits;
    return EK_OK;
}

/* -------------------------------------------------------------------------------------------------- the plan */

static ek_status allocate(ek_plan *plan)
{
    size_t cells = (size_t)plan->replicas * plan->stages;
    plan->cells = calloc(cells, sizeof *plan->cells);
    plan->replica = calloc(plan->replicas, sizeof *plan->replica);
    plan->memberships = calloc(plan->stages, sizeof(ek_membership *));
    plan->positions = malloc(cells * plan->base_degree * sizeof *plan->positions);
    plan->spare_domains = malloc(plan->inventory->domain_count * sizeof *plan->spare_domains);
    if (!plan->cells || !plan->replica || !plan->memberships || !plan->positions || !plan->spare_domains)
        return ek_fail(EK_NO_MEMORY, "no memory for a plan of %u replicas", plan->replicas);
    return EK_OK;
}

void ek_plan_destroy(ek_plan *plan)
{
    if (!plan)
        return;
    for (uint32_t stage = 0; plan->memberships && stage < plan->stages; stage++)
        ek_membership_destroy(plan->memberships[stage]);
    for (size_t i = 0; i < plan->reshard_count; i++)
        free(plan->reshards[i].flows);
    free(plan->lists);
    free(plan->cells);
    free(plan->replica);
    free(plan->memberships);
    free(plan->positions);
    free(plan->reshards);
    free(plan->spare_domains);
    free(plan);
}

static void set_least_degrees(ek_plan *plan)
{
    for (uint32_t replica = 0; replica < plan->replicas; replica++) {
        plan->replica[replica].least_degree = plan->base_degree;
        for (uint32_t stage = 0; stage < plan->stages; stage++) {
            uint32_t degree = ek_plan_cell_at(plan, replica, stage)->degree;
            if (degree < plan->replica[replica].least_degree)
                plan->replica[replica].least_degree = degree;
        }
    }
}

static ek_status find_spares(ek_plan *plan)
{
    const ek_inventory *inventory = plan->inventory;
    bool *used = calloc(inventory->domain_count, sizeof *used);
    if (!used)
        return ek_fail(EK_NO_MEMORY, "no memory for %u domains", inventory->domain_count);
    for (uint32_t domain = 0; domain < inventory->domain_count; domain++)
        plan->spare_slots += inventory->domains[domain].live;
    for (size_t cell = 0; cell < (size_t)plan->replicas * plan->stages; cell++) {
        used[plan->cells[cell].domain] = true;
        plan->spare_slots -= plan->cells[cell].degree;
    }
    uint64_t needed = (uint64_t)plan->parallel.dp * plan->stages, groups = 0; /* of whole domains, in order */
    for (uint32_t domain = 0; domain < inventory->domain_count; domain++) {
        if (!used[domain] && inventory->domains[domain].live > 0)
            plan->spare_domains[plan->spare_domain_count++] = domain;
        plan->spare_domains_used += used[domain] && groups >= needed;
        groups += inventory->domains[domain].slots / plan->base_degree;
    }
    free(used);
    return EK_OK;
}

/* What a whole cell holds in each stage and would have to be sent: weights and optimizer state. */
static void set_stage_bytes(const ek_plan *plan, double *stage_bytes)
{
    for (uint32_t stage = 0; stage < plan->stages; stage++) {
        ek_perf_memory memory;
        ek_perf_rank_memory(plan->perf, stage, plan->base_degree, &memory);
        stage_bytes[stage] = plan->base_degree * (memory.weights + memory.optimizer);
    }
}

static ek_status assign(const ek_plan *plan, const plan_candidates *candidates, const ek_plan_options *options,
                        plan_assignment *assignment)
{
    if (options->in_place)
        return plan_assign_in_place(candidates, options, assignment);
    if (!options->from)
        return plan_assign_packed(candidates, options, assignment);
    double *stage_bytes = malloc(plan->stages * sizeof *stage_bytes);
    if (!stage_bytes)
        return ek_fail(EK_NO_MEMORY, "no memory for %u stages", plan->stages);
    set_stage_bytes(plan, stage_bytes);
    ek_status status = plan_assign_kept(candidates, options, stage_bytes, assignment);
    free(stage_bytes);
    return status;
}

/* Everything that follows from the cells that there are. */
static ek_status build(ek_plan *plan, const plan_candidates *candidates, const ek_plan_options *options,
                       plan_assignment *assignment)
{
    EK_TRY(assign(plan, candidates, options, assignment));
    plan->replicas = assignment->replicas;
    if (plan->replicas == 0)
        return ek_fail(EK_NO_REPLICA,
                       "no replica can run: it needs %u %s group%s of %u to %u live GPUs, and the cluster has %zu",
                       plan->stages, ek_perf_mode_text(plan->parallel.mode), ek_plural(plan->stages),
                       plan->least_degree, plan->base_degree, candidates->count);
    EK_TRY(allocate(plan));
    for (uint32_t replica = 0; replica < plan->replicas; replica++)
        plan->replica[replica].was = assignment->was[replica];
    EK_TRY(plan_seat(plan, candidates, assignment->chosen, options->from));
    set_least_degrees(plan);
    EK_TRY(plan_reshards(plan));
    EK_TRY(plan_pace(plan, options));
    return find_spares(plan);
}

ek_status ek_plan_create(ek_plan **plan, const ek_plan_options *options)
{
    const ek_perf_parallel *parallel = options->parallel;
    EK_TRY(check_size(options));
    ek_plan *created = calloc(1, sizeof *created);
    if (!created)
        return ek_fail(EK_NO_MEMORY, "no memory for a plan");
    created->inventory = options->inventory;
    created->perf = options->perf;
    created->parallel = *parallel;
    created->policy = options->policy;
    created->device_memory_bytes = options->hardware->memory_bytes;
    created->stages = parallel->pp;
    created->base_degree = parallel->tp;
    plan_candidates candidates = {0};
    plan_assignment assignment = {.chosen = malloc((size_t)parallel->dp * parallel->pp * sizeof *assignment.chosen),
                                  .was = malloc(parallel->dp * sizeof *assignment.was)};
    ek_status status = EK_OK;
    if (!assignment.chosen || !assignment.was)
        status = ek_fail(EK_NO_MEMORY, "no memory for a plan of %u replicas", parallel->dp);
    else
        memset(assignment.was, 0xff, parallel->dp * sizeof *assignment.was);
    if (status == EK_OK)
        status = find_least_degree(options, &created->least_degree);
    if (status == EK_OK)
        status = plan_list_candidates(&candidates, options, created->least_degree);
    if (status == EK_OK)
        status = build(created, &candidates, options, &assignment);
    plan_free_candidates(&candidates);
    free(assignment.chosen);
    free(assignment.was);
    if (status != EK_OK) {
        ek_plan_destroy(created);
        return status;
    }
    *plan = created;
    return EK_OK;
}

double plan_most_memory(const ek_plan *plan)
{
    double most = 0;
    for (uint32_t stage = 0; stage < plan->stages; stage++) {
        ek_perf_memory memory;
        uint32_t deepest = plan->base_degree - ek_membership_sync_level(plan->memberships[stage]);
        ek_perf_rank_memory(plan->perf, stage, deepest, &memory);
        most = memory.total > most ? memory.total : most;
    }
    return most;
}
