#!/bin/bash
# `evenkeel launch` on hosts of which one is cut off, or dies, in the middle of a run: the job ends on both sides within
# the time that silence may last, by its own heartbeat, nothing of it lives on, and it goes on from its last checkpoint
# on the host that is left, with the losses of an unbroken run.
#     cluster.sh COMMAND TEXT
# Exit status 77: skipped, because hosts cannot be made here.
set -euo pipefail
command=$1 text=$2 steps=200
folder=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/launch/jobs.sh
. "$folder/jobs.sh"
# shellcheck source=tests/launch/hosts.sh
. "$folder/hosts.sh"
can_make_hosts

# run_on HOST: starts the job on hosts a and b by `evenkeel launch` on HOST.
run_on() {
  begun=$SECONDS
  rm -rf checkpoints metrics.jsonl
  on "$1" "$command" launch --host a:2,b:2 --agent "$scratch/agent" -- train --config job.yaml --metrics metrics.jsonl \
    --set checkpoint.dir=checkpoints --quiet >output 2>&1 &
  launch=$!
  await 30 "step 50 has not come" has_step 50
}

# finish WHAT CHECK...: the job ends well.
finish() {
  local status=0
  await 60 "the job is not over" is_over
  wait "$launch" || status=$?
  [[ $status == 0 ]] || fail "evenkeel launch ended with status $status"
  "${@:2}"
  echo "$1: done after $((SECONDS - begun)) s"
}

prepare_job
make_hosts a b head

# The leading process is on the host that is left. Silence may last 2 s; the rest is for a machine that is busy.
run_on a
cut_off b
await 8 "the job has not ended on the side that is left" has_ended
await 8 "the job has not ended on the side that is cut off: $(processes_on b)" is_empty b
finish "a host cut off" check_end "start 2: 2 ranks on 1 host, TP2; b does not answer"
grep -q 'host b, with rank [23], is silent' output || fail "nobody says that b is silent"
mend b

# It is on the host that is cut off, mpirun on a third.
run_on head
cut_off a
await 8 "the job has not ended on the side that is cut off: $(processes_on a)" is_empty a
await 8 "the job has not ended on the side that is left: $(processes_on b)" is_empty b
finish "the leading host cut off" check_end "start 2: 2 ranks on 1 host, TP2; a does not answer"
mend a

# The connections to it are closed, so MPI knows at once: with ULFM the job may go on in place.
check_killed() {
  if grep -q '"event":"recovered"' metrics.jsonl && ! grep -q '"event":"resumed"' metrics.jsonl; then
    check_done
  else
    check_end "start 2: 2 ranks on 1 host, TP2; b does not answer"
  fi
}
run_on a
kill_host b
finish "a host killed" check_killed
