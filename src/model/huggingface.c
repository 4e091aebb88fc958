/* Names, shapes and places of the model's tensors in Hugging Face's checkpoints. */
#include "model/huggingface.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/tensors.h"

/* ------------------------------------------------------------------------------------------------- order */

/* The tensors of a layer, in order; FFN and experts are there if the layer has them, experts as often as there are. */
enum { NORM_IN, QUERY, KEY, VALUE, OUTPUT, NORM_FFN, ALWAYS };
enum { GATE, UP, DOWN, OF_FFN };

#define OF_EMBEDDING 1 /* tensors before the first layer's */

static size_t of_ffn(const ek_model_config *config, uint32_t layer)
{
    return ek_model_has_ffn(config, layer) ? OF_FFN : 0;
}

static size_t of_layer(const ek_model_config *config, uint32_t layer)
{
    size_t experts = ek_model_is_moe(config, layer) ? 1 + (size_t)OF_FFN * config->experts : 0;
    return ALWAYS + of_ffn(config, layer) + experts;
}

static size_t first_of_layer(const ek_model_config *config, uint32_t layer)
{
    size_t first = OF_EMBEDDING;
    for (uint32_t before = 0; before < layer; before++)
        first += of_layer(config, before);
    return first;
}

static size_t router_of_layer(const ek_model_config *config, uint32_t layer)
{
    return first_of_layer(config, layer) + ALWAYS + of_ffn(config, layer);
}

/* ------------------------------------------------------------------------------------------------- names */

__attribute__((format(printf, 4, 5))) static void add(ek_hf_tensor **next, uint64_t rows, uint64_t columns,
                                                      const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf((*next)->name, EK_HF_NAME_BYTES, format, arguments);
    va_end(arguments);
    (*next)->rows = rows;
    (*next)++->columns = columns;
}

static void add_layer(ek_hf_tensor **next, const ek_model_config *config, uint32_t l)
{
    uint64_t C = config->hidden, D = C / config->heads, F = config->ffn, f = config->expert_ffn;
    bool is_moe = ek_model_is_moe(config, l);
    add(next, 0, C, "model.layers.%u.input_layernorm.weight", l);
    add(next, C, C, "model.layers.%u.self_attn.q_proj.weight", l);
    add(next, config->kv_heads * D, C, "model.layers.%u.self_attn.k_proj.weight", l);
    add(next, config->kv_heads * D, C, "model.layers.%u.self_attn.v_proj.weight", l);
    add(next, C, C, "model.layers.%u.self_attn.o_proj.weight", l);
    add(next, 0, C, "model.layers.%u.post_attention_layernorm.weight", l);
    const char *ffn = is_moe ? "block_sparse_moe.shared_expert" : "mlp";
    if (ek_model_has_ffn(config, l)) {
        add(next, F, C, "model.layers.%u.%s.gate_proj.weight", l, ffn);
        add(next, F, C, "model.layers.%u.%s.up_proj.weight", l, ffn);
        add(next, C, F, "model.layers.%u.%s.down_proj.weight", l, ffn);
    }
    if (!is_moe)
        return;
    add(next, config->experts, C, "model.layers.%u.block_sparse_moe.gate.weight", l);
    for (uint32_t e = 0; e < config->experts; e++) {
        add(next, f, C, "model.layers.%u.block_sparse_moe.experts.%u.w1.weight", l, e);
        add(next, f, C, "model.layers.%u.block_sparse_moe.experts.%u.w3.weight", l, e);
        add(next, C, f, "model.layers.%u.block_sparse_moe.experts.%u.w2.weight", l, e);
    }
}

