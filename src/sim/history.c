/* Draws failures one after the other and keeps what is pending (returns, failures that follow) in a heap. */
#include "sim/history.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/rng.h"

#define NEVER (-INFINITY)
#define BACK (-DBL_MAX)

typedef struct pending {
    double hours;
    uint64_t order; /* among those of the same time */
    bool is_return; /* otherwise a failure that follows another: of any slot of the domain */
    uint32_t domain, slot, slots;
} pending;

typedef struct history_drawing {
    const ek_scenario *scenario;
    ek_history *history;
    uint32_t domains, slots;
    uint64_t number, draws; /* random numbers taken so far */
    double horizon_hours;
    double *down_until; /* [domains][slots] hours; NEVER: was not down so far; BACK: was, and is not now */
    uint32_t *failed;   /* [domains] */
    pending *heap;
    size_t heap_count, heap_room;
    uint64_t pushed;
} history_drawing;

static double draw(history_drawing *drawing)
{
    return ek_random_uniform(drawing->scenario->study.seed, drawing->number, drawing->draws++);
}

static double draw_gap(history_drawing *drawing, double mean_hours)
{
    return -log1p(-draw(drawing)) * mean_hours;
}

/* ------------------------------------------------------------------------------------------------------- heap */

static bool is_before(const pending *a, const pending *b)
{
    return a->hours < b->hours || (a->hours == b->hours && a->order < b->order);
}

static ek_status push(history_drawing *drawing, pending item)
{
    if (drawing->heap_count == drawing->heap_room) {
        size_t room = drawing->heap_room ? 2 * drawing->heap_room : 64;
        pending *larger = realloc(drawing->heap, room * sizeof *larger);
        if (!larger)
            return ek_fail(EK_NO_MEMORY, "no memory for %zu failures", room);
        drawing->heap = larger;
        drawing->heap_room = room;
    }
    item.order = drawing->pushed++;
    size_t at = drawing->heap_count++;
    for (; at > 0 && is_before(&item, &drawing->heap[(at - 1) / 2]); at = (at - 1) / 2)
        drawing->heap[at] = drawing->heap[(at - 1) / 2];
    drawing->heap[at] = item;
    return EK_OK;
}

static pending pop(history_drawing *drawing)
{
    pending first = drawing->heap[0], last = drawing->heap[--drawing->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < drawing->heap_count && is_before(&drawing->heap[child + 1], &drawing->heap[child]))
            child++;
        if (child >= drawing->heap_count || is_before(&last, &drawing->heap[child]))
            break;
        drawing->heap[at] = drawing->heap[child];
        at = child;
    }
    drawing->heap[at] = last;
    return first;
}

/* ---------------------------------------------------------------------------------------------------- changes */

static ek_status add_change(history_drawing *drawing, double hours, uint32_t domain, bool failure)
{
    ek_history *history = drawing->history;
    if (history->count == history->room) {
        size_t room = history->room ? 2 * history->room : 256;
        ek_change *larger = realloc(history->changes, room * sizeof *larger);
        if (!larger)
            return ek_fail(EK_NO_MEMORY, "no memory for a history of %zu changes", room);
        history->changes = larger;
        history->room = room;
    }
    history->changes[history->count++] = (ek_change){hours, domain, drawing->failed[domain], failure};
    return EK_OK;
}

/* `slots` slots from `slot` on fail. Those that are down already stay so as long as they would have. */
static ek_status fail_slots(history_drawing *drawing, double hours, uint32_t domain, uint32_t slot, uint32_t slots,
                            double repair_hours)
{
    double *down_until = drawing->down_until + (size_t)domain * drawing->slots;
    uint32_t failed = 0;
    for (uint32_t i = slot; i < slot + slots; i++) {
        if (down_until[i] > hours)
            continue;
        down_until[i] = hours + repair_hours;
        failed++;
    }
    if (failed == 0)
        return EK_OK;
    drawing->failed[domain] += failed;
    EK_TRY(add_change(drawing, hours, domain, true));
    return push(drawing, (pending){hours + repair_hours, 0, true, domain, slot, slots});
}

static ek_status return_slots(history_drawing *drawing, const pending *item)
{
    double *down_until = drawing->down_until + (size_t)item->domain * drawing->slots;
    uint32_t returned = 0;
    for (uint32_t i = item->slot; i < item->slot + item->slots; i++) {
        if (down_until[i] != item->hours)
            continue; /* went down in another failure */
        down_until[i] = BACK;
        returned++;
    }
    drawing->failed[item->domain] -= returned;
    return returned > 0 ? add_change(drawing, item->hours, item->domain, false) : EK_OK;
}

/* A device fails and takes its blast radius along. Failures are drawn at the rate of devices that have failed before;
 * `thinned`: where others fail less often than these. */
