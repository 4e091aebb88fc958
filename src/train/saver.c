/* Copying, writing beside training, telling. */
#include "train/saver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "train/clock.h"
#include "train/records.h"

#define WAIT_NANOSECONDS 2000000 /* between two looks, and beats */

struct ek_saver {
    const ek_run *run;
    ek_engine *engine;
    bool busy, is_thread;
    pthread_t thread;
    _Atomic bool written;
    ek_snapshot *snapshot;
    char folder[EK_CHECKPOINT_PATH_BYTES];
    ek_saved_record record;
};

ek_status ek_saver_create(ek_saver **out, const ek_run *run, ek_engine *engine)
{
    ek_saver *saver = calloc(1, sizeof *saver);
    if (!saver)
        return ek_fail(EK_NO_MEMORY, "no memory for checkpoints");
    saver->run = run;
    saver->engine = engine;
    *out = saver;
    return EK_OK;
}

static void note_trouble(ek_saver *saver)
{
    memcpy(saver->record.trouble, ek_error(), strnlen(ek_error(), sizeof saver->record.trouble - 1));
}

static void *write_snapshot(void *user)
{
    ek_saver *saver = user;
    if (ek_snapshot_write(saver->snapshot, saver->folder, saver->record.step) != EK_OK)
        note_trouble(saver);
    atomic_store(&saver->written, true);
    return NULL;
}

/* In a thread of its own; where there can be none, here and now. */
static void start_writing(ek_saver *saver)
{
    saver->is_thread = pthread_create(&saver->thread, NULL, write_snapshot, saver) == 0;
    if (!saver->is_thread)
        write_snapshot(saver);
}

/* A rank that waits is not stuck. */
static void wait_until_written(const ek_saver *saver, uint64_t note)
{
    while (!atomic_load(&saver->written)) {
        nanosleep(&(struct timespec){.tv_nsec = WAIT_NANOSECONDS}, NULL);
        ek_beat(saver->engine, note);
    }
}

ek_status ek_saver_begin(ek_saver *saver, const ek_membership *membership, const ek_store *store, uint64_t step,
                         uint64_t note)
{
    const ek_run *run = saver->run;
    double began = ek_wall_seconds();
    EK_TRY(ek_saver_tell(saver, true, note));
    saver->record = (ek_saved_record){.kind = EK_RECORD_SAVED, .step = step, .began = began};
    for (uint32_t rank = 0; rank < ek_membership_ranks(membership); rank++)
        if (ek_membership_place(membership, rank, NULL, NULL))
            saver->record.writers[rank / 8] |= (uint8_t)(1u << rank % 8);
    ek_checkpoint_partial(run->config->checkpoint.dir, run->briefing.checkpoint_identity, step, saver->folder);
    ek_share share = {membership, ek_engine_rank(saver->engine), &run->config->model, run->tensors, run->tensor_count};
    atomic_store(&saver->written, false);
    saver->busy = true;
    if (ek_snapshot_create(&saver->snapshot, &share, store->planes) == EK_OK) {
        saver->record.bytes = ek_snapshot_bytes(saver->snapshot);
        start_writing(saver);
    } else {
        note_trouble(saver);
        atomic_store(&saver->written, true);
    }
    if (!run->config->checkpoint.async)
        wait_until_written(saver, note);
    saver->record.went_on = ek_wall_seconds();
    return EK_OK;
}

/* The end of what is being written: its memory goes. */
static void finish(ek_saver *saver)
{
    if (saver->is_thread)
        pthread_join(saver->thread, NULL);
    ek_snapshot_destroy(saver->snapshot);
    saver->snapshot = NULL;
    saver->busy = saver->is_thread = false;
}

ek_status ek_saver_tell(ek_saver *saver, bool wait, uint64_t note)
{
    if (!saver->busy)
        return EK_OK;
    if (wait)
        wait_until_written(saver, note);
    if (!atomic_load(&saver->written))
        return EK_OK;
    finish(saver);
    return ek_report(saver->engine, &saver->record, sizeof saver->record);
}

void ek_saver_destroy(ek_saver *saver)
{
    if (!saver)
        return;
    if (saver->busy)
        finish(saver);
    free(saver);
}
