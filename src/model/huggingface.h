/* How the model's tensors stand in a checkpoint as Hugging Face's transformers name and shape them (Llama; Mixtral for
 * layers with experts). Matrices there are (out, in); several of them make one of ours, and ours may be transposed and
 * are cut into units (model.h). Pure. */
#ifndef EK_MODEL_HUGGINGFACE_H
#define EK_MODEL_HUGGINGFACE_H

#include <jansson.h>

#include "model/model.h"

#define EK_HF_NAME_BYTES 96

/* A tensor of the checkpoint: (rows, columns), or a vector of `columns` if rows is 0. */
typedef struct ek_hf_tensor {
    char name[EK_HF_NAME_BYTES];
    uint64_t rows, columns;
} ek_hf_tensor;

/* All of them, in the order of the model; *tensors is released with free(). */
ek_status ek_hf_tensors(const ek_model_config *config, ek_hf_tensor **tensors, size_t *count);

/* A rectangle of a tensor of the checkpoint and where its elements lie in a unit: from `first` on, row by row, or
 * column by column if transposed. */
typedef struct ek_hf_place {
    size_t tensor; /* of ek_hf_tensors */
    uint64_t row, column;
    size_t rows, columns;
    bool transposed;
    size_t first;
} ek_hf_place;

/* The rectangles that a unit (ek_model_tensor_units) of a tensor (ek_model_tensors) is made of; returns how many. */
#define EK_HF_PLACES_MOST 3
uint32_t ek_hf_places(const ek_model_config *config, size_t tensor, uint32_t unit,
                      ek_hf_place places[EK_HF_PLACES_MOST]);

/* config.json for the checkpoint; NULL without memory. */
json_t *ek_hf_config(const ek_model_config *config);

/* Whether a config.json describes this model; EK_INVALID names the key that differs. */
ek_status ek_hf_check_config(const json_t *json, const ek_model_config *config);

#endif
