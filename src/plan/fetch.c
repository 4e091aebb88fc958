/* How much state a new plan has its devices fetch. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/change.h"

typedef struct fetching {
    const ek_plan *plan;
    const ek_plan_placement *from;
    uint32_t *was; /* [slots] the cell of the placement that a slot was in, or EK_NONE; and its role there */
    uint32_t *old_roles;
    ek_chain *chains[EK_PERF_GROUPS_MOST]; /* of the placement, for the stage at work */
} fetching;

static void free_chains(fetching *work)
{
    for (int group = 0; group < EK_PERF_GROUPS_MOST; group++) {
        ek_chain_destroy(work->chains[group]);
        work->chains[group] = NULL;
    }
}

static ek_status make_chains(fetching *work, uint32_t stage)
{
    const ek_job *job = ek_membership_job(work->plan->memberships[stage]);
    for (uint32_t group = 0; group < job->group_count; group++)
        EK_TRY(ek_chain_create(&work->chains[group], job->groups[group].units, job->base_degree,
                               work->from->drop_orders + (size_t)stage * job->base_degree,
                               work->from->sync_levels[stage], group));
    return EK_OK;
}

/* True if the layouts at this level are the same before and after. */
static bool same_layout(const fetching *work, uint32_t stage, uint32_t level)
{
    return memcmp(work->from->drop_orders + (size_t)stage * work->from->base_degree,
                  ek_membership_drop_order(work->plan->memberships[stage]), level * sizeof(uint32_t)) == 0;
}

/* What there is of weights and optimizer state: for each byte of a unit's parameters, and in all of what every device
 * of a stage holds in mode ep. */
typedef struct state_bytes {
    double unit_ratio, dense;
} state_bytes;

static state_bytes state_of(const ek_plan *plan, uint32_t stage)
{
    ek_perf_memory memory;
    ek_perf_rank_memory(plan->perf, stage, plan->base_degree, &memory);
    double weights = memory.weights - memory.dense_weights, optimizer = memory.optimizer - memory.dense_optimizer;
    /* a stage may be without experts */
    return (state_bytes){weights > 0 ? (weights + optimizer) / weights : 0,
                         memory.dense_weights + memory.dense_optimizer};
}

/* Bytes of state that the device in `slot` lacks for its role at `level`. */
static double lacking(const fetching *work, uint32_t stage, uint32_t level, uint32_t slot, uint32_t role,
                      state_bytes state)
{
    const ek_membership *membership = work->plan->memberships[stage];
    const ek_job *job = ek_membership_job(membership);
    uint32_t was = work->was[slot], old_role = work->old_roles[slot], old_level = 0;
    bool had_stage = was != EK_NONE && was % work->from->stages == stage;
    if (had_stage) {
        old_level = job->base_degree - work->from->cells[was].degree;
        if (old_level == level && old_role == role && same_layout(work, stage, level))
            return 0;
    }
    double bytes = 0;
    for (uint32_t group = 0; group < job->group_count; group++) {
        const ek_chain *chain = ek_membership_chain(membership, group);
        const uint32_t *list = ek_chain_list(chain, role);
        uint32_t count = ek_chain_count(chain, level, role), lacks = 0;
        for (uint32_t i = 0; i < count; i++)
            lacks += !had_stage || ek_chain_owner(work->chains[group], old_level, list[i], NULL) != old_role;
        bytes += (double)lacks * job->groups[group].unit_bytes * ek_perf_group_layers(work->plan->perf, group, stage);
    }
    return state.unit_ratio * bytes + (had_stage ? 0 : state.dense);
}

static ek_status add_stage(fetching *work, uint32_t stage, double *bytes, double *most)
{
    const ek_plan *plan = work->plan;
    state_bytes state = state_of(plan, stage);
    EK_TRY(make_chains(work, stage));
    for (uint32_t replica = 0; replica < plan->replicas; replica++) {
        const ek_plan_cell *cell = ek_plan_cell_at(plan, replica, stage);
        for (uint32_t i = 0; i < cell->degree; i++) {
            double lacks =
                lacking(work, stage, plan->base_degree - cell->degree, cell->slots[i], cell->roles[i], state);
            *bytes += lacks;
            *most = fmax(*most, lacks);
        }
    }
    return EK_OK;
}

ek_status ek_plan_bytes_to_fetch(const ek_plan *plan, const ek_plan_placement *from, double *bytes, double *most)
{
    size_t slots = plan->inventory->slot_count;
    fetching work = {.plan = plan, .from = from};
    work.was = malloc(slots * sizeof *work.was);
    work.old_roles = malloc(slots * sizeof *work.old_roles);
    ek_status status = EK_OK;
    if (!work.was || !work.old_roles)
        status = ek_fail(EK_NO_MEMORY, "no memory for the state of %zu GPUs", slots);
    else
        memset(work.was, 0xff, slots * sizeof *work.was);
    for (uint32_t cell = 0; status == EK_OK && cell < from->replicas * from->stages; cell++) {
        for (uint32_t i = 0; i < from->cells[cell].count; i++) {
            work.was[from->cells[cell].slots[i]] = cell;
            work.old_roles[from->cells[cell].slots[i]] = from->cells[cell].roles[i];
        }
    }
    *bytes = *most = 0;
    for (uint32_t stage = 0; stage < plan->stages && status == EK_OK; stage++) {
        status = add_stage(&work, stage, bytes, most);
        free_chains(&work);
    }
    free(work.was);
    free(work.old_roles);
    return status;
}
