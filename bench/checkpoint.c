/* How fast a checkpoint is written, against how fast the disk takes as many bytes in a row. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "bench.h"
#include "checkpoint/checkpoint.h"
#include "jobs.h"
#include "train/clock.h"
#include "train/store.h"

enum { ROUNDS = 7, WRITERS = 2, CHUNK = 8 << 20 };

/* A rank that writes its part. */
typedef struct writer {
    ek_store store;
    ek_snapshot *snapshot;
    const char *folder;
    ek_status status;
    char error[EK_ERROR_BYTES];
} writer;

static void *write_part(void *user)
{
    writer *of = user;
    of->status = ek_snapshot_write(of->snapshot, of->folder, 1);
    snprintf(of->error, sizeof of->error, "%s", ek_error());
    return NULL;
}

static ek_status prepare(writer *of, const ek_share *share)
{
    EK_TRY(ek_store_create(&of->store, share->rank, share->membership, share->tensors, share->tensor_count));
    return ek_snapshot_create(&of->snapshot, share, of->store.planes);
}

/* All parts, each in a thread, and the manifest: until the checkpoint is complete. */
static ek_status time_checkpoint(const ek_checkpoint_dir *dir, const char *path, writer *writers, double *seconds)
{
    char folder[EK_CHECKPOINT_PATH_BYTES];
    pthread_t threads[WRITERS];
    ek_checkpoint_partial(path, ek_checkpoint_identity(dir), 1, folder);
    double began = ek_wall_seconds();
    for (int i = 0; i < WRITERS; i++) {
        writers[i].folder = folder;
        if (pthread_create(&threads[i], NULL, write_part, &writers[i]) != 0)
            abort(); /* a benchmark without threads is none */
    }
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < WRITERS; i++)
        if (writers[i].status != EK_OK)
            return ek_fail(writers[i].status, "%s", writers[i].error);
    EK_TRY(ek_checkpoint_complete(dir, 1));
    *seconds = ek_wall_seconds() - began;
    return EK_OK;
}

static ek_status time_disk(const char *path, uint64_t bytes, double *seconds)
{
    char file_path[EK_CHECKPOINT_PATH_BYTES];
    char *chunk = calloc(1, CHUNK);
    snprintf(file_path, sizeof file_path, "%s/plain", path);
    double began = ek_wall_seconds();
    int file = open(file_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool written = chunk && file >= 0;
    for (uint64_t at = 0; written && at < bytes; at += CHUNK) {
        size_t part = bytes - at < CHUNK ? bytes - at : CHUNK;
        written = pwrite(file, chunk, part, (off_t)at) == (ssize_t)part;
    }
    written = written && fsync(file) == 0;
    *seconds = ek_wall_seconds() - began;
    ek_status status = written ? EK_OK : ek_fail(EK_IO, "%s: cannot be written: %s", file_path, strerror(errno));
    if (file >= 0)
        close(file);
    unlink(file_path);
    free(chunk);
    return status;
}

/* Rounds that take turns, so that both meet the same disk. */
static ek_status measure(const ek_checkpoint_dir *dir, const char *path, writer *writers)
{
    double checkpoint[ROUNDS], disk[ROUNDS], ratio[ROUNDS];
    uint64_t bytes = 0;
    for (int i = 0; i < WRITERS; i++)
        bytes += ek_snapshot_bytes(writers[i].snapshot);
    for (int round = 0; round < ROUNDS; round++) {
        ek_bench_progress("checkpoint", round, ROUNDS);
        EK_TRY(time_disk(path, bytes, &disk[round]));
        EK_TRY(time_checkpoint(dir, path, writers, &checkpoint[round]));
        ratio[round] = disk[round] / checkpoint[round];
    }
    ek_bench_progress("checkpoint", ROUNDS, ROUNDS);
    printf("checkpoint: %.0f MB written by %d ranks, until it is complete, against one file of as many bytes in a row, "
           "synced\n  %.0f and %.0f MB/s, ratio %.2f (medians of %d rounds)\n",
           1e-6 * (double)bytes, WRITERS, 1e-6 * (double)bytes / ek_bench_median(checkpoint, ROUNDS),
           1e-6 * (double)bytes / ek_bench_median(disk, ROUNDS), ek_bench_median(ratio, ROUNDS), ROUNDS);
    return EK_OK;
}

static ek_status run(const char *path)
{
    ek_model_config config = {.layers = 4,
                              .hidden = 512,
                              .heads = 8,
                              .kv_heads = 4,
                              .ffn = 1408,
                              .vocab = 4096,
                              .sequence = 128,
                              .rope_theta = 1e4f,
                              .norm_eps = 1e-5f};
    ek_unit_group groups[EK_MODEL_GROUPS];
    ek_job job = {.replicas = 1, .base_degree = WRITERS, .groups = groups};
    ek_share share = {.config = &config};
    ek_membership *membership = NULL;
    ek_checkpoint_dir *dir = NULL;
    ek_tensor *tensors = NULL;
    writer writers[WRITERS] = {0};
    ek_status status = ek_model_config_finish(&config, WRITERS);
    job.group_count = ek_model_groups(&config, groups);
    if (status == EK_OK)
        status = ek_model_tensors(&config, &tensors, &share.tensor_count);
    if (status == EK_OK)
        status = ek_membership_create(&membership, &job);
    share.tensors = tensors;
    share.membership = membership;
    for (; status == EK_OK && share.rank < WRITERS; share.rank++)
        status = prepare(&writers[share.rank], &share);
    if (status == EK_OK)
        status = ek_checkpoint_dir_open(&dir, path, &(ek_checkpoint_run){&config, 1, 1});
    if (status == EK_OK)
        status = measure(dir, path, writers);
    ek_checkpoint_dir_close(dir);
    for (int i = 0; i < WRITERS; i++) {
        ek_snapshot_destroy(writers[i].snapshot);
        ek_store_destroy(&writers[i].store);
    }
    ek_membership_destroy(membership);
    ek_free(tensors);
    return status;
}

/* In the working directory: where checkpoints go is for who runs it to choose. */
ek_status ek_bench_checkpoint(void)
{
    char path[] = "evenkeel-bench-XXXXXX";
    char file[sizeof path + 64];
    if (!mkdtemp(path))
        return ek_fail(EK_IO, "%s: cannot be made in the working directory: %s", path, strerror(errno));
    ek_status status = run(path);
    static const char *const left[] = {"step-0000000001/" EK_MODEL_FILE,
                                       "step-0000000001/" EK_OPTIMIZER_FILE,
                                       "step-0000000001/config.json",
                                       "step-0000000001/manifest.json",
                                       "latest",
                                       "lock"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        snprintf(file, sizeof file, "%s/%s", path, left[i]);
        unlink(file);
    }
    snprintf(file, sizeof file, "%s/step-0000000001", path);
    rmdir(file);
    rmdir(path);
    return status;
}
