/* What happened in a run, in words. Kinds of events that are not known here are told by their fields. */
#include "report/events.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define TEXT_BYTES 200
#define JOINED_MOST 4 /* events of a name in one step that are told one by one */

struct ek_report_event {
    size_t number;   /* in the file */
    double step, at; /* at: NAN where the line has none */
    char name[32];
    char text[TEXT_BYTES];
};

static double number(const json_t *line, const char *key)
{
    return json_number_value(json_object_get(line, key));
}

static const char *string(const json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));
    return text ? text : "?";
}

/* Cuts a text that filled its buffer, and may not have fitted, between two characters. */
static void end_whole(char *text, size_t bytes)
{
    size_t length = strlen(text);
    if (length + 1 < bytes)
        return;
    while (length > 0 && (text[length - 1] & 0xc0) == 0x80)
        length--;
    if (length > 0)
        text[length - 1] = '\0';
}

/* --------------------------------------------------------------------------------------------- in words */

/* "replica 1 slot 2", "spare 0", "replica 1", or "some device". */
static const char *describe_place(const json_t *line, char text[64])
{
    if (json_object_get(line, "spare"))
        snprintf(text, 64, "spare %.0f", number(line, "spare"));
    else if (json_object_get(line, "slot"))
        snprintf(text, 64, "replica %.0f slot %.0f", number(line, "replica"), number(line, "slot"));
    else if (json_object_get(line, "replica"))
        snprintf(text, 64, "replica %.0f", number(line, "replica"));
    else
        snprintf(text, 64, "some device");
    return text;
}

static void describe_failure(const json_t *line, const char *place, char *text)
{
    snprintf(text, TEXT_BYTES, "%s lost in %s (%s)", place, string(line, "phase"), string(line, "cause"));
}

static void describe_recovered(const json_t *line, const char *place, char *text)
{
    char outcome[32] = "is retired";
    if (number(line, "tp") > 0)
        snprintf(outcome, sizeof outcome, "goes on as TP%.0f", number(line, "tp"));
    snprintf(text, TEXT_BYTES, "%s %s after %.1f ms, %.2f MB moved, %s redone", place, outcome,
             1e3 * number(line, "seconds"), 1e-6 * number(line, "bytes"),
             number(line, "redone_steps") > 0 ? "the step is" : "nothing is");
}

static void describe_adjusted(const json_t *line, const char *place, char *text)
{
    char predicted[48] = "";
    if (number(line, "predicted_seconds") > 0)
        snprintf(predicted, sizeof predicted, ", %.1f ms busy predicted", 1e3 * number(line, "predicted_seconds"));
    snprintf(text, TEXT_BYTES, "%s: TP%.0f, %.0f W, %.0f samples%s", place, number(line, "tp"),
             number(line, "power_watts"), number(line, "samples"), predicted);
}

static void describe_rejoined(const json_t *line, const char *place, char *text)
{
    (void)line;
    snprintf(text, TEXT_BYTES, "%s is back", place);
}

static void describe_straggler(const json_t *line, const char *place, char *text)
{
    snprintf(text, TEXT_BYTES, "%s is slower than its peers: %.1f ms busy", place, 1e3 * number(line, "busy_seconds"));
}

static void describe_healed(const json_t *line, const char *place, char *text)
{
    snprintf(text, TEXT_BYTES, "%s: unit %.0f of %s was corrupt, healed from rank %.0f", place, number(line, "unit"),
             string(line, "tensor"), number(line, "from_rank"));
}

static void describe_device_error(const json_t *line, const char *place, char *text)
{
    snprintf(text, TEXT_BYTES, "%s: Xid %.0f, %s", place, number(line, "xid"), string(line, "text"));
}

static void describe_checkpoint(const json_t *line, const char *place, char *text)
{
    (void)place;
    snprintf(text, TEXT_BYTES, "%.2f MB in %.2f s, training stood still for %.1f ms", 1e-6 * number(line, "bytes"),
             number(line, "seconds"), 1e3 * number(line, "stood_seconds"));
}

static void describe_checkpoint_failed(const json_t *line, const char *place, char *text)
{
    (void)place;
    snprintf(text, TEXT_BYTES, "%s", string(line, "reason"));
}

static void describe_resumed(const json_t *line, const char *place, char *text)
{
    (void)place;
    if (number(line, "step") > 0)
        snprintf(text, TEXT_BYTES, "the run goes on from the checkpoint of step %.0f", number(line, "step"));
    else
        snprintf(text, TEXT_BYTES, "the run begins anew, there was no checkpoint");
}

/* "key value, key value" of all that no column has. */
static void describe_fields(const json_t *line, char *text)
{
    const char *key;
    json_t *value;
    size_t length = 0;
    text[0] = '\0';
    json_object_foreach((json_t *)line, key, value)
    {
        if (strcmp(key, "event") == 0 || strcmp(key, "step") == 0 || strcmp(key, "at") == 0)
            continue;
        char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        if (shown && length < TEXT_BYTES)
            length += (size_t)snprintf(text + length, TEXT_BYTES - length, "%s%s %s", length ? ", " : "", key, shown);
        free(shown);
    }
}

