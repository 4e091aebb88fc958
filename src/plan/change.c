/* The difference between the plan that is running and a new one. */
#include "plan/change.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/text.h"
#include "plan/table.h"

void ek_plan_change_destroy(ek_plan_change *change)
{
    if (!change)
        return;
    free(change->moves);
    free(change);
}

static ek_status list_moves(ek_plan_change *change, const ek_plan *plan)
{
    size_t cells = (size_t)plan->replicas * plan->stages;
    bool *moved = calloc(plan->inventory->domain_count, sizeof *moved);
    change->moves = malloc((cells + 1) * sizeof *change->moves);
    if (!moved || !change->moves) {
        free(moved);
        return ek_fail(EK_NO_MEMORY, "no memory for the moves of %zu groups", cells);
    }
    for (uint32_t replica = 0; replica < plan->replicas; replica++) {
        for (uint32_t stage = 0; stage < plan->stages; stage++) {
            const ek_plan_cell *cell = ek_plan_cell_at(plan, replica, stage);
            uint32_t old_replica = cell->was == EK_NONE ? EK_NONE : cell->was / plan->stages;
            uint32_t old_stage = cell->was == EK_NONE ? EK_NONE : cell->was % plan->stages;
            if (cell->was != EK_NONE && old_replica == plan->replica[replica].was && old_stage == stage)
                continue;
            change->moves[change->move_count++] = (ek_plan_move){cell->domain, replica, stage, old_replica, old_stage};
            change->domains_moved += !moved[cell->domain];
            moved[cell->domain] = true;
        }
    }
    free(moved);
    return EK_OK;
}

/* Moving costs the step rate for as long as it takes and gains the difference ever after. */
static void weigh(ek_plan_change *change, const ek_plan *plan)
{
    double moved = plan->samples_per_second, stays = change->in_place_throughput;
    change->break_even_seconds = moved > stays ? change->move_seconds * moved / (moved - stays) : INFINITY;
    change->pays = change->move_count > 0 && change->break_even_seconds < change->horizon_seconds;
}

static ek_status compare(ek_plan_change *change, const ek_plan *plan, const ek_plan *in_place,
                         const ek_plan_placement *from, const ek_plan_change_options *options)
{
    EK_TRY(list_moves(change, plan));
    EK_TRY(ek_plan_bytes_to_fetch(plan, from, &change->bytes, &change->bytes_most));
    if (in_place) {
        double most;
        EK_TRY(ek_plan_bytes_to_fetch(in_place, from, &change->in_place_bytes, &most));
        change->in_place_throughput = in_place->samples_per_second;
    }
    change->horizon_seconds = 3600 * options->repair_hours;
    change->move_seconds = options->restart_seconds + change->bytes_most / options->bytes_per_second;
    weigh(change, plan);
    return EK_OK;
}

ek_status ek_plan_change_create(ek_plan_change **change, const ek_plan *plan, const ek_plan *in_place,
                                const ek_plan_placement *from, const ek_plan_change_options *options)
{
    ek_plan_change *created = calloc(1, sizeof *created);
    if (!created)
        return ek_fail(EK_NO_MEMORY, "no memory for the changes of a plan");
    ek_status status = compare(created, plan, in_place, from, options);
    if (status != EK_OK) {
        ek_plan_change_destroy(created);
        return status;
    }
    *change = created;
    return EK_OK;
}

/* --------------------------------------------------------------------------------------------------- output */

static void print_verdict(const ek_plan_change *change, FILE *file)
{
    double hours = change->break_even_seconds / 3600, horizon = change->horizon_seconds / 3600;
    if (change->move_count == 0)
        fprintf(file, "moving      nothing moves\n");
    else if (change->in_place_throughput == 0)
        fprintf(file, "moving      is needed: no replica is complete without it\n");
    else if (isinf(hours))
        fprintf(file, "moving      gains nothing: stay\n");
    else
        fprintf(file, "moving      %s: it has made up for itself after %.3g h, the next repair is due in %.3g h\n",
                change->pays ? "pays" : "does not pay", hours, horizon);
}

void ek_plan_print_change(const ek_plan_change *change, const ek_plan *plan, FILE *file)
{
    char bytes[EK_BYTES_TEXT], most[EK_BYTES_TEXT];
    double whole = plan->whole_samples_per_second;
    fprintf(file, "\nchange      %zu %s group%s move%s, in %u domain%s; %s to fetch, at most %s by one GPU: %.4g s\n",
            change->move_count, ek_perf_mode_text(plan->parallel.mode), ek_plural(change->move_count),
            change->move_count == 1 ? "s" : "", change->domains_moved, ek_plural(change->domains_moved),
            ek_bytes_text(change->bytes, bytes), ek_bytes_text(change->bytes_most, most), change->move_seconds);
    fprintf(file, "throughput  %.2f %% of no failure with the moves, %.2f %% in place (%s to fetch)\n",
            100 * plan->samples_per_second / whole, 100 * change->in_place_throughput / whole,
            ek_bytes_text(change->in_place_bytes, bytes));
    print_verdict(change, file);
    if (change->move_count > 0)
        fprintf(file, "\n%-24s %12s %6s    %12s %6s\n", "domain", "from replica", "stage", "to replica", "stage");
    for (size_t i = 0; i < change->move_count; i++) {
        const ek_plan_move *move = &change->moves[i];
        fprintf(file, "%-24.24s ", plan->inventory->domains[move->domain].name);
        if (move->old_replica == EK_NONE)
            fprintf(file, "%12s %6s", "spare", "");
        else
            fprintf(file, "%12u %6u", move->old_replica, move->old_stage);
        fprintf(file, "    %12u %6u\n", move->replica, move->stage);
    }
}

static json_t *index_or_null(uint32_t index)
{
    return index == EK_NONE ? json_null() : json_integer(index);
}

ek_status ek_plan_change_json(const ek_plan_change *change, const ek_plan *plan, json_t **json)
{
    json_t *moves = json_array();
    int failed = 0;
    for (size_t i = 0; i < change->move_count; i++) {
        const ek_plan_move *move = &change->moves[i];
        failed |= json_array_append_new(
            moves, json_pack("{s:s, s:o, s:o, s:i, s:i}", "domain", plan->inventory->domains[move->domain].name,
                             "from_replica", index_or_null(move->old_replica), "from_stage",
                             index_or_null(move->old_stage), "replica", (int)move->replica, "stage", (int)move->stage));
    }
    json_t *break_even = isinf(change->break_even_seconds) ? json_null() : json_real(change->break_even_seconds);
    json_t *object = json_pack("{s:o, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:b}", "moves", moves, "domains_moved",
                               (int)change->domains_moved, "bytes", change->bytes, "bytes_most", change->bytes_most,
                               "move_seconds", change->move_seconds, "in_place_bytes", change->in_place_bytes,
                               "in_place_samples_per_second", change->in_place_throughput, "horizon_seconds",
                               change->horizon_seconds, "break_even_seconds", break_even, "pays", (int)change->pays);
    if (failed || !object) {
        json_decref(object);
        return ek_fail(EK_NO_MEMORY, "no memory for the changes as JSON");
    }
    *json = object;
    return EK_OK;
}
