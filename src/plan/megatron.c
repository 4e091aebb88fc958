/* Writes a plan as Python text for Megatron-Core, or says which tensor Megatron cannot cut. */
#include "plan/megatron.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/text.h"
#include "plan/ranks.h"

/* ------------------------------------------------------------------------------------ what Megatron can run */

bool ek_megatron_can_split(uint32_t units, uint32_t base_degree, uint32_t reduced_degree)
{
    return units % base_degree == 0 && units % reduced_degree == 0;
}

typedef struct sharded {
    const char *key, *units_name;
    uint32_t units;
} sharded;

enum { TENSORS = 4 };

static uint32_t kv_heads_of(const ek_perf_model *model)
{
    return model->kv_heads > 0 ? model->kv_heads : model->heads;
}

static void tensors_of(const ek_perf_model *model, sharded tensors[TENSORS])
{
    tensors[0] = (sharded){"model.heads", "attention heads", model->heads};
    tensors[1] = (sharded){"model.kv_heads", "KV heads", kv_heads_of(model)};
    tensors[2] = (sharded){"model.ffn", "FFN columns", model->ffn};
    tensors[3] = (sharded){"model.vocab", "vocabulary rows", model->vocab};
}

/* The next lower degree at which every tensor can be cut, or 0. */
static uint32_t lower_degree(const sharded tensors[TENSORS], uint32_t base, uint32_t reduced)
{
    for (uint32_t degree = reduced - 1; degree > 0; degree--) {
        bool fits = true;
        for (int i = 0; i < TENSORS; i++)
            fits = fits && ek_megatron_can_split(tensors[i].units, base, degree);
        if (fits)
            return degree;
    }
    return 0;
}

static ek_status refuse_reduced(const sharded *tensor, uint32_t base, uint32_t reduced, uint32_t lower)
{
    uint32_t chunk = (tensor->units + reduced - 1) / reduced, chunks = (tensor->units + chunk - 1) / chunk;
    char why[100], lower_text[100] = "no lower degree fits";
    if (chunks < reduced)
        snprintf(why, sizeof why, "its chunks of %u make %u shards", chunk, chunks);
    else
        snprintf(why, sizeof why, "its chunks of %u leave %u for the last shard", chunk,
                 tensor->units - (chunks - 1) * chunk);
    if (lower > 0)
        snprintf(lower_text, sizeof lower_text, "drain slots down to TP%u, the next degree that fits", lower);
    return ek_fail(EK_INVALID,
                   "%s: Megatron cannot cut %u %s for TP%u beside TP%u: %s; %s; parallel.min_tp: %u leaves reduced "
                   "replicas out",
                   tensor->key, tensor->units, tensor->units_name, reduced, base, why, lower_text, base);
}

