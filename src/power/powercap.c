/* The backend "powercap": CPU packages through Linux' power capping framework (Documentation/power/powercap, and
 * ABI/testing/sysfs-class-powercap in the kernel's sources). A device is a package zone intel-rapl:N; its limit is the
 * zone's constraint "long_term". Powers are in microwatts, energies in microjoules. */
#include "power/backend.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"

#define ROOT "/sys/class/powercap"
#define MOST_CONSTRAINTS 4
/* Counters are updated about once a millisecond: over less than this, a mean says nothing. */
#define LEAST_SECONDS 0.01

struct zone {
    unsigned number;
    char name[EK_POWER_IDENTITY_BYTES];                     /* "intel-rapl:0" */
    char limit_file[40], greatest_file[40], least_file[40]; /* of the constraint */
    double found_watts;                                     /* the limit when the backend was opened */
    bool metered;                                           /* its energy can be read */
    uint64_t energy, energy_range;
    double energy_seconds, mean_watts; /* when `energy` was read; the last draw told */
};

struct powercap {
    char *root;
    uint32_t count;
    struct zone *zones; /* [count], by number */
};

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static ek_status fail_file(const struct powercap *powercap, const struct zone *zone, const char *file, const char *what,
                           int error)
{
    bool denied = error == EACCES || error == EPERM;
    return ek_fail(denied ? EK_SYSTEM : EK_IO, "powercap: %s/%s/%s: %s: %s%s", powercap->root, zone->name, file, what,
                   strerror(error), denied ? "; it needs root" : "");
}

/* Reads a file of a zone, one line. Returns 0 or errno. */
static int read_line(const struct powercap *powercap, const struct zone *zone, const char *file, char *line,
                     size_t bytes)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/%s", powercap->root, zone->name, file);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return errno;
    ssize_t length = read(descriptor, line, bytes - 1);
    int error = length < 0 ? errno : 0;
    close(descriptor);
    line[length > 0 ? length : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return error;
}

static int read_number(const struct powercap *powercap, const struct zone *zone, const char *file, uint64_t *number)
{
    char line[32] = "", *end;
    int error = read_line(powercap, zone, file, line, sizeof line);
    if (error != 0)
        return error;
    errno = 0;
    unsigned long long value = strtoull(line, &end, 10);
    if (errno != 0 || end == line || *end != '\0' || line[0] == '-')
        return EINVAL;
    *number = value;
    return 0;
}

static ek_status find_constraint(const struct powercap *powercap, struct zone *zone)
{
    for (int i = 0; i < MOST_CONSTRAINTS; i++) {
        char file[40], name[32];
        snprintf(file, sizeof file, "constraint_%d_name", i);
        if (read_line(powercap, zone, file, name, sizeof name) != 0 || strcmp(name, "long_term") != 0)
            continue;
        snprintf(zone->limit_file, sizeof zone->limit_file, "constraint_%d_power_limit_uw", i);
        snprintf(zone->greatest_file, sizeof zone->greatest_file, "constraint_%d_max_power_uw", i);
        snprintf(zone->least_file, sizeof zone->least_file, "constraint_%d_min_power_uw", i);
        return EK_OK;
    }
    return ek_fail(EK_IO, "powercap: %s/%s: has no constraint \"long_term\"", powercap->root, zone->name);
}

static ek_status read_limits(const struct powercap *powercap, const struct zone *zone, ek_power_limits *limits)
{
    uint64_t greatest, current, least = 1000000; /* where the zone does not say: 1 W */
    int error = read_number(powercap, zone, zone->limit_file, &current);
    if (error != 0)
        return fail_file(powercap, zone, zone->limit_file, "cannot be read", error);
    error = read_number(powercap, zone, zone->greatest_file, &greatest);
    if (error != 0)
        return fail_file(powercap, zone, zone->greatest_file, "cannot be read", error);
    read_number(powercap, zone, zone->least_file, &least);
    if (greatest < least)
        return ek_fail(EK_IO, "powercap: %s/%s/%s: is %" PRIu64 ", which leaves no range of limits", powercap->root,
                       zone->name, zone->greatest_file, greatest);
    *limits = (ek_power_limits){(double)least / 1e6, (double)greatest / 1e6, zone->found_watts, (double)current / 1e6};
    return EK_OK;
}

static ek_status open_zone(const struct powercap *powercap, struct zone *zone)
{
    EK_TRY(find_constraint(powercap, zone));
    ek_power_limits limits;
    EK_TRY(read_limits(powercap, zone, &limits));
    zone->found_watts = limits.watts;
    zone->mean_watts = NAN;
    zone->metered = read_number(powercap, zone, "energy_uj", &zone->energy) == 0 &&
                    read_number(powercap, zone, "max_energy_range_uj", &zone->energy_range) == 0;
    zone->energy_seconds = now_seconds();
    return EK_OK;
}

/* "intel-rapl:3" is a zone of the machine, "intel-rapl:3:0" a part of one. */
static bool parse_zone(const char *text, unsigned *number)
{
    int end = 0;
    return sscanf(text, "intel-rapl:%u%n", number, &end) == 1 && text[end] == '\0';
}

