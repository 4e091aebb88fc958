/* The tensors of a model: their order, their units, their buckets, their initial weights. */
#include "model/tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/rng.h"

#define NAME_BYTES 48 /* "layer.4294967295.experts.gate_up" fits */

/* ------------------------------------------------------------------------------------------------- order */

static bool has_tensor(const ek_model_config *config, uint32_t layer, ek_layer_tensor kind)
{
    switch (kind) {
    case EK_LAYER_GATE_UP:
    case EK_LAYER_DOWN:
        return ek_model_has_ffn(config, layer);
    case EK_LAYER_ROUTER:
    case EK_LAYER_EXPERTS_GATE_UP:
    case EK_LAYER_EXPERTS_DOWN:
        return ek_model_is_moe(config, layer);
    default:
        return true;
    }
}

static size_t layer_tensors(const ek_model_config *config, uint32_t layer)
{
    size_t count = 0;
    for (ek_layer_tensor kind = 0; kind < EK_LAYER_TENSORS; kind++)
        count += has_tensor(config, layer, kind);
    return count;
}

size_t ek_model_layer_tensor(const ek_model_config *config, uint32_t layer, ek_layer_tensor kind)
{
    size_t tensor = EK_TENSOR_LAYERS;
    for (uint32_t before = 0; before < layer; before++)
        tensor += layer_tensors(config, before);
    for (ek_layer_tensor other = 0; other < kind; other++)
        tensor += has_tensor(config, layer, other);
    return tensor;
}

size_t ek_model_tensor_count(const ek_model_config *config)
{
    return ek_model_norm_tensor(config) + (config->tied_embeddings ? 1 : 2);
}

bool ek_model_find_in_layers(const ek_model_config *config, size_t tensor, uint32_t *layer, ek_layer_tensor *kind)
{
    size_t next = EK_TENSOR_LAYERS;
    for (*layer = 0; *layer < config->layers; ++*layer)
        for (*kind = 0; *kind < EK_LAYER_TENSORS; ++*kind)
            if (has_tensor(config, *layer, *kind) && next++ == tensor)
                return true;
    return false;
}

/* ---------------------------------------------------------------------------------------------- buckets */

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

/* ---------------------------------------------------------------------------------------- units and sizes */

/* A tensor of units of a kind: cut by them, or whole on every rank, which then has a part of its gradient. */
static ek_tensor cut_by(const ek_model_config *config, uint32_t kind, uint32_t bucket, size_t unit_elements)
{
    uint32_t group = ek_model_group(config, kind);
    if (group != EK_REPLICATED)
        return (ek_tensor){.group = group, .bucket = bucket, .unit_elements = unit_elements};
    return (ek_tensor){.group = EK_REPLICATED,
                       .bucket = bucket,
                       .unit_elements = ek_model_units(config, kind) * unit_elements,
                       .partial = true};
}

/* Elements of one unit of a tensor of a layer. */
static size_t layer_unit_elements(const ek_model_config *config, ek_layer_tensor kind)
{
    size_t C = config->hidden, D = C / config->heads, R = config->heads / config->kv_heads;
    switch (kind) {
    case EK_LAYER_QKV:
        return (R + 2) * D * C;
    case EK_LAYER_OUT:
        return R * D * C;
    case EK_LAYER_GATE_UP:
        return (size_t)2 * config->ffn_block * C;
    case EK_LAYER_DOWN:
        return config->ffn_block * C;
    case EK_LAYER_ROUTER:
        return config->experts * C;
    case EK_LAYER_EXPERTS_GATE_UP:
        return (size_t)2 * config->expert_ffn * C;
    case EK_LAYER_EXPERTS_DOWN:
        return config->expert_ffn * C;
    default:
        return C;
    }
}

static ek_tensor describe_in_layer(const ek_model_config *config, uint32_t layer, ek_layer_tensor kind)
{
    uint32_t bucket = ek_model_layer_bucket(config, layer), last_bucket = ek_model_buckets(config) - 1;
    size_t elements = layer_unit_elements(config, kind);
    switch (kind) {
    case EK_LAYER_QKV:
    case EK_LAYER_OUT:
        return cut_by(config, EK_GROUP_ATTENTION, bucket, elements);
    case EK_LAYER_GATE_UP:
    case EK_LAYER_DOWN:
        return cut_by(config, EK_GROUP_FFN, bucket, elements);
    case EK_LAYER_EXPERTS_GATE_UP:
    case EK_LAYER_EXPERTS_DOWN:
        return cut_by(config, EK_GROUP_EXPERTS, bucket, elements);
    default:
        return (ek_tensor){.group = EK_REPLICATED,
                           .bucket = last_bucket,
                           .unit_elements = elements,
                           .partial = config->expert_parallel};
    }
}

