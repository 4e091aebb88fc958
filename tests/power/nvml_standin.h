/* The stand-in's devices as a driver keeps them: in a file that every process maps which loads the library, and the
 * test too. Its path is in the environment: NVML_STANDIN. */
#ifndef TESTS_POWER_NVML_STANDIN_H
#define TESTS_POWER_NVML_STANDIN_H

#include <stdatomic.h>
#include <stdint.h>

#define STANDIN_DEVICES 8
#define STANDIN_EVENTS 16

enum standin_code {
    STANDIN_INVALID_ARGUMENT = 2,
    STANDIN_NOT_SUPPORTED = 3,
    STANDIN_NO_PERMISSION = 4,
    STANDIN_DRIVER_NOT_LOADED = 9,
    STANDIN_TIMEOUT = 10,
    STANDIN_GPU_IS_LOST = 15,
};

struct standin_device {
    char uuid[96];
    uint32_t least, greatest, otherwise; /* milliwatts */
    _Atomic uint32_t limit, usage;
    _Atomic int fault;       /* what every call for the device returns; 0: it works */
    _Atomic int set_fault;   /* the same for setting the limit alone */
    _Atomic int usage_fault; /* for reading the draw alone */
    _Atomic uint32_t sets;   /* limits set so far */
};

struct standin {
    uint32_t count;
    _Atomic int init_fault;
    struct standin_device device[STANDIN_DEVICES];
    _Atomic uint32_t queued, taken; /* events */
    struct {
        uint32_t device;
        uint64_t type, data;
    } event[STANDIN_EVENTS];
};

#endif
