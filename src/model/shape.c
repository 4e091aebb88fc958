/* What a model consists of: its configuration checked, its unit groups, its tensors, its initial weights. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/rng.h"
#include "model/tensors.h"

#define LARGEST_BLOCK 64
#define NAME_BYTES 40 /* "layer.4294967295.attention_norm" fits */

/* The largest power of two up to LARGEST_BLOCK that divides the size and leaves at least 4 units per role, else 1. */
static uint32_t choose_block(uint32_t size, uint32_t base_degree)
{
    for (uint32_t block = LARGEST_BLOCK; block > 1; block /= 2)
        if (size % block == 0 && size / block >= 4 * (uint64_t)base_degree)
            return block;
    return 1;
}

static ek_status check_range(const char *key, uint32_t value, uint32_t most)
{
    if (value < 1 || value > most)
        return ek_fail(EK_INVALID, "model.%s: found %u; a whole number from 1 to %u is needed", key, value, most);
    return EK_OK;
}

static ek_status check_divides(const char *key, uint32_t value, const char *whole_key, uint32_t whole)
{
    if (whole % value != 0)
        return ek_fail(EK_INVALID, "model.%s: found %u; it must divide model.%s, %u", key, value, whole_key, whole);
    return EK_OK;
}

/* Limits that keep every row length of a fused matrix within the 32 bits of BLAS. */
static ek_status check_sizes(const ek_model_config *config)
{
    EK_TRY(check_range("layers", config->layers, 1u << 16));
    EK_TRY(check_range("hidden", config->hidden, 1u << 20));
    EK_TRY(check_range("heads", config->heads, config->hidden));
    EK_TRY(check_range("kv_heads", config->kv_heads, config->heads));
    EK_TRY(check_range("ffn", config->ffn, 1u << 24));
    EK_TRY(check_range("vocab", config->vocab, 1u << 24));
    EK_TRY(check_range("sequence", config->sequence, 1u << 20));
    EK_TRY(check_divides("heads", config->heads, "hidden", config->hidden));
    EK_TRY(check_divides("kv_heads", config->kv_heads, "heads", config->heads));
    if (config->hidden / config->heads % 2 != 0)
        return ek_fail(EK_INVALID, "model.heads: found %u; the head dimension, hidden / heads = %u, must be even",
                       config->heads, config->hidden / config->heads);
    return EK_OK;
}

ek_status ek_model_config_finish(ek_model_config *config, uint32_t base_degree)
{
    EK_TRY(check_sizes(config));
    if (!(config->rope_theta > 0.0f && isfinite(config->rope_theta)))
        return ek_fail(EK_INVALID, "model.rope_theta: found %g; a number above 0 is needed", config->rope_theta);
    if (!(config->norm_eps > 0.0f && isfinite(config->norm_eps)))
        return ek_fail(EK_INVALID, "model.norm_eps: found %g; a number above 0 is needed", config->norm_eps);

    ek_model_config finished = *config;
    if (finished.ffn_block == 0)
        finished.ffn_block = choose_block(config->ffn, base_degree);
    if (finished.vocab_block == 0)
        finished.vocab_block = choose_block(config->vocab, base_degree);
    EK_TRY(check_divides("ffn_block", finished.ffn_block, "ffn", config->ffn));
    EK_TRY(check_divides("vocab_block", finished.vocab_block, "vocab", config->vocab));

    static const char *const keys[EK_MODEL_GROUPS] = {"kv_heads", "ffn_block", "vocab_block"};
    ek_unit_group groups[EK_MODEL_GROUPS];
    ek_model_groups(&finished, groups);
    for (int group = 0; group < EK_MODEL_GROUPS; group++)
        if (groups[group].units < base_degree)
            return ek_fail(
                EK_INVALID,
                "model.%s: %u units of %s cannot be cut %u ways (parallel.tp); at least one per role is needed",
                keys[group], groups[group].units, groups[group].name, base_degree);
    *config = finished;
    return EK_OK;
}

void ek_model_groups(const ek_model_config *config, ek_unit_group groups[EK_MODEL_GROUPS])
{
    groups[EK_GROUP_ATTENTION] = (ek_unit_group){.name = "attention", .units = config->kv_heads};
    groups[EK_GROUP_FFN] = (ek_unit_group){.name = "ffn", .units = config->ffn / config->ffn_block};
    groups[EK_GROUP_VOCAB] = (ek_unit_group){.name = "vocab", .units = config->vocab / config->vocab_block};
}

static uint32_t head_buckets(const ek_model_config *config)
{
    return config->tied_embeddings ? 0 : 1;
}

uint32_t ek_model_buckets(const ek_model_config *config)
{
    return head_buckets(config) + config->layers + 1;
}

uint32_t ek_model_layer_bucket(const ek_model_config *config, uint32_t layer)
{
    return head_buckets(config) + config->layers - 1 - layer;
}

size_t ek_model_tensor_count(const ek_model_config *config)
{
    return (size_t)EK_LAYER_TENSORS * config->layers + (config->tied_embeddings ? 2 : 3);
}

