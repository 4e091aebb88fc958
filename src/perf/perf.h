/* A performance model of one training step: how long the parts of a step take on devices, links and layouts that need
 * not exist here. Analytic and pure; docs/simulator.md states every assumption and stands its times beside published
 * measurements. The planner and the simulator ask it for the times of replicas at any degree, samples and power.
 *
 * A step of one replica: its samples go through the pipeline in micro-batches (1F1B, interleaved if `interleave` > 1),
 * each stage parallel over its own devices; then gradients are synchronised over the replicas and the optimizer runs.
 * Devices of a stage share every layer of every sample (mode tp), or the experts alone, with samples spread over them
 * (mode ep; src/model/dispatch.h does what is counted here). Matrix products have an efficiency and whole waves of
 * tiles, what lies between them is bound by memory, power changes the speed of computation alone. A rank's share is its
 * units: whole ones as src/layout deals them (the fullest rank sets the pace), or shares that divide freely, as
 * published models have it.
 *
 * Units throughout: seconds, bytes, FLOP, watts. A multiply-add is 2 FLOP. */
#ifndef EK_PERF_PERF_H
#define EK_PERF_PERF_H

#include <evenkeel.h>

#include "base/yaml.h"

/* What the ranks of a replica share: every layer, or the experts alone. */
typedef enum ek_perf_mode { EK_PERF_TP, EK_PERF_EP } ek_perf_mode;

typedef enum ek_recompute { EK_RECOMPUTE_NONE, EK_RECOMPUTE_SELECTIVE, EK_RECOMPUTE_FULL } ek_recompute;

typedef struct ek_perf_model {
    uint32_t layers, hidden, heads, kv_heads, ffn, vocab, sequence; /* kv_heads 0: heads */
    uint32_t ffn_block, vocab_block; /* columns and rows in one unit; 0: 64, or the largest power of two below that
                                        divides the size and leaves a unit for each rank */
    bool gated; /* SwiGLU, three FFN matrices, RMSNorm, no biases; otherwise two, GELU, LayerNorm and biases */
    bool fused_attention; /* one kernel that skips what causality masks; otherwise scores go through memory, as in 2022
                           */
    bool dropout;         /* on embeddings, attention and both residuals */
    bool tied_embeddings;
    uint32_t experts, top_k, moe_every, expert_ffn; /* experts 0: dense. They are sharded over the ranks of a replica;
                                                       layer i has them if moe_every divides i; expert_ffn 0: ffn */
} ek_perf_model;

typedef struct ek_perf_parallel {
    ek_perf_mode mode;
    uint32_t dp, tp, pp; /* tp: ranks of a stage, in either mode */
    uint32_t interleave; /* model chunks of a stage; 1: plain 1F1B */
    uint32_t min_tp;
    bool sequence_parallel; /* of no matter in mode ep */
    ek_recompute recompute;
    bool distributed_optimizer;         /* optimizer state sharded over the ranks that hold the same (ZeRO 1) */
    uint32_t global_batch, micro_batch; /* samples, that is sequences; micro: of a replica, in mode ep of a rank */
} ek_perf_parallel;

/* A device and its links. What is an efficiency is a fraction of the peak that large operations reach. */
typedef struct ek_perf_hardware {
    double flops_per_second; /* peak of dense matrix products at the precision of training */
    double matmul_efficiency;
    uint32_t multiprocessors, tile_rows, tile_columns; /* a product takes whole waves of tiles */
    double memory_bytes, memory_bytes_per_second, memory_efficiency;
    double kernel_seconds; /* what each kernel costs beside its work */
    double tdp_watts;
    uint32_t domain_slots;                                                   /* devices of a scale-up domain */
    double scale_up_bytes_per_second, scale_up_efficiency, scale_up_seconds; /* per device and direction; latency */
    double scale_out_bytes_per_second, scale_out_efficiency, scale_out_seconds;
    double overlap; /* the part of gradient communication that backward can hide, 0 to 1 */
} ek_perf_hardware;

/* The settings tables of the three: sections "model", "parallel" and "batch", "device" and "network". Offsets are into
 * the struct; callers that embed it add their own (ek_perf_fields_at). */
