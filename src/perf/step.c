/* The time of a step of one replica: stages in a pipeline, then gradients, then the optimizer. */
#include "perf/parts.h"

#include <math.h>

#include "base/error.h"

#define GRADIENT_BYTES 4 /* gradients are summed and reduced in 32 bits */
#define WEIGHT_BYTES 2
/* Adam, per parameter: reads gradient, weight in 32 bits and two moments, writes the latter three and the weight in 16
 * bits (30); the norm reads the gradient (4), and it is cleared (4). In four kernels for many tensors at once. */
#define OPTIMIZER_BYTES 38
#define OPTIMIZER_KERNELS 4

/* Seconds of one micro-batch in a stage. */
typedef struct stage_seconds {
    double compute, tensor, sends;
    double backward; /* of compute and tensor */
} stage_seconds;

static double total(const stage_seconds *seconds)
{
    return seconds->compute + seconds->tensor + seconds->sends;
}

static void add(perf_pass *sum, const perf_pass *pass, double times)
{
    sum->compute += times * pass->compute;
    sum->tensor += times * pass->tensor;
}

static perf_pass sum_blocks(const perf_stage *stage, const perf_costs *costs, bool backward)
{
    const struct {
        const perf_block *block;
        double times;
    } parts[] = {{&costs->attention, stage->layers},
                 {&costs->ffn, stage->ffn_layers},
                 {&costs->experts, stage->expert_layers},
                 {&costs->embedding, stage->embedding},
                 {&costs->output, stage->output}};
    perf_pass sum = {0};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        add(&sum, backward ? &parts[i].block->backward : &parts[i].block->forward, parts[i].times);
    return sum;
}

/* The sends of a micro-batch by one stage: after each chunk forward and backward, a blocking exchange with the
 * neighbours. Each rank sends its part of the activations through its own link (arXiv 2104.04473, section 4.1); the
 * stage with fewer ranks has the larger parts. Without sequence parallelism the receivers gather the parts. */
static double send_seconds(const ek_perf *perf, const uint32_t *degrees, uint32_t stage)
{
    const ek_perf_parallel *parallel = &perf->parallel;
    const ek_perf_hardware *hardware = &perf->hardware;
    uint32_t pp = parallel->pp;
    if (pp == 1)
        return 0;
    uint32_t degree = degrees[stage], before = degrees[(stage + pp - 1) % pp], after = degrees[(stage + 1) % pp];
    if (before < degree && (stage > 0 || parallel->interleave > 1))
        degree = before;
    if (after < degree && (stage + 1 < pp || parallel->interleave > 1))
        degree = after;
    double bytes = 2.0 * perf->model.sequence * parallel->micro_batch * perf->model.hidden;
    bool inside = (uint64_t)parallel->tp * parallel->dp * pp <= hardware->domain_slots;
    perf_link link = inside ? perf_scale_up(hardware) : perf_scale_out(hardware);
    double send = link.seconds + bytes / degree / link.bytes_per_second;
    if (!parallel->sequence_parallel)
        send += perf_ring(perf_scale_up(hardware), parallel->tp, bytes);
    return 2 * parallel->interleave * send;
}

static stage_seconds price_stage(const ek_perf *perf, const ek_perf_replica *replica, uint32_t stage)
{
    const perf_costs *costs = perf_costs_at(perf, replica->free_units, replica->degrees[stage]);
    perf_pass forward = sum_blocks(&perf->stages[stage], costs, false);
    perf_pass backward = sum_blocks(&perf->stages[stage], costs, true);
    double speed = replica->speeds ? replica->speeds[stage] : 1;
    return (stage_seconds){
        .compute = (forward.compute + backward.compute) / speed,
        .tensor = forward.tensor + backward.tensor,
        .sends = send_seconds(perf, replica->degrees, stage),
        .backward = backward.compute / speed + backward.tensor,
    };
}

/* Ring passes over the replicas: of `bytes` on each rank, first inside each domain that holds ranks of several
 * replicas, then between domains, where these ranks share the work. Ranks are numbered TP first, then DP, then PP. */
static double replicas_ring(const ek_perf *perf, double bytes)
{
    uint32_t dp = perf->parallel.dp, together = perf->hardware.domain_slots / perf->parallel.tp;
    together = together < dp ? together : dp;
    uint32_t domains = (dp - 1) / together + 1;
    return perf_ring(perf_scale_up(&perf->hardware), together, bytes) +
           perf_ring(perf_scale_out(&perf->hardware), domains, bytes / together);
}

/* Gradients are reduced (all-reduce, or a reduce-scatter and later an all-gather of weights), as long as the fullest
 * rank takes; between the ends of the pipeline the copies of tied embeddings are summed. */
