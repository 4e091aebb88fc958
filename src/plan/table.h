/* Plans as text for people: lines of at most 100 characters. */
#ifndef EK_PLAN_TABLE_H
#define EK_PLAN_TABLE_H

#include <stdio.h>

#include "plan/plan.h"

/* The summary, then the replicas (equal neighbours folded into one line), then each reduced stage in full, then what
 * flows. */
void ek_plan_print_table(const ek_plan *plan, FILE *file);

/* A number of bytes: "45.6 MB". Returns text. */
#define EK_BYTES_TEXT 24
const char *ek_bytes_text(double bytes, char text[EK_BYTES_TEXT]);

#endif
