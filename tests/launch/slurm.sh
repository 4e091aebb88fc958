#!/bin/bash
# examples/cluster/job.sbatch in Slurm, with slurmctld and slurmd on hosts of which one is cut off in the middle of the
# run: the job goes on on the other, in the same allocation, with the losses of an unbroken run. Then it is told to end,
# as before its time limit, and submitted again.
#     slurm.sh COMMAND TEXT SCRIPT
# Exit status 77: skipped, because Slurm is not installed or hosts cannot be made.
set -euo pipefail
command=$1 text=$2 script=$3 steps=200
folder=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/launch/jobs.sh
. "$folder/jobs.sh"
# shellcheck source=tests/launch/hosts.sh
. "$folder/hosts.sh"
can_make_hosts
# shellcheck source=tests/slurm.sh
. "$folder/../slurm.sh"
can_start_slurm

for program in sbatch scancel scontrol sinfo; do
  eval "$program() { on a $program \"\$@\"; }"
done

# The daemons end with their hosts.
start_slurm() {
  local host
  on a bash -c "$(declare -f start_munge); scratch=$scratch start_munge"
  write_slurm_conf a "$(awk '$2 == "a" { print $1 }' hosts)" 6817
  cat >>"$SLURM_CONF" <<END
NodeName=a,b CPUs=4
PartitionName=all Nodes=ALL Default=YES
END
  on a slurmctld
  for host in a b; do
    mkdir "spool-$host"
    on "$host" slurmd -N "$host"
  done
  await_nodes 2
}

submit_job() {
  job=$(sbatch --parsable --output="$scratch/output" --ntasks-per-node=2 "$script" job.yaml \
    --metrics metrics.jsonl --set checkpoint.dir=checkpoints --quiet)
}
is_done() { [[ $(tail -n 1 metrics.jsonl) == *'"status":"done"'* ]]; }
is_in_state() { [[ $(scontrol --oneliner show job "$job") == *" JobState=$1 "* ]]; }

export EVENKEEL=$command
prepare_job
make_hosts a b
start_slurm

# A job is over when its nodes have said so.
begun=$SECONDS
submit_job
await 30 "step 50 has not come" has_step 50
cut_off b
await 60 "the job is not done" is_done
mend b
await 30 "Slurm does not see that the job is done" is_in_state COMPLETED
check_end "start 2: 2 ranks on 1 host, TP2; b does not answer"
echo "a node cut off: done after $((SECONDS - begun)) s"

begun=$SECONDS
rm -r checkpoints metrics.jsonl output
await_nodes 2
submit_job
await 30 "step 50 has not come" has_step 50
scancel --batch --signal=TERM "$job"
await 30 "SIGTERM does not end the job" is_in_state FAILED
grep -q 'the job was ended by SIGTERM after step [0-9]*; --resume goes on from there' output || fail "no word of SIGTERM"
submit_job
await 30 "the job that was submitted again is not done" is_in_state COMPLETED
check_end "start 1: 4 ranks on 2 hosts, TP2+TP2"
echo "a job ended by SIGTERM and submitted again: done after $((SECONDS - begun)) s"
