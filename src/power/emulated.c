/* The backend "emulated": limits that are numbers in memory which processes share, and errors injected by hand. */
#include "power/backend.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

#define MARK 0x65766b70776d7531u /* "evkpwmu1" */
#define EVENT_SLOTS 64
#define MOST_DEVICES (1u << 20)
#define POLL_SECONDS 0.005

/* What processes share; a file is just this. */
struct shared {
    uint64_t mark;
    uint32_t devices, unused;
    double least_watts, default_watts, greatest_watts;
    _Atomic uint64_t events[EVENT_SLOTS]; /* (device + 1) << 32 | xid; 0: free */
    _Atomic double watts[];               /* [devices] */
};

struct emulated {
    struct shared *shared;
    size_t bytes;
    bool file;
    char identity[][EK_POWER_IDENTITY_BYTES]; /* [devices] */
};

static size_t bytes_for(uint32_t devices)
{
    return sizeof(struct shared) + devices * sizeof(_Atomic double);
}

static void fill(struct shared *shared, const ek_power_options *options)
{
    shared->devices = options->devices;
    shared->least_watts = options->least_watts;
    shared->default_watts = options->default_watts;
    shared->greatest_watts = options->greatest_watts;
    for (uint32_t device = 0; device < options->devices; device++)
        atomic_init(&shared->watts[device], options->default_watts);
    shared->mark = MARK;
}

static ek_status check_file(const struct shared *shared, size_t bytes, const ek_power_options *options)
{
    if (shared->mark != MARK || shared->devices == 0 || shared->devices > MOST_DEVICES ||
        bytes != bytes_for(shared->devices))
        return ek_fail(EK_IO, "%s: not a file of emulated power limits", options->path);
    if (options->devices != 0 &&
        (options->devices != shared->devices || options->least_watts != shared->least_watts ||
         options->default_watts != shared->default_watts || options->greatest_watts != shared->greatest_watts))
        return ek_fail(EK_INVALID,
                       "%s: holds %u emulated devices of %g to %g W, default %g W, which is not what is asked for; "
                       "remove the file or name another",
                       options->path, shared->devices, shared->least_watts, shared->greatest_watts,
                       shared->default_watts);
    return EK_OK;
}

/* Maps the file; makes it if it is new and there are devices to put in. */
static ek_status map_file(int file, const ek_power_options *options, struct shared **shared, size_t *bytes)
{
    struct stat found;
    if (fstat(file, &found) != 0)
        return ek_fail(EK_IO, "%s: %s", options->path, strerror(errno));
    bool fresh = found.st_size == 0 && options->devices != 0;
    *bytes = fresh ? bytes_for(options->devices) : (size_t)found.st_size;
    if (*bytes < sizeof(struct shared))
        return ek_fail(EK_IO, "%s: not a file of emulated power limits", options->path);
    if (fresh && ftruncate(file, (off_t)*bytes) != 0)
        return ek_fail(EK_IO, "%s: cannot be written: %s", options->path, strerror(errno));
    void *memory = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        return ek_fail(EK_SYSTEM, "%s: cannot be mapped: %s", options->path, strerror(errno));
    *shared = memory;
    if (fresh)
        fill(*shared, options);
    ek_status status = check_file(*shared, *bytes, options);
    if (status != EK_OK)
        munmap(memory, *bytes);
    return status;
}

static ek_status map(const ek_power_options *options, struct shared **shared, size_t *bytes)
{
    if (options->path) {
        int file = open(options->path, O_RDWR | O_CLOEXEC | (options->devices ? O_CREAT : 0), 0600);
        if (file < 0)
            return ek_fail(errno == EACCES ? EK_SYSTEM : EK_IO, "%s: cannot be opened: %s", options->path,
                           strerror(errno));
        ek_status status = map_file(file, options, shared, bytes);
        close(file);
        return status;
    }
    *bytes = bytes_for(options->devices);
    void *memory = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return ek_fail(EK_NO_MEMORY, "emulated: no memory for %u devices", options->devices);
    *shared = memory;
    fill(*shared, options);
    return EK_OK;
}

