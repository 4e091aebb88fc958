/* The state file: written once by the job, read by whoever restores. */
#include "power/state.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

#define FORMAT "evenkeel power state 1"

const char *ek_state_folder(void)
{
    if (access("/run", W_OK) == 0)
        return "/run";
    const char *folder = getenv("XDG_RUNTIME_DIR");
    return folder && folder[0] == '/' && access(folder, W_OK) == 0 ? folder : "/tmp";
}

/* --------------------------------------------------------------------------------------------------- lock */

/* A POSIX record lock: it is this process' alone, forked ranks do not inherit it, and it ends with the process. */
static int lock_whole(int file, int command, struct flock *lock)
{
    *lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(file, command, lock);
}

static pid_t holder_of(int file)
{
    struct flock lock;
    return lock_whole(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK ? lock.l_pid : 0;
}

pid_t ek_state_holder(const char *path)
{
    int file = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0)
        return 0;
    pid_t holder = holder_of(file);
    close(file);
    return holder;
}

/* ------------------------------------------------------------------------------------------------ writing */

static ek_status describe_device(ek_power *power, uint32_t device, json_t *devices)
{
    const char *identity = ek_power_identity(power, device);
    ek_power_limits limits;
    ek_status status = ek_power_read(power, device, &limits);
    if (status == EK_PEER_LOST) /* it has no limit that could be raised */
        return EK_OK;
    EK_TRY(status);
    json_t *entry = json_pack("{s:s, s:f}", "identity", identity, "watts", limits.watts);
    return json_array_append_new(devices, entry) == 0
               ? EK_OK
               : ek_fail(EK_NO_MEMORY, "power state: device %u cannot be described", device);
}

static ek_status describe(ek_power *power, json_t **root)
{
    json_t *devices = json_array();
    ek_status status = EK_OK;
    for (uint32_t device = 0; status == EK_OK && device < ek_power_devices(power); device++)
        status = describe_device(power, device, devices);
    if (status != EK_OK) {
        json_decref(devices);
        return status;
    }
    *root = json_pack("{s:s, s:s, s:s?, s:i, s:o}", "format", FORMAT, "backend", ek_power_name(power), "path",
                      ek_power_path(power), "process", (int)getpid(), "devices", devices);
    return *root ? EK_OK : ek_fail(EK_INVALID, "power state: the backend's path is not UTF-8");
}

/* Makes what was done to the folder's entries last. */
static void sync_folder(const char *path)
{
    char *copy = strdup(path);
    int folder = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (folder >= 0) {
        fsync(folder);
        close(folder);
    }
    free(copy);
}

/* The file under which a process writes before it is renamed. Released with free; NULL: no memory. */
static char *name_beside(const char *path, pid_t process)
{
    char *name;
    return asprintf(&name, "%s.%d", path, (int)process) < 0 ? NULL : name;
}

void ek_state_sweep(const char *path, pid_t process)
{
    char *beside = name_beside(path, process);
    if (beside)
        unlink(beside);
    free(beside);
}

static ek_status write_beside(const char *beside, const json_t *root, int *written)
{
    unlink(beside); /* of a process of the same id that died at it */
    int file = open(beside, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0)
        return ek_fail(EK_IO, "%s: cannot be created: %s", beside, strerror(errno));
    struct flock lock;
    if (json_dumpfd(root, file, JSON_INDENT(2)) == 0 && write(file, "\n", 1) == 1 && fsync(file) == 0 &&
        lock_whole(file, F_SETLK, &lock) == 0) {
        *written = file;
        return EK_OK;
    }
    ek_status status = ek_fail(EK_IO, "%s: cannot be written: %s", beside, strerror(errno));
    unlink(beside);
    close(file);
    return status;
}

/* Writes beside the path, then renames, so that the file is never there in part. `flags` as of renameat2. */
static ek_status write_file(const char *path, const json_t *root, unsigned flags, int *lock)
{
    char *beside = name_beside(path, getpid());
    if (!beside)
        return ek_fail(EK_NO_MEMORY, "power state: out of memory");
    int file;
    ek_status status = write_beside(beside, root, &file);
    if (status == EK_OK && renameat2(AT_FDCWD, beside, AT_FDCWD, path, flags) != 0) {
        status = errno == EEXIST ? ek_fail(EK_INVALID,
                                           "%s is of a job whose power limits are not restored; if that job is gone: "
                                           "evenkeel power restore --state %s",
                                           path, path)
                                 : ek_fail(EK_IO, "%s: cannot be created: %s", path, strerror(errno));
        unlink(beside);
        close(file);
    }
    free(beside);
    if (status == EK_OK) {
        sync_folder(path);
        *lock = file;
    }
    return status;
}

ek_status ek_state_write(ek_power *power, const char *path, int *lock)
{
    json_t *root;
    EK_TRY(describe(power, &root));
    ek_status status = write_file(path, root, RENAME_NOREPLACE, lock);
    json_decref(root);
    return status;
}

/* The same file again, with the reason. If that fails too there is nobody to tell; the file stays as it was. */
static void note_failure(const char *path, json_t *root)
{
    int file;
    if (json_object_set_new(root, "failure", json_string(ek_error())) == 0 && write_file(path, root, 0, &file) == EK_OK)
        close(file);
}

