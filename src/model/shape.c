/* What a model is cut into: its configuration checked, its layers with experts, its unit groups. */
#include "model/model.h"

#include <math.h>

#include "base/error.h"

#define LARGEST_BLOCK 64

static const char *const names[EK_MODEL_GROUPS] = {"attention", "ffn", "vocab", "experts"};
static const char *const keys[EK_MODEL_GROUPS] = {"kv_heads", "ffn_block", "vocab_block", "experts"};

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

/* Of two numbers from 1, the one that may be no larger than the other. */
static ek_status check_most(const char *key, uint32_t value, const char *whole_key, uint32_t whole)
{
    if (value < 1 || value > whole)
        return ek_fail(EK_INVALID, "model.%s: found %u; 1 to %u, model.%s, is allowed", key, value, whole, whole_key);
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

static ek_status check_experts(const ek_model_config *config)
{
    if (!config->experts && config->expert_parallel)
        return ek_fail(EK_INVALID, "model.experts: found 0; expert parallelism (parallel.mode) needs experts");
    if (!config->experts)
        return EK_OK;
    EK_TRY(check_range("experts", config->experts, 1u << 16));
    EK_TRY(check_most("top_k", config->top_k, "experts", config->experts));
    EK_TRY(check_most("moe_every", config->moe_every, "layers", config->layers));
    if (config->expert_ffn)
        EK_TRY(check_range("expert_ffn", config->expert_ffn, 1u << 24));
    if (!(config->aux_loss >= 0.0f && isfinite(config->aux_loss)))
        return ek_fail(EK_INVALID, "model.aux_loss: found %g; a number from 0 is needed", config->aux_loss);
    return EK_OK;
}

ek_status ek_model_config_finish(ek_model_config *config, uint32_t base_degree)
{
    EK_TRY(check_sizes(config));
    EK_TRY(check_experts(config));
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

    if (finished.experts && finished.expert_ffn == 0)
        finished.expert_ffn = config->ffn;
    for (uint32_t kind = 0; kind < EK_MODEL_GROUPS; kind++)
        if (ek_model_group(&finished, kind) < EK_MODEL_GROUPS && ek_model_units(&finished, kind) < base_degree)
            return ek_fail(
                EK_INVALID,
                "model.%s: %u units of %s cannot be cut %u ways (parallel.tp); at least one per role is needed",
                keys[kind], ek_model_units(&finished, kind), names[kind], base_degree);
    *config = finished;
    return EK_OK;
}

bool ek_model_is_moe(const ek_model_config *config, uint32_t layer)
{
    return config->experts && layer % config->moe_every == 0;
}

uint32_t ek_model_moe_layers(const ek_model_config *config)
{
    return config->experts ? (config->layers - 1) / config->moe_every + 1 : 0;
}

uint32_t ek_model_units(const ek_model_config *config, uint32_t kind)
{
    const uint32_t units[EK_MODEL_GROUPS] = {config->kv_heads, config->ffn / config->ffn_block,
                                             config->vocab / config->vocab_block, config->experts};
    return units[kind];
}

uint32_t ek_model_group(const ek_model_config *config, uint32_t kind)
{
    if (kind == EK_GROUP_EXPERTS && !config->experts)
        return EK_NONE;
    if (!config->expert_parallel)
        return kind;
    return kind == EK_GROUP_EXPERTS ? 0 : EK_REPLICATED;
}

uint32_t ek_model_groups(const ek_model_config *config, ek_unit_group groups[EK_MODEL_GROUPS])
{
    uint32_t count = 0;
    for (uint32_t kind = 0; kind < EK_MODEL_GROUPS; kind++)
        if (ek_model_group(config, kind) < EK_MODEL_GROUPS)
            groups[count++] = (ek_unit_group){.name = names[kind], .units = ek_model_units(config, kind)};
    return count;
}