static double gradient_seconds(const ek_perf *perf, const ek_perf_replica *replica, uint32_t stage)
{
    const perf_share *share = &perf_costs_at(perf, replica->free_units, replica->degrees[stage])->share;
    double parameters = perf_rank_parameters(perf, stage, share);
    double seconds =
        replicas_ring(perf, GRADIENT_BYTES * parameters) +
        replicas_ring(perf, (perf->parallel.distributed_optimizer ? WEIGHT_BYTES : GRADIENT_BYTES) * parameters);
    perf_link up = perf_scale_up(&perf->hardware);
    if (replica->reshard_bytes > 0)
        seconds += 2 * up.seconds + replica->reshard_bytes / up.bytes_per_second;
    return seconds;
}

static double tied_seconds(const ek_perf *perf, const ek_perf_replica *replica, uint32_t stage)
{
    bool tied = perf->model.tied_embeddings && perf->parallel.pp > 1;
    if (!tied || (stage != 0 && stage != perf->parallel.pp - 1))
        return 0;
    const perf_share *share = &perf_costs_at(perf, replica->free_units, replica->degrees[stage])->share;
    double parameters = share->units[PERF_VOCAB] * perf->groups[PERF_VOCAB].unit_parameters;
    return 2 * perf_ring(perf_scale_out(&perf->hardware), 2, GRADIENT_BYTES * parameters);
}

/* What backward cannot hide. Gradients are complete only in the last micro-batches. Of a stage's chunks the one that
 * ends last has the window of its own backward, `window`; those before it have pp times that and are taken to be
 * hidden. */
static double exposed_seconds(const ek_perf *perf, const ek_perf_replica *replica, uint32_t stage, double window)
{
    double gradients = gradient_seconds(perf, replica, stage), chunks = perf->parallel.interleave;
    double hidden = fmin(perf->hardware.overlap * gradients, gradients * (chunks - 1) / chunks + window);
    return gradients - hidden + tied_seconds(perf, replica, stage);
}

static double optimizer_seconds(const ek_perf *perf, const ek_perf_replica *replica, uint32_t stage)
{
    const perf_share *share = &perf_costs_at(perf, replica->free_units, replica->degrees[stage])->share;
    double parameters = perf_rank_parameters(perf, stage, share);
    uint32_t shards = perf->parallel.distributed_optimizer ? perf->parallel.dp : 1;
    return perf_traffic(&perf->hardware, OPTIMIZER_BYTES * parameters / shards, OPTIMIZER_KERNELS);
}

static ek_status check_replica(const ek_perf *perf, const ek_perf_replica *replica)
{
    if (!(replica->samples >= 0) || !(replica->reshard_bytes >= 0))
        return ek_fail(EK_INVALID, "a replica needs samples and reshard bytes of 0 or more, found %g and %g",
                       replica->samples, replica->reshard_bytes);
    for (uint32_t stage = 0; stage < perf->parallel.pp; stage++) {
        if (replica->degrees[stage] < 1 || replica->degrees[stage] > perf->parallel.tp)
            return ek_fail(EK_INVALID, "stage %u has degree %u; 1 to %u (parallel.tp) is allowed", stage,
                           replica->degrees[stage], perf->parallel.tp);
        if (replica->speeds && !(replica->speeds[stage] > 0))
            return ek_fail(EK_INVALID, "stage %u has speed %g; a number above 0 is needed", stage,
                           replica->speeds[stage]);
    }
    return EK_OK;
}

perf_schedule perf_schedule_of(uint32_t stages, uint32_t chunks, double micro_batches)
{
    double turns = chunks > 1 ? ceil(micro_batches / stages) * stages : micro_batches;
    return (perf_schedule){turns, fmin(micro_batches, 1) / chunks};
}

ek_status ek_perf_step(const ek_perf *perf, const ek_perf_replica *replica, ek_perf_time *time)
{
    EK_TRY(check_replica(perf, replica));
    uint32_t pp = perf->parallel.pp;
    double micro_batches = replica->samples / perf->parallel.micro_batch;
    const perf_schedule schedule = perf_schedule_of(pp, perf->parallel.interleave, micro_batches);
    double sum = 0, data = 0, optimizer = 0;
    stage_seconds slowest = {0};
    for (uint32_t stage = 0; stage < pp; stage++) {
        stage_seconds seconds = price_stage(perf, replica, stage);
        sum += total(&seconds);
        if (total(&seconds) > total(&slowest))
            slowest = seconds;
        data = fmax(data, exposed_seconds(perf, replica, stage, schedule.once * seconds.backward));
        optimizer = fmax(optimizer, optimizer_seconds(perf, replica, stage));
    }
    double scheduled = schedule.turns * total(&slowest) + schedule.once * (sum - total(&slowest));
    ek_perf_time found = {
        .compute = micro_batches * slowest.compute,
        .tensor = micro_batches * slowest.tensor,
        .pipeline = micro_batches * slowest.sends,
        .bubble = scheduled - micro_batches * total(&slowest),
        .data = data,
        .optimizer = optimizer,
    };
    found.total = scheduled + data + optimizer;
    *time = found;
    return EK_OK;
}
