/* The blocks of a Slurm block topology: which nodes stand in one scale-up domain. */
#ifndef EK_PLAN_TOPOLOGY_H
#define EK_PLAN_TOPOLOGY_H

#include <evenkeel.h>

#include "plan/hostlist.h"

typedef struct ek_block {
    char *name;
    size_t first, count; /* in ek_topology.nodes */
    unsigned line;
} ek_block;

typedef struct ek_topology {
    ek_hostlist nodes; /* block by block */
    ek_block *blocks;
    size_t block_count, block_room;
} ek_topology;

/* Reads a topology.conf of the block plugin, the output of `scontrol show topology`, or, where the name ends with .yaml
 * or .yml, a topology.yaml, of which the first topology with blocks counts. A topology begins zeroed and is to be freed
 * on failure too. Refused, with the place: a switch topology, no blocks, a host list that is none. */
ek_status ek_topology_read(ek_topology *topology, const char *path);
void ek_topology_free(ek_topology *topology);

#endif
