/* Which cells the domains of an inventory make. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cluster/packing.h"
#include "plan/build.h"

/* What is at work in one domain. */
typedef struct domain_work {
    const ek_plan_options *options;
    uint32_t least_degree;
    plan_candidates *candidates;
    size_t slots_used;  /* of candidates->slots */
    uint32_t *counts;   /* [domains] how many cells each makes */
    uint32_t *degrees;  /* [most cells of a domain] as they should be */
    bool *taken;        /* [slots of the inventory] */
    uint32_t *cells_of; /* with a placement: its cells by domain, those with the most slots left first */
    uint32_t *first;    /* [domains + 1] where a domain's begin in cells_of */
} domain_work;

static void free_work(domain_work *work)
{
    free(work->counts);
    free(work->degrees);
    free(work->taken);
    free(work->cells_of);
    free(work->first);
}

static ek_status allocate(domain_work *work)
{
    const ek_inventory *inventory = work->options->inventory;
    const ek_plan_placement *from = work->options->from;
    uint32_t most = 0;
    size_t cells = from ? (size_t)from->replicas * from->stages : 0, total = 0;
    for (uint32_t domain = 0; domain < inventory->domain_count; domain++) {
        uint32_t count = inventory->domains[domain].slots / work->options->parallel->tp;
        most = count > most ? count : most;
        total += count;
    }
    work->counts = malloc(((size_t)inventory->domain_count + 1) * sizeof *work->counts);
    work->degrees = malloc(((size_t)most + 1) * sizeof *work->degrees);
    work->taken = calloc(inventory->slot_count, sizeof *work->taken);
    work->cells_of = malloc((cells + 1) * sizeof *work->cells_of);
    work->first = calloc((size_t)inventory->domain_count + 2, sizeof *work->first);
    work->candidates->items = malloc((total + cells + 1) * sizeof *work->candidates->items);
    work->candidates->slots = malloc(inventory->slot_count * sizeof *work->candidates->slots);
    if (!work->counts || !work->degrees || !work->taken || !work->cells_of || !work->first ||
        !work->candidates->items || !work->candidates->slots)
        return ek_fail(EK_NO_MEMORY, "no memory for the cells of %u domains", inventory->domain_count);
    return EK_OK;
}

void plan_free_candidates(plan_candidates *candidates)
{
    free(candidates->items);
    free(candidates->slots);
    *candidates = (plan_candidates){0};
}

/* Begins a candidate without slots. */
static plan_candidate *add_candidate(domain_work *work, uint32_t domain, uint32_t old)
{
    plan_candidate *added = &work->candidates->items[work->candidates->count++];
    *added = (plan_candidate){domain, 0, work->candidates->slots + work->slots_used, old};
    return added;
}

static void add_slot(domain_work *work, plan_candidate *candidate, uint32_t slot)
{
    work->taken[slot] = true;
    work->slots_used++;
    candidate->slots[candidate->degree++] = slot;
}

/* Fills a candidate up to its degree with live slots of its domain that no cell has. */
static void fill(domain_work *work, plan_candidate *candidate, uint32_t degree)
{
    const ek_inventory *inventory = work->options->inventory;
    const ek_domain *domain = &inventory->domains[candidate->domain];
    for (uint32_t i = 0; i < domain->slots && candidate->degree < degree; i++) {
        uint32_t slot = domain->first_slot + i;
        if (!work->taken[slot] && inventory->slots[slot].state == EK_SLOT_LIVE)
            add_slot(work, candidate, slot);
    }
}