const ek_field *ek_perf_model_fields(size_t *count);
const ek_field *ek_perf_parallel_fields(size_t *count);
const ek_field *ek_perf_hardware_fields(size_t *count);
/* Appends `fields` to `out`, which has room, with `offset` added to theirs; returns count. */
size_t ek_perf_fields_at(ek_field *out, const ek_field *fields, size_t count, size_t offset);

typedef struct ek_perf ek_perf;

/* Checks what must hold between the values (layers divide into pp * interleave chunks, tp within domain_slots, units
 * for every rank, …) and prepares. EK_INVALID begins with the key at fault ("model.layers: "). */
ek_status ek_perf_create(ek_perf **perf, const ek_perf_model *model, const ek_perf_parallel *parallel,
                         const ek_perf_hardware *hardware);
void ek_perf_destroy(ek_perf *perf);

/* "TP" or "EP": what a degree is one of. */
const char *ek_perf_mode_text(ek_perf_mode mode);

/* The unit groups of the model, as src/layout knows them: attention, ffn (absent where every layer is MoE), vocab,
 * experts (absent when dense); in mode ep experts alone, all else is whole on every rank. unit_bytes: of one layer's
 * (or the one vocabulary tensor's) parameters in 16 bits. */
#define EK_PERF_GROUPS_MOST 4
uint32_t ek_perf_groups(const ek_perf *perf, ek_unit_group groups[EK_PERF_GROUPS_MOST]);
/* How many times a group's units occur in a stage: layers with attention, FFN layers, MoE layers, vocabulary tensors.
 */
uint32_t ek_perf_group_layers(const ek_perf *perf, uint32_t group, uint32_t stage);
/* Parameters of the model in all. */
double ek_perf_parameters(const ek_perf *perf);

/* One replica. */
typedef struct ek_perf_replica {
    const uint32_t *degrees; /* [pp] of each stage, 1 to tp */
    const double *speeds;    /* [pp] of its devices, 1 at the default power limit; NULL: all 1 */
    double samples;          /* whole or not */
    bool free_units;         /* shares divide freely */
    double reshard_bytes; /* the most that one of its devices reshards in a step: what it sends and what comes back */
} ek_perf_replica;

/* Where the time of a step goes, on the critical path. */
typedef struct ek_perf_time {
    double compute;  /* of the slowest stage, at its speed */
    double tensor;   /* communication inside the slowest stage: of TP, or dispatch and combine */
    double pipeline; /* sends between stages that nothing hides */
    double bubble;   /* the slowest stage waits for the others */
    double data;     /* gradient synchronisation and reshard that backward does not hide */
    double optimizer;
    double total;
} ek_perf_time;

/* For the time of a job's step take the slowest replica's total. */
ek_status ek_perf_step(const ek_perf *perf, const ek_perf_replica *replica, ek_perf_time *time);

/* What a rank of a stage holds at a degree, the fullest one. */
typedef struct ek_perf_memory {
    double weights, gradients, optimizer, activations, total; /* bytes */
    double dense_weights,
        dense_optimizer; /* of weights and optimizer: what is no unit in mode ep, on every rank; else 0 */
} ek_perf_memory;

void ek_perf_rank_memory(const ek_perf *perf, uint32_t stage, uint32_t degree, ek_perf_memory *memory);

/* Mode ep: the way of a token's rows in a layer with experts, where every choice of experts is as likely as any other
 * and ranks have equal numbers of tokens. A row goes once to each rank that holds one of the token's experts. */
typedef struct ek_perf_dispatch {
    double ranks;     /* that hold one of a token's experts: rows that are worked on for each token */
    double crossing;  /* of these, other ranks than the token's own: rows that go out, and come back, for each token */
    double leaving;   /* the same for the tokens of the rank that sends most of its own */
    double arriving;  /* rows that come from others to the rank with most experts, for each token of the replica */
    double imbalance; /* experts of that rank against the mean: 1 where all have the same number */
    double bytes;     /* across, for each token: rows there and back forward and backward, choices and weights */
} ek_perf_dispatch;

void ek_perf_dispatch_at(const ek_perf *perf, uint32_t degree, ek_perf_dispatch *dispatch);

#endif
