/* What must hold between the values of the performance model, and what stands in for those left out. */
#include "perf/parts.h"

#include <string.h>

#include "base/error.h"

#define BLOCK_MOST 64 /* columns or rows in a unit, where the user does not choose */

/* As the trainer's default, but for its wish for several units on each rank: sizes of real models give them anyway. */
static uint32_t choose_block(uint32_t size, uint32_t degree)
{
    uint32_t block = BLOCK_MOST;
    while (block > 1 && (size % block != 0 || size / block < degree))
        block /= 2;
    return block;
}

void perf_finish(ek_perf_model *model, const ek_perf_parallel *parallel)
{
    uint32_t cut = parallel->mode == EK_PERF_EP ? 1 : parallel->tp;
    model->kv_heads = model->kv_heads ? model->kv_heads : model->heads;
    model->ffn_block = model->ffn_block ? model->ffn_block : choose_block(model->ffn, cut);
    model->vocab_block = model->vocab_block ? model->vocab_block : choose_block(model->vocab, cut);
    model->expert_ffn = model->expert_ffn ? model->expert_ffn : model->ffn;
}

/* Every number within the range of its field: structs need not come from a file. A key that may be derived may be 0. */
static ek_status check_ranges(const ek_field *fields, size_t count, const void *values)
{
    for (const ek_field *field = fields; field < fields + count; field++) {
        char allowed[EK_ALLOWED_BYTES];
        const void *place = (const char *)values + field->offset;
        uint32_t whole = 0;
        double real = 0;
        bool holds = true;
        if (field->kind == EK_FIELD_WHOLE) {
            memcpy(&whole, place, sizeof whole);
            real = whole;
            holds = (whole >= field->least && whole <= field->most) || (field->derived && whole == 0);
        } else if (field->kind == EK_FIELD_REAL) {
            memcpy(&real, place, sizeof real);
            holds = real >= field->least_real && real <= field->most_real;
        }
        if (!holds) {
            ek_field_allowed(field, allowed);
            return ek_fail(EK_INVALID, "%s: found %.10g; %s is needed", field->key, real, allowed);
        }
    }
    return EK_OK;
}

static ek_status check_divides(const char *part_key, uint32_t part, const char *whole_key, uint32_t whole)
{
    if (whole % part != 0)
        return ek_fail(EK_INVALID, "%s: found %u; a divisor of %s, %u, is needed", part_key, part, whole_key, whole);
    return EK_OK;
}

static ek_status check_units(const char *key, uint32_t units, const char *group, uint32_t tp)
{
    if (units < tp)
        return ek_fail(EK_INVALID,
                       "%s: %u units of %s cannot be cut %u ways (parallel.tp); at least one per role is needed", key,
                       units, group, tp);
    return EK_OK;
}

static ek_status check_model(const ek_perf_model *model, const ek_perf_parallel *parallel)
{
    uint32_t tp = parallel->tp, cut = parallel->mode == EK_PERF_EP ? 1 : tp; /* experts; all else */
    EK_TRY(check_divides("model.heads", model->heads, "model.hidden", model->hidden));
    EK_TRY(check_divides("model.kv_heads", model->kv_heads, "model.heads", model->heads));
    EK_TRY(check_divides("model.ffn_block", model->ffn_block, "model.ffn", model->ffn));
    EK_TRY(check_divides("model.vocab_block", model->vocab_block, "model.vocab", model->vocab));
    EK_TRY(check_units("model.kv_heads", model->kv_heads, "attention", cut));
    EK_TRY(check_units("model.ffn_block", model->ffn / model->ffn_block, "ffn", cut));
    EK_TRY(check_units("model.vocab_block", model->vocab / model->vocab_block, "vocab", cut));
    if (model->experts == 0 && parallel->mode == EK_PERF_EP)
        return ek_fail(EK_INVALID, "parallel.mode: found ep; a model with experts (model.experts) is needed");
    if (model->experts == 0)
        return EK_OK;
    EK_TRY(check_units("model.experts", model->experts, "experts", tp));
    if (model->top_k > model->experts)
        return ek_fail(EK_INVALID, "model.top_k: found %u; at most model.experts, %u, is allowed", model->top_k,
                       model->experts);
    return EK_OK;
}

static ek_status check_parallel(const ek_perf_model *model, const ek_perf_parallel *parallel,
                                const ek_perf_hardware *hardware)
{
    uint64_t chunks = (uint64_t)parallel->pp * parallel->interleave;
    if (parallel->tp > hardware->domain_slots)
        return ek_fail(EK_INVALID,
                       "parallel.tp: found %u; at most network.domain_slots, %u, is allowed: a TP group lives inside "
                       "one scale-up domain",
                       parallel->tp, hardware->domain_slots);
    if (parallel->min_tp > parallel->tp)
        return ek_fail(EK_INVALID, "parallel.min_tp: found %u; at most parallel.tp, %u, is allowed", parallel->min_tp,
                       parallel->tp);
    if (parallel->interleave > 1 && parallel->pp == 1)
        return ek_fail(EK_INVALID,
                       "parallel.interleave: found %u; with one pipeline stage (parallel.pp) only 1 is "
                       "allowed",
                       parallel->interleave);
    if (model->layers % chunks != 0)
        return ek_fail(EK_INVALID,
                       "model.layers: found %u; a multiple of %llu is needed, a layer for each of parallel.interleave, "
                       "%u, chunks of parallel.pp, %u, stages",
                       model->layers, (unsigned long long)chunks, parallel->interleave, parallel->pp);
    if (model->experts && parallel->mode == EK_PERF_TP && parallel->tp > 1 && !parallel->sequence_parallel)
        return ek_fail(EK_INVALID, "parallel.sequence_parallel: found false; experts (model.experts) over the ranks of "
                                   "a TP group need true");
    if (parallel->global_batch < parallel->dp)
        return ek_fail(EK_INVALID,
                       "batch.global: found %u; at least %u is needed, a sample for each replica "
                       "(parallel.dp)",
                       parallel->global_batch, parallel->dp);
    bool ep = parallel->mode == EK_PERF_EP;
    uint32_t samples = (parallel->global_batch - 1) / parallel->dp + 1;
    if (ep)
        samples = (samples - 1) / parallel->tp + 1;
    if (parallel->micro_batch > samples)
        return ek_fail(EK_INVALID, "batch.micro: found %u; at most %u is allowed, the samples of a %s",
                       parallel->micro_batch, samples, ep ? "rank" : "replica");
    return EK_OK;
}

ek_status perf_check(const ek_perf_model *model, const ek_perf_parallel *parallel, const ek_perf_hardware *hardware)
{
    size_t count;
    const ek_field *fields = ek_perf_model_fields(&count);
    EK_TRY(check_ranges(fields, count, model));
    fields = ek_perf_parallel_fields(&count);
    EK_TRY(check_ranges(fields, count, parallel));
    fields = ek_perf_hardware_fields(&count);
    EK_TRY(check_ranges(fields, count, hardware));
    ek_perf_model finished = *model;
    perf_finish(&finished, parallel);
    EK_TRY(check_model(&finished, parallel));
    return check_parallel(&finished, parallel, hardware);
}
