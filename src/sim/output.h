/* The results of a study in files. All are written under other names first and renamed when they are complete, so that
 * none is ever half-written and results of two studies do not mix. */
#ifndef EK_SIM_OUTPUT_H
#define EK_SIM_OUTPUT_H

#include "sim/study.h"

/* Makes the folder if it is not there. EK_INVALID: what is there is no folder, or holds results (report.html) and
 * `overwrite` is false. EK_IO. */
ek_status ek_output_prepare(const char *folder, bool overwrite);
/* After a study that failed: removes the folder if there is nothing in it. */
void ek_output_abandon(const char *folder);

/* Writes NAME.csv and NAME.json of each table, and report.html. On failure nothing new is left. */
ek_status ek_output_write(const char *folder, const ek_study *study);

#endif
