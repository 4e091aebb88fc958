/* One rank's share of the model: its memory. */
#include "model/model.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "model/arena.h"
#include "nn/nn.h"

#define ALIGNMENT 64 /* bytes: a cache line, a vector register */

/* Deals out an arena piece by piece; with memory == NULL it only counts. */
typedef struct cursor {
    float *memory;
    size_t used; /* floats */
} cursor;

static float *take(cursor *arena, size_t count)
{
    size_t line = ALIGNMENT / sizeof(float);
    float *piece = arena->memory ? arena->memory + arena->used : NULL;
    arena->used += (count + line - 1) / line * line;
    return piece;
}

static void place_mixture(const ek_model *model, ek_mixture *mixture, cursor *arena)
{
    size_t B = model->micro_batch, N = B * model->T, E = model->config.experts, k = model->config.top_k;
    mixture->probabilities = take(arena, N * E);
    mixture->weights = take(arena, N * k);
    mixture->fractions = take(arena, B * E);
    mixture->choices = (uint32_t *)take(arena, N * k);
}

static void place_layer(const ek_model *model, uint32_t l, cursor *arena)
{
    size_t B = model->micro_batch, C = model->C, D = model->D, G = model->G, R = model->R, F = model->F;
    size_t N = B * model->T;
    ek_layer_activations *layer = &model->layers[l];
    if (l > 0)
        layer->in = take(arena, N * C);
    layer->attention_inverse_rms = take(arena, N);
    layer->attention_in = take(arena, N * C);
    layer->qkv = take(arena, N * G * (R + 2) * D);
    layer->probabilities = take(arena, B * G * R * ek_attention_probabilities(model->T));
    layer->heads = take(arena, N * G * R * D);
    layer->middle = take(arena, N * C);
    layer->ffn_inverse_rms = take(arena, N);
    layer->ffn_in = take(arena, N * C);
    if (ek_model_has_ffn(&model->config, l)) {
        layer->gate_up = take(arena, N * 2 * F);
        layer->activated = take(arena, N * F);
    }
    if (layer->mixture)
        place_mixture(model, layer->mixture, arena);
}

/* Places what the ranks of the replica reduce, in memory that all of them reach. */
static size_t place_reduced(ek_model *model, float *memory)
{
    size_t C = model->C, N = model->micro_batch * model->T;
    cursor reduced = {.memory = memory};
    model->layers[0].in = take(&reduced, N * C);
    model->max = take(&reduced, N);
    model->sums = take(&reduced, 2 * N);
    model->branch = take(&reduced, N * (C + (model->config.experts ? model->config.top_k : 0)));
    return reduced.used;
}

/* Places everything else in `memory`, or only counts; returns the size in floats. */
static size_t place(ek_model *model, float *memory)
{
    size_t C = model->C, D = model->D, G = model->G, R = model->R, N = model->micro_batch * model->T;
    cursor arena = {.memory = memory};
    for (uint32_t layer = 0; layer < model->config.layers; layer++)
        place_layer(model, layer, &arena);
    model->last = take(&arena, N * C);
    model->last_inverse_rms = take(&arena, N);
    model->normed = take(&arena, N * C);
    model->logits = take(&arena, N * model->V);
    model->d_residual = take(&arena, N * C);
    if (model->config.experts)
        model->mixtures.d_logits = take(&arena, N * model->config.experts);

    cursor shared = arena;
    model->d_activated = take(&shared, N * model->F);
    model->d_heads = take(&arena, N * G * R * D);
    model->d_qkv = take(&arena, N * G * (R + 2) * D);
    model->attention_scratch = take(&arena, ek_attention_scratch(model->T));
    return arena.used > shared.used ? arena.used : shared.used;
}

/* Memory of this rank alone. */
static ek_status allocate_private(float **memory, size_t bytes)
{
    *memory = ek_large_alloc(bytes);
    return *memory ? EK_OK : ek_fail(EK_NO_MEMORY, "no memory for %zu bytes of activations", bytes);
}

static ek_status allocate_arenas(ek_model *model)
{
    EK_TRY(allocate_private(&model->arena, place(model, NULL) * sizeof(float)));
    place(model, model->arena);
    size_t bytes = place_reduced(model, NULL) * sizeof(float);
    if (model->engine) {
        void *memory;
        EK_TRY(ek_engine_alloc(model->engine, bytes, &memory));
        model->reduced = memory;
    } else {
        EK_TRY(allocate_private(&model->reduced, bytes));
    }
    place_reduced(model, model->reduced);
    return EK_OK;
}

