/* What a backend of power.h is: a table of functions, and its state. power.c checks arguments and ranges for all. */
#ifndef EK_POWER_BACKEND_H
#define EK_POWER_BACKEND_H

#include "power/power.h"

typedef struct ek_power_backend {
    const char *name;
    /* Sets *state and *devices. */
    ek_status (*open)(void **state, uint32_t *devices, const ek_power_options *options);
    void (*close)(void *state);
    const char *(*identity)(const void *state, uint32_t device);
    bool (*outlives)(const void *state);
    ek_status (*read)(void *state, uint32_t device, ek_power_limits *limits);
    ek_status (*draw)(void *state, uint32_t device, double *watts);
    ek_status (*set)(void *state, uint32_t device, double watts); /* within the range */
    ek_status (*wait)(void *state, double seconds, ek_power_event *event, bool *any);
    ek_status (*inject)(void *state, ek_power_event event); /* NULL: has none */
} ek_power_backend;

extern const ek_power_backend ek_power_nvml, ek_power_powercap, ek_power_emulated;

/* Sleeps for so long, or until a signal is handled. */
void ek_power_sleep(double seconds);

#endif