static const struct {
    const char *name;
    bool bad;
    void (*describe)(const json_t *line, const char *place, char *text);
} kinds[] = {
    {"failure", true, describe_failure},
    {"recovered", false, describe_recovered},
    {"rejoined", false, describe_rejoined},
    {"adjusted", false, describe_adjusted},
    {"straggler", true, describe_straggler},
    {"healed", true, describe_healed},
    {"device_error", true, describe_device_error},
    {"checkpoint", false, describe_checkpoint},
    {"checkpoint_failed", true, describe_checkpoint_failed},
    {"resumed", true, describe_resumed},
};
#define KIND_COUNT (sizeof kinds / sizeof *kinds)

static size_t find_kind(const char *name)
{
    size_t kind = 0;
    while (kind < KIND_COUNT && strcmp(kinds[kind].name, name) != 0)
        kind++;
    return kind;
}

/* --------------------------------------------------------------------------------------------- interface */

ek_status ek_report_events_add(ek_report_events *events, const json_t *line, double step, double launched)
{
    if (events->count == events->room) {
        size_t room = events->room ? 2 * events->room : 64;
        struct ek_report_event *larger = realloc(events->events, room * sizeof *larger);
        if (!larger)
            return ek_fail(EK_NO_MEMORY, "out of memory for so many events");
        events->events = larger;
        events->room = room;
    }
    struct ek_report_event *event = &events->events[events->count];
    char place[64];
    event->number = events->count++;
    const json_t *at = json_object_get(line, "at");
    event->step = json_object_get(line, "step") ? number(line, "step") : step;
    event->at = json_is_number(at) ? launched + json_number_value(at) : NAN;
    snprintf(event->name, sizeof event->name, "%s", string(line, "event"));
    end_whole(event->name, sizeof event->name);
    size_t kind = find_kind(event->name);
    if (kind < KIND_COUNT)
        kinds[kind].describe(line, describe_place(line, place), event->text);
    else
        describe_fields(line, event->text);
    end_whole(event->text, sizeof event->text);
    return EK_OK;
}

void ek_report_events_clear(ek_report_events *events)
{
    free(events->events);
    *events = (ek_report_events){0};
}

json_t *ek_report_events_table(const ek_report_events *events, size_t rows_most)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < events->count && i < rows_most; i++) {
        const struct ek_report_event *event = &events->events[i];
        json_array_append_new(rows, json_pack("[f, o, s, s]", event->step,
                                              isnan(event->at) ? json_null() : json_real(event->at), event->name,
                                              event->text));
    }
    return json_pack("{s:[{s:s, s:i}, {s:s, s:i}, s, s], s:o}", "columns", "name", "step", "digits", 0, "name", "at, s",
                     "digits", 2, "event", "what happened", "rows", rows);
}

/* One mark for events[first … first+count-1], which have the same name and step. */
static json_t *make_mark(const struct ek_report_event *events, size_t count)
{
    char text[JOINED_MOST * (TEXT_BYTES + 2) + 32];
    size_t length = 0;
    for (size_t i = 0; i < count && i < JOINED_MOST; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s", i ? "; " : "", events[i].text);
    if (count > JOINED_MOST)
        snprintf(text + length, sizeof text - length, "; and %zu more", count - JOINED_MOST);
    size_t kind = find_kind(events->name);
    json_t *mark = json_pack("{s:f, s:s, s:s}", "x", events->step, "name", events->name, "text", text);
    if (!isnan(events->at))
        json_object_set_new(mark, "other_x", json_real(events->at));
    if (kind < KIND_COUNT && kinds[kind].bad)
        json_object_set_new(mark, "tone", json_string("bad"));
    return mark;
}

/* By kind, name, step, and as they came. */
static int compare_events(const void *a, const void *b)
{
    const struct ek_report_event *x = a, *y = b;
    size_t x_kind = find_kind(x->name), y_kind = find_kind(y->name);
    if (x_kind != y_kind)
        return x_kind < y_kind ? -1 : 1;
    int names = strcmp(x->name, y->name);
    if (names != 0)
        return names;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* The end of the run of events from `first` on that share its name and, if `step`, its step. */
static size_t end_of_run(const struct ek_report_event *events, size_t count, size_t first, bool step)
{
    size_t end = first + 1;
    while (end < count && strcmp(events[end].name, events[first].name) == 0 &&
           (!step || events[end].step == events[first].step))
        end++;
    return end;
}

/* Appends marks for events[0 … count-1], which have the same name. Returns the number of those left out. */
static size_t append_marks(json_t *marks, const struct ek_report_event *events, size_t count, size_t marks_most)
{
    size_t places = 0, place = 0, left_out = 0;
    for (size_t first = 0; first < count; first = end_of_run(events, count, first, true))
        places++;
    size_t stride = (places + marks_most - 1) / marks_most;
    for (size_t first = 0, end; first < count; first = end, place++) {
        end = end_of_run(events, count, first, true);
        if (place % stride == 0)
            json_array_append_new(marks, make_mark(&events[first], end - first));
        else
            left_out++;
    }
    return left_out;
}

json_t *ek_report_events_marks(const ek_report_events *events, size_t marks_most, size_t *left_out)
{
    json_t *marks = json_array();
    struct ek_report_event *sorted = malloc((events->count + 1) * sizeof *sorted);
    *left_out = 0;
    if (sorted && events->count) {
        memcpy(sorted, events->events, events->count * sizeof *sorted);
        qsort(sorted, events->count, sizeof *sorted, compare_events);
    }
    for (size_t first = 0, end; sorted && first < events->count; first = end) {
        end = end_of_run(sorted, events->count, first, false);
        *left_out += append_marks(marks, &sorted[first], end - first, marks_most);
    }
    free(sorted);
    return marks;
}
