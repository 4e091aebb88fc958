/* Parts of a checkpoint are gathered until it is complete, or given up. */
#include "train/saves.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "train/clock.h"

struct ek_saves {
    ek_checkpoint_dir *dir;
    uint32_t keep;
    uint64_t last_step; /* that something was heard of */
    uint64_t step;      /* that is being gathered; 0: none */
    uint32_t parts;
    bool written[EK_RANKS_MOST];
    ek_save save;
    double began;
};

ek_status ek_saves_create(ek_saves **out, const ek_config *config)
{
    *out = NULL;
    if (!config->checkpoint.dir)
        return EK_OK;
    ek_saves *saves = calloc(1, sizeof *saves);
    if (!saves)
        return ek_fail(EK_NO_MEMORY, "no memory for checkpoints");
    saves->keep = config->checkpoint.keep;
    ek_status status =
        ek_checkpoint_dir_open(&saves->dir, config->checkpoint.dir,
                               &(ek_checkpoint_run){&config->model, config->train.seed, config->batch.global});
    if (status != EK_OK) {
        free(saves);
        return status;
    }
    *out = saves;
    return EK_OK;
}

void ek_saves_destroy(ek_saves *saves)
{
    if (!saves)
        return;
    ek_checkpoint_dir_close(saves->dir);
    free(saves);
}

static void give_up(ek_saves *saves, const char *trouble, ek_save *outcome)
{
    ek_checkpoint_abandon(saves->dir, saves->step);
    *outcome = (ek_save){.step = saves->step};
    snprintf(outcome->trouble, sizeof outcome->trouble, "%s", trouble);
    saves->step = 0;
}

static void complete(ek_saves *saves, ek_save *outcome)
{
    if (ek_checkpoint_complete(saves->dir, saves->step, saves->keep) != EK_OK) {
        give_up(saves, ek_error(), outcome);
        return;
    }
    *outcome = saves->save;
    outcome->complete = true;
    outcome->seconds = ek_wall_seconds() - saves->began;
    saves->step = 0;
}

void ek_saves_report(ek_saves *saves, uint32_t rank, const ek_saved_record *record, ek_save *outcome)
{
    *outcome = (ek_save){0};
    if (record->step > saves->last_step) { /* ranks begin one when the one before it is written: no two are mixed */
        if (saves->step)
            give_up(saves, "a rank has not written its part", outcome);
        saves->last_step = saves->step = record->step;
        saves->save = (ek_save){.step = record->step};
        saves->began = record->began;
        saves->parts = 0;
        memset(saves->written, 0, sizeof saves->written);
    }
    if (record->step != saves->step) /* of one that was given up */
        return;
    if (record->trouble[0]) {
        give_up(saves, record->trouble, outcome);
        return;
    }
    saves->written[rank] = true;
    saves->save.bytes += record->bytes;
    saves->save.stood_seconds = fmax(saves->save.stood_seconds, record->copied - record->began);
    saves->began = fmin(saves->began, record->began);
    if (++saves->parts == record->writers)
        complete(saves, outcome);
}

void ek_saves_lost(ek_saves *saves, uint32_t rank, ek_save *outcome)
{
    *outcome = (ek_save){0};
    if (saves->step && !saves->written[rank])
        give_up(saves, "a rank was lost before it had written its part", outcome);
}

void ek_saves_end(ek_saves *saves, ek_save *outcome)
{
    *outcome = (ek_save){0};
    if (saves->step)
        give_up(saves, "the run ended before it was complete", outcome);
}
