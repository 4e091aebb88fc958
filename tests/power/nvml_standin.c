/* A small libnvidia-ml.so.1: the functions that evenkeel calls, with the behaviour that NVML's reference documents, on
 * devices kept in the file that NVML_STANDIN names. */
#include "power/nvml_standin.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct standin_device *nvmlDevice_t;
typedef struct event_set {
    uint64_t types[STANDIN_DEVICES]; /* registered, by device */
} * nvmlEventSet_t;

typedef struct nvmlEventData_t {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int code);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);
int nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length);
int nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *greatest);
int nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *limit);
int nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *limit);
int nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned limit);
int nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *usage);
int nvmlEventSetCreate(nvmlEventSet_t *set);
int nvmlEventSetFree(nvmlEventSet_t set);
int nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
int nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned milliseconds);

static struct standin *driver;
static unsigned users;

int nvmlInit_v2(void)
{
    if (users++ > 0)
        return 0;
    const char *path = getenv("NVML_STANDIN");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *memory = file >= 0 ? mmap(NULL, sizeof *driver, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (file >= 0)
        close(file);
    if (memory == MAP_FAILED || ((struct standin *)memory)->init_fault != 0) {
        users--;
        return STANDIN_DRIVER_NOT_LOADED;
    }
    driver = memory;
    return 0;
}

int nvmlShutdown(void)
{
    if (--users == 0)
        munmap(driver, sizeof *driver);
    return 0;
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case STANDIN_INVALID_ARGUMENT:
        return "Invalid Argument";
    case STANDIN_NO_PERMISSION:
        return "Insufficient Permissions";
    case STANDIN_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case STANDIN_GPU_IS_LOST:
        return "GPU is lost";
    default:
        return "Unknown Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = driver->count;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    if (index >= driver->count)
        return STANDIN_INVALID_ARGUMENT;
    *device = &driver->device[index];
    return (*device)->fault;
}

int nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    snprintf(uuid, length, "%s", device->uuid);
    return device->fault;
}

int nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *greatest)
{
    *least = device->least;
    *greatest = device->greatest;
    return device->fault;
}

int nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *limit)
{
    *limit = device->otherwise;
    return device->fault;
}

int nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *limit)
{
    *limit = device->limit;
    return device->fault;
}

int nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned limit)
{
    if (device->fault != 0)
        return device->fault;
    if (device->set_fault != 0)
        return device->set_fault;
    if (limit < device->least || limit > device->greatest)
        return STANDIN_INVALID_ARGUMENT;
    device->limit = limit;
    device->sets++;
    return 0;
}

int nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *usage)
{
    *usage = device->usage;
    return device->fault != 0 ? device->fault : device->usage_fault;
}

int nvmlEventSetCreate(nvmlEventSet_t *set)
{
    *set = calloc(1, sizeof **set);
    return *set ? 0 : STANDIN_NOT_SUPPORTED;
}

int nvmlEventSetFree(nvmlEventSet_t set)
{
    free(set);
    return 0;
}

int nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    set->types[device - driver->device] |= types;
    return device->fault;
}

#ifndef NVML_STANDIN_OLD
static int take_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    while (driver->taken != driver->queued) {
        uint32_t slot = driver->taken++ % STANDIN_EVENTS, device = driver->event[slot].device;
        if (!(set->types[device] & driver->event[slot].type))
            continue;
        *data = (nvmlEventData_t){&driver->device[device], driver->event[slot].type, driver->event[slot].data,
                                  UINT32_MAX, UINT32_MAX};
        return 0;
    }
    for (uint32_t device = 0; device < driver->count; device++)
        if (driver->device[device].fault == STANDIN_GPU_IS_LOST)
            return STANDIN_GPU_IS_LOST;
    return STANDIN_TIMEOUT;
}

int nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned milliseconds)
{
    for (unsigned waited = 0;; waited++) {
        int code = take_event(set, data);
        if (code != STANDIN_TIMEOUT || waited >= milliseconds)
            return code;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}
#endif
