#!/bin/bash
# `evenkeel launch` on this machine alone: signals, a lost rank, a leading process that is killed, jobs that are refused or
# can never start. Nothing is left behind.
#     local.sh COMMAND TEXT
# Exit status 77: skipped, because there is no mpirun.
set -euo pipefail
command=$1 text=$2 steps=600
# shellcheck source=tests/launch/jobs.sh
. "$(dirname "$0")/jobs.sh"
declare -A host_pid=()

start() {
  "$command" launch --max-restarts 1 -- train --config job.yaml --metrics metrics.jsonl --set checkpoint.dir=checkpoints \
    --quiet "$@" >output 2>&1 &
  launch=$!
}
# The processes of the job, which work in its folder: those of evenkeel and of MPI.
job_processes_here() {
  local cwd pid
  for cwd in /proc/[0-9]*/cwd; do
    pid=${cwd//[^0-9]/}
    [[ $(readlink "$cwd") == "$scratch" ]] || continue
    if [[ $(readlink "/proc/$pid/exe") =~ (evenkeel|mpirun|orterun|orted|prterun|prted)$ ]]; then echo "$pid"; fi
  done
}
# The child of a process that mpirun started, beside rank 0.
leading_process() {
  local pid parent
  for pid in $(job_processes_here); do
    parent=$(ps -o ppid= -p "$pid")
    [[ $(readlink "/proc/$pid/exe") == */evenkeel && $(readlink "/proc/${parent// /}/exe") == */evenkeel ]] || continue
    if [[ $(ps -o comm= -p "$pid") != "ek rank"* ]]; then echo "$pid"; fi
  done
}
has_checkpoint() { grep -qs '"event":"checkpoint","step"' metrics.jsonl; }
forget() { rm -rf checkpoints metrics.jsonl; }

# expect STATUS TEXT: the job ends so.
expect() {
  local status=0
  await 60 "the job is not over" is_over
  wait "$launch" || status=$?
  [[ $status == "$1" ]] || fail "evenkeel launch ended with status $status instead of $1"
  grep -q "$2" output || fail "no \"$2\" in what evenkeel launch said"
  left=$(job_processes_here)
  [[ -z $left ]] || fail "left behind: $(tr '\n' ',' <<<"$left" | xargs ps -o args= -p)"
}

prepare_job

start
await 30 "step 50 has not come" has_step 50
kill -INT "$launch"
expect 1 "the job was ended from outside"
echo "SIGINT: ended"

start # what is there is not to be overwritten
expect 2 "a run has left checkpoints there"
echo "refused"

forget
start --set checkpoint.every=0
await 30 "step 50 has not come" has_step 50
kill -USR1 "$launch"
await 10 "SIGUSR1 makes no checkpoint" has_checkpoint
kill -TERM "$launch"
expect 1 "the job was ended by SIGTERM after step [0-9]*; --resume goes on from there"
start --resume
expect 0 "start 1: 4 ranks on 1 host, TP2+TP2"
check_end "start 1"
echo "SIGTERM and resumed: done"

forget
start --kill 50:0.1 # with ULFM it goes on in place
expect 0 "start 1: 4 ranks on 1 host, TP2+TP2"
check_losses
echo "a lost rank: done"

forget
start
await 30 "step 50 has not come" has_step 50
kill -KILL "$(leading_process)"
expect 0 "start 2: 4 ranks on 1 host, TP2+TP2"
check_end "no last record in its metrics"
echo "the leading process killed: done"

forget
"$command" launch --max-restarts 1 --mpirun=--nonsense -- train --config job.yaml --set checkpoint.dir=checkpoints >output 2>&1 &
launch=$!
expect 1 "no restart any more (--max-restarts 1): no last record in its metrics"
grep -q "start 2: " output || fail "there was no second start"
echo "no start: given up"
