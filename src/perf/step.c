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

/* How much a rank of a stage computes: its own micro-batches, and in mode ep the rounds of a whole group in which its
 * experts have the tokens of all ranks. */
typedef struct stage_load {
    double own, rounds;
} stage_load;

/* Seconds of one micro-batch in a stage, */
typedef struct stage_seconds {
    double compute, tensor, sends;
    double backward; /* of compute and tensor */
    /* and in mode ep of one round: */
    double routed, routed_backward;
    perf_exchange dispatch; /* `leaving` of one micro-batch */
} stage_seconds;

static double exchange(const stage_seconds *seconds, stage_load load)
{
    return fmax(load.own * seconds->dispatch.leaving, load.rounds * seconds->dispatch.arriving);
}

static double total(const stage_seconds *seconds, stage_load load)
{
    double own = seconds->compute + seconds->tensor + seconds->sends;
    return load.own * own + load.rounds * seconds->routed + exchange(seconds, load);
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
 * stage with fewer ranks has the larger parts. Without sequence parallelism the receivers gather the parts. In mode ep
 * each rank has micro-batches of its own, and a stage with fewer ranks more of them. */
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
    if (perf_is_ep(perf))
        degree = 1;
    double send = link.seconds + bytes / degree / link.bytes_per_second;
    if (!parallel->sequence_parallel && !perf_is_ep(perf))
        send += perf_ring(perf_scale_up(hardware), parallel->tp, bytes);
    return 2 * parallel->interleave * send;
}

static stage_seconds price_stage(const ek_perf *perf, const ek_perf_replica *replica, uint32_t stage)
{
    const perf_costs *costs = perf_costs_at(perf, replica->free_units, replica->degrees[stage]);
    perf_pass forward = sum_blocks(&perf->stages[stage], costs, false);
    perf_pass backward = sum_blocks(&perf->stages[stage], costs, true);
    double speed = replica->speeds ? replica->speeds[stage] : 1, layers = perf->stages[stage].expert_layers;
    const perf_exchange *dispatch = costs->dispatch;
    return (stage_seconds){
        .compute = (forward.compute + backward.compute) / speed,
        .tensor = forward.tensor + backward.tensor,
        .sends = send_seconds(perf, replica->degrees, stage),
        .backward = backward.compute / speed + backward.tensor,
        .routed = layers * (costs->routed.forward.compute + costs->routed.backward.compute) / speed,
        .routed_backward = layers * costs->routed.backward.compute / speed,
        .dispatch = {layers * (dispatch[0].leaving + dispatch[1].leaving),
                     layers * (dispatch[0].arriving + dispatch[1].arriving)},
    };
}

/* Samples are whole, and so are a rank's: the one that has most of them sets the pace, unless shares divide freely. */
static stage_load load_at(const ek_perf *perf, const ek_perf_replica *replica, uint32_t degree)
{
    double samples = replica->samples, micro_batch = perf->parallel.micro_batch;
    if (!perf_is_ep(perf))
        return (stage_load){.own = samples / micro_batch};
    double own = replica->free_units ? samples / degree : ceil(samples / degree);
    return (stage_load){own / micro_batch, samples / perf->parallel.tp / micro_batch};
}

/* A ring pass over the replicas: of `bytes` on each rank, over `ranks` of each replica. First inside each domain, over
 * those of the replicas that are together in it, then between domains, where these ranks share the work. Ranks are
 * numbered TP first, then DP, then PP. */
static double replicas_ring(const ek_perf *perf, uint32_t ranks, double bytes)
{
    uint32_t dp = perf->parallel.dp, together = perf->hardware.domain_slots / perf->parallel.tp;
    together = together < dp ? together : dp;
    uint32_t domains = (dp - 1) / together + 1, inside = together * ranks;
    return perf_ring(perf_scale_up(&perf->hardware), inside, bytes) +
           perf_ring(perf_scale_out(&perf->hardware), domains, bytes / inside);
}

/* To sum parameters' gradients and have the new weights, over `ranks` of each replica. */
static double reduce_seconds(const ek_perf *perf, uint32_t ranks, double parameters)
{
    return replicas_ring(perf, ranks, GRADIENT_BYTES * parameters) +
           replicas_ring(perf, ranks,
                         (perf->parallel.distributed_optimizer ? WEIGHT_BYTES : GRADIENT_BYTES) * parameters);
}

/* Gradients are reduced (all-reduce, or a reduce-scatter and later an all-gather of weights), as long as the fullest
 * rank takes, in mode ep those of all but experts over all ranks of all replicas; between the ends of the pipeline the
 * copies of tied embeddings are summed. */
