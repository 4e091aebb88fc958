/* The inventory of a cluster: scale-up domains, their slots, the nodes that slots are in, and what state they are in.
 * docs/planner.md documents the forms it is read from: generated from numbers, a CSV with a line for each GPU, a folder
 * with the output of `nvidia-smi -q -x` of each node, `scontrol show node` with a Slurm block topology.
 *
 * A domain is not a node: 72 GPUs of one NVLink domain are 18 nodes of 4. */
#ifndef EK_PLAN_INVENTORY_H
#define EK_PLAN_INVENTORY_H

#include <evenkeel.h>

typedef enum ek_slot_state {
    EK_SLOT_LIVE,
    EK_SLOT_FAILED,  /* reported so, vanished, or its fabric is not up */
    EK_SLOT_DRAINED, /* healthy, not to be used */
} ek_slot_state;

typedef struct ek_slot {
    uint32_t domain, node;
    uint32_t gpu; /* index in its node, as CUDA_VISIBLE_DEVICES counts with CUDA_DEVICE_ORDER=PCI_BUS_ID */
    ek_slot_state state;
    const char *pci, *serial; /* "" where not known */
    const char *reason;       /* why it is not live, "" */
} ek_slot;

typedef struct ek_domain {
    const char *name;
    uint32_t first_slot, slots; /* in ek_inventory.slots */
    uint32_t live;
} ek_domain;

typedef struct ek_node {
    const char *name;           /* host name */
    uint32_t domain, gpus;      /* GPUs that it should have */
    uint32_t first_slot, slots; /* slots of a node stand together */
} ek_node;

typedef struct ek_inventory {
    ek_domain *domains;
    ek_node *nodes;
    ek_slot *slots; /* domain by domain, in it node by node, in it GPU by GPU */
    uint32_t domain_count, node_count, slot_count;
    struct ek_inventory_memory *memory; /* what the names live in */
} ek_inventory;

#endif
