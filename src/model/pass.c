/* Forward and backward of one rank's share (Shoeybi et al., "Megatron-LM", 2019): in each branch the first linear map
 * is cut by its outputs, the second by its inputs, so that only the branch's output (forward) and the gradient by its
 * input (backward) are summed over the ranks. Everything of shape (N,C) is the same on all ranks of the replica, bit
 * for bit, and so are the gradients of the norms, which each rank computes for itself. */
#include "model/model.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "model/arena.h"
#include "model/tensors.h"
#include "nn/nn.h"

/* Expert parallelism reduces nothing: each rank has its own tokens. */
static ek_status reduce(const ek_model *model, float *buffer, size_t count, ek_reduction reduction)
{
    return model->tp && !model->config.expert_parallel ? ek_all_reduce(model->tp, buffer, count, reduction, NULL)
                                                       : EK_OK;
}

static ek_status report(const ek_model *model, bool backward, int bucket)
{
    return model->progress ? model->progress(model->user, backward, bucket) : EK_OK;
}

/* tokens (B,T+1) as inputs (B,T) and targets (B,T) */
static void split_tokens(ek_model *model, const uint32_t *tokens, size_t B)
{
    size_t T = model->T;
    assert(B <= model->micro_batch);
    for (size_t i = 0; i < B * (T + 1); i++)
        assert(tokens[i] < model->config.vocab);
    for (size_t b = 0; b < B; b++) {
        memcpy(model->inputs + b * T, tokens + b * (T + 1), T * sizeof *tokens);
        memcpy(model->targets + b * T, tokens + b * (T + 1) + 1, T * sizeof *tokens);
    }
}

/* The layer's tensors by kind, for those that it has. */
static void pick(float **picked, const ek_layer_activations *layer, float *const *tensors)
{
    for (int kind = 0; kind < EK_LAYER_TENSORS; kind++)
        picked[kind] = tensors[layer->tensors[kind]];
}

/* From layer->in to layer->middle, all but the sum: that is left in model->branch. */
static ek_status attention_forward(ek_model *model, const ek_layer_activations *layer, float *const *weights, size_t B)
{
    size_t C = model->C, T = model->T, D = model->D, G = model->G, R = model->R, N = B * T;
    model->flops += ek_linear_forward(layer->qkv, layer->attention_in, weights[EK_LAYER_QKV], N, C, G * (R + 2) * D);
    ek_rope_forward(layer->qkv, model->rope, B, T, G, R, D);
    model->flops += ek_attention_forward(layer->heads, layer->probabilities, layer->qkv, B, T, G, R, D);
    model->flops += ek_linear_by_input_forward(model->branch, layer->heads, weights[EK_LAYER_OUT], N, G * R * D, C);
    return reduce(model, model->branch, N * C, EK_SUM);
}

/* From layer->ffn_in to model->branch: the FFN, experts, or both. */
static ek_status ffn_forward(ek_model *model, uint32_t l, float *const *weights, size_t B, double *balance)
{
    const ek_layer_activations *layer = &model->layers[l];
    size_t C = model->C, F = model->F, N = B * model->T;
    if (layer->gate_up) {
        model->flops += ek_linear_forward(layer->gate_up, layer->ffn_in, weights[EK_LAYER_GATE_UP], N, C, 2 * F);
        ek_swiglu_forward(layer->activated, layer->gate_up, N, F, model->config.ffn_block);
        model->flops += ek_linear_by_input_forward(model->branch, layer->activated, weights[EK_LAYER_DOWN], N, F, C);
    } else {
        memset(model->branch, 0, N * C * sizeof *model->branch);
    }
    if (layer->mixture)
        EK_TRY(ek_mixture_forward(model, l, weights, B, balance));
    return reduce(model, model->branch, N * C, EK_SUM);
}

static ek_status layers_forward(ek_model *model, float *const *weights, size_t B, double *balance)
{
    size_t C = model->C, N = B * model->T;
    float epsilon = model->config.norm_eps;
    const float *residual = NULL, *branch = NULL; /* whose sum is the next layer's input */
    for (uint32_t l = 0; l < model->config.layers; l++) {
        const ek_layer_activations *layer = &model->layers[l];
        float *layer_weights[EK_LAYER_TENSORS];
        pick(layer_weights, layer, weights);
        ek_rmsnorm_forward(layer->attention_in, layer->attention_inverse_rms, layer->in, residual, branch,
                           layer_weights[EK_LAYER_ATTENTION_NORM], epsilon, N, C);
        EK_TRY(attention_forward(model, layer, layer_weights, B));
        ek_rmsnorm_forward(layer->ffn_in, layer->ffn_inverse_rms, layer->middle, layer->in, model->branch,
                           layer_weights[EK_LAYER_FFN_NORM], epsilon, N, C);
        EK_TRY(ffn_forward(model, l, layer_weights, B, balance));
        residual = layer->middle;
        branch = model->branch;
        EK_TRY(report(model, false, -1));
    }
    ek_rmsnorm_forward(model->normed, model->last_inverse_rms, model->last, residual, branch,
                       weights[ek_model_norm_tensor(&model->config)], epsilon, N, C);
    return EK_OK;
}

