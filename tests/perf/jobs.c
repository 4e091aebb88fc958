#include "perf/jobs.h"

#include <math.h>

#include "base/rng.h"

perf_job job_530b(void)
{
    return (perf_job){
        .model = {.layers = 105,
                  .hidden = 20480,
                  .heads = 128,
                  .ffn = 81920,
                  .vocab = 51200,
                  .sequence = 2048,
                  .dropout = true,
                  .tied_embeddings = true,
                  .top_k = 1,
                  .moe_every = 1},
        .parallel = {.dp = 1, .tp = 8, .pp = 35, .interleave = 3, .min_tp = 1, .global_batch = 280, .micro_batch = 1},
        .hardware = {.flops_per_second = 312e12,
                     .matmul_efficiency = 0.8,
                     .multiprocessors = 108,
                     .tile_rows = 256,
                     .tile_columns = 128,
                     .memory_bytes = 80e9,
                     .memory_bytes_per_second = 2039e9,
                     .memory_efficiency = 0.85,
                     .kernel_seconds = 4e-6,
                     .tdp_watts = 400,
                     .domain_slots = 8,
                     .scale_up_bytes_per_second = 300e9,
                     .scale_up_efficiency = 0.75,
                     .scale_up_seconds = 2e-6,
                     .scale_out_bytes_per_second = 25e9,
                     .scale_out_efficiency = 0.85,
                     .scale_out_seconds = 6e-6},
    };
}

uint32_t job_draw(uint64_t number, uint64_t key, uint32_t least, uint32_t most)
{
    return least + (uint32_t)(ek_random_u64(number, 1, key) % (most - least + 1));
}

/* From least to most, spread evenly over magnitudes. */
static double draw_real(uint64_t number, uint64_t key, double least, double most)
{
    return least * pow(most / least, ek_random_uniform(number, 2, key));
}

perf_job job_random(uint64_t n)
{
    uint64_t key = 0;
#define DRAW(least, most) job_draw(n, key++, (least), (most))
#define REAL(least, most) draw_real(n, key++, (least), (most))
    uint32_t tp = DRAW(1, 12), pp = DRAW(1, 6), interleave = pp > 1 ? DRAW(1, 3) : 1;
    uint32_t kv_heads = tp + DRAW(0, 12), heads = kv_heads * DRAW(1, 4), dp = DRAW(1, 40);
    uint32_t experts = DRAW(0, 2) == 0 ? tp + DRAW(0, 20) : 0, global_batch = dp * DRAW(1, 30);
    return (perf_job){
        .model = {.layers = pp * interleave * DRAW(1, 4),
                  .kv_heads = kv_heads,
                  .heads = heads,
                  .hidden = heads * 8 * DRAW(1, 32),
                  .ffn = 64 * (tp + DRAW(0, 300)),
                  .vocab = 64 * (tp + DRAW(0, 900)),
                  .sequence = 128 * DRAW(1, 40),
                  .gated = DRAW(0, 1),
                  .fused_attention = DRAW(0, 1),
                  .dropout = DRAW(0, 1),
                  .tied_embeddings = DRAW(0, 1),
                  .experts = experts,
                  .top_k = experts ? DRAW(1, experts) : 1,
                  .moe_every = DRAW(1, 3),
                  .expert_ffn = 64 * DRAW(1, 90)},
        .parallel = {.dp = dp,
                     .tp = tp,
                     .pp = pp,
                     .interleave = interleave,
                     .min_tp = 1,
                     .sequence_parallel = experts || DRAW(0, 1),
                     .recompute = (ek_recompute)DRAW(0, 2),
                     .distributed_optimizer = DRAW(0, 1),
                     .global_batch = global_batch,
                     .micro_batch = DRAW(1, global_batch / dp)},
        .hardware = {.flops_per_second = REAL(1e12, 1e16),
                     .matmul_efficiency = REAL(0.3, 1),
                     .multiprocessors = DRAW(1, 200),
                     .tile_rows = 32 * DRAW(1, 8),
                     .tile_columns = 32 * DRAW(1, 8),
                     .memory_bytes = 80e9,
                     .memory_bytes_per_second = REAL(1e11, 1e14),
                     .memory_efficiency = REAL(0.3, 1),
                     .kernel_seconds = REAL(1e-8, 1e-4),
                     .tdp_watts = 400,
                     .domain_slots = tp * DRAW(1, 9),
                     .scale_up_bytes_per_second = REAL(1e9, 1e13),
                     .scale_up_efficiency = REAL(0.3, 1),
                     .scale_up_seconds = REAL(1e-8, 1e-4),
                     .scale_out_bytes_per_second = REAL(1e8, 1e12),
                     .scale_out_efficiency = REAL(0.3, 1),
                     .scale_out_seconds = REAL(1e-8, 1e-4),
                     .overlap = DRAW(0, 4) / 4.0},
    };
#undef DRAW
#undef REAL
}
