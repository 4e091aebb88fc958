/* evenkeel plan --format megatron: what a Megatron-Core training script needs to run a plan with its nonuniform tensor
 * parallelism (megatron/core/distributed/nonuniform_tp.py and README_NONUNIFORM_TP.md beside it). docs/launching.md
 * says how to use it and what Megatron cannot do that a plan can. */
#ifndef EK_PLAN_MEGATRON_H
#define EK_PLAN_MEGATRON_H

#include <stdio.h>

#include "plan/plan.h"

/* Python text: a NonuniformTPConfig, the process groups of the packed layout as lists of global ranks (plan/ranks.h),
 * and each rank's host and GPU. `model` is the one of plan->perf. EK_INVALID, beginning with the key at fault
 * ("model.heads: "), where Megatron cannot cut a tensor at a degree of the plan; nothing is written then. */
ek_status ek_plan_write_megatron(const ek_plan *plan, const ek_perf_model *model, FILE *file);

/* Whether Megatron can run `units` of a tensor (heads, columns, rows) on healthy replicas of base_degree ranks beside
 * reduced ones of reduced_degree (at most base_degree). Its layers cut a tensor into equal parts, so both must divide
 * the units. Its mapping between the two deals units in chunks of ceil(units / reduced_degree) and gives the whole
 * replicas' extra ranks floor(units / base_degree) of them, so where that leaves fewer chunks than ranks, or shares
 * unlike the parts that the layers hold, it ends in an error or mixes gradients up: it does not where both divide. */
bool ek_megatron_can_split(uint32_t units, uint32_t base_degree, uint32_t reduced_degree);

#endif