ek_status ek_model_forward(ek_model *model, float *const *weights, const uint32_t *tokens, uint32_t B,
                           ek_model_loss *loss)
{
    size_t C = model->C, V = model->V, N = B * model->T;
    split_tokens(model, tokens, B);
    float *embedded = model->layers[0].in;
    ek_embedding_forward(embedded, weights[EK_TENSOR_EMBEDDING], model->inputs, model->row_of, N, C);
    EK_TRY(reduce(model, embedded, N * C, EK_SUM));

    double balance = 0.0;
    EK_TRY(layers_forward(model, weights, B, &balance));

    model->flops +=
        ek_linear_forward(model->logits, model->normed, weights[ek_model_head_tensor(&model->config)], N, C, V);
    ek_cross_entropy_max(model->max, model->logits, N, V);
    EK_TRY(reduce(model, model->max, N, EK_MAX));
    ek_cross_entropy_sums(model->sums, model->logits, model->max, model->targets, model->row_of, N, V);
    EK_TRY(reduce(model, model->sums, 2 * N, EK_SUM));
    *loss = (ek_model_loss){.cross_entropy = ek_cross_entropy_loss(model->sums, N), .balance = balance};
    return EK_OK;
}

/* Adds to d_residual, the gradient by the stream after the branch, what reaches the stream before it. */
static ek_status ffn_backward(ek_model *model, uint32_t l, float *const *weights, float *const *gradients, size_t B,
                              float scale)
{
    const ek_layer_activations *layer = &model->layers[l];
    size_t C = model->C, F = model->F, N = B * model->T;
    if (layer->gate_up) {
        model->flops += ek_linear_by_input_backward(model->d_activated, gradients[EK_LAYER_DOWN], model->d_residual,
                                                    layer->activated, weights[EK_LAYER_DOWN], N, F, C);
        ek_swiglu_backward(layer->gate_up, model->d_activated, N, F, model->config.ffn_block);
        model->flops += ek_linear_backward(model->branch, gradients[EK_LAYER_GATE_UP], layer->gate_up, layer->ffn_in,
                                           weights[EK_LAYER_GATE_UP], N, C, 2 * F);
    } else {
        memset(model->branch, 0, N * C * sizeof *model->branch);
    }
    if (layer->mixture)
        EK_TRY(ek_mixture_backward(model, l, weights, gradients, B));
    EK_TRY(reduce(model, model->branch, N * (C + (layer->mixture ? model->config.top_k : 0)), EK_SUM));
    if (layer->mixture)
        ek_mixture_router_backward(model, l, weights, gradients, B, scale * model->config.aux_loss * (float)model->T);
    ek_rmsnorm_backward(model->d_residual, gradients[EK_LAYER_FFN_NORM], model->branch, layer->middle,
                        layer->ffn_inverse_rms, weights[EK_LAYER_FFN_NORM], N, C);
    return EK_OK;
}

static ek_status attention_backward(ek_model *model, const ek_layer_activations *layer, float *const *weights,
                                    float *const *gradients, size_t B)
{
    size_t C = model->C, T = model->T, D = model->D, G = model->G, R = model->R, N = B * T;
    model->flops += ek_linear_by_input_backward(model->d_heads, gradients[EK_LAYER_OUT], model->d_residual,
                                                layer->heads, weights[EK_LAYER_OUT], N, G * R * D, C);
    model->flops += ek_attention_backward(model->d_qkv, model->d_heads, layer->heads, layer->probabilities, layer->qkv,
                                          model->attention_scratch, B, T, G, R, D);
    ek_rope_backward(model->d_qkv, model->rope, B, T, G, R, D);
    model->flops += ek_linear_backward(model->branch, gradients[EK_LAYER_QKV], model->d_qkv, layer->attention_in,
                                       weights[EK_LAYER_QKV], N, C, G * (R + 2) * D);
    EK_TRY(reduce(model, model->branch, N * C, EK_SUM));
    ek_rmsnorm_backward(model->d_residual, gradients[EK_LAYER_ATTENTION_NORM], model->branch, layer->in,
                        layer->attention_inverse_rms, weights[EK_LAYER_ATTENTION_NORM], N, C);
    return EK_OK;
}

static ek_status head_backward(ek_model *model, float *const *weights, float *const *gradients, size_t N, float scale)
{
    size_t C = model->C, V = model->V;
    size_t head = ek_model_head_tensor(&model->config), norm = ek_model_norm_tensor(&model->config);
    ek_cross_entropy_backward(model->logits, model->sums, model->targets, model->row_of, scale, N, V);
    model->flops +=
        ek_linear_backward(model->branch, gradients[head], model->logits, model->normed, weights[head], N, C, V);
    EK_TRY(reduce(model, model->branch, N * C, EK_SUM));
    memset(model->d_residual, 0, N * C * sizeof *model->d_residual);
    ek_rmsnorm_backward(model->d_residual, gradients[norm], model->branch, model->last, model->last_inverse_rms,
                        weights[norm], N, C);
    return EK_OK;
}

ek_status ek_model_backward(ek_model *model, float *const *weights, float *const *gradients, const uint32_t *tokens,
                            uint32_t B, float scale, bool last)
{
    const ek_model_config *config = &model->config;
    size_t N = B * model->T;
    split_tokens(model, tokens, B);
    EK_TRY(head_backward(model, weights, gradients, N, scale));
    EK_TRY(report(model, true, last && !config->tied_embeddings ? 0 : -1));
    for (uint32_t l = config->layers; l-- > 0;) {
        float *layer_weights[EK_LAYER_TENSORS], *layer_gradients[EK_LAYER_TENSORS];
        pick(layer_weights, &model->layers[l], weights);
        pick(layer_gradients, &model->layers[l], gradients);
        EK_TRY(ffn_backward(model, l, layer_weights, layer_gradients, B, scale));
        EK_TRY(attention_backward(model, &model->layers[l], layer_weights, layer_gradients, B));
        EK_TRY(report(model, true, last ? (int)ek_model_layer_bucket(config, l) : -1));
    }
    ek_embedding_backward(gradients[EK_TENSOR_EMBEDDING], model->d_residual, model->inputs, model->row_of, N, model->C);
    return report(model, true, last ? (int)ek_model_buckets(config) - 1 : -1);
}
