/* What one micro-batch costs in each block of the model: forward, and backward with what is recomputed.
 *
 * Products are listed as (rows, depth) by (depth, columns); T is the tokens of a micro-batch, t those of them that a
 * rank has where the sequence is split (sequence parallelism; otherwise t = T), h the hidden size, s the sequence.
 * Bytes are of 16-bit values; each elementwise step is a kernel that reads its inputs from memory and writes its output
 * back, fused as far as Megatron-LM of 2022 fuses: bias with GELU, bias with dropout and residual, scale with mask and
 * softmax. */
#include "perf/parts.h"

#include <math.h>

typedef struct pricing {
    const ek_perf *perf;
    const ek_perf_hardware *hardware;
    const perf_share *share;
    double T, t, h, s;
} pricing;

static double product(const pricing *p, double rows, double columns, double depth)
{
    return perf_product(p->hardware, 1, rows, columns, depth, p->share->free_units);
}

/* A weight's gradient: a product over the tokens, and the sum into the 32-bit gradient, which is read and written at
 * the end of each tile's work, when there is nothing left to hide it behind. */
static double weight_gradient(const pricing *p, double rows, double columns)
{
    return product(p, rows, columns, p->T) + perf_traffic(p->hardware, 8 * rows * columns, 0);
}

static double traffic(const pricing *p, double bytes, uint32_t kernels)
{
    return perf_traffic(p->hardware, bytes, kernels);
}

/* A reduce-scatter or an all-gather of a micro-batch's activations over the TP group; an all-reduce is two. A reduced
 * group is charged as a whole one: its ring is a little shorter, (n-1)/n of the bytes, but no step may get shorter
 * because a device is missing. */
static double ring(const pricing *p)
{
    return perf_ring(perf_scale_up(p->hardware), perf_tensor_ranks(p->perf), 2 * p->T * p->h);
}

static bool split(const pricing *p)
{
    return p->perf->parallel.sequence_parallel;
}

/* Into a block: with sequence parallelism its input is gathered, and in backward the input's gradient is scattered;
 * without, the gradient is all-reduced. (The gather that backward repeats for the weights' gradient is hidden behind a
 * product, arXiv 2205.05198, section 4.2.2.) Out of a block: the same, the other way round. */
static double ring_into_forward(const pricing *p)
{
    return split(p) ? ring(p) : 0;
}

static double ring_into_backward(const pricing *p)
{
    return split(p) ? ring(p) : 2 * ring(p);
}

static double ring_out_forward(const pricing *p)
{
    return split(p) ? ring(p) : 2 * ring(p);
}

static double ring_out_backward(const pricing *p)
{
    return split(p) ? ring(p) : 0;
}

/* Reads 2, writes 2. */
static double norm_forward(const pricing *p)
{
    return traffic(p, 4 * p->t * p->h, 1);
}

/* Input's gradient: reads 2 + 2, writes 2; weights': reads 2 + 2. */
static double norm_backward(const pricing *p)
{
    return traffic(p, 10 * p->t * p->h, 2);
}

/* x, residual and sum, and the mask of one byte. */
static double residual_forward(const pricing *p)
{
    return traffic(p, (p->perf->model.dropout ? 7 : 6) * p->t * p->h, 1);
}

/* Dropout: gradient, mask, result. The bias's gradient reads once. Where the branches meet two gradients are added. */
static double residual_backward(const pricing *p)
{
    const ek_perf_model *model = &p->perf->model;
    double dropout = model->dropout ? 5 : 0, bias = model->gated ? 0 : 2;
    return traffic(p, (dropout + bias + 6) * p->t * p->h, (model->dropout ? 1 : 0) + (model->gated ? 0 : 1) + 1);
}

/* -------------------------------------------------------------------------------------------- attention */

typedef struct core_seconds {
    double forward, backward; /* softmax(Q K^T) V of the rank's heads */
} core_seconds;

/* Scores go through memory: s * s for each query head. Forward: softmax reads 2 and writes 2, dropout reads 2, writes 2
 * and a mask of 1. Backward: dropout reads 3, writes 2; softmax reads 4, writes 2. Context is transposed either way. */
