# Slurm on this machine, for scripts that source this: munged, slurmctld and slurmd, with all that they need in the folder
# $scratch, which must exist; SLURM_CONF is exported.
#     can_start_slurm           says why it cannot and ends with 77, skipped
#     write_slurm_conf HOST ADDRESS PORT   what does not depend on the nodes; the caller adds those, and the partition
#     start_munge
#     await_nodes NUMBER        until so many are idle
#     submit SBATCH-ARGUMENT... runs a job to its end; what it prints is in $scratch/output. Fails as the job does
#     stop_slurm                ends all that has left its pid in $scratch/*.pid
# Needs fail TEXT, which ends the script.
# shellcheck shell=bash disable=SC2154

can_start_slurm() {
  local program
  for program in munged slurmctld slurmd sbatch srun sbcast scontrol; do
    command -v "$program" >/dev/null || { echo "skipped: no $program"; exit 77; }
  done
  [[ $(id -u) == 0 ]] || { echo "skipped: not root"; exit 77; }
}

start_munge() {
  (umask 077 && head -c 1024 /dev/urandom >"$scratch/munge.key")
  munged --force --key-file="$scratch/munge.key" --socket="$scratch/munge.sock" --pid-file="$scratch/munged.pid" \
    --log-file="$scratch/munged.log" --seed-file="$scratch/munge.seed"
}

write_slurm_conf() {
  export SLURM_CONF=$scratch/slurm.conf
  mkdir "$scratch/state"
  cat >"$SLURM_CONF" <<END
ClusterName=scratch
SlurmctldHost=$1($2)
SlurmctldPort=$3
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
END
}

await_nodes() {
  for _ in {1..200}; do
    [[ $(sinfo --noheader --format='%D %T') == "$1 idle" ]] && return
    sleep 0.1
  done
  fail "the nodes do not come up: $(sinfo)"
}

submit() {
  local job state
  job=$(sbatch --parsable --output="$scratch/output" "$@")
  for _ in {1..600}; do
    state=$(scontrol --oneliner show job "$job" | sed 's/.* JobState=\([A-Z_]*\) .*/\1/')
    case $state in
      PENDING | CONFIGURING | RUNNING | COMPLETING) sleep 0.1 ;;
      *) break ;;
    esac
  done
  [[ $state == COMPLETED ]] || { [[ $state == FAILED ]] || fail "job $job is $state"; return 1; }
}

stop_slurm() {
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
}
