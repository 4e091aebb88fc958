/* A rank's side of checkpoints: it copies what it has to write of its state after a step and writes it, in a thread of
 * its own, while training goes on if checkpoint.async is set; then it tells the launching process. One at a time: the
 * next waits until the one before it is written. */
#ifndef EK_TRAIN_SAVER_H
#define EK_TRAIN_SAVER_H

#include "train/store.h"
#include "train/worker.h"

typedef struct ek_saver ek_saver;

ek_status ek_saver_create(ek_saver **saver, const ek_run *run, ek_engine *engine);
/* Waits for what is being written. */
void ek_saver_destroy(ek_saver *saver);

/* The state after `step`, on a rank with a role. Beats with `note` while it waits. What goes wrong with a checkpoint is
 * told, and does not end the run. */
ek_status ek_saver_begin(ek_saver *saver, const ek_membership *membership, const ek_store *store, uint64_t step,
                         uint64_t note);

/* Tells of a part that has been written meanwhile; waits for it first if `wait`. */
ek_status ek_saver_tell(ek_saver *saver, bool wait, uint64_t note);

#endif
