/* Checkpoints: the state after a step, independent of the layout that wrote it.
 *
 *     DIR/step-0000000040/      a complete one; the name comes last
 *         model.safetensors     weights under Hugging Face's names, loadable by other tools with
 *         config.json           the model in Hugging Face's terms
 *         optimizer.safetensors the moments of AdamW
 *         manifest.json         the step, the run's seed and batch, and a checksum of every unit of every plane
 *     DIR/latest                the name of the last complete one, for people and scripts
 *     DIR/lock                  held while a run writes here; names its process, host and identity
 *     DIR/partial-0000000060-IDENTITY/   one that is being made, or was when its run ended
 *
 * Making one: ranks write their parts into the partial folder (snapshot.h) and sync them; when all have said so the
 * launching process writes the manifest, syncs it and the folder, and renames the folder. So what bears a step's name
 * is whole, whatever died when; a flipped bit is found by its unit's checksum when it is read.
 *
 * A run that is cut off from the others, and does not know it, may still write when a newer one has the lock (a file
 * system that machines share gives the lock of a silent one away). Its identity keeps it apart: its parts go into
 * folders of its own, and it makes nothing complete once the lock names another.
 *
 * Assumptions: rename is atomic and durable once the folder above is synced, fsync means what it says; one file system
 * that all ranks see. */
#ifndef EK_CHECKPOINT_CHECKPOINT_H
#define EK_CHECKPOINT_CHECKPOINT_H

#include "checkpoint/snapshot.h"

/* What must be alike for losses to go on as if nothing had happened. */
typedef struct ek_checkpoint_run {
    const ek_model_config *model;
    uint64_t seed;
    uint32_t global_batch;
} ek_checkpoint_run;

/* DIR, kept by one run: makes it, locks it, removes what earlier runs left half done. The lock goes when this process
 * and all that it has forked since have closed it or ended. EK_IO; EK_INVALID: another run holds the lock, and its
 * process is named. */
typedef struct ek_checkpoint_dir ek_checkpoint_dir;
ek_status ek_checkpoint_dir_open(ek_checkpoint_dir **dir, const char *path, const ek_checkpoint_run *run);
void ek_checkpoint_dir_close(ek_checkpoint_dir *dir);
/* Removes what is half done, when nobody writes any more. */
ek_status ek_checkpoint_dir_clean(const ek_checkpoint_dir *dir);

/* The identity of the run that keeps it. */
uint64_t ek_checkpoint_identity(const ek_checkpoint_dir *dir);

/* The folder into which ranks write the checkpoint of a step. */
#define EK_CHECKPOINT_PATH_BYTES 4200
void ek_checkpoint_partial(const char *dir_path, uint64_t identity, uint64_t step, char path[EK_CHECKPOINT_PATH_BYTES]);

/* All parts are written: makes the checkpoint complete. EK_FENCED: another run has the lock now. */
ek_status ek_checkpoint_complete(const ek_checkpoint_dir *dir, uint64_t step);
/* After that: names it in DIR/latest, and removes complete ones of steps before it beyond the last `keep`, itself among
 * them (0: none is removed). */
ek_status ek_checkpoint_tidy(const ek_checkpoint_dir *dir, uint64_t step, uint32_t keep);
/* It will not become complete. */
void ek_checkpoint_abandon(const ek_checkpoint_dir *dir, uint64_t step);

/* The last step that has a complete checkpoint, unchecked; 0: none has. */
ek_status ek_checkpoint_newest(const ek_checkpoint_dir *dir, uint64_t *step);

/* The last complete checkpoint up to step `most` that passes every check: shape, run, and every checksum. *step 0:
 * there is none. What is not right with one that is newer is told through `refused`, one line each. EK_INVALID: there
 * are some, and none can be used. */
ek_status ek_checkpoint_find(const ek_checkpoint_dir *dir, uint64_t most, uint64_t *step,
                             char path[EK_CHECKPOINT_PATH_BYTES], void (*refused)(void *user, const char *line),
                             void *user);

/* Reads a rank's share (planes as in ek_snapshot_create). `progress` is called between units. */
typedef void (*ek_checkpoint_progress)(void *user);
ek_status ek_checkpoint_load(const char *path, const ek_share *share, float **const planes[EK_CHECKPOINT_PLANES],
                             ek_checkpoint_progress progress, void *user);

/* The weights alone, from a folder as Hugging Face's tools write it (float32, float16 or bfloat16). */
ek_status ek_checkpoint_load_weights(const char *folder, const ek_share *share, float **weights,
                                     ek_checkpoint_progress progress, void *user);
/* Whether they can be: the configuration and all shapes. */
ek_status ek_checkpoint_check_weights(const char *folder, const ek_model_config *config);

#endif
