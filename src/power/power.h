/* Power limits of devices: one interface over three backends, each a table of functions (backend.h).
 *
 *   nvml      NVIDIA devices, through libnvidia-ml.so.1, which is opened at run time
 *   powercap  CPU packages, through Linux' /sys/class/powercap
 *   emulated  numbers in memory that processes share; they limit nothing
 *
 * What can go wrong, by status, always with one line of text:
 *   EK_IO         the library or the files of the backend are missing or not what they should be
 *   EK_SYSTEM     no permission, or the driver refuses something else
 *   EK_PEER_LOST  the device is lost: it has fallen off the bus, or only a reset brings it back
 *   EK_INVALID    a limit out of range, a device that does not exist, options that do not go together
 * A job goes on without power after any of them.
 *
 * One thread may wait for events while another reads and sets; otherwise a backend belongs to one thread at a time, and
 * to the process that opened it (NVML does not survive a fork), unless it is "emulated", which forked processes may
 * go on using. */
#ifndef EK_POWER_POWER_H
#define EK_POWER_POWER_H

#include <evenkeel.h>

typedef struct ek_power ek_power;

typedef struct ek_power_options {
    const char *backend; /* "nvml", "powercap" or "emulated" */
    /* nvml: the library, NULL: libnvidia-ml.so.1. powercap: the folder, NULL: /sys/class/powercap. emulated: a file
     * that holds the limits, for as long as it exists; NULL: memory shared with processes forked later, gone with them.
     */
    const char *path;
    /* For "emulated", and only there: how many devices, and their range. All 0 with a file that exists: as it says. */
    uint32_t devices;
    double least_watts, default_watts, greatest_watts;
} ek_power_options;

ek_status ek_power_create(ek_power **power, const ek_power_options *options);
void ek_power_destroy(ek_power *power);

const char *ek_power_name(const ek_power *power); /* of the backend */
const char *ek_power_path(const ek_power *power); /* of the options, made absolute; NULL: the default */
uint32_t ek_power_devices(const ek_power *power);

/* What a device is known by from one run to the next: a UUID, a zone's name; "" for one that was lost when the backend
 * was opened. */
#define EK_POWER_IDENTITY_BYTES 96
const char *ek_power_identity(const ek_power *power, uint32_t device);

/* True if limits stay as they are when the process ends. */
bool ek_power_outlives(const ek_power *power);

typedef struct ek_power_limits {
    double least_watts, greatest_watts; /* what may be set */
    double default_watts;               /* powercap, which has no such thing: the limit when the backend was opened */
    double watts;                       /* the current limit */
} ek_power_limits;

ek_status ek_power_read(ek_power *power, uint32_t device, ek_power_limits *limits);

/* What the device draws; NaN where that cannot be read (energy counters of CPUs are root's). powercap: the mean since
 * the last call, or since the backend was opened. emulated: the limit, as of a busy device. */
ek_status ek_power_draw(ek_power *power, uint32_t device, double *watts);

/* EK_INVALID for a limit outside [least, greatest], with nothing changed. Backends round: NVML to milliwatts, powercap
 * to microwatts. */
ek_status ek_power_set(ek_power *power, uint32_t device, double watts);

/* An error that the device's driver reported. */
typedef struct ek_power_event {
    uint32_t device; /* EK_NONE: the driver did not say which */
    uint64_t xid;    /* NVIDIA's code, see xid.h */
} ek_power_event;

/* Waits for the next event, at most so long. EK_OK with *any false: none came. EK_PEER_LOST: a device is lost; which
 * one, ek_power_read tells. The driver may say so again at every call, at once. powercap has no events: it sleeps. */
ek_status ek_power_wait(ek_power *power, double seconds, ek_power_event *event, bool *any);

/* "emulated" alone: makes a device report an error. At most 64 wait; EK_SYSTEM when there is no room. */
ek_status ek_power_inject(ek_power *power, ek_power_event event);

#endif
