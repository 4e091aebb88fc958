/* The way of a rank's units into the two files of a checkpoint (planes.h). The model alone decides where everything
 * lies, so ranks of any layout write them together, each its own units. */
#ifndef EK_CHECKPOINT_WRITER_H
#define EK_CHECKPOINT_WRITER_H

#include "checkpoint/planes.h"

typedef struct ek_checkpoint_writer ek_checkpoint_writer;

/* In the folder, which is there: the files are made if they are not there yet. `leads`: one rank does; it makes the
 * headers, with the step in them, and takes all the room that the files need, so that a full disk shows at once.
 * EK_IO. */
ek_status ek_checkpoint_writer_open(ek_checkpoint_writer **writer, const char *folder, const ek_model_config *config,
                                    uint64_t step, bool leads);
void ek_checkpoint_writer_close(ek_checkpoint_writer *writer);

/* `count` units from `unit` on, in a row in memory, of a tensor of ek_model_tensors. */
ek_status ek_checkpoint_writer_put(const ek_checkpoint_writer *writer, uint32_t plane, size_t tensor, uint32_t unit,
                                   uint32_t count, const float *values);

/* Makes what was put last. */
ek_status ek_checkpoint_writer_sync(const ek_checkpoint_writer *writer);

#endif
