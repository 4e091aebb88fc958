/* The keys of the performance model, their ranges and defaults. */
#include "perf/perf.h"

#define COUNT_MOST 1048576u /* of what is counted in a model or a job: products of three fit into 64 bits */

#define WHOLE(type, member, from, to)                                                                                  \
    .kind = EK_FIELD_WHOLE, .offset = offsetof(type, member), .bytes = sizeof(((type *)0)->member), .least = (from),   \
    .most = (to)
#define REAL(type, member, from, to)                                                                                   \
    .kind = EK_FIELD_REAL, .offset = offsetof(type, member), .bytes = sizeof(((type *)0)->member),                     \
    .least_real = (from), .most_real = (to)
#define BOOLEAN(type, member) .kind = EK_FIELD_BOOLEAN, .offset = offsetof(type, member), .bytes = sizeof(bool)

static const char *const mode_choices[] = {"tp", "ep", NULL};                       /* ek_perf_mode */
static const char *const recompute_choices[] = {"none", "selective", "full", NULL}; /* ek_recompute */

#define MODEL(member, from, to) WHOLE(ek_perf_model, member, from, to)
static const ek_field model_fields[] = {
    {"model.layers", MODEL(layers, 1, 4096), .help = "transformer layers"},
    {"model.hidden", MODEL(hidden, 1, COUNT_MOST), .help = "width of the residual stream"},
    {"model.heads", MODEL(heads, 1, COUNT_MOST), .help = "query heads"},
    {"model.kv_heads", MODEL(kv_heads, 1, COUNT_MOST), .derived = "model.heads",
     .help = "key and value heads; each with its query heads is one unit of attention"},
    {"model.ffn", MODEL(ffn, 1, COUNT_MOST), .help = "columns of the feed-forward layer"},
    {"model.ffn_block", MODEL(ffn_block, 1, COUNT_MOST),
     .derived = "the largest power of two up to 64 that divides model.ffn and leaves a unit for each of parallel.tp",
     .help = "feed-forward columns in one unit; divides model.ffn"},
    {"model.vocab", MODEL(vocab, 1, 1u << 24), .help = "size of the vocabulary"},
    {"model.vocab_block", MODEL(vocab_block, 1, 1u << 24),
     .derived = "the largest power of two up to 64 that divides model.vocab and leaves a unit for each of parallel.tp",
     .help = "vocabulary rows in one unit; divides model.vocab"},
    {"model.sequence", MODEL(sequence, 1, COUNT_MOST), .help = "tokens of a sample"},
    {"model.gated", BOOLEAN(ek_perf_model, gated), .otherwise = "false",
     .help =
         "SwiGLU with three matrices, RMSNorm, no biases, as in Llama; else GELU with two, LayerNorm and biases, as "
         "in GPT"},
    {"model.fused_attention", BOOLEAN(ek_perf_model, fused_attention), .otherwise = "true",
     .help = "attention is one kernel that skips what causality masks; else its scores go through memory"},
    {"model.dropout", BOOLEAN(ek_perf_model, dropout), .otherwise = "false",
     .help = "dropout on embeddings, attention and residuals"},
    {"model.tied_embeddings", BOOLEAN(ek_perf_model, tied_embeddings), .otherwise = "false",
     .help = "the output layer uses the embedding's weights"},
    {"model.experts", MODEL(experts, 0, COUNT_MOST), .otherwise = "0",
     .help = "experts of an MoE layer, which are units over the ranks of a replica; 0: a dense model"},
    {"model.top_k", MODEL(top_k, 1, COUNT_MOST), .otherwise = "1", .help = "experts that a token goes to"},
    {"model.moe_every", MODEL(moe_every, 1, 4096), .otherwise = "1", .help = "every so manyth layer has experts"},
    {"model.expert_ffn", MODEL(expert_ffn, 1, COUNT_MOST), .derived = "model.ffn", .help = "columns of an expert"},
};