static core_seconds unfused_core(const pricing *p, double heads, double size)
{
    double batch = heads * p->perf->parallel.micro_batch, scores = batch * p->s * p->s;
    bool free_units = p->share->free_units, dropout = p->perf->model.dropout;
    double to_scores = perf_product(p->hardware, batch, p->s, p->s, size, free_units);
    double from_scores = perf_product(p->hardware, batch, p->s, size, p->s, free_units);
    double transpose = traffic(p, 4 * p->T * heads * size, 1);
    return (core_seconds){
        to_scores + from_scores + traffic(p, (dropout ? 9 : 4) * scores, dropout ? 2 : 1) + transpose,
        to_scores + 3 * from_scores + traffic(p, (dropout ? 11 : 6) * scores, dropout ? 2 : 1) + transpose,
    };
}

/* One kernel that keeps scores on the chip, skips the masked half, and in backward computes the scores again: 2
 * products forward, 5 backward, at the efficiency of large products, its blocks spread evenly. */
static core_seconds fused_core(const pricing *p, double heads, double size)
{
    double scores = heads * p->perf->parallel.micro_batch * p->s * p->s;
    double half = 0.5 * 2 * scores * size / (p->hardware->flops_per_second * p->hardware->matmul_efficiency);
    double activations = 2 * p->T * heads * size;
    return (core_seconds){2 * half + traffic(p, 4 * activations, 1), 5 * half + traffic(p, 8 * activations, 2)};
}

static perf_block attention(const pricing *p)
{
    const ek_perf_model *model = &p->perf->model;
    double size = perf_head_size(model), units = p->share->units[PERF_ATTENTION];
    double heads = units * perf_unit_heads(model), context = heads * size;
    double inputs = context + 2 * units * size; /* columns of Q, K and V */
    core_seconds core = model->fused_attention ? fused_core(p, heads, size) : unfused_core(p, heads, size);

    perf_pass forward = {
        norm_forward(p) + product(p, p->T, inputs, p->h) + core.forward + product(p, p->T, p->h, context) +
            residual_forward(p),
        ring_into_forward(p) + ring_out_forward(p),
    };
    perf_pass backward = {
        residual_backward(p) + product(p, p->T, context, p->h) + weight_gradient(p, context, p->h) + core.backward +
            product(p, p->T, p->h, inputs) + weight_gradient(p, p->h, inputs) + norm_backward(p),
        ring_out_backward(p) + ring_into_backward(p),
    };
    if (p->perf->parallel.recompute == EK_RECOMPUTE_SELECTIVE && !model->fused_attention)
        backward.compute += core.forward;
    return (perf_block){forward, backward};
}

/* -------------------------------------------------------------------------------------------------- ffn */

/* Bytes for each column of the activation: GELU reads 2 and writes 2, and backward reads 2 + 2, writes 2 and sums the
 * bias's gradient, which reads 2. SwiGLU has two inputs and two gradients. */
static double activation_forward(const pricing *p, double elements)
{
    return traffic(p, (p->perf->model.gated ? 6 : 4) * elements, 1);
}

static double activation_backward(const pricing *p, double elements)
{
    return traffic(p, (p->perf->model.gated ? 10 : 8) * elements, p->perf->model.gated ? 1 : 2);
}

static perf_block ffn(const pricing *p)
{
    const ek_perf_model *model = &p->perf->model;
    double columns = p->share->units[PERF_FFN] * model->ffn_block, inputs = model->gated ? 2 * columns : columns;
    return (perf_block){
        {
            norm_forward(p) + product(p, p->T, inputs, p->h) + activation_forward(p, p->T * columns) +
                product(p, p->T, p->h, columns) + residual_forward(p),
            ring_into_forward(p) + ring_out_forward(p),
        },
        {
            residual_backward(p) + product(p, p->T, columns, p->h) + weight_gradient(p, columns, p->h) +
                activation_backward(p, p->T * columns) + product(p, p->T, p->h, inputs) +
                weight_gradient(p, p->h, inputs) + norm_backward(p),
            ring_out_backward(p) + ring_into_backward(p),
        },
    };
}