static ek_status emulated_open(void **state, uint32_t *devices, const ek_power_options *options)
{
    if (options->devices > MOST_DEVICES || (options->devices == 0 && !options->path))
        return ek_fail(EK_INVALID, "emulated: %u devices; 1 to %u are possible", options->devices, MOST_DEVICES);
    struct shared *shared;
    size_t bytes;
    EK_TRY(map(options, &shared, &bytes));
    struct emulated *emulated = calloc(1, sizeof *emulated + shared->devices * sizeof *emulated->identity);
    if (!emulated) {
        munmap(shared, bytes);
        return ek_fail(EK_NO_MEMORY, "emulated: out of memory");
    }
    emulated->shared = shared;
    emulated->bytes = bytes;
    emulated->file = options->path != NULL;
    for (uint32_t device = 0; device < shared->devices; device++)
        snprintf(emulated->identity[device], EK_POWER_IDENTITY_BYTES, "emulated-%u", device);
    *state = emulated;
    *devices = shared->devices;
    return EK_OK;
}

static void emulated_close(void *state)
{
    struct emulated *emulated = state;
    munmap(emulated->shared, emulated->bytes);
    free(emulated);
}

static const char *emulated_identity(const void *state, uint32_t device)
{
    return ((const struct emulated *)state)->identity[device];
}

static bool emulated_outlives(const void *state)
{
    return ((const struct emulated *)state)->file;
}

static ek_status emulated_read(void *state, uint32_t device, ek_power_limits *limits)
{
    struct shared *shared = ((struct emulated *)state)->shared;
    *limits = (ek_power_limits){shared->least_watts, shared->greatest_watts, shared->default_watts,
                                atomic_load(&shared->watts[device])};
    return EK_OK;
}

static ek_status emulated_draw(void *state, uint32_t device, double *watts)
{
    *watts = atomic_load(&((struct emulated *)state)->shared->watts[device]);
    return EK_OK;
}

static ek_status emulated_set(void *state, uint32_t device, double watts)
{
    atomic_store(&((struct emulated *)state)->shared->watts[device], watts);
    return EK_OK;
}

static bool take_event(struct shared *shared, ek_power_event *event)
{
    for (int slot = 0; slot < EVENT_SLOTS; slot++) {
        uint64_t word = atomic_exchange(&shared->events[slot], 0);
        if (word == 0)
            continue;
        *event = (ek_power_event){.device = (uint32_t)(word >> 32) - 1, .xid = (uint32_t)word};
        return true;
    }
    return false;
}

static ek_status emulated_wait(void *state, double seconds, ek_power_event *event, bool *any)
{
    struct shared *shared = ((struct emulated *)state)->shared;
    while (!(*any = take_event(shared, event)) && seconds > 0) {
        double nap = seconds < POLL_SECONDS ? seconds : POLL_SECONDS;
        ek_power_sleep(nap);
        seconds -= nap;
    }
    return EK_OK;
}

static ek_status emulated_inject(void *state, ek_power_event event)
{
    struct shared *shared = ((struct emulated *)state)->shared;
    if (event.xid > UINT32_MAX)
        return ek_fail(EK_INVALID, "emulated: an Xid code has 32 bits");
    uint64_t word = (uint64_t)(event.device + 1) << 32 | event.xid;
    for (int slot = 0; slot < EVENT_SLOTS; slot++) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&shared->events[slot], &none, word))
            return EK_OK;
    }
    return ek_fail(EK_SYSTEM, "emulated: %d errors wait already", EVENT_SLOTS);
}

const ek_power_backend ek_power_emulated = {
    .name = "emulated",
    .open = emulated_open,
    .close = emulated_close,
    .identity = emulated_identity,
    .outlives = emulated_outlives,
    .read = emulated_read,
    .draw = emulated_draw,
    .set = emulated_set,
    .wait = emulated_wait,
    .inject = emulated_inject,
};
