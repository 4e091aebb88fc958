/* What a run shows on standard output while it goes on: on a terminal one progress line that is written over, elsewhere
 * a line a step; and lines for events. */
#ifndef EK_TRAIN_DISPLAY_H
#define EK_TRAIN_DISPLAY_H

#include "train/records.h"

typedef struct ek_display {
    bool quiet, terminal;
    const char *parallelism; /* "TP" or "EP" */
    bool line_open;          /* the progress line waits to be written over */
} ek_display;

ek_display ek_display_open(bool quiet, const char *parallelism);

void ek_display_job(ek_display *display, const ek_config *config, const ek_membership *membership);
/* seconds: of this step; left_seconds: until the last one. */
void ek_display_step(ek_display *display, const ek_step_record *step, uint64_t steps, double seconds,
                     double left_seconds, const ek_membership *membership);
void ek_display_event(ek_display *display, const char *text);

#endif
