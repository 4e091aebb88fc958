/* The devices of a run behind one backend of power, held by a guardian. */
#include "train/limits.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "power/guardian.h"

struct ek_limits {
    ek_guardian *guardian;
    uint32_t ranks;
    double default_watts;
    double *watts; /* [ranks] as set */
    bool deaf;     /* waiting for events failed: it is not tried again */
};

static const char *const backends[] = {NULL, "nvml", "powercap", "emulated"}; /* by ek_power_choice */

static ek_status open_devices(ek_limits *limits, const ek_config *config)
{
    bool emulated = config->power.backend == EK_POWER_EMULATED;
    double watts = config->power.default_watts;
    ek_power_options options = {.backend = backends[config->power.backend], .path = config->power.path};
    if (emulated) {
        options.devices = limits->ranks;
        options.least_watts = watts / 10;
        options.default_watts = watts;
        options.greatest_watts = watts * 10; /* the governor's cap is far below */
    }
    EK_TRY(ek_guardian_create(&limits->guardian, &options, config->power.state_file));
    ek_power *power = ek_guardian_power(limits->guardian);
    if (ek_power_devices(power) < limits->ranks)
        return ek_fail(EK_INVALID, "there are %u devices for %u ranks", ek_power_devices(power), limits->ranks);
    ek_power_limits first;
    EK_TRY(ek_power_read(power, 0, &first));
    limits->default_watts = first.default_watts;
    for (uint32_t rank = 0; rank < limits->ranks; rank++) {
        ek_power_limits found; /* setting what is there already shows whether it may be set */
        EK_TRY(ek_power_read(power, rank, &found));
        EK_TRY(ek_power_set(power, rank, found.watts));
        limits->watts[rank] = found.watts;
    }
    return EK_OK;
}

ek_status ek_limits_create(ek_limits **out, const ek_config *config, uint32_t ranks, char complaint[EK_COMPLAINT_BYTES])
{
    *out = NULL;
    complaint[0] = '\0';
    if (config->power.backend == EK_POWER_NONE)
        return EK_OK;
    ek_limits *limits = calloc(1, sizeof *limits);
    if (limits)
        *limits = (ek_limits){.ranks = ranks, .watts = calloc(ranks, sizeof *limits->watts)};
    if (!limits || !limits->watts) {
        free(limits);
        return ek_fail(EK_NO_MEMORY, "out of memory for power limits");
    }
    if (open_devices(limits, config) == EK_OK) {
        *out = limits;
        return EK_OK;
    }
    snprintf(complaint, EK_COMPLAINT_BYTES, "power.backend %s: %s; the job goes on without",
             backends[config->power.backend], ek_error());
    return ek_limits_end(limits);
}

double ek_limits_default_watts(const ek_limits *limits)
{
    return limits->default_watts;
}

ek_status ek_limits_set(ek_limits *limits, uint32_t rank, double watts)
{
    if (!limits || limits->watts[rank] == watts)
        return EK_OK;
    EK_TRY(ek_power_set(ek_guardian_power(limits->guardian), rank, watts));
    limits->watts[rank] = watts;
    return EK_OK;
}

ek_status ek_limits_reset(ek_limits *limits, uint32_t rank)
{
    return limits ? ek_limits_set(limits, rank, limits->default_watts) : EK_OK;
}

ek_status ek_limits_event(ek_limits *limits, bool *any, uint32_t *rank, uint64_t *xid)
{
    *any = false;
    if (!limits || limits->deaf)
        return EK_OK;
    ek_power_event event;
    ek_status status = ek_power_wait(ek_guardian_power(limits->guardian), 0.0, &event, any);
    limits->deaf = status != EK_OK;
    EK_TRY(status);
    if (*any) {
        *rank = event.device < limits->ranks ? event.device : EK_NONE;
        *xid = event.xid;
    }
    return EK_OK;
}

ek_status ek_limits_end(ek_limits *limits)
{
    if (!limits)
        return EK_OK;
    ek_status status = ek_guardian_end(limits->guardian);
    free(limits->watts);
    free(limits);
    return status;
}
