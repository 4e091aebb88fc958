/* The two files of a checkpoint that hold numbers, and the way of a unit into them and out of them:
 *   model.safetensors      the weights, named and shaped as Hugging Face's transformers do
 *   optimizer.safetensors  the two moments of AdamW, each under the weight's name behind "exp_avg." and "exp_avg_sq."
 * The model alone decides where everything lies, so ranks of any layout write and read them together. */
#ifndef EK_CHECKPOINT_FILES_H
#define EK_CHECKPOINT_FILES_H

#include "checkpoint/safetensors.h"
#include "model/huggingface.h"

/* Weights, first and second moment. */
#define EK_CHECKPOINT_PLANES 3

#define EK_MODEL_FILE "model.safetensors"
#define EK_OPTIMIZER_FILE "optimizer.safetensors"

typedef struct ek_checkpoint_files ek_checkpoint_files;

/* For writing, in the folder, which is there: they are made if they are not there yet; `leads` makes their headers and
 * takes all the room they need, so that a full disk shows at once. EK_IO. */
ek_status ek_checkpoint_files_create(ek_checkpoint_files **files, const char *folder, const ek_model_config *config,
                                     uint64_t step, bool leads);
/* For reading. without_optimizer: the weights alone, of any float type, in one file or in several with an index as
 * Hugging Face's tools write them. EK_IO, EK_CORRUPT: what ek_safetensors_open says, or a tensor is missing or has
 * another shape. */
ek_status ek_checkpoint_files_open(ek_checkpoint_files **files, const char *folder, const ek_model_config *config,
                                   bool without_optimizer);
void ek_checkpoint_files_close(ek_checkpoint_files *files);

/* Makes what was written last. */
ek_status ek_checkpoint_files_sync(const ek_checkpoint_files *files);

/* `count` units from `unit` on, in a row in memory, of a tensor of ek_model_tensors. */
ek_status ek_checkpoint_files_write(const ek_checkpoint_files *files, uint32_t plane, size_t tensor, uint32_t unit,
                                    uint32_t count, const float *values);
ek_status ek_checkpoint_files_read(const ek_checkpoint_files *files, uint32_t plane, size_t tensor, uint32_t unit,
                                   float *values);

#endif
