/* The backend "nvml": NVIDIA devices through the driver's own library, opened at run time. What is declared here of
 * NVML's interface is what its API reference documents (docs.nvidia.com/deploy/nvml-api): names, argument types, return
 * codes; powers are in milliwatts. */
#include "power/backend.h"

#include <dlfcn.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define LIBRARY "libnvidia-ml.so.1"

enum nvml_code {
    NVML_SUCCESS = 0,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_TIMEOUT = 10,
    NVML_GPU_IS_LOST = 15,
    NVML_RESET_REQUIRED = 16,
};

#define NVML_EVENT_XID 0x8u

typedef struct nvml_device *nvml_device;
typedef struct nvml_event_set *nvml_event_set;

struct nvml_event {
    nvml_device device;
    unsigned long long type, data; /* data: the Xid */
    unsigned gpu_instance, compute_instance;
};

struct nvml_functions {
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_string)(int code);
    int (*count)(unsigned *count);
    int (*handle)(unsigned index, nvml_device *device);
    int (*uuid)(nvml_device device, char *uuid, unsigned length);
    int (*constraints)(nvml_device device, unsigned *least, unsigned *greatest);
    int (*default_limit)(nvml_device device, unsigned *milliwatts);
    int (*limit)(nvml_device device, unsigned *milliwatts);
    int (*set_limit)(nvml_device device, unsigned milliwatts);
    int (*usage)(nvml_device device, unsigned *milliwatts);
    int (*event_set_create)(nvml_event_set *set);
    int (*event_set_free)(nvml_event_set set);
    int (*register_events)(nvml_device device, unsigned long long types, nvml_event_set set);
    int (*event_set_wait)(nvml_event_set set, struct nvml_event *event, unsigned milliseconds);
};

static const struct {
    const char *name;
    size_t offset;
} symbols[] = {
    {"nvmlInit_v2", offsetof(struct nvml_functions, init)},
    {"nvmlShutdown", offsetof(struct nvml_functions, shutdown)},
    {"nvmlErrorString", offsetof(struct nvml_functions, error_string)},
    {"nvmlDeviceGetCount_v2", offsetof(struct nvml_functions, count)},
    {"nvmlDeviceGetHandleByIndex_v2", offsetof(struct nvml_functions, handle)},
    {"nvmlDeviceGetUUID", offsetof(struct nvml_functions, uuid)},
    {"nvmlDeviceGetPowerManagementLimitConstraints", offsetof(struct nvml_functions, constraints)},
    {"nvmlDeviceGetPowerManagementDefaultLimit", offsetof(struct nvml_functions, default_limit)},
    {"nvmlDeviceGetPowerManagementLimit", offsetof(struct nvml_functions, limit)},
    {"nvmlDeviceSetPowerManagementLimit", offsetof(struct nvml_functions, set_limit)},
    {"nvmlDeviceGetPowerUsage", offsetof(struct nvml_functions, usage)},
    {"nvmlEventSetCreate", offsetof(struct nvml_functions, event_set_create)},
    {"nvmlEventSetFree", offsetof(struct nvml_functions, event_set_free)},
    {"nvmlDeviceRegisterEvents", offsetof(struct nvml_functions, register_events)},
    {"nvmlEventSetWait_v2", offsetof(struct nvml_functions, event_set_wait)},
};

struct device {
    nvml_device handle; /* NULL: it was lost when the backend was opened */
    char uuid[EK_POWER_IDENTITY_BYTES];
};

struct nvml {
    void *library;
    struct nvml_functions call;
    bool initialized;
    nvml_event_set events; /* NULL: the driver has none to give */
    uint32_t count;
    struct device *devices; /* [count] */
};

static ek_status status_of(int code)
{
    switch (code) {
    case NVML_INVALID_ARGUMENT:
        return EK_INVALID;
    case NVML_DRIVER_NOT_LOADED:
        return EK_IO;
    case NVML_GPU_IS_LOST:
    case NVML_RESET_REQUIRED:
        return EK_PEER_LOST;
    default:
        return EK_SYSTEM;
    }
}

static const char *advice_for(int code)
{
    return code == NVML_NO_PERMISSION ? "; it needs root" : "";
}

static ek_status fail(const struct nvml *nvml, int code, const char *what)
{
    return ek_fail(status_of(code), "nvml: %s: %s%s", what, nvml->call.error_string(code), advice_for(code));
}

static ek_status fail_device(const struct nvml *nvml, uint32_t device, int code, const char *what)
{
    const char *uuid = nvml->devices[device].uuid;
    return ek_fail(status_of(code), "nvml: device %u (%s): %s: %s%s", device, uuid[0] ? uuid : "UUID unknown", what,
                   nvml->call.error_string(code), advice_for(code));
}

static ek_status load(struct nvml *nvml, const char *path)
{
    nvml->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!nvml->library)
        return ek_fail(EK_IO, "nvml: the driver's library cannot be opened: %s", dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *function = dlsym(nvml->library, symbols[i].name);
        if (!function)
            return ek_fail(EK_IO, "nvml: %s has no %s; a driver of version 450 or later is needed", path,
                           symbols[i].name);
        memcpy((char *)&nvml->call + symbols[i].offset, &function, sizeof function);
    }
    return EK_OK;
}

