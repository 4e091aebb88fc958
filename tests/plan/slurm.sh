#!/bin/bash
# Starts a plan in Slurm: munged, slurmctld and a slurmd for each of three nodes run on this machine, with all that they
# need in a folder of their own. Nodes have 4, 3 and 4 GPUs, as device files of which no driver knows. Checked: each rank
# comes to its node and GPU, before the command starts; a failing rank ends the job; nothing is left behind.
#     slurm.sh COMMAND
# Exit status 77: skipped, because Slurm is not installed or this is not root, who may run as several nodes.
set -euo pipefail
command=$1
for program in munged slurmctld slurmd sbatch srun sbcast scontrol; do
  command -v "$program" >/dev/null || { echo "skipped: no $program"; exit 77; }
done
[[ $(id -u) == 0 ]] || { echo "skipped: not root"; exit 77; }

scratch=$(mktemp -d "${TMPDIR:-/tmp}/evenkeel-slurm-XXXXXX")
export SLURM_CONF=$scratch/slurm.conf

clean_up() {
  local pids=() pid file
  for file in "$scratch"/*.pid; do
    [[ -s $file ]] && pids+=("$(<"$file")")
  done
  for pid in "${pids[@]}"; do
    kill "$pid" 2>/dev/null || true
  done
  for pid in "${pids[@]}"; do
    for _ in {1..200}; do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.05
    done
  done
  rm -rf "$scratch"
}
trap clean_up EXIT

fail() {
  echo "$*" >&2
  tail -n 20 "$scratch"/*.log >&2
  exit 1
}

# A cluster of three nodes on ports of its own, so that tests do not meet.
start_slurm() {
  local port=$((20000 + $$ % 20000)) node=0 host gpus
  host=$(hostname)
  mkdir "$scratch"/{state,device}
  for gpu in 0 1 2 3; do
    mknod "$scratch/device/gpu$gpu" c 1 3 || { echo "skipped: no device files"; exit 77; }
  done
  (umask 077 && head -c 1024 /dev/urandom >"$scratch/munge.key")
  munged --force --key-file="$scratch/munge.key" --socket="$scratch/munge.sock" --pid-file="$scratch/munged.pid" \
    --log-file="$scratch/munged.log" --seed-file="$scratch/munge.seed"
  cat >"$SLURM_CONF" <<END
ClusterName=scratch
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
AuthType=auth/munge
AuthInfo=socket=$scratch/munge.sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool-%n
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd-%n.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1
GresTypes=gpu
END
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
  for _ in {1..200}; do
    [[ $(sinfo --noheader --format='%D %T') == "3 idle" ]] && return
    sleep 0.1
  done
  fail "the nodes do not come up: $(sinfo)"
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

# submit SCRIPT COMMAND...: runs the job to its end; what it prints is in $scratch/output. Fails as the job does.
submit() {
  local job state
  job=$(sbatch --parsable --output="$scratch/output" "$@")
  for _ in {1..300}; do
    state=$(scontrol --oneliner show job "$job" | sed 's/.* JobState=\([A-Z_]*\) .*/\1/')
    case $state in
      PENDING | CONFIGURING | RUNNING | COMPLETING) sleep 0.1 ;;
      *) break ;;
    esac
  done
  [[ $state == COMPLETED ]] || { [[ $state == FAILED ]] || fail "job $job is $state"; return 1; }
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
