/* A file of routes: which experts each token of each step of a run chose. It depends on the step, the sample and the
 * layer alone, so runs of any layout can write and follow it. All ranks use one, each for the samples that it speaks
 * for (recording) or computes (following). */
#ifndef EK_TRAIN_ROUTES_H
#define EK_TRAIN_ROUTES_H

#include "train/train.h"

typedef struct ek_routes_file ek_routes_file;

/* Opens the file for a run with experts. EK_IO; EK_INVALID: it is of a run with another model or batch, of fewer steps,
 * or no such file. Of several processes that record into one file one `begins` it before the others open it. */
ek_status ek_routes_file_open(ek_routes_file **file, const char *path, ek_routes_use use, bool begins,
                              const ek_config *config);
void ek_routes_file_close(ek_routes_file *file);

/* The choices (B,T,top_k) of the moe_layer-th layer with experts for samples first … first + B-1 of a step (from 1):
 * records them if `speaks`, replaces or compares them. *flips grows by the tokens that chose otherwise. */
ek_status ek_routes_file_use(const ek_routes_file *file, uint64_t step, uint32_t first, uint32_t B, uint32_t moe_layer,
                             bool speaks, uint32_t *choices, uint64_t *flips);

#endif