static void map_rows(ek_model *model, const uint32_t *vocab_units, uint32_t count)
{
    uint32_t block = model->config.vocab_block;
    for (uint32_t token = 0; token < model->config.vocab; token++)
        model->row_of[token] = EK_NO_ROW;
    for (uint32_t row = 0; row < count * block; row++)
        model->row_of[(vocab_units ? vocab_units[row / block] : row / block) * block + row % block] = row;
}

/* The layers' tensors, and which of them have experts. */
static void prepare_layers(ek_model *model)
{
    const ek_model_config *config = &model->config;
    for (uint32_t l = 0; l < config->layers; l++) {
        for (ek_layer_tensor kind = 0; kind < EK_LAYER_TENSORS; kind++)
            model->layers[l].tensors[kind] = ek_model_layer_tensor(config, l, kind);
        if (ek_model_is_moe(config, l))
            model->layers[l].mixture = &model->mixture_memory[l / config->moe_every];
    }
}

static ek_status allocate_experts(ek_model *model, const ek_model_options *options)
{
    uint32_t experts = model->config.experts;
    if (!experts)
        return EK_OK;
    model->mixture_memory = calloc(ek_model_moe_layers(&model->config), sizeof *model->mixture_memory);
    model->held = malloc(experts * sizeof *model->held);
    model->owner = calloc(experts, sizeof *model->owner);
    if (!model->mixture_memory || !model->held || !model->owner)
        return ek_fail(EK_NO_MEMORY, "no memory for the tables of experts");
    for (uint32_t expert = 0; expert < experts; expert++)
        model->held[expert] = EK_NO_ROW;
    for (uint32_t i = 0; i < model->U; i++)
        model->held[options->expert_units ? options->expert_units[i] : i] = i;
    model->mixtures.staging.engine = model->mixtures.results.engine = model->engine;
    ek_model_regroup(model, model->tp, options->expert_owners);
    return EK_OK;
}

ek_status ek_model_create(ek_model **model, const ek_model_options *options)
{
    const ek_model_config *config = options->config;
    assert(options->engine || !options->tp);
    ek_model *made = calloc(1, sizeof *made);
    if (!made)
        return ek_fail(EK_NO_MEMORY, "no memory for a model");
    *made = (ek_model){
        .config = *config,
        .engine = options->engine,
        .tp = options->tp,
        .progress = options->progress,
        .route = options->route,
        .user = options->user,
        .C = config->hidden,
        .T = config->sequence,
        .D = config->hidden / config->heads,
        .G = options->units[EK_GROUP_ATTENTION],
        .R = config->heads / config->kv_heads,
        .F = (size_t)options->units[EK_GROUP_FFN] * config->ffn_block,
        .V = (size_t)options->units[EK_GROUP_VOCAB] * config->vocab_block,
        .U = options->units[EK_GROUP_EXPERTS],
        .micro_batch = options->micro_batch,
    };
    size_t N = made->micro_batch * made->T;
    made->layers = calloc(config->layers, sizeof *made->layers);
    made->rope = calloc(made->T * made->D, sizeof *made->rope);
    made->row_of = calloc(config->vocab, sizeof *made->row_of);
    made->inputs = calloc(2 * N, sizeof *made->inputs);
    if (!made->layers || !made->rope || !made->row_of || !made->inputs) {
        ek_model_destroy(made);
        return ek_fail(EK_NO_MEMORY, "no memory for the tables of a model");
    }
    ek_status status = allocate_experts(made, options);
    if (status == EK_OK) {
        prepare_layers(made);
        status = allocate_arenas(made);
    }
    if (status != EK_OK) {
        ek_model_destroy(made);
        return status;
    }
    made->targets = made->inputs + N;
    ek_rope_table(made->rope, config->rope_theta, made->T, made->D);
    map_rows(made, options->vocab_units, options->units[EK_GROUP_VOCAB]);
    ek_nn_use_one_thread();
    *model = made;
    return EK_OK;
}

void ek_model_destroy(ek_model *model)
{
    if (!model)
        return;
    if (!model->engine)
        free(model->reduced);
    else if (model->reduced)
        ek_engine_free(model->engine, model->reduced);
    for (uint32_t i = 0; model->mixture_memory && i < ek_model_moe_layers(&model->config); i++)
        ek_mixture_free(&model->mixture_memory[i]);
    ek_mixture_scratch_free(&model->mixtures);
    free(model->mixture_memory);
    free(model->held);
    free(model->owner);
    free(model->arena);
    free(model->inputs);
    free(model->row_of);
    free(model->rope);
    free(model->layers);
    free(model);
}

uint64_t ek_model_flops(const ek_model *model)
{
    return model->flops;
}

void ek_model_regroup(ek_model *model, ek_group *tp, const uint32_t *expert_owners)
{
    model->tp = tp;
    if (expert_owners)
        memcpy(model->owner, expert_owners, model->config.experts * sizeof *model->owner);
}
