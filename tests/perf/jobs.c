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

/* One draw after the other: what a number gives must not depend on the order in which a compiler evaluates. */
typedef struct drawing {
    uint64_t number, key;
} drawing;

static uint32_t whole(drawing *d, uint32_t least, uint32_t most)
{
    return job_draw(d->number, d->key++, least, most);
}

/* From least to most, spread evenly over magnitudes. */
static double real(drawing *d, double least, double most)
{
    return least * pow(most / least, ek_random_uniform(d->number, 2, d->key++));
}

static void draw_layout(drawing *d, ek_perf_parallel *parallel)
{
    parallel->dp = whole(d, 1, 40);
    parallel->tp = whole(d, 1, 12);
    parallel->pp = whole(d, 1, 6);
    parallel->interleave = parallel->pp > 1 ? whole(d, 1, 3) : 1;
    parallel->min_tp = 1;
    parallel->recompute = (ek_recompute)whole(d, 0, 2);
    parallel->sequence_parallel = whole(d, 0, 1);
    parallel->distributed_optimizer = whole(d, 0, 1);
    parallel->global_batch = parallel->dp * whole(d, 1, 30);
    parallel->micro_batch = whole(d, 1, parallel->global_batch / parallel->dp);
}

static void draw_model(drawing *d, ek_perf_model *model, ek_perf_parallel *parallel)
{
    model->layers = parallel->pp * parallel->interleave * whole(d, 1, 4);
    model->kv_heads = parallel->tp + whole(d, 0, 12);
    model->heads = model->kv_heads * whole(d, 1, 4);
    model->hidden = model->heads * 8 * whole(d, 1, 32);
    model->ffn = 64 * (parallel->tp + whole(d, 0, 300));
    model->vocab = 64 * (parallel->tp + whole(d, 0, 900));
    model->sequence = 128 * whole(d, 1, 40);
    model->gated = whole(d, 0, 1);
    model->fused_attention = whole(d, 0, 1);
    model->dropout = whole(d, 0, 1);
    model->tied_embeddings = whole(d, 0, 1);
    model->experts = whole(d, 0, 2) == 0 ? parallel->tp + whole(d, 0, 20) : 0;
    model->top_k = whole(d, 1, model->experts ? model->experts : 1);
    model->moe_every = whole(d, 1, 3);
    model->expert_ffn = 64 * whole(d, 1, 90);
    parallel->sequence_parallel |= model->experts > 0;
    parallel->mode = model->experts && whole(d, 0, 1) ? EK_PERF_EP : EK_PERF_TP;
    uint32_t samples = (parallel->global_batch / parallel->dp - 1) / parallel->tp + 1; /* of a rank */
    if (parallel->mode == EK_PERF_EP && parallel->micro_batch > samples)
        parallel->micro_batch = samples;
}

static void draw_hardware(drawing *d, ek_perf_hardware *hardware, uint32_t tp)
{
    hardware->flops_per_second = real(d, 1e12, 1e16);
    hardware->matmul_efficiency = real(d, 0.3, 1);
    hardware->multiprocessors = whole(d, 1, 200);
    hardware->tile_rows = 32 * whole(d, 1, 8);
    hardware->tile_columns = 32 * whole(d, 1, 8);
    hardware->memory_bytes = 80e9;
    hardware->memory_bytes_per_second = real(d, 1e11, 1e14);
    hardware->memory_efficiency = real(d, 0.3, 1);
    hardware->kernel_seconds = real(d, 1e-8, 1e-4);
    hardware->tdp_watts = 400;
    hardware->domain_slots = tp * whole(d, 1, 9);
    hardware->scale_up_bytes_per_second = real(d, 1e9, 1e13);
    hardware->scale_up_efficiency = real(d, 0.3, 1);
    hardware->scale_up_seconds = real(d, 1e-8, 1e-4);
    hardware->scale_out_bytes_per_second = real(d, 1e8, 1e12);
    hardware->scale_out_efficiency = real(d, 0.3, 1);
    hardware->scale_out_seconds = real(d, 1e-8, 1e-4);
    hardware->overlap = whole(d, 0, 4) / 4.0;
}

perf_job job_random(uint64_t number)
{
    perf_job job = {0};
    drawing d = {.number = number};
    draw_layout(&d, &job.parallel);
    draw_model(&d, &job.model, &job.parallel);
    draw_hardware(&d, &job.hardware, job.parallel.tp);
    return job;
}
