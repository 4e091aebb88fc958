/* The names of the phases of a step. */
#include "train/train.h"

const char *ek_phase_name(ek_phase phase)
{
    static const char *const names[EK_PHASES] = {
        [EK_PHASE_FORWARD] = "forward", [EK_PHASE_BACKWARD] = "backward",   [EK_PHASE_SYNC] = "sync",
        [EK_PHASE_COMMIT] = "commit",   [EK_PHASE_OPTIMIZER] = "optimizer", [EK_PHASE_RECOVERY] = "recovery",
    };
    return names[phase];
}
