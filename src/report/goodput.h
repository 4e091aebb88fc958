/* Where the wall time of a run went: every second of it is in exactly one part.
 *
 * Committed steps are productive; where a replica was reduced, as far as they took no longer for their tokens than
 * whole ones do (the median), taken together; the rest of them is "slower". What lies between the commit of a step and
 * the start of the attempt that committed the next is a gap: recovery as far as one went on in it, then lost work if a
 * loss was noticed in it, else start (before the first step) or other. Where a job was launched again in a gap, what
 * lies behind the launch is start. */
#ifndef EK_REPORT_GOODPUT_H
#define EK_REPORT_GOODPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <evenkeel.h>

typedef enum ek_goodput_part {
    EK_GOODPUT_PRODUCTIVE,
    EK_GOODPUT_SLOWER,   /* steps with a replica reduced, against the median of whole ones */
    EK_GOODPUT_LOST,     /* attempts that did not commit, and waiting until the loss was noticed */
    EK_GOODPUT_RECOVERY, /* from noticing a loss, or from the boundary at which a rank returned, to stepping again */
    EK_GOODPUT_START,    /* from a launch to the first step */
    EK_GOODPUT_OTHER,    /* between steps without a loss, and after the last one */
    EK_GOODPUT_PARTS,
} ek_goodput_part;

typedef struct ek_goodput_step {
    double at, seconds, tokens; /* at: of the commit, since the first launch */
    double least_tp;            /* of its replicas */
} ek_goodput_step;

typedef struct ek_goodput_span {
    double first, last;
} ek_goodput_span;

/* All zero is a run of which nothing is known yet. */
typedef struct ek_goodput {
    ek_goodput_step *steps; /* in order */
    size_t step_count, step_room;
    ek_goodput_span *losses, *recoveries; /* a loss is a moment: first equals last */
    size_t loss_count, loss_room, recovery_count, recovery_room;
    double *launches; /* all but the first, in order */
    size_t launch_count, launch_room;
    double most_tp; /* of any replica in any step: the degree of a whole one */
} ek_goodput;

/* In order of `at`. Seconds that would reach behind the commit before (rounding) are cut off. */
ek_status ek_goodput_add_step(ek_goodput *goodput, ek_goodput_step step);
ek_status ek_goodput_add_loss(ek_goodput *goodput, double noticed);
/* first <= last. */
ek_status ek_goodput_add_recovery(ek_goodput *goodput, double first, double last);
/* The job was launched again. In order of `at`. */
ek_status ek_goodput_add_launch(ek_goodput *goodput, double at);
void ek_goodput_clear(ek_goodput *goodput);

/* Seconds of each part; `end`: when the run ended. False in *has_whole: no step had all replicas whole, so none can be
 * told to be slower. Sorts what was added. */
ek_status ek_goodput_split(ek_goodput *goodput, double end, double seconds[EK_GOODPUT_PARTS], bool *has_whole);

/* The median of values[], which it sorts; 0 if there are none. */
double ek_median(double *values, size_t count);

#endif