static int by_number(const void *one, const void *other)
{
    unsigned a = ((const struct zone *)one)->number, b = ((const struct zone *)other)->number;
    return (a > b) - (a < b);
}

/* Adds the zone if it is a CPU package ("package-0"; "psys" is the whole machine). */
static ek_status add_zone(struct powercap *powercap, const char *name, unsigned number)
{
    struct zone zone = {.number = number};
    snprintf(zone.name, sizeof zone.name, "%s", name);
    char kind[32];
    if (read_line(powercap, &zone, "name", kind, sizeof kind) != 0 || strncmp(kind, "package-", 8) != 0)
        return EK_OK;
    struct zone *more = realloc(powercap->zones, (powercap->count + 1) * sizeof *more);
    if (!more)
        return ek_fail(EK_NO_MEMORY, "powercap: out of memory");
    powercap->zones = more;
    powercap->zones[powercap->count++] = zone;
    return EK_OK;
}

static ek_status find_zones(struct powercap *powercap)
{
    DIR *folder = opendir(powercap->root);
    if (!folder)
        return ek_fail(EK_IO, "powercap: %s: cannot be opened: %s", powercap->root, strerror(errno));
    ek_status status = EK_OK;
    for (struct dirent *entry; status == EK_OK && (entry = readdir(folder));) {
        unsigned number;
        if (parse_zone(entry->d_name, &number))
            status = add_zone(powercap, entry->d_name, number);
    }
    closedir(folder);
    EK_TRY(status);
    if (powercap->count == 0)
        return ek_fail(EK_IO, "powercap: %s: has no CPU package (intel-rapl:N of name package-…)", powercap->root);
    qsort(powercap->zones, powercap->count, sizeof *powercap->zones, by_number);
    for (uint32_t device = 0; device < powercap->count; device++)
        EK_TRY(open_zone(powercap, &powercap->zones[device]));
    return EK_OK;
}

static void powercap_close(void *state)
{
    struct powercap *powercap = state;
    free(powercap->root);
    free(powercap->zones);
    free(powercap);
}

static ek_status powercap_open(void **state, uint32_t *devices, const ek_power_options *options)
{
    struct powercap *powercap = calloc(1, sizeof *powercap);
    if (!powercap)
        return ek_fail(EK_NO_MEMORY, "powercap: out of memory");
    powercap->root = strdup(options->path ? options->path : ROOT);
    ek_status status = powercap->root ? find_zones(powercap) : ek_fail(EK_NO_MEMORY, "powercap: out of memory");
    if (status != EK_OK) {
        powercap_close(powercap);
        return status;
    }
    *state = powercap;
    *devices = powercap->count;
    return EK_OK;
}

static const char *powercap_identity(const void *state, uint32_t device)
{
    return ((const struct powercap *)state)->zones[device].name;
}

static bool powercap_outlives(const void *state)
{
    (void)state;
    return true;
}

static ek_status powercap_read(void *state, uint32_t device, ek_power_limits *limits)
{
    struct powercap *powercap = state;
    return read_limits(powercap, &powercap->zones[device], limits);
}

static ek_status powercap_draw(void *state, uint32_t device, double *watts)
{
    struct powercap *powercap = state;
    struct zone *zone = &powercap->zones[device];
    double now = now_seconds(), seconds = now - zone->energy_seconds;
    uint64_t energy;
    if (zone->metered && seconds >= LEAST_SECONDS) {
        int error = read_number(powercap, zone, "energy_uj", &energy);
        if (error != 0)
            return fail_file(powercap, zone, "energy_uj", "cannot be read", error);
        uint64_t spent = energy >= zone->energy ? energy - zone->energy : energy + (zone->energy_range - zone->energy);
        zone->mean_watts = (double)spent / 1e6 / seconds;
        zone->energy = energy;
        zone->energy_seconds = now;
    }
    *watts = zone->mean_watts;
    return EK_OK;
}

static ek_status powercap_set(void *state, uint32_t device, double watts)
{
    struct powercap *powercap = state;
    struct zone *zone = &powercap->zones[device];
    char path[4096], text[32];
    snprintf(path, sizeof path, "%s/%s/%s", powercap->root, zone->name, zone->limit_file);
    int length = snprintf(text, sizeof text, "%lld", llround(watts * 1e6));
    int descriptor = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    bool written = descriptor >= 0 && write(descriptor, text, (size_t)length) == length;
    int error = errno;
    if (descriptor >= 0)
        close(descriptor);
    return written ? EK_OK : fail_file(powercap, zone, zone->limit_file, "cannot be written", error);
}

static ek_status powercap_wait(void *state, double seconds, ek_power_event *event, bool *any)
{
    (void)state, (void)event, (void)any;
    ek_power_sleep(seconds);
    return EK_OK;
}

const ek_power_backend ek_power_powercap = {
    .name = "powercap",
    .open = powercap_open,
    .close = powercap_close,
    .identity = powercap_identity,
    .outlives = powercap_outlives,
    .read = powercap_read,
    .draw = powercap_draw,
    .set = powercap_set,
    .wait = powercap_wait,
};
