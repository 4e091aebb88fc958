/* Writes the batch script. It has one allocation of whole nodes and starts its tasks with an arbitrary distribution,
 * which takes any number of tasks on any node in any order, so that a task's number is its rank (docs/launching.md). */
#include "plan/slurm.h"

#include <stdlib.h>

#include "base/error.h"
#include "plan/hostlist.h"
#include "plan/ranks.h"

/* Before the table, %u being the number of ranks. */
static const char before_table[] = "\n"
                                   "set -euo pipefail\n"
                                   "\n"
                                   "ranks=%u\n"
                                   "\n"
                                   "# Rank, node, GPU in its node by PCI bus id, that PCI bus id (-: not known).\n"
                                   "table() {\n"
                                   "  cat <<'END'\n";

static const char after_table[] =
    "END\n"
    "}\n"
    "\n"
    "fail() {\n"
    "  echo \"evenkeel: $*\" >&2\n"
    "  exit 1\n"
    "}\n"
    "\n"
    "# A task: checks where it is, takes its GPU, says so and becomes the training command.\n"
    "run_rank() {\n"
    "  local rank=$SLURM_PROCID row='' node='' gpu='' pci='' seen=''\n"
    "  while read -r row node gpu pci && [[ $row != \"$rank\" ]]; do :; done < <(table)\n"
    "  [[ $row == \"$rank\" ]] || fail \"rank $rank is not in the plan, which has $ranks ranks\"\n"
    "  [[ $SLURMD_NODENAME == \"$node\" ]] ||\n"
    "    fail \"rank $rank is on $SLURMD_NODENAME, its place is $node: Slurm did not follow SLURM_HOSTFILE\"\n"
    "  if command -v nvidia-smi >/dev/null; then\n"
    "    seen=$(nvidia-smi --id=\"$gpu\" --query-gpu=pci.bus_id --format=csv,noheader) ||\n"
    "      fail \"rank $rank: $node has no GPU $gpu: plan again from what is there\"\n"
    "    [[ $pci == - || $seen == \"$pci\" ]] ||\n"
    "      fail \"rank $rank: GPU $gpu of $node is $seen, its place is $pci: plan again from what is there\"\n"
    "  fi\n"
    "  echo \"rank $rank: $node, GPU $gpu${seen:+ ($seen)}\"\n"
    "  export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$gpu\n"
    "  export RANK=$rank WORLD_SIZE=$ranks LOCAL_RANK=0\n"
    "  exec \"$@\"\n"
    "}\n"
    "\n"
    "if [[ ${1-} == --rank ]]; then\n"
    "  shift\n"
    "  run_rank \"$@\"\n"
    "fi\n"
    "\n"
    "[[ -n ${SLURM_JOB_ID-} ]] || fail 'not in a Slurm job: start this with sbatch'\n"
    "[[ $# -gt 0 ]] || fail \"no training command: sbatch SCRIPT COMMAND [ARGUMENT...]\"\n"
    "\n"
    "# Tasks need this script, wherever Slurm has put it; a step gets no GPUs unless it asks, here for all of the "
    "job.\n"
    "copy=${TMPDIR:-/tmp}/evenkeel-$SLURM_JOB_ID.sh\n"
    "hosts=$(mktemp)\n"
    "clean_up() {\n"
    "  rm -f \"$hosts\"\n"
    "  srun --nodes=\"$SLURM_JOB_NUM_NODES\" --ntasks-per-node=1 rm -f \"$copy\"\n"
    "}\n"
    "trap clean_up EXIT\n"
    "sbcast --force \"$0\" \"$copy\"\n"
    "table | cut -d ' ' -f 2 >\"$hosts\"\n"
    "gpus=$(scontrol --details show job \"$SLURM_JOB_ID\" |\n"
    "  sed -n 's/^ *JOB_GRES=.*gpu:\\([^:,]*:\\)\\{0,1\\}\\([0-9]*\\).*/\\2/p')\n"
    "\n"
    "master=$(head -n 1 \"$hosts\")\n"
    "export MASTER_ADDR=${MASTER_ADDR:-$master} MASTER_PORT=${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}\n"
    "SLURM_HOSTFILE=$hosts srun --distribution=arbitrary --ntasks=\"$ranks\" ${gpus:+\"--gpus=$gpus\"} \\\n"
    "  --cpu-bind=none --kill-on-bad-exit=1 bash \"$copy\" --rank \"$@\"\n";

