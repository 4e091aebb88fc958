#!/bin/bash
# Starts a plan in Slurm: munged, slurmctld and a slurmd for each of three nodes run on this machine, with all that they
# need in a folder of their own. Nodes have 4, 3 and 4 GPUs, as device files of which no driver knows. Checked: each rank
# comes to its node and GPU, before the command starts; a failing rank ends the job; nothing is left behind.
#     slurm.sh COMMAND
# Exit status 77: skipped, because Slurm is not installed or this is not root, who may run as several nodes.
set -euo pipefail
command=$1
# shellcheck source=tests/slurm.sh
. "$(dirname "$0")/../slurm.sh"
can_start_slurm

scratch=$(mktemp -d "${TMPDIR:-/tmp}/evenkeel-slurm-XXXXXX")
trap 'stop_slurm; rm -rf "$scratch"' EXIT

fail() {
  echo "$*" >&2
  tail -n 20 "$scratch"/*.log >&2
  exit 1
}

# A cluster of three nodes on ports of its own, so that tests do not meet.
start_slurm() {
  local port=$((20000 + $$ % 20000)) node=0 host gpus
  host=$(hostname)
  mkdir "$scratch/device"
  for gpu in 0 1 2 3; do
    mknod "$scratch/device/gpu$gpu" c 1 3 || { echo "skipped: no device files"; exit 77; }
  done
  start_munge
  write_slurm_conf "$host" 127.0.0.1 "$port"
  echo "GresTypes=gpu" >>"$SLURM_CONF"
  for gpus in 4 3 4; do
    node=$((node + 1))
    mkdir "$scratch/spool-node$node"
    echo "NodeName=node$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + node)) CPUs=8 Gres=gpu:$gpus" >>"$SLURM_CONF"
    echo "NodeName=node$node Name=gpu File=$scratch/device/gpu[0-$((gpus - 1))]" >>"$scratch/gres.conf"
  done
  echo "PartitionName=all Nodes=ALL Default=YES" >>"$SLURM_CONF"
  slurmctld || fail "slurmctld does not start"
  for node in 1 2 3; do
    slurmd -N "node$node" || fail "slurmd does not start"
  done
  await_nodes 3
}

# Three replicas of TP4: rack2 lacks a GPU, one of rack3 has failed, so that two of them run at TP3.
write_script() {
  scontrol show node >"$scratch/nodes"
  printf 'BlockName=rack%d Nodes=node%d\n' 1 1 2 2 3 3 >"$scratch/topology.conf"
  cat >"$scratch/cluster.yaml" <<END
cluster: {scontrol: nodes, topology: topology.conf, node_gpus: 4, failed: [rack3.1]}
device:
  flops_per_second: 2250e12
  matmul_efficiency: 0.72
  multiprocessors: 148
  memory_bytes: 189e9
  memory_bytes_per_second: 8e12
  memory_efficiency: 0.84
  tdp_watts: 1000
network:
  domain_slots: 4
  scale_up_bytes_per_second: 900e9
  scale_up_efficiency: 0.745
  scale_out_bytes_per_second: 100e9
  scale_out_efficiency: 0.85
END
  cat >"$scratch/job.yaml" <<END
model: {layers: 2, hidden: 768, heads: 12, ffn: 3072, vocab: 12288, sequence: 128}
parallel: {dp: 3, tp: 4, pp: 1}
batch: {global: 24}
END
  (cd "$scratch" && "$command" plan --cluster cluster.yaml --job job.yaml --format slurm) >"$scratch/job.sh"
  grep -qx '#SBATCH --nodelist=node\[1-3\]' "$scratch/job.sh" || fail "other nodes than node[1-3] are asked for"
}

# Each rank says where it is, runs there, sees its GPU alone, and Slurm has given the step all GPUs of its node.
check_placement() {
  # shellcheck disable=SC2016 # the ranks expand it
  submit "$scratch/job.sh" bash -c 'echo "ran $RANK/$WORLD_SIZE $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $LOCAL_RANK $SLURM_STEP_GPUS $1 $MASTER_ADDR"' \
    bash 'two  words' || fail "the job failed: $(<"$scratch/output")"
  local rows row node gpu given
  rows=$(sed -n "/<<'END'/,/^END/{/^[0-9]/p}" "$scratch/job.sh")
  [[ $(wc -l <<<"$rows") == 10 ]] || fail "the plan has other than 10 ranks: $rows"
  while read -r row node gpu _; do
    [[ $node == node2 ]] && given=0,1,2 || given=0,1,2,3
    echo "rank $row: $node, GPU $gpu"
    echo "ran $row/10 $node $gpu 0 $given two  words $(head -n 1 <<<"$rows" | cut -d ' ' -f 2)"
  done <<<"$rows" | sort >"$scratch/expected"
  grep '^ra' "$scratch/output" | sort | diff "$scratch/expected" - || fail "ranks are not where they belong"
}

# The jobs would run for longer than submit waits.
check_failures() {
  # shellcheck disable=SC2016
  ! submit "$scratch/job.sh" bash -c '[[ $RANK != 4 ]] || exit 3; sleep 100' || fail "a failing rank goes unnoticed"

  # shellcheck disable=SC2016
  sed 's/--distribution=arbitrary/--distribution=cyclic/; s/SLURM_HOSTFILE=$hosts//' "$scratch/job.sh" >"$scratch/wrong.sh"
  ! submit "$scratch/wrong.sh" sleep 100 || fail "ranks on wrong nodes go unnoticed"
  grep -q 'evenkeel: rank .* its place is node' "$scratch/output" || fail "no word on wrong nodes: $(<"$scratch/output")"
}

start_slurm
write_script
export TMPDIR=$scratch/tmp
mkdir "$TMPDIR"
check_placement
check_failures
left=$(ls "$TMPDIR")
[[ -z $left ]] || fail "left behind: $left"
echo "ranks are where they belong"
