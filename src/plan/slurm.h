/* evenkeel plan --format slurm: a batch script that starts one task for each rank of plan/ranks.h, each on its GPU. */
#ifndef EK_PLAN_SLURM_H
#define EK_PLAN_SLURM_H

#include <stdio.h>

#include "plan/plan.h"

/* EK_INVALID: a node whose name cannot be a host name, a GPU whose PCI id is none; nothing is written then. */
ek_status ek_plan_write_slurm(const ek_plan *plan, FILE *file);

#endif