static ek_status find_device(struct nvml *nvml, uint32_t index)
{
    struct device *device = &nvml->devices[index];
    int code = nvml->call.handle(index, &device->handle);
    if (code == NVML_SUCCESS)
        code = nvml->call.uuid(device->handle, device->uuid, sizeof device->uuid);
    if (code == NVML_GPU_IS_LOST || code == NVML_RESET_REQUIRED) {
        *device = (struct device){0};
        return EK_OK; /* the others can still be used */
    }
    if (code != NVML_SUCCESS)
        return fail_device(nvml, index, code, "cannot be opened");
    /* A device that knows no events has none. */
    if (nvml->events)
        nvml->call.register_events(device->handle, NVML_EVENT_XID, nvml->events);
    return EK_OK;
}

static ek_status find_devices(struct nvml *nvml)
{
    int code = nvml->call.init();
    if (code != NVML_SUCCESS)
        return fail(nvml, code, "cannot be started");
    nvml->initialized = true;
    unsigned count;
    code = nvml->call.count(&count);
    if (code != NVML_SUCCESS)
        return fail(nvml, code, "devices cannot be counted");
    if (count == 0)
        return ek_fail(EK_IO, "nvml: there are no devices");
    nvml->devices = calloc(count, sizeof *nvml->devices);
    if (!nvml->devices)
        return ek_fail(EK_NO_MEMORY, "nvml: no memory for %u devices", count);
    nvml->count = count;
    if (nvml->call.event_set_create(&nvml->events) != NVML_SUCCESS)
        nvml->events = NULL;
    for (uint32_t index = 0; index < count; index++)
        EK_TRY(find_device(nvml, index));
    return EK_OK;
}

static void nvml_close(void *state)
{
    struct nvml *nvml = state;
    if (nvml->events)
        nvml->call.event_set_free(nvml->events);
    if (nvml->initialized)
        nvml->call.shutdown();
    if (nvml->library)
        dlclose(nvml->library);
    free(nvml->devices);
    free(nvml);
}

static ek_status nvml_open(void **state, uint32_t *devices, const ek_power_options *options)
{
    struct nvml *nvml = calloc(1, sizeof *nvml);
    if (!nvml)
        return ek_fail(EK_NO_MEMORY, "nvml: out of memory");
    ek_status status = load(nvml, options->path ? options->path : LIBRARY);
    if (status == EK_OK)
        status = find_devices(nvml);
    if (status != EK_OK) {
        nvml_close(nvml);
        return status;
    }
    *state = nvml;
    *devices = nvml->count;
    return EK_OK;
}

static const char *nvml_identity(const void *state, uint32_t device)
{
    return ((const struct nvml *)state)->devices[device].uuid;
}

static bool nvml_outlives(const void *state)
{
    (void)state;
    return true;
}

static ek_status check_present(const struct nvml *nvml, uint32_t device)
{
    return nvml->devices[device].handle ? EK_OK : fail_device(nvml, device, NVML_GPU_IS_LOST, "cannot be used");
}

static ek_status nvml_read(void *state, uint32_t device, ek_power_limits *limits)
{
    struct nvml *nvml = state;
    EK_TRY(check_present(nvml, device));
    nvml_device handle = nvml->devices[device].handle;
    unsigned least, greatest, otherwise, current;
    int code = nvml->call.constraints(handle, &least, &greatest);
    if (code == NVML_SUCCESS)
        code = nvml->call.default_limit(handle, &otherwise);
    if (code == NVML_SUCCESS)
        code = nvml->call.limit(handle, &current);
    if (code != NVML_SUCCESS)
        return fail_device(nvml, device, code, "its power limit cannot be read");
    *limits = (ek_power_limits){least / 1e3, greatest / 1e3, otherwise / 1e3, current / 1e3};
    return EK_OK;
}

static ek_status nvml_draw(void *state, uint32_t device, double *watts)
{
    struct nvml *nvml = state;
    EK_TRY(check_present(nvml, device));
    unsigned milliwatts;
    int code = nvml->call.usage(nvml->devices[device].handle, &milliwatts);
    if (code != NVML_SUCCESS && code != NVML_NOT_SUPPORTED)
        return fail_device(nvml, device, code, "its power draw cannot be read");
    *watts = code == NVML_SUCCESS ? milliwatts / 1e3 : NAN;
    return EK_OK;
}

static ek_status nvml_set(void *state, uint32_t device, double watts)
{
    struct nvml *nvml = state;
    EK_TRY(check_present(nvml, device));
    int code = nvml->call.set_limit(nvml->devices[device].handle, (unsigned)lround(watts * 1e3));
    return code == NVML_SUCCESS ? EK_OK : fail_device(nvml, device, code, "its power limit cannot be set");
}

static ek_status nvml_wait(void *state, double seconds, ek_power_event *event, bool *any)
{
    struct nvml *nvml = state;
    if (!nvml->events) {
        ek_power_sleep(seconds);
        return EK_OK;
    }
    struct nvml_event found;
    int code = nvml->call.event_set_wait(nvml->events, &found, (unsigned)lround(seconds * 1e3));
    if (code == NVML_TIMEOUT || (code == NVML_SUCCESS && found.type != NVML_EVENT_XID))
        return EK_OK;
    if (code != NVML_SUCCESS)
        return fail(nvml, code, "errors of devices cannot be waited for");
    *event = (ek_power_event){.device = EK_NONE, .xid = found.data};
    for (uint32_t index = 0; index < nvml->count; index++)
        if (nvml->devices[index].handle == found.device)
            event->device = index;
    *any = true;
    return EK_OK;
}

const ek_power_backend ek_power_nvml = {
    .name = "nvml",
    .open = nvml_open,
    .close = nvml_close,
    .identity = nvml_identity,
    .outlives = nvml_outlives,
    .read = nvml_read,
    .draw = nvml_draw,
    .set = nvml_set,
    .wait = nvml_wait,
};
