/* Parts of a checkpoint are gathered until it is complete, or given up. */
#include "train/saves.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "train/clock.h"

struct ek_saves {
    const ek_checkpoint_dir *dir;
    uint32_t keep;
    uint64_t last_step;                 /* that something was heard of */
    uint64_t step;                      /* that is being gathered; 0: none */
    uint8_t missing[EK_RANKS_MOST / 8]; /* a bit for each rank that has yet to write its part */
    ek_save save;
    double began;
};

ek_status ek_saves_create(ek_saves **out, const ek_checkpoint_dir *dir, uint32_t keep)
{
    *out = NULL;
    if (!dir)
        return EK_OK;
    ek_saves *saves = calloc(1, sizeof *saves);
    if (!saves)
        return ek_fail(EK_NO_MEMORY, "no memory for checkpoints");
    saves->dir = dir;
    saves->keep = keep;
    *out = saves;
    return EK_OK;
}

void ek_saves_destroy(ek_saves *saves)
{
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
        memcpy(saves->missing, record->writers, sizeof saves->missing);
    }
    if (record->step != saves->step) /* of one that was given up */
        return;
    if (record->trouble[0]) {
        give_up(saves, record->trouble, outcome);
        return;
    }
    saves->missing[rank / 8] &= (uint8_t) ~(1u << rank % 8);
    saves->save.bytes += record->bytes;
    saves->save.stood_seconds = fmax(saves->save.stood_seconds, record->went_on - record->began);
    saves->began = fmin(saves->began, record->began);
    static const uint8_t none[sizeof saves->missing];
    if (memcmp(saves->missing, none, sizeof none) == 0)
        complete(saves, outcome);
}

void ek_saves_lost(ek_saves *saves, uint32_t rank, ek_save *outcome)
{
    *outcome = (ek_save){0};
    if (saves->step && saves->missing[rank / 8] >> rank % 8 & 1)
        give_up(saves, "a rank was lost before it had written its part", outcome);
}

void ek_saves_end(ek_saves *saves, ek_save *outcome)
{
    *outcome = (ek_save){0};
    if (saves->step)
        give_up(saves, "the run ended before it was complete", outcome);
    saves->last_step = 0;
    ek_checkpoint_dir_clean(saves->dir); /* what is left then is removed when the next run begins */
}