/* ---------------------------------------------------------------------------------------------- restoring */

/* Opens the file and locks it. It says which library to load: nobody else may have had a hand in it. */
static ek_status open_locked(const char *path, int *opened)
{
    int file = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0)
        return ek_fail(EK_IO, "%s: cannot be opened: %s", path, strerror(errno));
    struct stat found;
    struct flock lock;
    ek_status status = EK_OK;
    if (fstat(file, &found) != 0 || !S_ISREG(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & 077) != 0)
        status = ek_fail(EK_INVALID, "%s: a state file is needed that is this user's and closed to others (mode 0600)",
                         path);
    else if (lock_whole(file, F_SETLK, &lock) != 0)
        status = ek_fail(EK_INVALID, "%s: in use by process %d, which restores the limits when it ends", path,
                         (int)holder_of(file));
    else if (fstat(file, &found) != 0 || found.st_nlink == 0) /* whoever held the lock has just restored from it */
        status = ek_fail(EK_IO, "%s: is gone", path);
    if (status != EK_OK)
        close(file);
    else
        *opened = file;
    return status;
}

static ek_status parse(const char *path, int file, json_t **parsed, ek_power_options *options)
{
    json_error_t error;
    const char *format, *backend;
    json_t *backend_path, *devices;
    lseek(file, 0, SEEK_SET);
    json_t *root = json_loadfd(file, 0, &error);
    if (root && json_unpack_ex(root, &error, 0, "{s:s, s:s, s:o, s:o}", "format", &format, "backend", &backend, "path",
                               &backend_path, "devices", &devices) == 0) {
        if (strcmp(format, FORMAT) == 0 && (json_is_null(backend_path) || json_is_string(backend_path)) &&
            json_is_array(devices)) {
            *options = (ek_power_options){.backend = backend, .path = json_string_value(backend_path)};
            *parsed = root;
            return EK_OK;
        }
        snprintf(error.text, sizeof error.text, "\"format\" \"%s\" and its fields are needed", FORMAT);
    }
    json_decref(root);
    return ek_fail(EK_INVALID, "%s: not a state file of power limits: %s", path, error.text);
}

static ek_status find_device(const ek_power *power, const char *identity, uint32_t *device)
{
    for (*device = 0; *device < ek_power_devices(power); ++*device)
        if (strcmp(ek_power_identity(power, *device), identity) == 0)
            return EK_OK;
    return ek_fail(EK_PEER_LOST, "%s: device %s is not there", ek_power_name(power), identity);
}

/* Limits that are what they were are not set: that may need no permission. */
static ek_status restore_device(ek_power *power, const json_t *entry, uint32_t *restored)
{
    json_error_t error;
    const char *identity;
    double watts;
    if (json_unpack_ex((json_t *)entry, &error, 0, "{s:s, s:F}", "identity", &identity, "watts", &watts) != 0)
        return ek_fail(EK_INVALID, "device: %s", error.text);
    uint32_t device;
    EK_TRY(find_device(power, identity, &device));
    ek_power_limits limits;
    EK_TRY(ek_power_read(power, device, &limits));
    if (fabs(limits.watts - watts) < 1e-6)
        return EK_OK;
    EK_TRY(ek_power_set(power, device, watts));
    ++*restored;
    return EK_OK;
}

static ek_status restore_devices(const json_t *root, const ek_power_options *options, uint32_t *restored)
{
    ek_power *power;
    EK_TRY(ek_power_create(&power, options));
    ek_status status = EK_OK; /* the first failure */
    char text[EK_ERROR_BYTES] = "";
    const json_t *devices = json_object_get(root, "devices");
    for (size_t i = 0; i < json_array_size(devices); i++) {
        ek_status own = restore_device(power, json_array_get(devices, i), restored);
        if (own == EK_OK || status != EK_OK)
            continue;
        status = own;
        snprintf(text, sizeof text, "%s", ek_error());
    }
    ek_power_destroy(power);
    return status == EK_OK ? EK_OK : ek_fail(status, "%s", text);
}

static ek_status restore_from(const char *path, int file, uint32_t *restored)
{
    json_t *root;
    ek_power_options options;
    EK_TRY(parse(path, file, &root, &options));
    uint32_t count = 0;
    ek_status status = restore_devices(root, &options, &count);
    if (status == EK_OK && unlink(path) != 0 && errno != ENOENT)
        status = ek_fail(EK_IO, "the limits are restored, but the file cannot be deleted: %s", strerror(errno));
    if (status != EK_OK) {
        note_failure(path, root);
        status = ek_fail_prefix(status, "%s: ", path);
    }
    json_decref(root);
    if (restored)
        *restored = count;
    return status;
}

ek_status ek_state_restore(const char *path, uint32_t *restored)
{
    int file;
    EK_TRY(open_locked(path, &file));
    ek_status status = restore_from(path, file, restored);
    close(file);
    return status;
}

ek_status ek_state_restore_held(const char *path, int lock)
{
    ek_status status = restore_from(path, lock, NULL);
    close(lock);
    return status;
}