/* What the fullest rank's experts do for `share->routed` tokens, spread evenly over all experts. */
typedef struct expert_seconds {
    double permute, in, activation, out;                                    /* forward */
    double out_data, out_weight, activation_data, in_data, in_weight, sums; /* backward, which permutes, too */
    double tokens;                                                          /* that come to them */
} expert_seconds;

/* One product of all experts of a rank; free units need not be a whole number of experts. whole_tiles: of an expert's
 * rows, and whole waves of them; otherwise rows divide freely and each expert has `tail` of them more. */
static expert_seconds expert_work(const pricing *p, bool whole_tiles, double tail)
{
    const ek_perf_model *model = &p->perf->model;
    const ek_perf_hardware *hardware = p->hardware;
    double units = p->share->units[PERF_EXPERTS], rows = p->share->routed * model->top_k / model->experts;
    double tokens = units * rows, columns = model->expert_ffn, inputs = model->gated ? 2 * columns : columns;
    bool free_units = p->share->free_units, free_rows = !whole_tiles;
    double tiled = rows + tail;
    return (expert_seconds){
        .permute = traffic(p, 8 * tokens * p->h, 2),
        .in = perf_product(hardware, units, tiled, inputs, p->h, free_rows),
        .activation = activation_forward(p, tokens * columns),
        .out = perf_product(hardware, units, tiled, p->h, columns, free_rows),
        .out_data = perf_product(hardware, units, tiled, columns, p->h, free_rows),
        .out_weight = perf_product(hardware, units, columns, p->h, rows, free_units),
        .activation_data = activation_backward(p, tokens * columns),
        .in_data = perf_product(hardware, units, tiled, p->h, inputs, free_rows),
        .in_weight = perf_product(hardware, units, p->h, inputs, rows, free_units),
        .sums = traffic(p, 8 * units * p->h * (inputs + columns), 0),
        .tokens = tokens,
    };
}

/* Experts in mode tp: tokens go to the ranks that hold them and come back. The fullest rank receives the most. */
static perf_block experts(const pricing *p)
{
    expert_seconds work = expert_work(p, !p->share->free_units, 0);
    double router = product(p, p->t, p->perf->model.experts, p->h);
    /* all-to-all of what a rank gets */
    double exchange = perf_ring(perf_scale_up(p->hardware), p->perf->parallel.tp, 2 * work.tokens * p->h);
    return (perf_block){
        {norm_forward(p) + router + work.permute + work.in + work.activation + work.out + residual_forward(p),
         2 * exchange},
        {residual_backward(p) + 2 * router + work.permute + work.out_data + work.out_weight + work.activation_data +
             work.in_data + work.in_weight + work.sums + norm_backward(p),
         2 * exchange},
    };
}

#define FORWARD_EXCHANGES 4  /* how many rows, choices with weights, rows, and what became of them */
#define BACKWARD_EXCHANGES 3 /* gradients there, and back by rows and by weights */

/* Mode ep, what a rank does for its own tokens: all of the layer but its experts. Every exchange has as many messages
 * as a whole group's. */
static perf_block own_tokens(const pricing *p)
{
    double router = product(p, p->t, p->perf->model.experts, p->h);
    double messages = (p->perf->parallel.tp - 1) * p->hardware->scale_up_seconds;
    return (perf_block){
        {norm_forward(p) + router + residual_forward(p), FORWARD_EXCHANGES * messages},
        {residual_backward(p) + 2 * router + norm_backward(p), BACKWARD_EXCHANGES * messages},
    };
}

/* Mode ep, what the fullest rank's experts do for the tokens of all: priced for a micro-batch on each rank, which is
 * the `part` of a round of a whole group. How many rows come to an expert changes from layer to layer, so its last tile
 * is half full in the mean; with that many tiles waves do not count. */
static perf_block all_tokens(const pricing *p, double part)
{
    double half_tile = fmin(p->hardware->tile_rows, p->hardware->tile_columns) / 2;
    expert_seconds work = expert_work(p, false, p->share->free_units ? 0 : half_tile);
    return (perf_block){
        {(work.permute + work.in + work.activation + work.out) / part, 0},
        {(work.permute + work.out_data + work.out_weight + work.activation_data + work.in_data + work.in_weight +
          work.sums) /
             part,
         0},
    };
}

