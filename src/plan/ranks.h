/* Global ranks of a planned job, numbered for Megatron-Core and padded to what it can run; --format megatron describes
 * them and --format slurm starts them.
 *
 * Megatron has one reduced degree per job, and sends between pipeline stages from a TP rank to the same TP rank. So all
 * stages of all reduced replicas run at the degree of the most reduced one; where a cell has more live slots, the
 * highest slots are switched off. Numbers run over what is left, without holes: stage by stage, in it replica by
 * replica (the reduced ones are the first), in it TP rank by TP rank, which is Megatron's default order
 * (tp-cp-ep-dp-pp) and puts the last rank in the last stage, where Megatron prints from. */
#ifndef EK_PLAN_RANKS_H
#define EK_PLAN_RANKS_H

#include <evenkeel.h>

#include "plan/plan.h"

typedef struct ek_ranks {
    uint32_t replicas, stages, base_degree;
    uint32_t reduced_replicas, reduced_degree; /* none: 0, base_degree */
    uint32_t count;
    uint32_t idle_slots; /* live slots of cells that the padding switches off */
    uint32_t *slots;     /* [count] of the inventory, by rank */
    uint32_t *positions; /* [count] in the TP group of the base degree, by rank, as below */
} ek_ranks;

/* TP ranks of a cell go by ascending slot. Where its slots lie in one block of base_degree slots of their domain, a
 * position is the slot in that block, so that it is the physical GPU which a gap in the positions points to; otherwise,
 * with slots that stand in for failed ones elsewhere, positions are counted from 0. */

/* Of a plan whose reduced replicas are the first. EK_INVALID: a node whose name cannot be a host name. */
ek_status ek_ranks_create(ek_ranks **ranks, const ek_plan *plan);
void ek_ranks_destroy(ek_ranks *ranks);

static inline uint32_t ek_ranks_degree(const ek_ranks *ranks, uint32_t replica)
{
    return replica < ranks->reduced_replicas ? ranks->reduced_degree : ranks->base_degree;
}

static inline uint32_t ek_ranks_of_stage(const ek_ranks *ranks)
{
    return ranks->count / ranks->stages;
}

/* The rank of a TP rank, below the replica's degree. */
static inline uint32_t ek_ranks_at(const ek_ranks *ranks, uint32_t stage, uint32_t replica, uint32_t tp_rank)
{
    uint32_t reduced = replica < ranks->reduced_replicas ? replica : ranks->reduced_replicas;
    return stage * ek_ranks_of_stage(ranks) + reduced * ranks->reduced_degree +
           (replica - reduced) * ranks->base_degree + tp_rank;
}

#endif
