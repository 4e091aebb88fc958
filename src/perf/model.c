/* What a model consists of: unit groups, stages, parameters. */
#include "perf/parts.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"

#define PARAMETER_BYTES 2

static double attention_unit_parameters(const ek_perf_model *model)
{
    double query = perf_head_size(model) * perf_unit_heads(model), key_value = 2 * perf_head_size(model);
    double biases = model->gated ? 0 : query + key_value;
    return (query + key_value + query) * model->hidden + biases;
}

static double ffn_parameters(const ek_perf_model *model, double columns)
{
    return model->gated ? 3.0 * model->hidden * columns : (2.0 * model->hidden + 1) * columns;
}

static bool has_experts(const ek_perf_model *model, uint32_t layer)
{
    return model->experts && layer % model->moe_every == 0;
}

static bool has_ffn(const ek_perf_model *model)
{
    return model->experts == 0 || (model->moe_every > 1 && model->layers > 1);
}

static ek_status make_groups(ek_perf *perf)
{
    const ek_perf_model *model = &perf->model;
    uint32_t tp = perf->parallel.tp;
    bool ep = perf_is_ep(perf);
    perf->groups[PERF_ATTENTION] =
        (perf_group){"attention", model->kv_heads, attention_unit_parameters(model), ep, NULL};
    if (has_ffn(model))
        perf->groups[PERF_FFN] =
            (perf_group){"ffn", model->ffn / model->ffn_block, ffn_parameters(model, model->ffn_block), ep, NULL};
    perf->groups[PERF_VOCAB] =
        (perf_group){"vocab", model->vocab / model->vocab_block, (double)model->vocab_block * model->hidden, ep, NULL};
    if (model->experts)
        perf->groups[PERF_EXPERTS] =
            (perf_group){"experts", model->experts, ffn_parameters(model, model->expert_ffn), false, NULL};

    uint32_t *drop_order = calloc(tp, sizeof *drop_order), ties = 0;
    if (!drop_order)
        return ek_fail(EK_NO_MEMORY, "no memory for a drop order");
    for (uint32_t level = 0; level < tp; level++)
        drop_order[level] = tp - 1 - level;
    ek_status status = EK_OK;
    for (int i = 0; i < PERF_GROUPS && status == EK_OK; i++)
        if (perf->groups[i].units && !perf->groups[i].whole)
            status = ek_chain_create(&perf->groups[i].chain, perf->groups[i].units, tp, drop_order, tp - 1, ties++);
    free(drop_order);
    return status;
}

/* Norms, router, the biases of row-parallel products, learned positions: 13 h parameters a layer for GPT in all
 * (arXiv 2104.04473, equation 2), of which units have 7 h. */
static double replicated_parameters(const ek_perf_model *model, const perf_stage *stage)
{
    double hidden = model->hidden, norm = model->gated ? hidden : 2 * hidden;
    double layer = model->gated ? 2 * norm : 2 * norm + 2 * hidden;
    double positions = model->gated ? 0 : hidden * model->sequence;
    return stage->layers * layer + (double)stage->expert_layers * model->experts * hidden +
           (stage->embedding ? positions : 0) + (stage->output ? norm : 0);
}

/* Chunk c of the model, c = 0 … pp * interleave - 1, is in stage c mod pp. */
static ek_status make_stages(ek_perf *perf)
{
    const ek_perf_parallel *parallel = &perf->parallel;
    uint32_t layers_of_chunk = perf->model.layers / (parallel->pp * parallel->interleave);
    perf->stages = calloc(parallel->pp, sizeof *perf->stages);
    if (!perf->stages)
        return ek_fail(EK_NO_MEMORY, "no memory for %u stages", parallel->pp);
    for (uint32_t layer = 0; layer < perf->model.layers; layer++) {
        perf_stage *stage = &perf->stages[layer / layers_of_chunk % parallel->pp];
        stage->layers++;
        stage->expert_layers += has_experts(&perf->model, layer);
        stage->ffn_layers += !has_experts(&perf->model, layer);
    }
    perf->stages[0].embedding = true;
    perf->stages[parallel->pp - 1].output = true;
    for (uint32_t stage = 0; stage < parallel->pp; stage++)
        perf->stages[stage].replicated_parameters = replicated_parameters(&perf->model, &perf->stages[stage]);
    return EK_OK;
}

static perf_share make_share(const ek_perf *perf, uint32_t degree, bool free_units)
{
    double tokens = (double)perf->model.sequence * perf->parallel.micro_batch;
    perf_share share = {.free_units = free_units, .tokens = tokens, .routed = tokens};
    if (perf_is_ep(perf))
        share.routed = tokens * degree;
    else if (perf->parallel.sequence_parallel)
        share.tokens = free_units ? tokens / degree : ceil(tokens / degree);
    for (int i = 0; i < PERF_GROUPS; i++) {
        const perf_group *group = &perf->groups[i];
        if (group->whole)
            share.units[i] = group->units;
        else if (free_units)
            share.units[i] = (double)group->units / degree;
        for (uint32_t role = 0; role < degree && group->chain && !free_units; role++)
            share.units[i] = fmax(share.units[i], ek_chain_count(group->chain, perf->parallel.tp - degree, role));
    }
    return share;
}

/* A row that stays on its rank costs nothing, and the fewer ranks, the more rows stay. A reduced group is charged with
 * no fewer than a larger one, for the reason that TP groups are (block.c). */
