/* What the tests of power share: a folder of their own, the stand-in's devices, the command. */
#ifndef TESTS_POWER_SCRATCH_H
#define TESTS_POWER_SCRATCH_H

#include "testing.h"

#include "power/nvml_standin.h"

/* A new folder under /tmp; its path in `folder`. */
#define SCRATCH_BYTES 64
void scratch_create(char folder[SCRATCH_BYTES]);
/* With all that is in it. */
void scratch_remove(const char *folder);
/* Writes a file of that folder, making folders on the way. */
void scratch_write(const char *folder, const char *name, const char *text);
/* Entries of a folder. */
unsigned scratch_entries(const char *folder);

/* `count` devices of 200 … 700 W, default and limit 500 W, which NVML_STANDIN makes the stand-in library find. */
struct standin *standin_create(const char *folder, uint32_t count);
void standin_destroy(struct standin *standin);

double now_seconds(void);
void sleep_seconds(double seconds);

/* Runs the command with arguments[] (ends with NULL). Returns its exit status; what it printed, errors last, in `text`.
 */
#define OUTPUT_BYTES 4096
int run_power(const char *const *arguments, char text[OUTPUT_BYTES]);
#define RUN_POWER(text, ...) run_power((const char *const[]){__VA_ARGS__, NULL}, text)

#endif
