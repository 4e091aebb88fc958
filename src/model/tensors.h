/* The order of the model's tensors, within src/model:
 * embedding, per layer those of ek_layer_tensor that it has, norm, and the head unless it is tied to the embedding. */
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
    EK_LAYER_ROUTER,
    EK_LAYER_EXPERTS_GATE_UP,
    EK_LAYER_EXPERTS_DOWN,
    EK_LAYER_TENSORS
} ek_layer_tensor;

/* Whether the layer has an FFN that every token goes through. */
static inline bool ek_model_has_ffn(const ek_model_config *config, uint32_t layer)
{
    return !ek_model_is_moe(config, layer) || config->shared_expert;
}

/* The tensor of a layer that has it; with layer = config->layers, and ATTENTION_NORM, the one behind the last layer. */
size_t ek_model_layer_tensor(const ek_model_config *config, uint32_t layer, ek_layer_tensor kind);

static inline size_t ek_model_norm_tensor(const ek_model_config *config)
{
    return ek_model_layer_tensor(config, config->layers, EK_LAYER_ATTENTION_NORM);
}

/* The tensor that makes the logits. */
static inline size_t ek_model_head_tensor(const ek_model_config *config)
{
    return config->tied_embeddings ? EK_TENSOR_EMBEDDING : ek_model_norm_tensor(config) + 1;
}

/* Which tensor of which layer a number stands for; false for those of no layer. */
bool ek_model_find_in_layers(const ek_model_config *config, size_t tensor, uint32_t *layer, ek_layer_tensor *kind);

size_t ek_model_tensor_count(const ek_model_config *config);

/* The bucket of a layer's sharded tensors. */
uint32_t ek_model_layer_bucket(const ek_model_config *config, uint32_t layer);

#endif