static ek_status check_model(const ek_perf_model *model, ek_perf_mode mode, const ek_ranks *ranks)
{
    uint32_t base = ranks->base_degree, reduced = ranks->reduced_degree;
    if (model->experts > 0 && reduced < base)
        return ek_fail(EK_INVALID,
                       "model.experts: Megatron's nonuniform TP has no mapping for experts, and replicas are reduced "
                       "to %s%u: only a dense model, or a plan without reduced replicas, can be written for it",
                       ek_perf_mode_text(mode), reduced);
    if (mode == EK_PERF_EP)
        return ek_fail(EK_INVALID, "parallel.mode: found ep; tp is needed: what is written for Megatron are the groups "
                                   "of tensor parallelism");
    sharded tensors[TENSORS];
    tensors_of(model, tensors);
    for (int i = 0; i < TENSORS; i++)
        if (tensors[i].units % base != 0)
            return ek_fail(EK_INVALID, "%s: Megatron cannot cut %u %s for TP%u: a multiple of %u is needed",
                           tensors[i].key, tensors[i].units, tensors[i].units_name, base, base);
    if (reduced == base)
        return EK_OK;
    for (int i = 0; i < TENSORS; i++)
        if (!ek_megatron_can_split(tensors[i].units, base, reduced))
            return refuse_reduced(&tensors[i], base, reduced, lower_degree(tensors, base, reduced));
    /* the joint QKV weight is cut by query head: what a KV head adds must divide by the query heads that share it */
    uint32_t head_rows = model->hidden / model->heads, sharing = model->heads / kv_heads_of(model);
    if (2 * head_rows % sharing != 0)
        return ek_fail(EK_INVALID,
                       "model.kv_heads: Megatron cannot cut the QKV weight for TP%u beside TP%u: %u query heads share "
                       "a KV head, which must divide 2 x %u rows",
                       reduced, base, sharing, head_rows);
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------ the text */

static void write_head(const ek_ranks *ranks, FILE *file)
{
    fprintf(file,
            "# Nonuniform tensor parallelism for Megatron-Core, planned by evenkeel %s (docs/launching.md).\n"
            "# %u rank%s: %u replica%s of %u stage%s at TP%u",
            ek_version(), ranks->count, ek_plural(ranks->count), ranks->replicas, ek_plural(ranks->replicas),
            ranks->stages, ek_plural(ranks->stages), ranks->base_degree);
    if (ranks->reduced_replicas > 0)
        fprintf(file, ", the first %u of them reduced to TP%u", ranks->reduced_replicas, ranks->reduced_degree);
    fprintf(file, ".\n");
    if (ranks->idle_slots > 0)
        fprintf(file, "# Healthy GPUs switched off, so that all reduced replicas have that degree: %u.\n",
                ranks->idle_slots);
}

/* The positions of a cell that no rank has. */
static void write_non_active(const ek_ranks *ranks, uint32_t replica, uint32_t stage, FILE *file)
{
    uint32_t first = ek_ranks_at(ranks, stage, replica, 0), degree = ranks->reduced_degree, tp_rank = 0;
    const char *separator = "";
    fprintf(file, "        (%u, 0, %u): [", replica, stage);
    for (uint32_t position = 0; position < ranks->base_degree; position++) {
        if (tp_rank < degree && ranks->positions[first + tp_rank] == position) {
            tp_rank++;
            continue;
        }
        fprintf(file, "%s%u", separator, position);
        separator = ", ";
    }
    fprintf(file, "],\n");
}

static void write_config(const ek_ranks *ranks, FILE *file)
{
    fprintf(file,
            "\nfrom megatron.core.distributed.nonuniform_tp import NonuniformTPConfig\n\n"
            "ntp_config = NonuniformTPConfig(\n"
            "    tp_base=%u,\n"
            "    tp_spares=%u,\n"
            "    num_reduced_tp_dp_ranks=%u,\n"
            "    # (DP rank, CP rank, PP rank): positions in the TP group of the nominal degree\n"
            "    non_active_ranks_per_dp={\n",
            ranks->base_degree, ranks->base_degree - ranks->reduced_degree, ranks->reduced_replicas);
    for (uint32_t replica = 0; replica < ranks->reduced_replicas; replica++)
        for (uint32_t stage = 0; stage < ranks->stages; stage++)
            write_non_active(ranks, replica, stage, file);
    fprintf(file, "    },\n)\n");
}

static void begin_groups(const char *name, const char *comment, FILE *file)
{
    fprintf(file, "\n# %s\n%s = [\n", comment, name);
}

static void end_groups(FILE *file)
{
    fprintf(file, "]\n");
}

/* The ranks of one TP rank in stages first, first + step, … */
static void write_stages(const ek_ranks *ranks, uint32_t replica, uint32_t tp_rank, uint32_t first, uint32_t step,
                         FILE *file)
{
    for (uint32_t stage = first; stage < ranks->stages; stage += step)
        fprintf(file, "%s%u", stage > first ? ", " : "    [", ek_ranks_at(ranks, stage, replica, tp_rank));
    fprintf(file, "],\n");
}

static void write_tensor_groups(const ek_ranks *ranks, FILE *file)
{
    begin_groups("tensor_parallel_groups", "A stage of a replica.", file);
    for (uint32_t stage = 0; stage < ranks->stages; stage++)
        for (uint32_t replica = 0; replica < ranks->replicas; replica++) {
            for (uint32_t tp_rank = 0; tp_rank < ek_ranks_degree(ranks, replica); tp_rank++)
                fprintf(file, "%s%u", tp_rank > 0 ? ", " : "    [", ek_ranks_at(ranks, stage, replica, tp_rank));
            fprintf(file, "],\n");
        }
    end_groups(file);
}

static void write_data_groups(const ek_ranks *ranks, FILE *file)
{
    begin_groups("data_parallel_groups", "A TP rank of a stage in every replica that has it.", file);
    for (uint32_t stage = 0; stage < ranks->stages; stage++)
        for (uint32_t tp_rank = 0; tp_rank < ranks->base_degree; tp_rank++) {
            uint32_t first = tp_rank < ranks->reduced_degree ? 0 : ranks->reduced_replicas;
            if (first == ranks->replicas)
                break;
            for (uint32_t replica = first; replica < ranks->replicas; replica++)
                fprintf(file, "%s%u", replica > first ? ", " : "    [", ek_ranks_at(ranks, stage, replica, tp_rank));
            fprintf(file, "],\n");
        }
    end_groups(file);
}

static void write_pipeline_groups(const ek_ranks *ranks, FILE *file)
{
    begin_groups("pipeline_parallel_groups", "A TP rank of a replica in every stage.", file);
    for (uint32_t replica = 0; replica < ranks->replicas; replica++)
        for (uint32_t tp_rank = 0; tp_rank < ek_ranks_degree(ranks, replica); tp_rank++)
            write_stages(ranks, replica, tp_rank, 0, 1, file);
    end_groups(file);
}

static void write_model_groups(const ek_ranks *ranks, FILE *file)
{
    begin_groups("model_parallel_groups", "A replica.", file);
    for (uint32_t replica = 0; replica < ranks->replicas; replica++) {
        for (uint32_t stage = 0; stage < ranks->stages; stage++)
            for (uint32_t tp_rank = 0; tp_rank < ek_ranks_degree(ranks, replica); tp_rank++)
                fprintf(file, "%s%u", stage + tp_rank > 0 ? ", " : "    [",
                        ek_ranks_at(ranks, stage, replica, tp_rank));
        fprintf(file, "],\n");
    }
    end_groups(file);
}

/* Tied embeddings: the first stage's and the last one's output layer. Position embeddings: the first stage's. */
static void write_embedding_groups(const ek_ranks *ranks, FILE *file)
{
    begin_groups("embedding_groups", "The first and the last stage of each pipeline.", file);
    for (uint32_t replica = 0; replica < ranks->replicas; replica++)
        for (uint32_t tp_rank = 0; tp_rank < ek_ranks_degree(ranks, replica); tp_rank++)
            write_stages(ranks, replica, tp_rank, 0, ranks->stages > 1 ? ranks->stages - 1 : 1, file);
    end_groups(file);
    begin_groups("position_embedding_groups", "The first stage of each pipeline.", file);
    for (uint32_t replica = 0; replica < ranks->replicas; replica++)
        for (uint32_t tp_rank = 0; tp_rank < ek_ranks_degree(ranks, replica); tp_rank++)
            fprintf(file, "    [%u],\n", ek_ranks_at(ranks, 0, replica, tp_rank));
    end_groups(file);
}

static void write_map(const ek_ranks *ranks, const ek_inventory *inventory, FILE *file)
{
    begin_groups("rank_to_gpu", "Host and GPU of each rank.", file);
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        const ek_slot *slot = &inventory->slots[ranks->slots[rank]];
        fprintf(file, "    (\"%s\", %u),\n", inventory->nodes[slot->node].name, slot->gpu);
    }
    end_groups(file);
}

ek_status ek_plan_write_megatron(const ek_plan *plan, const ek_perf_model *model, FILE *file)
{
    ek_ranks *ranks;
    EK_TRY(ek_ranks_create(&ranks, plan));
    ek_status status = check_model(model, plan->parallel.mode, ranks);
    if (status == EK_OK) {
        write_head(ranks, file);
        write_config(ranks, file);
        write_tensor_groups(ranks, file);
        write_data_groups(ranks, file);
        write_pipeline_groups(ranks, file);
        write_model_groups(ranks, file);
        write_embedding_groups(ranks, file);
        write_map(ranks, plan->inventory, file);
        if (ferror(file))
            status = ek_fail(EK_IO, "cannot write the plan for Megatron: the output takes no more");
    }
    ek_ranks_destroy(ranks);
    return status;
}
