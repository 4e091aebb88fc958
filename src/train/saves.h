/* The launching process' side of checkpoints: when every rank that writes one has said that its part is there, it makes
 * it complete; where one cannot, or is lost before, it gives the checkpoint up. */
#ifndef EK_TRAIN_SAVES_H
#define EK_TRAIN_SAVES_H

#include "train/records.h"
#include "train/worker.h"

typedef struct ek_saves ek_saves;

/* `dir` is the caller's; *saves is NULL without one. keep: checkpoint.keep. */
ek_status ek_saves_create(ek_saves **saves, const ek_checkpoint_dir *dir, uint32_t keep);
void ek_saves_destroy(ek_saves *saves);

/* What has become of a checkpoint. */
typedef struct ek_save {
    uint64_t step; /* 0: nothing yet */
    bool complete;
    uint64_t bytes;
    double stood_seconds, seconds; /* how long the slowest rank stood still for it; from the first to the end */
    char trouble[EK_ERROR_BYTES];  /* of one that is given up */
} ek_save;

/* A rank has written its part, or could not. */
void ek_saves_report(ek_saves *saves, uint32_t rank, const ek_saved_record *record, ek_save *outcome);
/* A rank was lost. */
void ek_saves_lost(ek_saves *saves, uint32_t rank, ek_save *outcome);
/* No rank runs any more: the run is over, or begins again from an earlier step. */
void ek_saves_end(ek_saves *saves, ek_save *outcome);

#endif
