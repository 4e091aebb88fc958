/* The way of units out of the files of a checkpoint (planes.h), or of weights out of a folder that Hugging Face's tools
 * have written. */
#ifndef EK_CHECKPOINT_READER_H
#define EK_CHECKPOINT_READER_H

#include "checkpoint/planes.h"

typedef struct ek_checkpoint_reader ek_checkpoint_reader;

/* weights_only: plane 0 alone, of any float type, in one file or in several with an index, as Hugging Face's tools
 * write them. EK_IO, EK_CORRUPT: what ek_safetensors_open says; a tensor is missing or has another shape. */
ek_status ek_checkpoint_reader_open(ek_checkpoint_reader **reader, const char *folder, const ek_model_config *config,
                                    bool weights_only);
void ek_checkpoint_reader_close(ek_checkpoint_reader *reader);

/* A unit of a tensor of ek_model_tensors. */
ek_status ek_checkpoint_reader_get(const ek_checkpoint_reader *reader, uint32_t plane, size_t tensor, uint32_t unit,
                                   float *values);

#endif
