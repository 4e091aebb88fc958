/* The order of the model's tensors, within src/model:
 * embedding, per layer the six of ek_layer_tensor, norm, and the head unless it is tied to the embedding. */
#ifndef EK_MODEL_TENSORS_H
#define EK_MODEL_TENSORS_H

#include "model/model.h"

enum { EK_TENSOR_EMBEDDING, EK_TENSOR_LAYERS };

typedef enum ek_layer_tensor {
    EK_LAYER_ATTENTION_NORM,
    EK_LAYER_QKV,
    EK_LAYER_OUT,
    EK_LAYER_FFN_NORM,
    EK_LAYER_GATE_UP,
    EK_LAYER_DOWN,
    EK_LAYER_TENSORS
} ek_layer_tensor;

static inline size_t ek_model_layer_tensor(uint32_t layer, ek_layer_tensor kind)
{
    return EK_TENSOR_LAYERS + (size_t)layer * EK_LAYER_TENSORS + kind;
}

static inline size_t ek_model_norm_tensor(const ek_model_config *config)
{
    return ek_model_layer_tensor(config->layers, EK_LAYER_ATTENTION_NORM);
}

/* The tensor that makes the logits. */
static inline size_t ek_model_head_tensor(const ek_model_config *config)
{
    return config->tied_embeddings ? EK_TENSOR_EMBEDDING : ek_model_norm_tensor(config) + 1;
}

size_t ek_model_tensor_count(const ek_model_config *config);

/* The bucket of a layer's sharded tensors. */
uint32_t ek_model_layer_bucket(const ek_model_config *config, uint32_t layer);

#endif
