/* The results of a study in files. Every file is written under another name first and then renamed, so that none is
 * ever half-written. */
#ifndef EK_SIM_OUTPUT_H
#define EK_SIM_OUTPUT_H

#include "sim/study.h"

/* Makes the folder if it is not there. EK_INVALID: what is there is no folder, or holds results (report.html) and
 * `overwrite` is false. EK_IO. */
ek_status ek_output_prepare(const char *folder, bool overwrite);

/* Writes NAME.csv and NAME.json of each table, and report.html. */
ek_status ek_output_write(const char *folder, const ek_study *study);

#endif
