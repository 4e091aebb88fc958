/* What a checkpoint keeps of every weight, and in which file:
 *   model.safetensors      the weights, named and shaped as Hugging Face's transformers do
 *   optimizer.safetensors  the two moments of AdamW, each under the weight's name behind "exp_avg." and "exp_avg_sq."
 */
#ifndef EK_CHECKPOINT_PLANES_H
#define EK_CHECKPOINT_PLANES_H

#include "model/huggingface.h"

/* Weights, first and second moment. */
#define EK_CHECKPOINT_PLANES 3

#define EK_MODEL_FILE "model.safetensors"
#define EK_OPTIMIZER_FILE "optimizer.safetensors"

static inline const char *ek_plane_file(uint32_t plane)
{
    return plane == 0 ? EK_MODEL_FILE : EK_OPTIMIZER_FILE;
}

/* The name of a tensor of a plane. */
#define EK_PLANE_NAME_BYTES (EK_HF_NAME_BYTES + 16)
void ek_plane_name(uint32_t plane, const ek_hf_tensor *tensor, char name[EK_PLANE_NAME_BYTES]);

/* The share of the state that a rank has under a membership: its units of every tensor of ek_model_tensors, in the
 * order of the membership, or the whole of it where it is replicated. */
typedef struct ek_share {
    const ek_membership *membership;
    uint32_t rank;
    const ek_model_config *config;
    const ek_tensor *tensors;
    size_t tensor_count;
} ek_share;

/* The units of a tensor in the share and how many; NULL: all of them. */
static inline const uint32_t *ek_share_units(const ek_share *share, size_t tensor, uint32_t *count)
{
    size_t elements;
    *count = ek_model_tensor_units(share->config, tensor, &elements);
    if (share->tensors[tensor].group == EK_REPLICATED)
        return NULL;
    return ek_membership_units(share->membership, share->rank, share->tensors[tensor].group, count);
}

#endif
