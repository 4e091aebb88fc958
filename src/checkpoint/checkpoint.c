/* Checkpoints in their directory: made complete, found, read. */
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"

#define COMPLETE "step-"
#define PARTIAL "partial-"
#define IDENTITY_DIGITS "%016" PRIx64
#define LOCK_BYTES 160
#define STEP_DIGITS "%010" PRIu64

struct ek_checkpoint_dir {
    char path[PATH_MAX];
    ek_checkpoint_run run;
    int lock;
    uint64_t identity;
    char holder[LOCK_BYTES]; /* as written into the lock */
};

static ek_status fail_path(const char *path, const char *what)
{
    return ek_fail(EK_IO, "%s: %s: %s", path, what, strerror(errno));
}

/* ---------------------------------------------------------------------------------------------- folders */

/* Calls `visit` with the name of everything in a folder. */
static ek_status list_folder(const char *path, ek_status (*visit)(void *user, const char *name), void *user)
{
    DIR *folder = opendir(path);
    if (!folder)
        return fail_path(path, "cannot be read");
    ek_status status = EK_OK;
    for (struct dirent *entry; status == EK_OK && (entry = readdir(folder));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = visit(user, entry->d_name);
    closedir(folder);
    return status;
}

static int remove_one(const char *path, const struct stat *information, int kind, struct FTW *place)
{
    (void)information, (void)place;
    return kind == FTW_DP ? rmdir(path) : unlink(path);
}

/* With all that is in it, whoever put it there. A link is removed and what it leads to stays. */
static ek_status remove_folder(const char *path)
{
    enum { OPEN_MOST = 16 };
    return nftw(path, remove_one, OPEN_MOST, FTW_DEPTH | FTW_PHYS) == 0 ? EK_OK : fail_path(path, "cannot be removed");
}

static ek_status sync_folder(const char *path)
{
    int file = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool synced = file >= 0 && fsync(file) == 0;
    ek_status status = synced ? EK_OK : fail_path(path, "cannot be synced");
    if (file >= 0)
        close(file);
    return status;
}

/* The step in the name of a complete one; 0 for any other name. */
static uint64_t step_of(const char *name)
{
    uint64_t step;
    char again[64];
    if (sscanf(name, COMPLETE "%" SCNu64, &step) != 1)
        return 0;
    snprintf(again, sizeof again, COMPLETE STEP_DIGITS, step);
    return strcmp(name, again) == 0 ? step : 0;
}

/* Steps with a complete checkpoint, the last first. */
typedef struct steps {
    uint64_t *list;
    size_t count, capacity;
} steps;

static ek_status note_step(void *user, const char *name)
{
    steps *found = user;
    uint64_t step = step_of(name);
    if (!step)
        return EK_OK;
    if (found->count == found->capacity) {
        size_t capacity = found->capacity ? 2 * found->capacity : 16;
        uint64_t *list = realloc(found->list, capacity * sizeof *list);
        if (!list)
            return ek_fail(EK_NO_MEMORY, "no memory for a list of checkpoints");
        found->list = list;
        found->capacity = capacity;
    }
    size_t at = found->count++;
    for (; at > 0 && found->list[at - 1] < step; at--)
        found->list[at] = found->list[at - 1];
    found->list[at] = step;
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------ the directory */

/* Whom the lock names; "": nobody. It is opened anew: what another machine has written is to be seen. */
static ek_status read_lock(const ek_checkpoint_dir *dir, char holder[LOCK_BYTES])
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/lock", dir->path);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = file >= 0 ? read(file, holder, LOCK_BYTES - 1) : -1;
    ek_status status = bytes >= 0 ? EK_OK : fail_path(path, "cannot be read");
    holder[bytes > 0 ? bytes : 0] = '\0';
    if (file >= 0)
        close(file);
    return status;
}

static ek_status take_lock(ek_checkpoint_dir *dir)
{
    char path[PATH_MAX + 16], holder[LOCK_BYTES] = "";
    snprintf(path, sizeof path, "%s/lock", dir->path);
    dir->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (dir->lock < 0)
        return fail_path(path, "cannot be made");
    if (flock(dir->lock, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK)
            return fail_path(path, "cannot be locked");
        EK_TRY(read_lock(dir, holder));
        return ek_fail(EK_INVALID, "%s: another run writes there (process %s); give each its own", dir->path,
                       *holder ? holder : "unknown");
    }
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    if (getrandom(&dir->identity, sizeof dir->identity, 0) != sizeof dir->identity)
        return ek_fail(EK_SYSTEM, "no random number for a run's identity: %s", strerror(errno));
    snprintf(dir->holder, sizeof dir->holder, "%ld on %s, run " IDENTITY_DIGITS, (long)getpid(), host, dir->identity);
    ssize_t length = (ssize_t)strlen(dir->holder);
    if (ftruncate(dir->lock, 0) != 0 || pwrite(dir->lock, dir->holder, (size_t)length, 0) != length)
        return fail_path(path, "cannot be written");
    return EK_OK;
}

/* A lock may go to another run without a word where machines share a file system. */
static ek_status check_lock(const ek_checkpoint_dir *dir)
{
    char holder[LOCK_BYTES];
    EK_TRY(read_lock(dir, holder));
    if (strcmp(holder, dir->holder) == 0)
        return EK_OK;
    return ek_fail(EK_FENCED, "%s: another run has taken it over (process %s)", dir->path,
                   *holder ? holder : "unknown");
}

/* Its name lasts once the folder above is synced. */
static ek_status make_folder(const char *path)
{
    char above[PATH_MAX + 4];
    if (mkdir(path, 0777) != 0)
        return errno == EEXIST ? EK_OK : fail_path(path, "cannot be made");
    snprintf(above, sizeof above, "%s/..", path);
    return sync_folder(above);
}

static ek_status remove_partial(void *user, const char *name)
{
    const ek_checkpoint_dir *dir = user;
    uint64_t step, identity;
    char path[EK_CHECKPOINT_PATH_BYTES];
    if (sscanf(name, PARTIAL "%" SCNu64 "-%" SCNx64, &step, &identity) != 2)
        return EK_OK;
    ek_checkpoint_partial(dir->path, identity, step, path);
    return strcmp(path + strlen(dir->path) + 1, name) == 0 ? remove_folder(path) : EK_OK;
}

ek_status ek_checkpoint_dir_open(ek_checkpoint_dir **out, const char *path, const ek_checkpoint_run *run)
{
    EK_TRY(make_folder(path));
    ek_checkpoint_dir *dir = calloc(1, sizeof *dir);
    if (!dir)
        return ek_fail(EK_NO_MEMORY, "no memory for checkpoints");
    dir->run = *run;
    dir->lock = -1;
    snprintf(dir->path, sizeof dir->path, "%s", path);
    ek_status status = take_lock(dir);
    if (status == EK_OK)
        status = ek_checkpoint_dir_clean(dir);
    if (status != EK_OK) {
        ek_checkpoint_dir_close(dir);
        return status;
    }
    *out = dir;
    return EK_OK;
}

void ek_checkpoint_dir_close(ek_checkpoint_dir *dir)
{
    if (!dir)
        return;
    if (dir->lock >= 0)
        close(dir->lock); /* and with it the lock goes */
    free(dir);
}

ek_status ek_checkpoint_dir_clean(const ek_checkpoint_dir *dir)
{
    return list_folder(dir->path, remove_partial, (void *)dir);
}

uint64_t ek_checkpoint_identity(const ek_checkpoint_dir *dir)
{
    return dir->identity;
}

void ek_checkpoint_partial(const char *dir_path, uint64_t identity, uint64_t step, char path[EK_CHECKPOINT_PATH_BYTES])
{
    snprintf(path, EK_CHECKPOINT_PATH_BYTES, "%s/" PARTIAL STEP_DIGITS "-" IDENTITY_DIGITS, dir_path, step, identity);
}

static void complete_path(const char *dir_path, uint64_t step, char path[EK_CHECKPOINT_PATH_BYTES])
{
    snprintf(path, EK_CHECKPOINT_PATH_BYTES, "%s/" COMPLETE STEP_DIGITS, dir_path, step);
}

/* ------------------------------------------------------------------------------------------ making complete */

static ek_status write_latest(const ek_checkpoint_dir *dir, uint64_t step)
{
    char path[PATH_MAX + 16], made[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/latest", dir->path);
    snprintf(made, sizeof made, "%s/latest.new", dir->path);
    FILE *file = fopen(made, "we");
    bool written =
        file && fprintf(file, COMPLETE STEP_DIGITS "\n", step) > 0 && fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (file && fclose(file) != 0)
        written = false;
    return written && rename(made, path) == 0 ? EK_OK : fail_path(path, "cannot be written");
}

/* Under another name first, so that no half-removed one looks complete. Those of later steps, of a run that went on
 * from there and is gone on with from before, do not count: they may be why. */
static ek_status prune(const ek_checkpoint_dir *dir, uint64_t step, uint32_t keep)
{
    steps found = {0};
    ek_status status = list_folder(dir->path, note_step, &found);
    uint32_t kept = 0;
    for (size_t i = 0; keep && i < found.count && status == EK_OK; i++) {
        char path[EK_CHECKPOINT_PATH_BYTES], removed[EK_CHECKPOINT_PATH_BYTES];
        if (found.list[i] > step || kept++ < keep)
            continue;
        complete_path(dir->path, found.list[i], path);
        ek_checkpoint_partial(dir->path, dir->identity, found.list[i], removed);
        status = rename(path, removed) == 0 ? remove_folder(removed) : fail_path(path, "cannot be removed");
    }
    free(found.list);
    return status;
}

/* Where an earlier run, which went on from a step before, has left a checkpoint of the same step, the two change names:
 * at no instant is there none. */
static ek_status name_folder(const char *partial, const char *path)
{
    if (access(path, F_OK) != 0)
        return rename(partial, path) == 0 ? EK_OK : fail_path(path, "cannot be named");
    if (renameat2(AT_FDCWD, partial, AT_FDCWD, path, RENAME_EXCHANGE) != 0)
        return fail_path(path, "cannot be replaced");
    return remove_folder(partial);
}

ek_status ek_checkpoint_complete(const ek_checkpoint_dir *dir, uint64_t step)
{
    char partial[EK_CHECKPOINT_PATH_BYTES], path[EK_CHECKPOINT_PATH_BYTES];
    ek_checkpoint_partial(dir->path, dir->identity, step, partial);
    complete_path(dir->path, step, path);
    EK_TRY(ek_manifest_write(partial, &dir->run, step));
    EK_TRY(sync_folder(partial));
    EK_TRY(check_lock(dir));
    EK_TRY(name_folder(partial, path));
    return sync_folder(dir->path);
}

ek_status ek_checkpoint_tidy(const ek_checkpoint_dir *dir, uint64_t step, uint32_t keep)
{
    EK_TRY(write_latest(dir, step));
    return prune(dir, step, keep);
}

void ek_checkpoint_abandon(const ek_checkpoint_dir *dir, uint64_t step)
{
    char path[EK_CHECKPOINT_PATH_BYTES];
    ek_checkpoint_partial(dir->path, dir->identity, step, path);
    remove_folder(path); /* what stays is removed when the next run begins */
}

/* ------------------------------------------------------------------------------------------------ finding */

ek_status ek_checkpoint_newest(const ek_checkpoint_dir *dir, uint64_t *step)
{
    steps found = {0};
    ek_status status = list_folder(dir->path, note_step, &found);
    *step = found.count ? found.list[0] : 0;
    free(found.list);
    return status;
}

ek_status ek_checkpoint_find(const ek_checkpoint_dir *dir, uint64_t most, uint64_t *step,
                             char path[EK_CHECKPOINT_PATH_BYTES], void (*refused)(void *user, const char *line),
                             void *user)
{
    steps found = {0};
    size_t refused_count = 0;
    *step = 0;
    ek_status status = list_folder(dir->path, note_step, &found);
    for (size_t i = 0; i < found.count && status == EK_OK && !*step; i++) {
        if (found.list[i] > most)
            continue;
        complete_path(dir->path, found.list[i], path);
        ek_status checked = ek_manifest_check(path, &dir->run, found.list[i]);
        if (checked == EK_OK) {
            *step = found.list[i];
        } else if (checked == EK_NO_MEMORY) {
            status = checked;
        } else {
            refused(user, ek_error());
            refused_count++;
        }
    }
    if (status == EK_OK && refused_count && !*step)
        status =
            ek_fail(EK_INVALID, "%s: none of the checkpoints (%zu) can be used; to begin anew, name another folder",
                    dir->path, refused_count);
    free(found.list);
    return status;
}

/* ------------------------------------------------------------------------------------------------ loading */

static ek_status load_planes(const ek_checkpoint_reader *reader, uint32_t plane_count, const ek_share *share,
                             float **const *planes, ek_checkpoint_progress progress, void *user)
{
    for (uint32_t plane = 0; plane < plane_count; plane++)
        for (size_t t = 0; t < share->tensor_count; t++) {
            size_t elements;
            uint32_t held;
            ek_model_tensor_units(share->config, t, &elements);
            const uint32_t *units = ek_share_units(share, t, &held);
            for (uint32_t i = 0; i < held; i++) {
                float *values = planes[plane][t] + i * elements;
                EK_TRY(ek_checkpoint_reader_get(reader, plane, t, units ? units[i] : i, values));
                progress(user);
            }
        }
    return EK_OK;
}

ek_status ek_checkpoint_load(const char *path, const ek_share *share, float **const planes[EK_CHECKPOINT_PLANES],
                             ek_checkpoint_progress progress, void *user)
{
    ek_checkpoint_reader *reader;
    EK_TRY(ek_checkpoint_reader_open(&reader, path, share->config, false));
    ek_status status = load_planes(reader, EK_CHECKPOINT_PLANES, share, planes, progress, user);
    ek_checkpoint_reader_close(reader);
    return status;
}

ek_status ek_checkpoint_load_weights(const char *folder, const ek_share *share, float **weights,
                                     ek_checkpoint_progress progress, void *user)
{
    ek_checkpoint_reader *reader;
    EK_TRY(ek_checkpoint_reader_open(&reader, folder, share->config, true));
    ek_status status = load_planes(reader, 1, share, &weights, progress, user);
    ek_checkpoint_reader_close(reader);
    return status;
}

ek_status ek_checkpoint_check_weights(const char *folder, const ek_model_config *config)
{
    char path[PATH_MAX];
    json_error_t error;
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *json = json_load_file(path, 0, &error);
    if (!json)
        return ek_fail(EK_INVALID, "%s: %s", path, error.text);
    ek_status status = ek_hf_check_config(json, config);
    json_decref(json);
    if (status != EK_OK)
        return ek_fail_prefix(status, "%s: ", path);
    ek_checkpoint_reader *reader;
    EK_TRY(ek_checkpoint_reader_open(&reader, folder, config, true));
    ek_checkpoint_reader_close(reader);
    return EK_OK;
}
