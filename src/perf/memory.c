/* What a rank holds: weights, gradients, optimizer state, and the activations that backward needs (arXiv 2205.05198,
 * sections 4 and 5, with their formulas in the comments; there s tokens, b samples, h hidden, a heads, t ranks). */
#include "perf/parts.h"

#include <math.h>

enum { WEIGHT_BYTES = 2, GRADIENT_BYTES = 4, ADAM_BYTES = 12 }; /* Adam: the weight in 32 bits and two moments */
enum { VALUE_BYTES = 2, MASK_BYTES = 1, LOGIT_BYTES = 4 };

/* Micro-batches that a stage has begun and not finished backward, in layers of the stage: all of it for plain 1F1B, and
 * chunk by chunk if interleaved, at the first stage L (1 + (p-1)/(p v)) of the model's L layers. */
static double micro_batches_held(const ek_perf *perf, uint32_t stage, uint32_t degree)
{
    const ek_perf_parallel *parallel = &perf->parallel;
    uint32_t samples = (parallel->global_batch - 1) / parallel->dp + 1;
    if (perf_is_ep(perf))
        samples = (samples - 1) / degree + 1;
    double micro_batches = ceil((double)samples / parallel->micro_batch);
    uint32_t behind = parallel->pp - 1 - stage;
    if (parallel->interleave == 1)
        return fmin(micro_batches, behind + 1.0);
    double chunks = (parallel->interleave - 1.0) * parallel->pp + 2.0 * behind + 1;
    return fmin(micro_batches, chunks / parallel->interleave);
}

/* What attention keeps of its scores, per micro-batch: 5 a s^2 b / t (softmax, its mask, its dropped out output). */
static double core_bytes(const ek_perf *perf, double heads)
{
    if (perf->model.fused_attention)
        return 0;
    double scores = heads * perf->parallel.micro_batch * perf->model.sequence * perf->model.sequence;
    return (perf->model.dropout ? 2 * VALUE_BYTES + MASK_BYTES : VALUE_BYTES) * scores;
}

/* Without recomputation, per layer and micro-batch: s b h (10 + 24/t + 5 a s / (h t)), or s b h / t (34 + 5 a s / h)
 * with sequence parallelism. The 10: inputs of two norms and of two products, two masks of one byte. The 24: Q, K, V
 * (6), context (2), GELU's input and output (16). */
static double layer_bytes(const ek_perf *perf, const perf_share *share, bool has_experts, bool with_core)
{
    const ek_perf_model *model = &perf->model;
    double tokens = (double)model->sequence * perf->parallel.micro_batch, size = perf_head_size(model);
    double key_values = share->units[PERF_ATTENTION], heads = key_values * perf_unit_heads(model);
    double replicated = (4 * VALUE_BYTES + (model->dropout ? 2 * MASK_BYTES : 0)) * share->tokens * model->hidden;
    double attention = VALUE_BYTES * tokens * (2 * heads + 2 * key_values) * size;
    double activation = model->gated ? 3 : 2; /* inputs and output */
    double ffn = VALUE_BYTES * tokens * activation * share->units[PERF_FFN] * model->ffn_block;
    if (has_experts) { /* the tokens that come to this rank, and what its experts make of them */
        double routed = share->routed * model->top_k * share->units[PERF_EXPERTS] / model->experts;
        ffn = VALUE_BYTES * routed * (model->hidden + activation * model->expert_ffn);
    }
    return replicated + attention + ffn + (with_core ? core_bytes(perf, heads) : 0);
}

/* Of all layers of a stage, for one micro-batch. */
static double stage_bytes(const ek_perf *perf, const perf_stage *stage, const perf_share *share, bool with_core)
{
    double bytes = stage->ffn_layers * layer_bytes(perf, share, false, with_core);
    return stage->expert_layers ? bytes + stage->expert_layers * layer_bytes(perf, share, true, with_core) : bytes;
}

static double activation_bytes(const ek_perf *perf, uint32_t stage_index, uint32_t degree, const perf_share *share)
{
    const ek_perf_model *model = &perf->model;
    const perf_stage *stage = &perf->stages[stage_index];
    double held = micro_batches_held(perf, stage_index, degree), hidden = share->tokens * model->hidden;
    double bytes = 0;
    switch (perf->parallel.recompute) {
    case EK_RECOMPUTE_NONE:
        bytes = held * stage_bytes(perf, stage, share, true);
        break;
    case EK_RECOMPUTE_SELECTIVE: /* and the scores of the layer that backward is in */
        bytes = held * stage_bytes(perf, stage, share, false) +
                core_bytes(perf, share->units[PERF_ATTENTION] * perf_unit_heads(model));
        break;
    case EK_RECOMPUTE_FULL: /* each layer's input, 2 s b h, and all of the layer that backward is in */
        bytes = held * stage->layers * VALUE_BYTES * hidden +
                fmax(stage->ffn_layers ? layer_bytes(perf, share, false, true) : 0,
                     stage->expert_layers ? layer_bytes(perf, share, true, true) : 0);
        break;
    }
    if (stage->embedding && model->dropout)
        bytes += held * MASK_BYTES * hidden;
    if (stage->output) /* inputs of the last norm and of the output layer, logits in 32 bits */
        bytes += 2 * VALUE_BYTES * hidden + LOGIT_BYTES * (double)model->sequence * perf->parallel.micro_batch *
                                                share->units[PERF_VOCAB] * model->vocab_block;
    return bytes;
}

static ek_perf_memory role_memory(const ek_perf *perf, uint32_t stage, uint32_t degree, uint32_t role)
{
    perf_share share = perf_costs_at(perf, false, degree)->share;
    for (int i = 0; i < PERF_GROUPS; i++)
        if (perf->groups[i].chain)
            share.units[i] = ek_chain_count(perf->groups[i].chain, perf->parallel.tp - degree, role);
    double parameters = perf_rank_parameters(perf, stage, &share), dense = perf_dense_parameters(perf, stage);
    ek_perf_memory memory = {
        .weights = WEIGHT_BYTES * parameters,
        .gradients = GRADIENT_BYTES * parameters,
        .activations = activation_bytes(perf, stage, degree, &share),
        .dense_weights = WEIGHT_BYTES * dense,
        .dense_optimizer = ADAM_BYTES * dense / perf_dense_shards(perf),
    };
    memory.optimizer = ADAM_BYTES * (parameters - dense) / perf_unit_shards(perf) + memory.dense_optimizer;
    memory.total = memory.weights + memory.gradients + memory.optimizer + memory.activations;
    return memory;
}

void ek_perf_rank_memory(const ek_perf *perf, uint32_t stage, uint32_t degree, ek_perf_memory *memory)
{
    ek_perf_memory fullest = {0};
    for (uint32_t role = 0; role < degree; role++) {
        ek_perf_memory held = role_memory(perf, stage, degree, role);
        if (held.total > fullest.total)
            fullest = held;
    }
    *memory = fullest;
}
