/* The launching process' side of checkpoints: when every rank that writes one has said that its part is there, it makes
 * it complete; where one cannot, or is lost before, it gives the checkpoint up. */
#ifndef EK_TRAIN_SAVES_H
#define EK_TRAIN_SAVES_H

#include "train/records.h"
#include "train/worker.h"

typedef struct ek_saves ek_saves;

/* What has become of a checkpoint. */
typedef struct ek_save {
    uint64_t step;
    bool complete;
    uint64_t bytes;
    double stood_seconds, seconds; /* how long the slowest rank stood still for it; from the first to the end */
    const char *trouble;           /* of one that is given up, or after which others cannot be removed; or NULL */
} ek_save;

/* Told of each; its status is passed on to who called. */
typedef ek_status (*ek_saves_tell)(void *user, const ek_save *save);

/* `dir` is the caller's; *saves is NULL without one, and every function below does nothing. keep: checkpoint.keep. */
ek_status ek_saves_create(ek_saves **saves, const ek_checkpoint_dir *dir, uint32_t keep, ek_saves_tell tell,
                          void *user);
void ek_saves_destroy(ek_saves *saves);

/* A rank has written its part, or could not. */
ek_status ek_saves_report(ek_saves *saves, uint32_t rank, const ek_saved_record *record);
/* A rank was lost. */
ek_status ek_saves_lost(ek_saves *saves, uint32_t rank);
/* No rank runs any more: the run is over, or begins again from an earlier step. */
ek_status ek_saves_end(ek_saves *saves);

#endif
