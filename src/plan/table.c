/* Prints a plan for people. */
#include "plan/table.h"

#include <string.h>

#include "base/text.h"
#include "plan/build.h"

#define LOST_WIDTH 62 /* of GPUs out of use, behind LOST_INDENT */
#define LOST_INDENT 34
#define DEGREES_WIDTH 24
#define ALIKE_WIDTH 36 /* of the numbers of replicas of one kind, or a little more */
#define NAME_WIDTH 18  /* of a domain; longer ones are cut in front, where they differ least */

const char *ek_bytes_text(double bytes, char text[EK_BYTES_TEXT])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t unit = 0;
    while (bytes >= 999.95 && unit + 1 < sizeof units / sizeof *units) {
        bytes /= 1000;
        unit++;
    }
    snprintf(text, EK_BYTES_TEXT, "%.*f %s", unit == 0 ? 0 : 1, bytes, units[unit]);
    return text;
}

static const char *short_name(const char *name)
{
    size_t length = strlen(name);
    return length > NAME_WIDTH ? name + length - NAME_WIDTH : name;
}

/* ------------------------------------------------------------------------------------------------- summary */

static void print_summary(const ek_plan *plan, FILE *file)
{
    const ek_inventory *inventory = plan->inventory;
    uint32_t states[3] = {0}, reduced = 0, missing = plan->parallel.dp - plan->replicas;
    char bytes[EK_BYTES_TEXT], most[EK_BYTES_TEXT];
    const char *mode = ek_perf_mode_text(plan->parallel.mode);
    for (uint32_t slot = 0; slot < inventory->slot_count; slot++)
        states[inventory->slots[slot].state]++;
    while (reduced < plan->replicas && plan->replica[reduced].least_degree < plan->base_degree)
        reduced++;
    fprintf(file, "cluster     %u domain%s, %u GPUs: %u live, %u failed, %u drained\n", inventory->domain_count,
            ek_plural(inventory->domain_count), inventory->slot_count, states[EK_SLOT_LIVE], states[EK_SLOT_FAILED],
            states[EK_SLOT_DRAINED]);
    fprintf(file, "job         %u replica%s of %u stage%s of %s%u; %u sample%s a step, policy %s\n", plan->parallel.dp,
            ek_plural(plan->parallel.dp), plan->stages, ek_plural(plan->stages), mode, plan->base_degree,
            plan->parallel.global_batch, ek_plural(plan->parallel.global_batch), ek_batch_policy_names[plan->policy]);
    fprintf(file, "replicas    %u whole, %u reduced (%s%u at least), %u missing for want of domains\n",
            plan->replicas - reduced, reduced, mode, plan->replica[0].least_degree, missing);
    if (plan->least_degree > plan->parallel.min_tp)
        fprintf(file, "            below %s%u a rank's share does not fit its memory: such stages are not used\n", mode,
                plan->least_degree);
    fprintf(file, "spares      %u domain%s in use, %u left; %u GPU%s without work\n", plan->spare_domains_used,
            ek_plural(plan->spare_domains_used), plan->spare_domain_count, plan->spare_slots,
            ek_plural(plan->spare_slots));
    fprintf(file, "step        %.4g s; %.4g s with no failure\n", plan->step_seconds, plan->whole_step_seconds);
    fprintf(file, "throughput  %.4g samples/s, %.2f %% of no failure\n", plan->samples_per_second,
            100 * plan->samples_per_second / plan->whole_samples_per_second);
    fprintf(file, "reshard     %s a step in all, at most %s from one GPU\n", ek_bytes_text(plan->reshard_bytes, bytes),
            ek_bytes_text(plan->reshard_bytes_most, most));
    fprintf(file, "memory      %s of %s on the fullest rank\n", ek_bytes_text(plan_most_memory(plan), bytes),
            ek_bytes_text(plan->device_memory_bytes, most));
}

/* ------------------------------------------------------------------------------------------------ replicas */

static bool alike(const ek_plan *plan, uint32_t a, uint32_t b)
{
    if (plan->replica[a].share.count != plan->replica[b].share.count ||
        plan->replica[a].watts != plan->replica[b].watts)
        return false;
    for (uint32_t stage = 0; stage < plan->stages; stage++)
        if (ek_plan_cell_at(plan, a, stage)->degree != ek_plan_cell_at(plan, b, stage)->degree)
            return false;
    return true;
}

