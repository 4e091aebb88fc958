/* The manifest of a checkpoint: which run and step it is of, and the checksum of every unit of every plane, in the
 * units of the run that wrote it. With it goes config.json. */
#ifndef EK_CHECKPOINT_MANIFEST_H
#define EK_CHECKPOINT_MANIFEST_H

#include "checkpoint/checkpoint.h"

/* Collects the lists of checksums that the ranks have left in the folder, writes manifest.json and config.json, syncs
 * them and removes the lists. EK_CORRUPT: a unit was written by nobody, or by two. */
ek_status ek_manifest_write(const char *folder, const ek_checkpoint_run *run, uint64_t step);

/* EK_OK if the checkpoint is of this run and step and every unit in its files has its checksum. Otherwise the text
 * begins with the folder and says what is wrong. */
ek_status ek_manifest_check(const char *folder, const ek_checkpoint_run *run, uint64_t step);

#endif