ek_status ek_hf_tensors(const ek_model_config *config, ek_hf_tensor **tensors, size_t *count)
{
    size_t total = first_of_layer(config, config->layers) + (config->tied_embeddings ? 1 : 2);
    ek_hf_tensor *list = calloc(total, sizeof *list), *next = list;
    if (!list)
        return ek_fail(EK_NO_MEMORY, "no memory for the list of %zu tensors", total);
    add(&next, config->vocab, config->hidden, "model.embed_tokens.weight");
    for (uint32_t l = 0; l < config->layers; l++)
        add_layer(&next, config, l);
    add(&next, 0, config->hidden, "model.norm.weight");
    if (!config->tied_embeddings)
        add(&next, config->vocab, config->hidden, "lm_head.weight");
    *tensors = list;
    *count = total;
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------ places */

static ek_hf_place whole_rows(size_t tensor, uint64_t row, size_t rows, size_t columns, size_t first)
{
    return (ek_hf_place){.tensor = tensor, .row = row, .rows = rows, .columns = columns, .first = first};
}

static ek_hf_place whole_columns(size_t tensor, uint64_t column, size_t rows, size_t columns)
{
    return (ek_hf_place){.tensor = tensor, .column = column, .rows = rows, .columns = columns, .transposed = true};
}

static uint32_t layer_places(const ek_model_config *config, uint32_t layer, ek_layer_tensor kind, uint32_t unit,
                             ek_hf_place *places)
{
    size_t C = config->hidden, D = C / config->heads, R = config->heads / config->kv_heads;
    size_t f = config->ffn_block, F = config->expert_ffn;
    size_t first = first_of_layer(config, layer), ffn = first + ALWAYS, router = router_of_layer(config, layer);
    size_t expert = router + 1 + (size_t)OF_FFN * unit;
    switch (kind) {
    case EK_LAYER_QKV:
        places[0] = whole_rows(first + QUERY, unit * R * D, R * D, C, 0);
        places[1] = whole_rows(first + KEY, unit * D, D, C, R * D * C);
        places[2] = whole_rows(first + VALUE, unit * D, D, C, (R + 1) * D * C);
        return 3;
    case EK_LAYER_OUT:
        places[0] = whole_columns(first + OUTPUT, unit * R * D, C, R * D);
        return 1;
    case EK_LAYER_GATE_UP:
        places[0] = whole_rows(ffn + GATE, unit * f, f, C, 0);
        places[1] = whole_rows(ffn + UP, unit * f, f, C, f * C);
        return 2;
    case EK_LAYER_DOWN:
        places[0] = whole_columns(ffn + DOWN, unit * f, C, f);
        return 1;
    case EK_LAYER_ROUTER:
        places[0] = whole_rows(router, 0, config->experts, C, 0);
        return 1;
    case EK_LAYER_EXPERTS_GATE_UP:
        places[0] = whole_rows(expert + GATE, 0, F, C, 0);
        places[1] = whole_rows(expert + UP, 0, F, C, F * C);
        return 2;
    case EK_LAYER_EXPERTS_DOWN:
        places[0] = whole_columns(expert + DOWN, 0, C, F);
        return 1;
    default:
        places[0] = whole_rows(first + (kind == EK_LAYER_ATTENTION_NORM ? NORM_IN : NORM_FFN), 0, 1, C, 0);
        return 1;
    }
}

uint32_t ek_hf_places(const ek_model_config *config, size_t tensor, uint32_t unit,
                      ek_hf_place places[EK_HF_PLACES_MOST])
{
    uint32_t layer;
    ek_layer_tensor kind;
    size_t C = config->hidden, block = config->vocab_block, norm = first_of_layer(config, config->layers);
    if (ek_model_find_in_layers(config, tensor, &layer, &kind))
        return layer_places(config, layer, kind, unit, places);
    if (tensor == ek_model_norm_tensor(config))
        places[0] = whole_rows(norm, 0, 1, C, 0);
    else
        places[0] = whole_rows(tensor == EK_TENSOR_EMBEDDING ? 0 : norm + 1, unit * block, block, C, 0);
    return 1;
}

/* ----------------------------------------------------------------------------------------------- config.json */

json_t *ek_hf_config(const ek_model_config *config)
{
    bool is_moe = config->experts > 0;
    json_t *json =
        json_pack("{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:b, s:b}", "architectures",
                  is_moe ? "MixtralForCausalLM" : "LlamaForCausalLM", "model_type", is_moe ? "mixtral" : "llama",
                  "torch_dtype", "float32", "num_hidden_layers", (json_int_t)config->layers, "hidden_size",
                  (json_int_t)config->hidden, "num_attention_heads", (json_int_t)config->heads, "num_key_value_heads",
                  (json_int_t)config->kv_heads, "head_dim", (json_int_t)(config->hidden / config->heads),
                  "intermediate_size", (json_int_t)(is_moe ? config->expert_ffn : config->ffn), "vocab_size",
                  (json_int_t)config->vocab, "max_position_embeddings", (json_int_t)config->sequence, "hidden_act",
                  "silu", "rms_norm_eps", (double)config->norm_eps, "rope_theta", (double)config->rope_theta,
                  "tie_word_embeddings", (int)config->tied_embeddings, "attention_bias", 0);
    if (json && is_moe) {
        json_object_set_new(json, "num_local_experts", json_integer(config->experts));
        json_object_set_new(json, "num_experts_per_tok", json_integer(config->top_k));
        json_object_set_new(json, "router_aux_loss_coef", json_real((double)config->aux_loss));
        json_object_set_new(json, "moe_every", json_integer(config->moe_every));
        json_object_set_new(json, "shared_expert_intermediate_size",
                            json_integer(config->shared_expert ? config->ffn : 0));
    }
    return json;
}

/* A number of a config.json; what the tools take where it is absent. NAN: there is none. */
static double find_number(const json_t *json, const char *key, const ek_model_config *config)
{
    const json_t *found = json_object_get(json, key);
    bool is_moe = config->experts > 0;
    if (!found && strcmp(key, "rope_theta") == 0)
        found = json_object_get(json_object_get(json, "rope_parameters"), key);
    if (json_is_number(found))
        return json_number_value(found);
    if (found && !json_is_null(found))
        return NAN;
    if (strcmp(key, "num_key_value_heads") == 0)
        return json_number_value(json_object_get(json, "num_attention_heads"));
    if (strcmp(key, "head_dim") == 0)
        return (double)config->hidden / config->heads;
    if (strcmp(key, "rope_theta") == 0)
        return is_moe ? 1e6 : 1e4;
    if (strcmp(key, "rms_norm_eps") == 0)
        return is_moe ? 1e-5 : 1e-6;
    if (strcmp(key, "moe_every") == 0)
        return 1;
    return strcmp(key, "shared_expert_intermediate_size") == 0 ? 0 : NAN;
}

static ek_status check_numbers(const json_t *json, const json_t *wanted, const ek_model_config *config)
{
    static const char *const keys[] = {"num_hidden_layers",
                                       "hidden_size",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "head_dim",
                                       "intermediate_size",
                                       "vocab_size",
                                       "rms_norm_eps",
                                       "rope_theta",
                                       "num_local_experts",
                                       "moe_every",
                                       "num_experts_per_tok",
                                       "shared_expert_intermediate_size"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *own = json_object_get(wanted, keys[i]);
        if (!own)
            continue;
        double value = find_number(json, keys[i], config), expected = json_number_value(own);
        if (isnan(value))
            return ek_fail(EK_INVALID, "%s is missing; this model's is %g", keys[i], expected);
        if (!(fabs(value - expected) <= 1e-6 * fabs(expected)))
            return ek_fail(EK_INVALID, "%s is %g; this model's is %g", keys[i], value, expected);
    }
    return EK_OK;
}

/* What other models of these tensors do besides. */
static ek_status check_features(const json_t *json)
{
    static const char *const off[] = {"attention_bias", "mlp_bias", "rope_scaling", "sliding_window"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        const json_t *found = json_object_get(json, off[i]);
        if (found && !json_is_null(found) && !json_is_false(found))
            return ek_fail(EK_INVALID, "%s is set; this model has none", off[i]);
    }
    const char *rope = json_string_value(json_object_get(json_object_get(json, "rope_parameters"), "rope_type"));
    if (rope && strcmp(rope, "default") != 0)
        return ek_fail(EK_INVALID, "rope_type is %.40s; this model's is default", rope);
    const char *activation = json_string_value(json_object_get(json, "hidden_act"));
    if (activation && strcmp(activation, "silu") != 0)
        return ek_fail(EK_INVALID, "hidden_act is %.40s; this model's is silu", activation);
    return EK_OK;
}

ek_status ek_hf_check_config(const json_t *json, const ek_model_config *config)
{
    const char *type = json_string_value(json_object_get(json, "model_type"));
    const char *own_type = config->experts ? "mixtral" : "llama";
    if (!type || strcmp(type, own_type) != 0)
        return ek_fail(EK_INVALID, "model_type is %.40s; this model's is %s", type ? type : "missing", own_type);
    bool tied = json_is_true(json_object_get(json, "tie_word_embeddings"));
    if (tied != config->tied_embeddings)
        return ek_fail(EK_INVALID, "tie_word_embeddings is %s; this model's is not", tied ? "true" : "false");
    EK_TRY(check_features(json));
    json_t *wanted = ek_hf_config(config);
    if (!wanted)
        return ek_fail(EK_NO_MEMORY, "no memory for the model's configuration");
    ek_status status = check_numbers(json, wanted, config);
    json_decref(wanted);
    return status;
}
