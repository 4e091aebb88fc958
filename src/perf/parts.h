/* The inside of the performance model, shared by the files of src/perf. docs/simulator.md ("One training step") gives
 * the formulas and their reasons.
 *
 * What a step costs is built from below: device.c prices one product, one pass over memory, one collective; dispatch.c
 * says how many rows of tokens travel; block.c prices one micro-batch in one block of the model (attention, FFN, …) at
 * every degree, once, when the model is created; step.c puts stages, pipeline, replicas and optimizer together, for
 * each question anew. */
#ifndef EK_PERF_PARTS_H
#define EK_PERF_PARTS_H

#include "perf/perf.h"

/* The unit groups. A model has some of them: ek_perf_groups leaves out those without units. */
enum { PERF_ATTENTION, PERF_FFN, PERF_VOCAB, PERF_EXPERTS, PERF_GROUPS };

typedef struct perf_group {
    const char *name;
    uint32_t units; /* 0: absent */
    double unit_parameters;
    bool whole;      /* on every rank: all but experts in mode ep */
    ek_chain *chain; /* of all levels, the highest roles dropped first; NULL where whole */
} perf_group;

/* What the fullest rank of a degree holds. */
typedef struct perf_share {
    double units[PERF_GROUPS]; /* of each group, the most on any rank */
    double tokens;             /* of a micro-batch, where the sequence is split over the ranks */
    double routed;             /* tokens that go to experts at once: of a micro-batch; in mode ep of one on each rank */
    bool free_units;
} perf_share;

/* Seconds of one micro-batch. Power changes `compute`, not `tensor`, which is communication of the TP group. */
typedef struct perf_pass {
    double compute, tensor;
} perf_pass;

typedef struct perf_block {
    perf_pass forward, backward; /* backward: recomputation too */
} perf_block;

/* Seconds on the link of a rank, which sends and receives at once: for rows of its own tokens, and for those that come
 * to its experts. Whichever takes longer counts. */
typedef struct perf_exchange {
    double leaving, arriving;
} perf_exchange;

/* In mode ep `experts` is what a rank does for its own tokens alone; what it does for all tokens of the replica is
 * `routed`, and `dispatch` moves them. Both are of a round of a whole replica, a micro-batch on each of parallel.tp
 * ranks, whatever the degree; `dispatch.leaving` of a micro-batch of one rank. */
typedef struct perf_costs {
    perf_share share;
    perf_block attention, ffn, experts, embedding, output;
    perf_block routed;
    perf_exchange dispatch[2]; /* forward, backward */
} perf_costs;

typedef struct perf_stage {
    uint32_t layers, ffn_layers, expert_layers;
    bool embedding, output;
    double replicated_parameters; /* on every rank */
} perf_stage;

struct ek_perf {
    ek_perf_model model; /* with no zero that stands for a default */
    ek_perf_parallel parallel;
    ek_perf_hardware hardware;
    perf_group groups[PERF_GROUPS];
    perf_stage *stages; /* [pp] */
    perf_costs *costs;  /* [2][tp]: whole units, then free; by degree - 1 */
};

/* Columns of a head, and query heads of a unit of attention: both divide evenly. */
static inline double perf_head_size(const ek_perf_model *model)
{
    return (double)model->hidden / model->heads;
}

static inline double perf_unit_heads(const ek_perf_model *model)
{
    return (double)model->heads / model->kv_heads;
}

static inline bool perf_is_ep(const ek_perf *perf)
{
    return perf->parallel.mode == EK_PERF_EP;
}

/* Ranks over which a whole replica's layers are cut. */
static inline uint32_t perf_tensor_ranks(const ek_perf *perf)
{
    return perf_is_ep(perf) ? 1 : perf->parallel.tp;
}

static inline const perf_costs *perf_costs_at(const ek_perf *perf, bool free_units, uint32_t degree)
{
    return &perf->costs[(free_units ? perf->parallel.tp : 0) + degree - 1];
}

/* check.c: defaults for zeros, then what must hold between the values. */
void perf_finish(ek_perf_model *model, const ek_perf_parallel *parallel);
ek_status perf_check(const ek_perf_model *model, const ek_perf_parallel *parallel, const ek_perf_hardware *hardware);

/* device.c */
typedef struct perf_link {
    double bytes_per_second; /* that large messages reach */
    double seconds;          /* latency of one message */
} perf_link;

perf_link perf_scale_up(const ek_perf_hardware *hardware);
perf_link perf_scale_out(const ek_perf_hardware *hardware);
/* Seconds of `batch` products of (rows, depth) by (depth, columns) in 16-bit precision, one kernel. free_units: without
 * whole waves. */
double perf_product(const ek_perf_hardware *hardware, double batch, double rows, double columns, double depth,
                    bool free_units);
/* Seconds of `kernels` kernels that read and write `bytes` in all. */
double perf_traffic(const ek_perf_hardware *hardware, double bytes, uint32_t kernels);
/* Seconds of one pass around a ring, that is of a reduce-scatter to or an all-gather from `members` of `bytes` in all;
 * an all-reduce is two. */
double perf_ring(perf_link link, uint32_t members, double bytes);

/* dispatch.c: where shares divide freely, too. Bytes of a row in all exchanges of a layer, forward or backward. */
void perf_dispatch(const ek_perf *perf, uint32_t degree, bool free_units, ek_perf_dispatch *dispatch);
double perf_row_bytes(const ek_perf_model *model, bool backward);

/* block.c: fills in everything but the share. */
void perf_price(const ek_perf *perf, perf_costs *costs, uint32_t degree);

/* step.c: a pipeline's schedule takes `turns` times what the slowest stage takes for a micro-batch, and `once` times
 * what the others take. Of equal stages: 1F1B, (m + p - 1) t; interleaved, (m + (p - 1) / v) t if m is a multiple of p,
 * to which it is rounded up otherwise: a group of fewer micro-batches than stages waits for its own first one to come
 * round. Of unequal stages, and of such a group: no less than the true time. */
typedef struct perf_schedule {
    double turns, once;
} perf_schedule;

perf_schedule perf_schedule_of(uint32_t stages, uint32_t chunks, double micro_batches);

/* model.c: parameters of a stage on a rank with such a share; in mode ep those of them that are no experts, in mode tp
 * 0. */
double perf_rank_parameters(const ek_perf *perf, uint32_t stage, const perf_share *share);
double perf_dense_parameters(const ek_perf *perf, uint32_t stage);
/* Ranks that share the optimizer state of a unit, and of what every rank holds in mode ep. */
uint32_t perf_unit_shards(const ek_perf *perf);
uint32_t perf_dense_shards(const ek_perf *perf);

#endif