/* A PCI id as nvidia-smi writes it: eight digits of domain. "-" where it is not known. */
#define PCI_BYTES 40
static ek_status pci_as_written(const ek_slot *slot, const ek_inventory *inventory, char text[PCI_BYTES])
{
    unsigned domain = 0, bus, device, function;
    int length = 0;
    if (slot->pci[0] == '\0') {
        snprintf(text, PCI_BYTES, "-");
        return EK_OK;
    }
    if (sscanf(slot->pci, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &length) != 4 ||
        slot->pci[length] != '\0')
        return ek_fail(EK_INVALID, "PCI id \"%.40s\" of GPU %u of %s is none as 00000000:3B:00.0", slot->pci, slot->gpu,
                       inventory->nodes[slot->node].name);
    snprintf(text, PCI_BYTES, "%08X:%02X:%02X.%X", domain, bus, device, function);
    return EK_OK;
}

static ek_status check_pci_ids(const ek_ranks *ranks, const ek_inventory *inventory)
{
    char text[PCI_BYTES];
    for (uint32_t rank = 0; rank < ranks->count; rank++)
        EK_TRY(pci_as_written(&inventory->slots[ranks->slots[rank]], inventory, text));
    return EK_OK;
}

/* The nodes that have a rank, in the order of the inventory; used[node_count] and names[node_count] are room. */
static size_t nodes_of(const ek_ranks *ranks, const ek_inventory *inventory, bool *used, const char **names)
{
    size_t count = 0;
    for (uint32_t rank = 0; rank < ranks->count; rank++)
        used[inventory->slots[ranks->slots[rank]].node] = true;
    for (uint32_t node = 0; node < inventory->node_count; node++)
        if (used[node])
            names[count++] = inventory->nodes[node].name;
    return count;
}

static ek_status write_script(const ek_ranks *ranks, const ek_inventory *inventory, const char *const *nodes,
                              size_t node_count, FILE *file)
{
    fprintf(file,
            "#!/bin/bash\n"
            "# Starts the %u ranks of a plan of evenkeel %s: sbatch [OPTION...] SCRIPT COMMAND [ARGUMENT...]\n"
            "# (docs/launching.md). Each rank runs the command with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and\n"
            "# MASTER_PORT set, and sees one GPU.\n"
            "#SBATCH --nodes=%zu\n"
            "#SBATCH --exclusive\n"
            "#SBATCH --nodelist=",
            ranks->count, ek_version(), node_count);
    ek_hostlist_write(nodes, node_count, file);
    fputc('\n', file);
    fprintf(file, before_table, ranks->count);
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        const ek_slot *slot = &inventory->slots[ranks->slots[rank]];
        char pci[PCI_BYTES];
        EK_TRY(pci_as_written(slot, inventory, pci));
        fprintf(file, "%u %s %u %s\n", rank, inventory->nodes[slot->node].name, slot->gpu, pci);
    }
    fputs(after_table, file);
    return ferror(file) ? ek_fail(EK_IO, "cannot write the script for Slurm: the output takes no more") : EK_OK;
}

ek_status ek_plan_write_slurm(const ek_plan *plan, FILE *file)
{
    const ek_inventory *inventory = plan->inventory;
    ek_ranks *ranks;
    EK_TRY(ek_ranks_create(&ranks, plan));
    bool *used = calloc(inventory->node_count, sizeof *used);
    const char **nodes = calloc(inventory->node_count, sizeof *nodes);
    ek_status status = used && nodes ? check_pci_ids(ranks, inventory) : ek_fail(EK_NO_MEMORY, "out of memory");
    if (status == EK_OK)
        status = write_script(ranks, inventory, nodes, nodes_of(ranks, inventory, used, nodes), file);
    free(used);
    free(nodes);
    ek_ranks_destroy(ranks);
    return status;
}
