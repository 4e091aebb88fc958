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
    ek_domain *domains; /* in natural order of their names: d2 before d10 */
    ek_node *nodes;     /* domain by domain, in natural order of their names */
    ek_slot *slots;     /* domain by domain, in it node by node, in it GPU by GPU */
    uint32_t domain_count, node_count, slot_count;
    struct ek_inventory_memory *memory; /* what the names live in */
} ek_inventory;

/* A GPU as a source names it. Texts may be NULL for ""; domain and node may not. */
typedef struct ek_inventory_row {
    const char *domain, *node;
    uint32_t gpu;
    ek_slot_state state;
    const char *pci, *serial, *reason;
    const char *file; /* where it stands, for refusals */
    unsigned line;    /* 0: the file has no lines to speak of */
} ek_inventory_row;

/* Of rows in any order, which are sorted; everything is copied. Refused, with the place: a GPU, a PCI id of a node or a
 * serial number twice, a node in two domains, no rows. */
ek_status ek_inventory_create(ek_inventory **inventory, ek_inventory_row *rows, size_t count);
void ek_inventory_destroy(ek_inventory *inventory);

/* From numbers: `domains` domains "0", "1", … of domain_slots slots, in nodes of node_gpus, which divides domain_slots.
 * `host` is the name of a node with {domain} and {node} (its index in the domain) in it; {domain:4} is padded with
 * zeros to four digits. Refused: a pattern that does not name every node differently ("cluster.host: "). */
typedef struct ek_inventory_numbers {
    uint32_t domains, domain_slots, node_gpus;
    const char *host;
} ek_inventory_numbers;
ek_status ek_inventory_generate(ek_inventory **inventory, const ek_inventory_numbers *numbers);

/* A CSV file with a line for each GPU; its first line names the columns: domain,node,gpu,state and maybe pci,serial. */
ek_status ek_inventory_read_csv(ek_inventory **inventory, const char *path);

/* A folder with NODE.xml, the output of `nvidia-smi -q -x`, for each node; the clique of the fabric is the domain. A
 * node should have node_gpus GPUs; those that its file lacks have failed. */
ek_status ek_inventory_read_nvidia_smi(ek_inventory **inventory, const char *folder, uint32_t node_gpus);

/* `nodes`: the output of `scontrol show node`; `topology`: a topology.conf (or topology.yaml's blocks) of the block
 * plugin, or the output of `scontrol show topology`; a block is a domain. A node should have node_gpus GPUs, of which
 * those that Slurm does not list have failed; 0: as many as it lists. */
ek_status ek_inventory_read_scontrol(ek_inventory **inventory, const char *nodes, const char *topology,
                                     uint32_t node_gpus);

/* The slots that `name` means: the domain of that name, DOMAIN.SLOT (its index in the domain), or the node of that
 * name, whichever is found first. False: nothing. */
bool ek_inventory_find(const ek_inventory *inventory, const char *name, uint32_t *first_slot, uint32_t *slots);

/* Takes live slots out of use. Slots that are not live keep their state. `reason` is copied. */
ek_status ek_inventory_mark(ek_inventory *inventory, uint32_t first_slot, uint32_t slots, ek_slot_state state,
                            const char *reason);

/* A copy, to be marked. Its texts are the original's, which must live as long. */
ek_status ek_inventory_copy(ek_inventory **copy, const ek_inventory *inventory);

const char *ek_slot_state_text(ek_slot_state state); /* "live", "failed", "drained" */

#endif