/* "29 30 31 3x32": neighbours that are equal in one. */
static void print_degrees(const ek_plan *plan, uint32_t replica, FILE *file)
{
    int width = 0;
    for (uint32_t stage = 0, run; stage < plan->stages; stage += run) {
        uint32_t degree = ek_plan_cell_at(plan, replica, stage)->degree;
        for (run = 1; stage + run < plan->stages; run++)
            if (ek_plan_cell_at(plan, replica, stage + run)->degree != degree)
                break;
        if (run > 1)
            width += fprintf(file, " %ux%u", run, degree);
        else
            width += fprintf(file, " %u", degree);
    }
    fprintf(file, "%*s", width < DEGREES_WIDTH ? DEGREES_WIDTH - width : 0, "");
}

/* "1-14 16-30 32-46 …": all that are like the first, as many as have room. */
static void print_alike(const ek_plan *plan, uint32_t first, FILE *file)
{
    int width = 0;
    for (uint32_t replica = first, end; replica < plan->replicas; replica = end) {
        for (end = replica; end < plan->replicas && alike(plan, first, end); end++)
            ;
        if (end == replica) {
            end++;
            continue;
        }
        if (width > ALIKE_WIDTH) {
            fprintf(file, " …");
            break;
        }
        width += fprintf(file, end - replica > 1 ? " %u-%u" : " %u", replica, end - 1);
    }
    fputc('\n', file);
}

static bool is_first_of_kind(const ek_plan *plan, uint32_t replica)
{
    uint32_t first = 0;
    while (!alike(plan, first, replica))
        first++;
    return first == replica;
}

static uint32_t count_alike(const ek_plan *plan, uint32_t first)
{
    uint32_t count = 0;
    for (uint32_t replica = first; replica < plan->replicas; replica++)
        count += alike(plan, first, replica);
    return count;
}

/* A line for each kind of replica. */
static void print_replicas(const ek_plan *plan, FILE *file)
{
    char heading[DEGREES_WIDTH];
    snprintf(heading, sizeof heading, " %s by stage", ek_perf_mode_text(plan->parallel.mode));
    fprintf(file, "\n%8s %8s %10s %9s %-*s %s\n", "replicas", "samples", "watts/GPU", "step s", DEGREES_WIDTH, heading,
            "which");
    for (uint32_t first = 0; first < plan->replicas; first++) {
        if (!is_first_of_kind(plan, first))
            continue;
        fprintf(file, "%8u %8u %10.1f %9.4g ", count_alike(plan, first), plan->replica[first].share.count,
                plan->replica[first].watts, plan->replica[first].time.total);
        print_degrees(plan, first, file);
        print_alike(plan, first, file);
    }
}

/* ------------------------------------------------------------------------------------------ reduced stages */

/* "attention 4-5 ffn 44-45": the fewest and the most units on a rank. */
static void print_units(const ek_plan *plan, uint32_t stage, uint32_t level, FILE *file)
{
    const ek_membership *membership = plan->memberships[stage];
    const ek_job *job = ek_membership_job(membership);
    for (uint32_t group = 0; group < job->group_count; group++) {
        if (ek_perf_group_layers(plan->perf, group, stage) == 0)
            continue;
        uint32_t units = job->groups[group].units, degree = job->base_degree - level;
        uint32_t least = units / degree, most = (units - 1) / degree + 1; /* balance: at every level */
        fprintf(file, least == most ? "  %s %u" : "  %s %u-%u", job->groups[group].name, least, most);
    }
}

/* GPUs of the domain that are not live, as many as have room: "d3-n1:2 failed". */
static void print_lost(const ek_plan *plan, const ek_domain *domain, FILE *file)
{
    const ek_inventory *inventory = plan->inventory;
    int room = LOST_WIDTH;
    for (uint32_t slot = domain->first_slot; slot < domain->first_slot + domain->slots; slot++) {
        const ek_slot *lost = &inventory->slots[slot];
        if (lost->state == EK_SLOT_LIVE)
            continue;
        char text[64];
        room -= snprintf(text, sizeof text, " %.40s:%u %s", inventory->nodes[lost->node].name, lost->gpu,
                         ek_slot_state_text(lost->state));
        if (room < 0) {
            fprintf(file, " …");
            return;
        }
        fprintf(file, "%s", text);
    }
}

