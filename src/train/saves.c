/* Parts of a checkpoint are gathered until it is complete, or given up. */
#include "train/saves.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "train/clock.h"

/* Ranks tell of a checkpoint once all have voted for a later step, and so have told of those before; but of the run's
 * last one at once, while slow ranks are still at the one before. */
enum { GATHERED_MOST = 2 };

typedef struct gathering {
    ek_save save;                       /* step 0: free */
    uint8_t missing[EK_RANKS_MOST / 8]; /* a bit for each rank that has yet to write its part */
    double began;
} gathering;

struct ek_saves {
    const ek_checkpoint_dir *dir;
    uint32_t keep;
    ek_saves_tell tell;
    void *user;
    uint64_t last_step; /* that something was heard of */
    gathering gathered[GATHERED_MOST];
};

ek_status ek_saves_create(ek_saves **out, const ek_checkpoint_dir *dir, uint32_t keep, ek_saves_tell tell, void *user)
{
    *out = NULL;
    if (!dir)
        return EK_OK;
    ek_saves *saves = calloc(1, sizeof *saves);
    if (!saves)
        return ek_fail(EK_NO_MEMORY, "no memory for checkpoints");
    saves->dir = dir;
    saves->keep = keep;
    saves->tell = tell;
    saves->user = user;
    *out = saves;
    return EK_OK;
}

void ek_saves_destroy(ek_saves *saves)
{
    free(saves);
}

static ek_status give_up(ek_saves *saves, gathering *of, const char *trouble)
{
    ek_save save = {.step = of->save.step, .trouble = trouble};
    ek_checkpoint_abandon(saves->dir, save.step);
    of->save.step = 0;
    return saves->tell(saves->user, &save);
}

static ek_status complete(ek_saves *saves, gathering *of)
{
    char trouble[EK_ERROR_BYTES];
    ek_status status = ek_checkpoint_complete(saves->dir, of->save.step);
    if (status == EK_FENCED) /* another run goes on from here: nobody wants this one any more */
        return ek_fail_prefix(EK_INTERRUPTED, "the job ends: ");
    if (status != EK_OK) {
        snprintf(trouble, sizeof trouble, "%s", ek_error());
        return give_up(saves, of, trouble);
    }
    ek_save save = of->save;
    save.complete = true;
    if (ek_checkpoint_tidy(saves->dir, save.step, saves->keep) != EK_OK) {
        snprintf(trouble, sizeof trouble, "%s", ek_error());
        save.trouble = trouble;
    }
    save.seconds = ek_wall_seconds() - of->began;
    of->save.step = 0;
    return saves->tell(saves->user, &save);
}

/* What is gathered of a step; begun, if it is a later one than any before. NULL: it was given up. */
static ek_status find_gathering(ek_saves *saves, const ek_saved_record *record, gathering **found)
{
    gathering *oldest = &saves->gathered[0];
    *found = NULL;
    for (size_t i = 0; i < GATHERED_MOST; i++) {
        gathering *of = &saves->gathered[i];
        if (of->save.step == record->step)
            *found = of;
        if (of->save.step < oldest->save.step)
            oldest = of;
    }
    if (*found || record->step <= saves->last_step)
        return EK_OK;
    if (oldest->save.step)
        EK_TRY(give_up(saves, oldest, "a rank has not written its part"));
    saves->last_step = record->step;
    *oldest = (gathering){.save = {.step = record->step}, .began = record->began};
    memcpy(oldest->missing, record->writers, sizeof oldest->missing);
    *found = oldest;
    return EK_OK;
}

ek_status ek_saves_report(ek_saves *saves, uint32_t rank, const ek_saved_record *record)
{
    static const uint8_t none[EK_RANKS_MOST / 8];
    gathering *of;
    EK_TRY(find_gathering(saves, record, &of));
    if (!of)
        return EK_OK;
    if (record->trouble[0])
        return give_up(saves, of, record->trouble);
    of->missing[rank / 8] &= (uint8_t) ~(1u << rank % 8);
    of->save.bytes += record->bytes;
    of->save.stood_seconds = fmax(of->save.stood_seconds, record->went_on - record->began);
    of->began = fmin(of->began, record->began);
    return memcmp(of->missing, none, sizeof none) == 0 ? complete(saves, of) : EK_OK;
}

ek_status ek_saves_lost(ek_saves *saves, uint32_t rank)
{
    for (size_t i = 0; saves && i < GATHERED_MOST; i++) {
        gathering *of = &saves->gathered[i];
        if (of->save.step && of->missing[rank / 8] >> rank % 8 & 1)
            EK_TRY(give_up(saves, of, "a rank was lost before it had written its part"));
    }
    return EK_OK;
}

ek_status ek_saves_end(ek_saves *saves)
{
    if (!saves)
        return EK_OK;
    for (size_t i = 0; i < GATHERED_MOST; i++)
        if (saves->gathered[i].save.step)
            EK_TRY(give_up(saves, &saves->gathered[i], "the run ended before it was complete"));
    saves->last_step = 0;
    ek_checkpoint_dir_clean(saves->dir); /* what is left then is removed when the next run begins */
    return EK_OK;
}