#define PARALLEL(member, from, to) WHOLE(ek_perf_parallel, member, from, to)
static const ek_field parallel_fields[] = {
    {"parallel.mode", .kind = EK_FIELD_CHOICE, .offset = offsetof(ek_perf_parallel, mode),
     .bytes = sizeof(ek_perf_mode), .choices = mode_choices, .otherwise = "tp",
     .help =
         "what the ranks of a replica share: tp: every layer; ep: the experts alone, the samples are spread over them"},
    {"parallel.dp", PARALLEL(dp, 1, COUNT_MOST), .help = "data-parallel replicas"},
    {"parallel.tp", PARALLEL(tp, 1, 1024),
     .help = "degree of a healthy replica: tensor-parallel, or expert-parallel with mode ep"},
    {"parallel.pp", PARALLEL(pp, 1, 4096), .otherwise = "1", .help = "pipeline stages"},
    {"parallel.interleave", PARALLEL(interleave, 1, 4096), .otherwise = "1",
     .help = "model chunks of a stage (virtual pipeline); 1: plain 1F1B"},
    {"parallel.min_tp", PARALLEL(min_tp, 1, 1024), .otherwise = "1",
     .help = "a stage with fewer devices left is not used"},
    {"parallel.sequence_parallel", BOOLEAN(ek_perf_parallel, sequence_parallel), .otherwise = "true",
     .help = "norms, dropout and residuals are split over the ranks by sequence; of no matter in mode ep"},
    {"parallel.recompute", .kind = EK_FIELD_CHOICE, .offset = offsetof(ek_perf_parallel, recompute),
     .bytes = sizeof(ek_recompute), .choices = recompute_choices, .otherwise = "none",
     .help = "what backward computes again: nothing, the core of attention, or all of a layer"},
    {"parallel.distributed_optimizer", BOOLEAN(ek_perf_parallel, distributed_optimizer), .otherwise = "true",
     .help = "optimizer state is sharded over the replicas (ZeRO 1), in mode ep over all ranks but for experts"},
    {"batch.global", PARALLEL(global_batch, 1, COUNT_MOST), .help = "samples of a step, over all replicas"},
    {"batch.micro", PARALLEL(micro_batch, 1, COUNT_MOST), .otherwise = "1",
     .help = "samples of a replica (mode ep: of a rank) that go through the pipeline at once"},
};

#define HARDWARE(member, from, to) REAL(ek_perf_hardware, member, from, to)
#define COUNT(member, from, to) WHOLE(ek_perf_hardware, member, from, to)
static const ek_field hardware_fields[] = {
    {"device.flops_per_second", HARDWARE(flops_per_second, 1e9, 1e18),
     .help = "peak of dense matrix products at the precision of training"},
    {"device.matmul_efficiency", HARDWARE(matmul_efficiency, 0.01, 1), .help = "part of it that large products reach"},
    {"device.multiprocessors", COUNT(multiprocessors, 1, 65536), .help = "tiles of a product that run at once"},
    {"device.tile_rows", COUNT(tile_rows, 1, 65536), .otherwise = "256", .help = "size of a tile, either way round"},
    {"device.tile_columns", COUNT(tile_columns, 1, 65536), .otherwise = "128", .help = "see device.tile_rows"},
    {"device.memory_bytes", HARDWARE(memory_bytes, 1e6, 1e15), .help = "memory of a device"},
    {"device.memory_bytes_per_second", HARDWARE(memory_bytes_per_second, 1e6, 1e18), .help = "peak of its bandwidth"},
    {"device.memory_efficiency", HARDWARE(memory_efficiency, 0.01, 1),
     .help = "part of it that elementwise kernels reach"},
    {"device.kernel_seconds", HARDWARE(kernel_seconds, 0, 1), .otherwise = "4e-6",
     .help = "what each kernel costs beside its work"},
    {"device.tdp_watts", HARDWARE(tdp_watts, 1, 1e6), .help = "power at which the speed of a device counts as 1"},
    {"network.domain_slots", COUNT(domain_slots, 1, 65536), .help = "devices of a scale-up domain"},
    {"network.scale_up_bytes_per_second", HARDWARE(scale_up_bytes_per_second, 1e6, 1e18),
     .help = "link of a device into its domain, each way"},
    {"network.scale_up_efficiency", HARDWARE(scale_up_efficiency, 0.01, 1),
     .help = "part of it that large collectives reach"},
    {"network.scale_up_seconds", HARDWARE(scale_up_seconds, 0, 1), .otherwise = "2e-6",
     .help = "latency of one step of a collective"},
    {"network.scale_out_bytes_per_second", HARDWARE(scale_out_bytes_per_second, 1e6, 1e18),
     .help = "link of a device to other domains, each way"},
    {"network.scale_out_efficiency", HARDWARE(scale_out_efficiency, 0.01, 1),
     .help = "part of it that large collectives reach"},
    {"network.scale_out_seconds", HARDWARE(scale_out_seconds, 0, 1), .otherwise = "6e-6",
     .help = "latency of one message"},
    {"network.overlap", HARDWARE(overlap, 0, 1), .otherwise = "1",
     .help = "part of the gradient communication that the last backward can hide"},
};

const ek_field *ek_perf_model_fields(size_t *count)
{
    *count = sizeof model_fields / sizeof *model_fields;
    return model_fields;
}

const ek_field *ek_perf_parallel_fields(size_t *count)
{
    *count = sizeof parallel_fields / sizeof *parallel_fields;
    return parallel_fields;
}

const ek_field *ek_perf_hardware_fields(size_t *count)
{
    *count = sizeof hardware_fields / sizeof *hardware_fields;
    return hardware_fields;
}

const char *ek_perf_mode_text(ek_perf_mode mode)
{
    return mode == EK_PERF_EP ? "EP" : "TP";
}

size_t ek_perf_fields_at(ek_field *out, const ek_field *fields, size_t count, size_t offset)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = fields[i];
        out[i].offset += offset;
    }
    return count;
}