static int compare_slots(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

/* ------------------------------------------------------------------------------------- the cells of a placement */

/* By domain, in it by slots left, in it as they were. */
static int compare_placed(const void *a, const void *b, void *user)
{
    const ek_plan_options *options = user;
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    const ek_placed_cell *cells = options->from->cells;
    const ek_slot *slots = options->inventory->slots;
    uint32_t left_domain = slots[cells[left].slots[0]].domain, right_domain = slots[cells[right].slots[0]].domain;
    if (left_domain != right_domain)
        return left_domain < right_domain ? -1 : 1;
    if (cells[left].count != cells[right].count)
        return cells[left].count > cells[right].count ? -1 : 1;
    return (left > right) - (left < right);
}

static void sort_placed(domain_work *work)
{
    const ek_plan_options *options = work->options;
    const ek_plan_placement *from = options->from;
    uint32_t count = 0;
    for (uint32_t cell = 0; from && cell < from->replicas * from->stages; cell++) {
        if (from->cells[cell].count == 0)
            continue;
        work->cells_of[count++] = cell;
        work->first[options->inventory->slots[from->cells[cell].slots[0]].domain + 1]++;
    }
    if (from)
        qsort_r(work->cells_of, count, sizeof *work->cells_of, compare_placed, (void *)options);
    for (uint32_t domain = 0; domain < options->inventory->domain_count; domain++)
        work->first[domain + 1] += work->first[domain];
}

static const ek_placed_cell *placed_at(const domain_work *work, uint32_t domain, uint32_t i)
{
    return &work->options->from->cells[work->cells_of[work->first[domain] + i]];
}

/* The cells as they were, with the slots that they have left; what is live in their domain and had no work, such as a
 * GPU that is back, joins them. */
static void keep_cells(domain_work *work, uint32_t domain)
{
    uint32_t placed = work->first[domain + 1] - work->first[domain];
    for (uint32_t i = 0; i < placed; i++)
        for (uint32_t slot = 0; slot < placed_at(work, domain, i)->count; slot++)
            work->taken[placed_at(work, domain, i)->slots[slot]] = true;
    for (uint32_t i = 0; i < placed; i++) {
        const ek_placed_cell *cell = placed_at(work, domain, i);
        plan_candidate *candidate = add_candidate(work, domain, work->cells_of[work->first[domain] + i]);
        for (uint32_t slot = 0; slot < cell->count; slot++)
            add_slot(work, candidate, cell->slots[slot]);
        fill(work, candidate, work->options->parallel->tp);
        qsort(candidate->slots, candidate->degree, sizeof *candidate->slots, compare_slots);
        if (candidate->degree < work->least_degree) { /* the replica goes without */
            work->slots_used -= candidate->degree;
            work->candidates->count--;
        }
    }
}

/* Puts the degrees that a domain should have into the order of its placed cells, of which there are `placed`: each gets
 * the least that all its slots fit into, or else the largest, so that none changes without need. */
static void order_degrees(const domain_work *work, uint32_t domain, uint32_t placed, uint32_t count)
{
    for (uint32_t i = 0; i < placed && i < count; i++) {
        uint32_t left = placed_at(work, domain, i)->count, best = i;
        for (uint32_t j = i + 1; j < count; j++) {
            uint32_t degree = work->degrees[j], best_degree = work->degrees[best];
            if (degree >= left ? best_degree < left || degree < best_degree
                               : best_degree < left && degree > best_degree)
                best = j;
        }
        uint32_t chosen = work->degrees[best];
        work->degrees[best] = work->degrees[i];
        work->degrees[i] = chosen;
    }
}

/* The cells that the domain should have now. Those that are there keep their slots up to their new degree; what others
 * have to give, or what had no work, fills them up. */
static void make_cells(domain_work *work, uint32_t domain, uint32_t count)
{
    size_t first_item = work->candidates->count;
    uint32_t placed = work->first[domain + 1] - work->first[domain];
    placed = placed < count ? placed : count;
    order_degrees(work, domain, placed, count);
    for (uint32_t i = 0; i < placed; i++) {
        const ek_placed_cell *cell = placed_at(work, domain, i);
        for (uint32_t slot = 0; slot < cell->count && slot < work->degrees[i]; slot++)
            work->taken[cell->slots[slot]] = true;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t old = i < placed ? work->cells_of[work->first[domain] + i] : EK_NONE;
        plan_candidate *candidate = add_candidate(work, domain, old);
        for (uint32_t slot = 0; old != EK_NONE && slot < placed_at(work, domain, i)->count; slot++)
            if (slot < work->degrees[i])
                add_slot(work, candidate, placed_at(work, domain, i)->slots[slot]);
        fill(work, candidate, work->degrees[i]);
    }
    for (plan_candidate *item = work->candidates->items + first_item; placed > 0 && count > 0; item++, count--)
        qsort(item->slots, item->degree, sizeof *item->slots, compare_slots);
}

/* ---------------------------------------------------------------------------------------- how many, and all */

/* The degrees of `count` cells of a domain, or of as many as there can be; returns how many. */
static uint32_t degrees_of(const domain_work *work, uint32_t domain, uint32_t count)
{
    uint32_t tp = work->options->parallel->tp;
    return ek_packing_cells(count * tp, work->options->inventory->domains[domain].live, tp, work->least_degree,
                            work->degrees);
}

/* A domain makes all the cells that it can; but where the job does not need as many, the smallest ones of domains with
 * several are given up, for what they have makes others of their domain larger. */
static void set_counts(const domain_work *work)
{
    const ek_inventory *inventory = work->options->inventory;
    uint32_t tp = work->options->parallel->tp, smallest = 0;
    uint64_t needed = (uint64_t)work->options->parallel->dp * work->options->parallel->pp, total = 0;
    for (uint32_t domain = 0; domain < inventory->domain_count; domain++) {
        work->counts[domain] = degrees_of(work, domain, inventory->domains[domain].slots / tp);
        total += work->counts[domain];
    }
    while (total > needed && smallest != EK_NONE) {
        uint32_t least = tp;
        smallest = EK_NONE;
        for (uint32_t domain = 0; domain < inventory->domain_count; domain++) {
            uint32_t count = work->counts[domain];
            if (count < 2)
                continue;
            degrees_of(work, domain, count);
            if (work->degrees[count - 1] >= least)
                continue;
            least = work->degrees[count - 1];
            smallest = domain;
        }
        if (smallest != EK_NONE) {
            work->counts[smallest]--;
            total--;
        }
    }
}

ek_status plan_list_candidates(plan_candidates *candidates, const ek_plan_options *options, uint32_t least_degree)
{
    domain_work work = {.options = options, .least_degree = least_degree, .candidates = candidates};
    *candidates = (plan_candidates){0};
    ek_status status = allocate(&work);
    if (status == EK_OK) {
        sort_placed(&work);
        set_counts(&work);
    }
    for (uint32_t domain = 0; domain < options->inventory->domain_count && status == EK_OK; domain++) {
        if (options->in_place)
            keep_cells(&work, domain);
        else
            make_cells(&work, domain, degrees_of(&work, domain, work.counts[domain]));
    }
    free_work(&work);
    if (status != EK_OK)
        plan_free_candidates(candidates);
    return status;
}
