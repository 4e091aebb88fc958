/* Power limits, whatever the backend: finds it by name, checks devices and ranges. */
#include "power/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"

struct ek_power {
    const ek_power_backend *backend;
    void *state;
    char *path;
    uint32_t devices;
};

static const ek_power_backend *find_backend(const char *name)
{
    static const ek_power_backend *const backends[] = {&ek_power_nvml, &ek_power_powercap, &ek_power_emulated, NULL};
    for (const ek_power_backend *const *backend = backends; *backend; backend++)
        if (strcmp((*backend)->name, name) == 0)
            return *backend;
    return NULL;
}

static ek_status check_options(const ek_power_options *options, const ek_power_backend *backend)
{
    if (!backend)
        return ek_fail(EK_INVALID, "unknown power backend \"%s\"; nvml, powercap and emulated are there",
                       options->backend);
    bool ranged = options->least_watts != 0 || options->default_watts != 0 || options->greatest_watts != 0;
    if (backend != &ek_power_emulated && (options->devices != 0 || ranged))
        return ek_fail(EK_INVALID, "power backend %s: devices and their range are the hardware's; leave them out",
                       backend->name);
    if (options->devices == 0 && ranged)
        return ek_fail(EK_INVALID, "power backend %s: a range of limits without devices", backend->name);
    if (options->devices != 0 &&
        !(options->least_watts > 0 && options->least_watts <= options->default_watts &&
          options->default_watts <= options->greatest_watts && isfinite(options->greatest_watts)))
        return ek_fail(
            EK_INVALID,
            "power backend %s: least %g W, default %g W, greatest %g W: 0 < least <= default <= greatest is needed",
            backend->name, options->least_watts, options->default_watts, options->greatest_watts);
    return EK_OK;
}

/* A path that means the same after a chdir. A bare name of a library is not a path: the loader looks for it. */
static ek_status make_absolute(const char *path, bool library, char **absolute)
{
    *absolute = NULL;
    if (!path)
        return EK_OK;
    char *folder = NULL;
    int length = -1;
    if (path[0] == '/' || (library && !strchr(path, '/')))
        length = asprintf(absolute, "%s", path);
    else if ((folder = getcwd(NULL, 0)))
        length = asprintf(absolute, "%s/%s", folder, path);
    free(folder);
    return length >= 0 ? EK_OK : ek_fail(EK_NO_MEMORY, "power backend: no memory for the path %s", path);
}

ek_status ek_power_create(ek_power **created, const ek_power_options *options)
{
    const ek_power_backend *backend = find_backend(options->backend);
    EK_TRY(check_options(options, backend));
    ek_power *power = calloc(1, sizeof *power);
    if (!power)
        return ek_fail(EK_NO_MEMORY, "power backend: out of memory");
    power->backend = backend;
    ek_status status = make_absolute(options->path, backend == &ek_power_nvml, &power->path);
    ek_power_options resolved = *options;
    resolved.path = power->path;
    if (status == EK_OK)
        status = backend->open(&power->state, &power->devices, &resolved);
    if (status == EK_OK) {
        *created = power;
        return EK_OK;
    }
    free(power->path);
    free(power);
    return status;
}

void ek_power_destroy(ek_power *power)
{
    if (!power)
        return;
    power->backend->close(power->state);
    free(power->path);
    free(power);
}

const char *ek_power_name(const ek_power *power)
{
    return power->backend->name;
}

const char *ek_power_path(const ek_power *power)
{
    return power->path;
}

uint32_t ek_power_devices(const ek_power *power)
{
    return power->devices;
}

const char *ek_power_identity(const ek_power *power, uint32_t device)
{
    return device < power->devices ? power->backend->identity(power->state, device) : "";
}

bool ek_power_outlives(const ek_power *power)
{
    return power->backend->outlives(power->state);
}

static ek_status check_device(const ek_power *power, uint32_t device)
{
    if (device < power->devices)
        return EK_OK;
    return ek_fail(EK_INVALID, "%s: there is no device %u; 0 to %u are there", power->backend->name, device,
                   power->devices - 1);
}

ek_status ek_power_read(ek_power *power, uint32_t device, ek_power_limits *limits)
{
    EK_TRY(check_device(power, device));
    return power->backend->read(power->state, device, limits);
}

ek_status ek_power_draw(ek_power *power, uint32_t device, double *watts)
{
    EK_TRY(check_device(power, device));
    return power->backend->draw(power->state, device, watts);
}

ek_status ek_power_set(ek_power *power, uint32_t device, double watts)
{
    EK_TRY(check_device(power, device));
    ek_power_limits limits;
    EK_TRY(power->backend->read(power->state, device, &limits));
    if (!(watts >= limits.least_watts && watts <= limits.greatest_watts))
        return ek_fail(EK_INVALID, "%s: device %u (%s): a limit of %g W was asked for; %g to %g W are allowed",
                       power->backend->name, device, power->backend->identity(power->state, device), watts,
                       limits.least_watts, limits.greatest_watts);
    return power->backend->set(power->state, device, watts);
}

ek_status ek_power_wait(ek_power *power, double seconds, ek_power_event *event, bool *any)
{
    *any = false;
    return power->backend->wait(power->state, seconds, event, any);
}

ek_status ek_power_inject(ek_power *power, ek_power_event event)
{
    EK_TRY(check_device(power, event.device));
    if (!power->backend->inject)
        return ek_fail(EK_INVALID, "%s: errors can be injected into emulated devices only", power->backend->name);
    return power->backend->inject(power->state, event);
}

void ek_power_sleep(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}