static void no_less(const perf_exchange larger[2], perf_exchange dispatch[2])
{
    for (int backward = 0; backward < 2; backward++) {
        dispatch[backward].leaving = fmax(dispatch[backward].leaving, larger[backward].leaving);
        dispatch[backward].arriving = fmax(dispatch[backward].arriving, larger[backward].arriving);
    }
}

static ek_status make_costs(ek_perf *perf)
{
    uint32_t tp = perf->parallel.tp;
    perf->costs = calloc(2 * (size_t)tp, sizeof *perf->costs);
    if (!perf->costs)
        return ek_fail(EK_NO_MEMORY, "no memory for the costs of %u degrees", tp);
    for (int free_units = 0; free_units < 2; free_units++)
        for (uint32_t degree = tp; degree > 0; degree--) {
            perf_costs *costs = &perf->costs[(free_units ? tp : 0) + degree - 1];
            costs->share = make_share(perf, degree, free_units);
            perf_price(perf, costs, degree);
            if (degree < tp)
                no_less(costs[1].dispatch, costs->dispatch);
        }
    return EK_OK;
}

ek_status ek_perf_create(ek_perf **perf, const ek_perf_model *model, const ek_perf_parallel *parallel,
                         const ek_perf_hardware *hardware)
{
    EK_TRY(perf_check(model, parallel, hardware));
    ek_perf *created = calloc(1, sizeof *created);
    if (!created)
        return ek_fail(EK_NO_MEMORY, "no memory for a performance model");
    created->model = *model;
    created->parallel = *parallel;
    created->hardware = *hardware;
    perf_finish(&created->model, parallel);
    ek_status status = make_groups(created);
    if (status == EK_OK)
        status = make_stages(created);
    if (status == EK_OK)
        status = make_costs(created);
    if (status != EK_OK) {
        ek_perf_destroy(created);
        return status;
    }
    *perf = created;
    return EK_OK;
}

void ek_perf_destroy(ek_perf *perf)
{
    if (!perf)
        return;
    for (int i = 0; i < PERF_GROUPS; i++)
        ek_chain_destroy(perf->groups[i].chain);
    free(perf->stages);
    free(perf->costs);
    free(perf);
}

static bool is_sharded(const perf_group *group)
{
    return group->units > 0 && !group->whole;
}

uint32_t ek_perf_groups(const ek_perf *perf, ek_unit_group groups[EK_PERF_GROUPS_MOST])
{
    uint32_t count = 0;
    for (int i = 0; i < PERF_GROUPS; i++)
        if (is_sharded(&perf->groups[i]))
            groups[count++] = (ek_unit_group){perf->groups[i].name, perf->groups[i].units,
                                              (uint64_t)perf->groups[i].unit_parameters * PARAMETER_BYTES};
    return count;
}

/* The embedding, the output layer, or one tensor that is both. */
static uint32_t vocab_tensors(const ek_perf *perf, const perf_stage *stage)
{
    bool shared = stage->embedding && stage->output && perf->model.tied_embeddings;
    return shared ? 1 : (uint32_t)stage->embedding + stage->output;
}

static uint32_t layers_with(const ek_perf *perf, int group, const perf_stage *stage)
{
    switch (group) {
    case PERF_ATTENTION:
        return stage->layers;
    case PERF_FFN:
        return stage->ffn_layers;
    case PERF_VOCAB:
        return vocab_tensors(perf, stage);
    default:
        return stage->expert_layers;
    }
}

uint32_t ek_perf_group_layers(const ek_perf *perf, uint32_t group, uint32_t stage)
{
    int i = 0;
    for (uint32_t seen = 0; !is_sharded(&perf->groups[i]) || seen < group; i++)
        seen += is_sharded(&perf->groups[i]);
    return layers_with(perf, i, &perf->stages[stage]);
}

double perf_rank_parameters(const ek_perf *perf, uint32_t stage, const perf_share *share)
{
    double parameters = perf->stages[stage].replicated_parameters;
    for (int i = 0; i < PERF_GROUPS; i++)
        parameters += share->units[i] * perf->groups[i].unit_parameters * layers_with(perf, i, &perf->stages[stage]);
    return parameters;
}

double perf_dense_parameters(const ek_perf *perf, uint32_t stage)
{
    perf_share dense = {0};
    if (!perf_is_ep(perf))
        return 0;
    for (int i = 0; i < PERF_GROUPS; i++)
        dense.units[i] = perf->groups[i].whole ? perf->groups[i].units : 0;
    return perf_rank_parameters(perf, stage, &dense);
}

uint32_t perf_unit_shards(const ek_perf *perf)
{
    return perf->parallel.distributed_optimizer ? perf->parallel.dp : 1;
}

uint32_t perf_dense_shards(const ek_perf *perf)
{
    return perf->parallel.distributed_optimizer ? perf->parallel.dp * perf->parallel.tp : 1;
}

double ek_perf_parameters(const ek_perf *perf)
{
    double parameters = 0;
    for (uint32_t stage = 0; stage < perf->parallel.pp; stage++) {
        perf_share all = {0};
        for (int i = 0; i < PERF_GROUPS; i++)
            all.units[i] = perf->groups[i].units;
        parameters += perf_rank_parameters(perf, stage, &all);
    }
    bool copied = perf->model.tied_embeddings && perf->parallel.pp > 1; /* the last stage's copy is no parameter */
    return parameters - (copied ? (double)perf->model.vocab * perf->model.hidden : 0);
}