/* Where shares divide freely ranks send as much as they receive. */
static perf_exchange exchange_rows(const pricing *p, uint32_t degree, bool backward)
{
    ek_perf_dispatch dispatch;
    perf_dispatch(p->perf, degree, p->share->free_units, &dispatch);
    double seconds = p->T * perf_row_bytes(&p->perf->model, backward) / perf_scale_up(p->hardware).bytes_per_second;
    return (perf_exchange){p->share->free_units ? 0 : dispatch.leaving * seconds,
                           p->perf->parallel.tp * dispatch.arriving * seconds};
}

/* ------------------------------------------------------------------------------------------------- ends */

/* Every rank looks up its rows of all tokens and the sum goes round; then dropout. */
static perf_block embedding(const pricing *p)
{
    bool dropout = p->perf->model.dropout;
    return (perf_block){
        {traffic(p, 4 * p->T * p->h, 1) + traffic(p, (dropout ? 5 : 0) * p->t * p->h, dropout), ring_out_forward(p)},
        {traffic(p, (dropout ? 5 : 0) * p->t * p->h, dropout) + traffic(p, 10 * p->T * p->h, 1), ring_out_backward(p)},
    };
}

/* The last norm, logits and loss. Per logit, in 32 bits and not fused, forward: cast 2 + 4, maximum 4, subtract 8,
 * exponent 8, sum 4, divide 8; backward: scale 8, cast 6. Three all-reduces of a number for each token. */
static perf_block output(const pricing *p)
{
    double rows = p->share->units[PERF_VOCAB] * p->perf->model.vocab_block, logits = p->T * rows;
    double loss = 3 * 2 * perf_ring(perf_scale_up(p->hardware), perf_tensor_ranks(p->perf), 4 * p->T);
    return (perf_block){
        {norm_forward(p) + product(p, p->T, rows, p->h) + traffic(p, 38 * logits, 6), ring_into_forward(p) + loss},
        {traffic(p, 14 * logits, 2) + product(p, p->T, p->h, rows) + weight_gradient(p, rows, p->h) + norm_backward(p),
         ring_into_backward(p)},
    };
}

/* Full recomputation of layers: forward again before backward, with its communication. */
static perf_block recomputed(const ek_perf *perf, perf_block block)
{
    if (perf->parallel.recompute == EK_RECOMPUTE_FULL) {
        block.backward.compute += block.forward.compute;
        block.backward.tensor += block.forward.tensor;
    }
    return block;
}

static void price_dispatched(const pricing *p, perf_costs *costs, uint32_t degree)
{
    perf_exchange forward = exchange_rows(p, degree, false), backward = exchange_rows(p, degree, true);
    if (p->perf->parallel.recompute == EK_RECOMPUTE_FULL)
        backward = (perf_exchange){backward.leaving + forward.leaving, backward.arriving + forward.arriving};
    costs->experts = recomputed(p->perf, own_tokens(p));
    costs->routed = recomputed(p->perf, all_tokens(p, (double)degree / p->perf->parallel.tp));
    costs->dispatch[0] = forward;
    costs->dispatch[1] = backward;
}

void perf_price(const ek_perf *perf, perf_costs *costs, uint32_t degree)
{
    const ek_perf_model *model = &perf->model;
    const pricing p = {
        .perf = perf,
        .hardware = &perf->hardware,
        .share = &costs->share,
        .T = (double)model->sequence * perf->parallel.micro_batch,
        .t = costs->share.tokens,
        .h = model->hidden,
        .s = model->sequence,
    };
    costs->attention = recomputed(perf, attention(&p));
    costs->ffn = recomputed(perf, ffn(&p));
    if (perf_is_ep(perf))
        price_dispatched(&p, costs, degree);
    else if (model->experts)
        costs->experts = recomputed(perf, experts(&p));
    costs->embedding = embedding(&p);
    costs->output = output(&p);
}