/* Group and unit size of a tensor; the bucket of those that are not a layer's alone is the last. */
static ek_tensor describe(const ek_model_config *config, size_t tensor)
{
    size_t C = config->hidden, D = C / config->heads, R = config->heads / config->kv_heads;
    uint32_t last_bucket = ek_model_buckets(config) - 1;
    ek_tensor replicated = {.group = EK_REPLICATED, .bucket = last_bucket, .unit_elements = C};
    ek_tensor vocab = {.group = EK_GROUP_VOCAB, .bucket = last_bucket, .unit_elements = config->vocab_block * C};
    if (tensor == EK_TENSOR_EMBEDDING)
        return vocab;
    if (tensor == ek_model_norm_tensor(config))
        return replicated;
    if (tensor > ek_model_norm_tensor(config)) {
        vocab.bucket = 0;
        return vocab;
    }
    size_t layer = (tensor - EK_TENSOR_LAYERS) / EK_LAYER_TENSORS;
    uint32_t bucket = ek_model_layer_bucket(config, (uint32_t)layer);
    switch ((tensor - EK_TENSOR_LAYERS) % EK_LAYER_TENSORS) {
    case EK_LAYER_QKV:
        return (ek_tensor){.group = EK_GROUP_ATTENTION, .bucket = bucket, .unit_elements = (R + 2) * D * C};
    case EK_LAYER_OUT:
        return (ek_tensor){.group = EK_GROUP_ATTENTION, .bucket = bucket, .unit_elements = R * D * C};
    case EK_LAYER_GATE_UP:
        return (ek_tensor){.group = EK_GROUP_FFN, .bucket = bucket, .unit_elements = (size_t)2 * config->ffn_block * C};
    case EK_LAYER_DOWN:
        return (ek_tensor){.group = EK_GROUP_FFN, .bucket = bucket, .unit_elements = config->ffn_block * C};
    default:
        return replicated;
    }
}

static void write_name(const ek_model_config *config, size_t tensor, char name[NAME_BYTES])
{
    static const char *const of_layer[EK_LAYER_TENSORS] = {"attention_norm", "qkv",     "out",
                                                           "ffn_norm",       "gate_up", "down"};
    if (tensor == EK_TENSOR_EMBEDDING)
        snprintf(name, NAME_BYTES, "embedding");
    else if (tensor == ek_model_norm_tensor(config))
        snprintf(name, NAME_BYTES, "norm");
    else if (tensor > ek_model_norm_tensor(config))
        snprintf(name, NAME_BYTES, "head");
    else
        snprintf(name, NAME_BYTES, "layer.%zu.%s", (tensor - EK_TENSOR_LAYERS) / EK_LAYER_TENSORS,
                 of_layer[(tensor - EK_TENSOR_LAYERS) % EK_LAYER_TENSORS]);
}

ek_status ek_model_tensors(const ek_model_config *config, ek_tensor **tensors, size_t *count)
{
    size_t total = ek_model_tensor_count(config);
    ek_tensor *list = malloc(total * (sizeof *list + NAME_BYTES));
    if (!list)
        return ek_fail(EK_NO_MEMORY, "no memory for the list of %zu tensors", total);
    char *names = (char *)(list + total);
    for (size_t tensor = 0; tensor < total; tensor++) {
        list[tensor] = describe(config, tensor);
        write_name(config, tensor, names + tensor * NAME_BYTES);
        list[tensor].name = names + tensor * NAME_BYTES;
    }
    *tensors = list;
    *count = total;
    return EK_OK;
}

uint64_t ek_model_parameters(const ek_model_config *config)
{
    ek_unit_group groups[EK_MODEL_GROUPS];
    ek_model_groups(config, groups);
    uint64_t parameters = 0;
    for (size_t tensor = 0; tensor < ek_model_tensor_count(config); tensor++) {
        ek_tensor description = describe(config, tensor);
        uint64_t units = description.group == EK_REPLICATED ? 1 : groups[description.group].units;
        parameters += units * description.unit_elements;
    }
    return parameters;
}

/* The number of an element of a unit within the whole tensor. It may depend on the shape of the model, but not on how
 * large its units are, since the default block sizes follow the base degree. Gate and up rows lie side by side in a
 * unit: they are numbered as one matrix of all gate rows, then all up rows. */
static uint64_t global_element(const ek_model_config *config, bool gate_up, uint32_t unit, size_t unit_elements,
                               size_t element)
{
    if (!gate_up)
        return (uint64_t)unit * unit_elements + element;
    size_t half = unit_elements / 2;
    bool up = element >= half;
    return (up ? (uint64_t)config->ffn * config->hidden : 0) + (uint64_t)unit * half + (up ? element - half : element);
}

void ek_model_init(const ek_model_config *config, uint64_t seed, size_t tensor, uint32_t unit, float *values)
{
    ek_tensor description = describe(config, tensor);
    size_t elements = description.unit_elements;
    bool in_layer = tensor >= EK_TENSOR_LAYERS && tensor < ek_model_norm_tensor(config);
    size_t kind = in_layer ? (tensor - EK_TENSOR_LAYERS) % EK_LAYER_TENSORS : EK_LAYER_TENSORS;
    double deviation = 0.02;
    if (kind == EK_LAYER_OUT || kind == EK_LAYER_DOWN)
        deviation /= sqrt(2.0 * config->layers);
    for (size_t i = 0; i < elements; i++) {
        uint64_t element = global_element(config, kind == EK_LAYER_GATE_UP, unit, elements, i);
        values[i] =
            description.group == EK_REPLICATED ? 1.0f : (float)(deviation * ek_random_normal(seed, tensor, element));
    }
}