/* Replicated tensors that are small, and what is not a layer's alone, are in the last bucket. */
static ek_tensor describe(const ek_model_config *config, size_t tensor)
{
    uint32_t layer, last_bucket = ek_model_buckets(config) - 1;
    ek_layer_tensor kind;
    size_t C = config->hidden;
    if (ek_model_find_in_layers(config, tensor, &layer, &kind))
        return describe_in_layer(config, layer, kind);
    if (tensor == ek_model_norm_tensor(config))
        return (ek_tensor){
            .group = EK_REPLICATED, .bucket = last_bucket, .unit_elements = C, .partial = config->expert_parallel};
    return cut_by(config, EK_GROUP_VOCAB, tensor == EK_TENSOR_EMBEDDING ? last_bucket : 0, config->vocab_block * C);
}

uint32_t ek_model_tensor_units(const ek_model_config *config, size_t tensor, size_t *unit_elements)
{
    uint32_t layer, units = 1;
    ek_layer_tensor kind;
    size_t elements = describe(config, tensor).unit_elements;
    if (!ek_model_find_in_layers(config, tensor, &layer, &kind))
        units = tensor == ek_model_norm_tensor(config) ? 1 : ek_model_units(config, EK_GROUP_VOCAB);
    else if (kind == EK_LAYER_QKV || kind == EK_LAYER_OUT)
        units = ek_model_units(config, EK_GROUP_ATTENTION);
    else if (kind == EK_LAYER_GATE_UP || kind == EK_LAYER_DOWN)
        units = ek_model_units(config, EK_GROUP_FFN);
    else if (kind == EK_LAYER_EXPERTS_GATE_UP || kind == EK_LAYER_EXPERTS_DOWN)
        units = ek_model_units(config, EK_GROUP_EXPERTS);
    *unit_elements = describe(config, tensor).group == EK_REPLICATED ? elements / units : elements;
    return units;
}

bool ek_model_decays(const ek_model_config *config, size_t tensor)
{
    uint32_t layer;
    ek_layer_tensor kind;
    if (ek_model_find_in_layers(config, tensor, &layer, &kind))
        return kind != EK_LAYER_ATTENTION_NORM && kind != EK_LAYER_FFN_NORM;
    return tensor != ek_model_norm_tensor(config);
}

static void write_name(const ek_model_config *config, size_t tensor, char name[NAME_BYTES])
{
    static const char *const of_layer[EK_LAYER_TENSORS] = {
        "attention_norm", "qkv", "out", "ffn_norm", "gate_up", "down", "router", "experts.gate_up", "experts.down"};
    uint32_t layer;
    ek_layer_tensor kind;
    if (ek_model_find_in_layers(config, tensor, &layer, &kind))
        snprintf(name, NAME_BYTES, "layer.%u.%s", layer, of_layer[kind]);
    else if (tensor == EK_TENSOR_EMBEDDING)
        snprintf(name, NAME_BYTES, "embedding");
    else
        snprintf(name, NAME_BYTES, tensor == ek_model_norm_tensor(config) ? "norm" : "head");
}

ek_status ek_model_tensors(const ek_model_config *config, ek_tensor **tensors, size_t *count)
{
    size_t total = ek_model_tensor_count(config);
    ek_tensor *list = malloc(total * (sizeof *list + NAME_BYTES));
    if (!list)
        return ek_fail(EK_NO_MEMORY, "no memory for the list of %zu tensors", total);
    char *tensor_names = (char *)(list + total);
    for (size_t tensor = 0; tensor < total; tensor++) {
        list[tensor] = describe(config, tensor);
        write_name(config, tensor, tensor_names + tensor * NAME_BYTES);
        list[tensor].name = tensor_names + tensor * NAME_BYTES;
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

/* ----------------------------------------------------------------------------------------- initial weights */

/* The number of an element of the FFN's gate_up within the whole tensor. It may depend on the shape of the model, but
 * not on how large its units are, since the default block sizes follow the base degree. Gate and up rows lie side by
 * side in a unit: they are numbered as one matrix of all gate rows, then all up rows. */
static uint64_t gate_up_element(const ek_model_config *config, uint64_t element)
{
    uint64_t half = (uint64_t)config->ffn_block * config->hidden, unit = element / (2 * half),
             rest = element % (2 * half);
    bool up = rest >= half;
    return (up ? (uint64_t)config->ffn * config->hidden : 0) + unit * half + (up ? rest - half : rest);
}

void ek_model_init(const ek_model_config *config, uint64_t seed, size_t tensor, uint32_t unit, float *values)
{
    uint32_t layer;
    ek_layer_tensor kind;
    if (!ek_model_find_in_layers(config, tensor, &layer, &kind))
        kind = EK_LAYER_TENSORS;
    double deviation = 0.02;
    if (kind == EK_LAYER_OUT || kind == EK_LAYER_DOWN || kind == EK_LAYER_EXPERTS_DOWN)
        deviation /= sqrt(2.0 * config->layers);
    size_t elements = describe(config, tensor).unit_elements;
    bool is_matrix = ek_model_decays(config, tensor);
    for (size_t i = 0; i < elements; i++) {
        uint64_t element = (uint64_t)unit * elements + i;
        if (kind == EK_LAYER_GATE_UP)
            element = gate_up_element(config, element);
        values[i] = is_matrix ? (float)(deviation * ek_random_normal(seed, tensor, element)) : 1.0f;
    }
}