static ek_status fail_device(history_drawing *drawing, double hours, uint32_t domain, bool is_hardware, bool thinned)
{
    const ek_failure_model *failures = &drawing->scenario->failures;
    uint32_t slot = (uint32_t)(draw(drawing) * drawing->slots);
    double accepted = draw(drawing), spread = draw(drawing);
    double down_until = drawing->down_until[(size_t)domain * drawing->slots + slot];
    if (down_until > hours || (thinned && down_until == NEVER && accepted * failures->repeat_factor >= 1))
        return EK_OK;
    double range = failures->hardware_hours_most - failures->hardware_hours_least;
    double repair = is_hardware ? failures->hardware_hours_least + spread * range : failures->software_hours;
    uint32_t blast = failures->blast_radius;
    EK_TRY(fail_slots(drawing, hours, domain, slot / blast * blast, blast, repair));
    if (is_hardware && draw(drawing) < failures->follow_probability)
        return push(drawing, (pending){hours + draw_gap(drawing, failures->follow_hours), 0, false, domain, 0, 0});
    return EK_OK;
}

/* What is pending up to `hours`. */
static ek_status settle(history_drawing *drawing, double hours)
{
    while (drawing->heap_count > 0 && drawing->heap[0].hours <= hours) {
        pending item = pop(drawing);
        EK_TRY(item.is_return ? return_slots(drawing, &item)
                              : fail_device(drawing, item.hours, item.domain, true, false));
    }
    return EK_OK;
}

/* Devices and whole domains fail independently: the next failure is of one of them, in proportion to their rates. */
static ek_status draw_all(history_drawing *drawing)
{
    const ek_failure_model *failures = &drawing->scenario->failures;
    double devices = (double)drawing->domains * drawing->slots;
    double device_rate = devices * failures->per_gpu_hour * failures->repeat_factor;
    double domain_rate = drawing->domains * failures->domain_per_hour;
    double longest = fmax(fmax(failures->hardware_hours_most, failures->software_hours),
                          domain_rate > 0 ? failures->domain_hours : 0);
    if (device_rate + domain_rate == 0)
        return EK_OK;
    for (double hours = -longest;;) {
        hours += draw_gap(drawing, 1 / (device_rate + domain_rate));
        EK_TRY(settle(drawing, fmin(hours, drawing->horizon_hours)));
        if (hours >= drawing->horizon_hours)
            return EK_OK;
        bool is_domain = draw(drawing) * (device_rate + domain_rate) < domain_rate;
        uint32_t domain = (uint32_t)(draw(drawing) * drawing->domains);
        if (is_domain)
            EK_TRY(fail_slots(drawing, hours, domain, 0, drawing->slots, failures->domain_hours));
        else
            EK_TRY(fail_device(drawing, hours, domain, draw(drawing) < failures->hardware_fraction, true));
    }
}

static ek_status take_events(history_drawing *drawing)
{
    const ek_failure_model *failures = &drawing->scenario->failures;
    for (size_t i = 0; i < failures->event_count; i++) {
        const ek_failure_event *event = &failures->events[i];
        if (event->hours >= drawing->horizon_hours)
            break;
        EK_TRY(settle(drawing, event->hours));
        if (event->domain < drawing->domains)
            EK_TRY(fail_slots(drawing, event->hours, event->domain, event->slot, event->slots, event->repair_hours));
    }
    return settle(drawing, drawing->horizon_hours);
}

ek_status ek_history_create(ek_history **created, const ek_scenario *scenario, uint32_t domains, uint64_t number)
{
    uint32_t slots = scenario->hardware.domain_slots;
    history_drawing drawing = {.scenario = scenario,
                               .history = calloc(1, sizeof *drawing.history),
                               .domains = domains,
                               .slots = slots,
                               .number = number,
                               .horizon_hours = scenario->study.horizon_days * 24,
                               .down_until = malloc((size_t)domains * slots * sizeof *drawing.down_until),
                               .failed = calloc(domains, sizeof *drawing.failed)};
    ek_status status = EK_OK;
    if (drawing.history && drawing.down_until && drawing.failed) {
        for (size_t i = 0; i < (size_t)domains * slots; i++)
            drawing.down_until[i] = NEVER;
        status = scenario->failures.events_path ? take_events(&drawing) : draw_all(&drawing);
    } else {
        status = ek_fail(EK_NO_MEMORY, "no memory for a history of %u domains", domains);
    }
    free(drawing.down_until);
    free(drawing.failed);
    free(drawing.heap);
    if (status != EK_OK)
        ek_history_destroy(drawing.history);
    else
        *created = drawing.history;
    return status;
}

void ek_history_destroy(ek_history *history)
{
    if (!history)
        return;
    free(history->changes);
    free(history);
}
