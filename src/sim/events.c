/* Failures that happened, from a CSV. It has five plain columns of numbers and words, nothing quoted, so a line is read
 * as it stands; whatever is not exactly that is refused. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/field.h"
#include "sim/scenario.h"

#define HEAD "time_hours,domain,slot,kind,repair_hours"
#define LINE_BYTES 256
#define COLUMNS 5

static ek_status refuse_line(const ek_origin *origin, const char *line)
{
    char shown[EK_EXCERPT_BYTES];
    return ek_fail_at(*origin, "found \"%s\"; a whole line " HEAD " is needed, as in 12.5,3,7,hardware,96",
                      ek_excerpt(line, strlen(line), shown));
}

/* A decimal number from 0 to `most`, all of the text. */
static bool read_number(const char *text, double most, double *number)
{
    char *end;
    if (!*text || text[strspn(text, "0123456789.eE+-")] != '\0')
        return false;
    errno = 0;
    *number = strtod(text, &end);
    return errno == 0 && *end == '\0' && *number >= 0 && *number <= most;
}

static bool read_index(const char *text, uint32_t count, uint32_t *index)
{
    double number;
    if (text[strspn(text, "0123456789")] != '\0' || !read_number(text, count - 1.0, &number))
        return false;
    *index = (uint32_t)number;
    return true;
}

static ek_status read_event(const ek_scenario *scenario, const ek_origin *origin, char *line, ek_failure_event *event)
{
    const char *columns[COLUMNS];
    char whole[LINE_BYTES];
    uint32_t count = 0, slots = scenario->hardware.domain_slots;
    snprintf(whole, sizeof whole, "%s", line);
    for (char *rest = line, *column; (column = strsep(&rest, ",")); count++)
        if (count < COLUMNS)
            columns[count] = column;
    if (count != COLUMNS || !read_number(columns[0], 1e7, &event->hours) ||
        !read_number(columns[4], 1e6, &event->repair_hours))
        return refuse_line(origin, whole);
    if (!read_index(columns[1], scenario->domains, &event->domain))
        return ek_fail_at(*origin, "domain: found \"%s\"; 0 to %u is allowed (cluster.domains)", columns[1],
                          scenario->domains - 1);
    bool is_domain = strcmp(columns[3], "domain") == 0;
    event->hardware = strcmp(columns[3], "hardware") == 0;
    if (!is_domain && !event->hardware && strcmp(columns[3], "software") != 0)
        return ek_fail_at(*origin, "kind: found \"%s\"; hardware, software or domain is needed", columns[3]);
    event->slots = is_domain ? slots : 1;
    event->slot = 0;
    if (is_domain ? *columns[2] != '\0' : !read_index(columns[2], slots, &event->slot))
        return ek_fail_at(*origin, "slot: found \"%s\"; %s0 to %u is allowed (network.domain_slots)", columns[2],
                          is_domain ? "nothing is needed for a domain; for a device " : "", slots - 1);
    return EK_OK;
}

static ek_status append_event(ek_failure_model *failures, size_t *room, const ek_failure_event *event)
{
    if (failures->event_count == *room) {
        *room = *room ? 2 * *room : 256;
        ek_failure_event *larger = realloc(failures->events, *room * sizeof *larger);
        if (!larger)
            return ek_fail(EK_NO_MEMORY, "no memory for %zu failures", *room);
        failures->events = larger;
    }
    failures->events[failures->event_count++] = *event;
    return EK_OK;
}

/* Reads one line without its end. A last line that lacks one is torn. */
static ek_status read_line(FILE *file, const ek_origin *origin, char line[LINE_BYTES], bool *at_end)
{
    *at_end = !fgets(line, LINE_BYTES, file);
    if (*at_end)
        return ferror(file) ? ek_fail(EK_IO, "%s: cannot be read (%s)", origin->text, strerror(errno)) : EK_OK;
    size_t length = strcspn(line, "\r\n");
    bool has_end = line[length] != '\0';
    line[length] = '\0';
    return has_end ? EK_OK : refuse_line(origin, line);
}

static ek_status read_all(FILE *file, ek_scenario *scenario)
{
    ek_failure_model *failures = &scenario->failures;
    ek_origin origin = {failures->events_path, 1};
    char line[LINE_BYTES], shown[EK_EXCERPT_BYTES];
    size_t room = 0;
    bool at_end;
    EK_TRY(read_line(file, &origin, line, &at_end));
    if (at_end || strcmp(line, HEAD) != 0)
        return ek_fail_at(origin, "found \"%s\"; the first line must be " HEAD,
                          at_end ? "" : ek_excerpt(line, strlen(line), shown));
    for (;;) {
        ek_failure_event event;
        origin.line++;
        EK_TRY(read_line(file, &origin, line, &at_end));
        if (at_end)
            return EK_OK;
        EK_TRY(read_event(scenario, &origin, line, &event));
        if (failures->event_count > 0 && event.hours < failures->events[failures->event_count - 1].hours)
            return ek_fail_at(origin, "time_hours: found %g after %g; lines must be in order of time", event.hours,
                              failures->events[failures->event_count - 1].hours);
        EK_TRY(append_event(failures, &room, &event));
    }
}

ek_status ek_scenario_read_events(ek_scenario *scenario)
{
    FILE *file = fopen(scenario->failures.events_path, "re");
    if (!file)
        return ek_fail(EK_INVALID, "%s: cannot be opened (%s); failures.events names a CSV of " HEAD,
                       scenario->failures.events_path, strerror(errno));
    ek_status status = read_all(file, scenario);
    fclose(file);
    return status;
}