static double gradient_seconds(const ek_perf *perf, const ek_perf_replica *replica, uint32_t stage)
{
    const perf_share *share = &perf_costs_at(perf, replica->free_units, replica->degrees[stage])->share;
    double dense = perf_dense_parameters(perf, stage);
    double seconds = reduce_seconds(perf, 1, perf_rank_parameters(perf, stage, share) - dense);
    if (dense > 0)
        seconds += reduce_seconds(perf, perf->parallel.tp, dense);
    perf_link up = perf_scale_up(&perf->hardware);
    if (replica->reshard_bytes > 0)
        seconds += 2 * up.seconds + replica->reshard_bytes / up.bytes_per_second;
    return seconds;
}

/* Where every rank has all of them, in mode ep, each sends its part and they gather the sums. */
static double tied_seconds(const ek_perf *perf, const ek_perf_replica *replica, uint32_t stage)
{
    bool tied = perf->model.tied_embeddings && perf->parallel.pp > 1;
    if (!tied || (stage != 0 && stage != perf->parallel.pp - 1))
        return 0;
    const perf_share *share = &perf_costs_at(perf, replica->free_units, replica->degrees[stage])->share;
    double parameters = share->units[PERF_VOCAB] * perf->groups[PERF_VOCAB].unit_parameters;
    double bytes = GRADIENT_BYTES * parameters;
    if (!perf_is_ep(perf))
        return 2 * perf_ring(perf_scale_out(&perf->hardware), 2, bytes);
    uint32_t ranks = perf->parallel.tp;
    return 2 * perf_ring(perf_scale_out(&perf->hardware), 2, bytes / ranks) +
           perf_ring(perf_scale_up(&perf->hardware), ranks, bytes);
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
    double dense = perf_dense_parameters(perf, stage), units = perf_rank_parameters(perf, stage, share) - dense;
    double bytes = OPTIMIZER_BYTES * units / perf_unit_shards(perf) + OPTIMIZER_BYTES * dense / perf_dense_shards(perf);
    return perf_traffic(&perf->hardware, bytes, OPTIMIZER_KERNELS);
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

/* The load until the schedule is through, and what a stage takes of it once more at either end of the pipeline: for a
 * micro-batch, and for as much of a round as there is. */
static stage_load scheduled_load(const ek_perf *perf, stage_load load)
{
    uint32_t pp = perf->parallel.pp, chunks = perf->parallel.interleave;
    return (stage_load){perf_schedule_of(pp, chunks, load.own).turns, perf_schedule_of(pp, chunks, load.rounds).turns};
}

static stage_load end_load(stage_load least)
{
    double part = least.own > 0 ? fmin(least.rounds, 1) / fmin(least.own, 1) : 0;
    return (stage_load){1, part};
}

static void split_time(const stage_seconds *seconds, stage_load load, ek_perf_time *time)
{
    time->compute = load.own * seconds->compute + load.rounds * seconds->routed;
    time->tensor = load.own * seconds->tensor + exchange(seconds, load);
    time->pipeline = load.own * seconds->sends;
}

/* The stage that the others wait for is the one with the latest end, which in mode ep need not be the one that takes
 * longest for a micro-batch: its ranks may have more of them. */
ek_status ek_perf_step(const ek_perf *perf, const ek_perf_replica *replica, ek_perf_time *time)
{
    EK_TRY(check_replica(perf, replica));
    const stage_load least = load_at(perf, replica, perf->parallel.tp), end = end_load(least);
    const double once = perf_schedule_of(perf->parallel.pp, perf->parallel.interleave, least.own).once;
    ek_perf_time found = {0};
    double sum = 0, latest = 0, work = 0, ends = 0;
    for (uint32_t stage = 0; stage < perf->parallel.pp; stage++) {
        const stage_load load = load_at(perf, replica, replica->degrees[stage]);
        const stage_seconds seconds = price_stage(perf, replica, stage);
        double scheduled = total(&seconds, scheduled_load(perf, load)), at_end = total(&seconds, end);
        sum += at_end;
        if (stage == 0 || scheduled - once * at_end > latest - once * ends) {
            latest = scheduled;
            ends = at_end;
            work = total(&seconds, load);
            split_time(&seconds, load, &found);
        }
        double window = once * (seconds.backward + end.rounds * seconds.routed_backward);
        found.data = fmax(found.data, exposed_seconds(perf, replica, stage, window));
        found.optimizer = fmax(found.optimizer, optimizer_seconds(perf, replica, stage));
    }
    double scheduled = latest + once * (sum - ends);
    found.bubble = scheduled - work;
    found.total = scheduled + found.data + found.optimizer;
    *time = found;
    return EK_OK;
}