static void print_reduced(const ek_plan *plan, FILE *file)
{
    bool first = true;
    for (uint32_t replica = 0; replica < plan->replicas; replica++) {
        for (uint32_t stage = 0; stage < plan->stages; stage++) {
            const ek_plan_cell *cell = ek_plan_cell_at(plan, replica, stage);
            const ek_domain *domain = &plan->inventory->domains[cell->domain];
            char bytes[EK_BYTES_TEXT];
            ek_perf_memory memory;
            if (cell->degree == plan->base_degree)
                continue;
            if (first)
                fprintf(file, "\n%7s %5s  %-*s %4s %9s %9s  %s\n", "replica", "stage", NAME_WIDTH, "domain",
                        ek_perf_mode_text(plan->parallel.mode), "watts/GPU", "memory",
                        "units of a rank; GPUs out of use");
            first = false;
            ek_perf_rank_memory(plan->perf, stage, cell->degree, &memory);
            fprintf(file, "%7u %5u  %-*s %4u %9.1f %9s", replica, stage, NAME_WIDTH, short_name(domain->name),
                    cell->degree, cell->watts, ek_bytes_text(memory.total, bytes));
            print_units(plan, stage, plan->base_degree - cell->degree, file);
            fprintf(file, "\n%*s", LOST_INDENT, "");
            print_lost(plan, domain, file);
            fputc('\n', file);
        }
    }
}

/* --------------------------------------------------------------------------------------------------- flows */

static void print_flows(const ek_plan *plan, FILE *file)
{
    const char *mode = ek_perf_mode_text(plan->parallel.mode);
    if (plan->reshard_count > 0)
        fprintf(file, "\n%5s %9s    from %s      to %s %12s %12s  %s\n", "stage", "replicas", mode, mode, "of each",
                "of one GPU", "extra roles");
    for (size_t i = 0; i < plan->reshard_count; i++) {
        const ek_plan_reshard *reshard = &plan->reshards[i];
        const ek_membership *membership = plan->memberships[reshard->stage];
        uint32_t sync_level = ek_membership_sync_level(membership);
        char bytes[EK_BYTES_TEXT], most[EK_BYTES_TEXT];
        fprintf(file, "%5u %9u %9u %9u %12s %12s ", reshard->stage, reshard->replicas,
                plan->base_degree - reshard->level, plan->base_degree - sync_level,
                ek_bytes_text(reshard->bytes, bytes), ek_bytes_text(reshard->most_bytes, most));
        int column = 0;
        for (uint32_t level = reshard->level; level < sync_level && column < 30; level++)
            column += fprintf(file, " %u", ek_membership_drop_order(membership)[level]);
        fprintf(file, column < 30 ? "\n" : " …\n");
    }
}

/* ------------------------------------------------------------------------------------------------- dispatch */

static bool has_degree(const ek_plan *plan, uint32_t degree)
{
    for (size_t cell = 0; cell < (size_t)plan->replicas * plan->stages; cell++)
        if (plan->cells[cell].degree == degree)
            return true;
    return false;
}

/* Mode ep: the way of a token in one layer, for each degree that there is. */
static void print_dispatch(const ek_plan *plan, FILE *file)
{
    if (plan->parallel.mode != EK_PERF_EP)
        return;
    fprintf(file, "\n%5s %12s %12s %12s %10s\n", "EP", "ranks/token", "across", "bytes", "imbalance");
    for (uint32_t degree = plan->base_degree; degree > 0; degree--) {
        char bytes[EK_BYTES_TEXT];
        ek_perf_dispatch dispatch;
        if (!has_degree(plan, degree))
            continue;
        ek_perf_dispatch_at(plan->perf, degree, &dispatch);
        fprintf(file, "%5u %12.3f %12.3f %12s %10.3f\n", degree, dispatch.ranks, dispatch.crossing,
                ek_bytes_text(dispatch.bytes, bytes), dispatch.imbalance);
    }
}

void ek_plan_print_table(const ek_plan *plan, FILE *file)
{
    print_summary(plan, file);
    print_replicas(plan, file);
    print_reduced(plan, file);
    print_flows(plan, file);
    print_dispatch(plan, file);
}
