#!/bin/bash
# `evenkeel launch` on hosts of which one is cut off, or dies, in the middle of a run: the job ends on both sides within
# the time that silence may last, by its own heartbeat, nothing of it lives on, and it goes on from its last checkpoint
# on the host that is left, with the losses of an unbroken run.
#     cluster.sh COMMAND TEXT
# Exit status 77: skipped, because hosts cannot be made here.
set -euo pipefail
command=$1 text=$2
hosts_folder=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/launch/hosts.sh
. "$hosts_folder/hosts.sh"
command -v mpirun >/dev/null || { echo "skipped: no mpirun"; exit 77; }
can_make_hosts
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1

scratch=$(mktemp -d "${TMPDIR:-/tmp}/evenkeel-hosts-XXXXXX")
cd "$scratch"
export TMPDIR=$scratch
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "$*" >&2
  tail -n 30 "$scratch/output" >&2 || true
  exit 1
}

cat >job.yaml <<END
model: {layers: 2, hidden: 32, heads: 4, ffn: 64, vocab: 256, sequence: 16}
data: {path: $text}
parallel: {dp: 2, tp: 2}
batch: {global: 8}
optimizer: {lr: 1.0e-3, warmup_steps: 10}
train: {steps: 200}
engine: {timeout_seconds: 2}
checkpoint: {every: 20}
END

# await SECONDS WHAT CONDITION...: fails where the condition does not come true in time.
await() {
  local seconds=$1 what=$2 begun
  begun=$(date +%s%N)
  shift 2
  until "$@"; do
    (($(date +%s%N) - begun < seconds * 1000000000)) || fail "after $seconds s: $what"
    sleep 0.05
  done
}
has_step() { grep -qs "^{\"step\":$1," metrics.jsonl; }
is_empty() { [[ -z $(processes_on "$1") ]]; }
has_ended() { grep -qs '"event":"end"' metrics.jsonl; }
is_over() { ! kill -0 "$launch" 2>/dev/null; }

# The loss of each step, of those that were done again the last.
losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1" | awk '{ loss[$1] = $2 } END { for (s in loss) print s, loss[s] }' | sort -n; }
check_losses() {
  losses metrics.jsonl | paste -d ' ' unbroken - |
    awk '$1 != $3 || $4 - $2 > 1e-5 * $2 || $2 - $4 > 1e-5 * $2 { print "step", $1, $2, "and", $3, $4; bad = 1 } END { exit bad || NR != 200 }' ||
    fail "the losses are not those of the unbroken run"
}

# run_on HOST: starts the job on hosts a and b by `evenkeel launch` on HOST.
run_on() {
  rm -rf checkpoints metrics.jsonl
  on "$1" "$command" launch --host a:2,b:2 --agent "$scratch/agent" -- train --config job.yaml --metrics metrics.jsonl \
    --set checkpoint.dir=checkpoints --quiet >output 2>&1 &
  launch=$!
  await 30 "step 50 has not come" has_step 50
}

finish() {
  local status=0
  await 40 "the job is not over" is_over
  wait "$launch" || status=$?
  [[ $status == 0 ]] || fail "evenkeel launch ended with status $status"
  grep -q "$1" output || fail "no \"$1\" in what evenkeel launch said"
  [[ $(tail -n 1 metrics.jsonl) == *'"status":"done"'* ]] || fail "the last record is not that it is done"
  grep -q '"event":"resumed","step":\(40\|60\|80\|100\|120\|140\)' metrics.jsonl || fail "it has not gone on from a checkpoint"
  check_losses
  for host in "${!host_pid[@]}"; do
    await 5 "left on $host: $(processes_on "$host")" is_empty "$host"
  done
}

"$command" train --config job.yaml --metrics unbroken.jsonl --quiet
losses unbroken.jsonl >unbroken
make_hosts a b head

begun=$SECONDS
run_on a
cut_off b
await 4 "the job has not ended on the side that is left" has_ended
await 4 "the job has not ended on the side that is cut off: $(processes_on b)" is_empty b
finish "start 2: 2 ranks on 1 host, TP2; b does not answer"
grep -q 'host b, with rank 2, is silent' output || fail "nobody says that b is silent"
mend b
echo "a host cut off: done after $((SECONDS - begun)) s"

begun=$SECONDS
run_on head
cut_off a # where the leading process is
await 4 "the job has not ended on the side that is cut off: $(processes_on a)" is_empty a
await 4 "the job has not ended on the side that is left: $(processes_on b)" is_empty b
finish "start 2: 2 ranks on 1 host, TP2; a does not answer"
mend a
echo "the leading host cut off: done after $((SECONDS - begun)) s"

begun=$SECONDS
run_on a
kill_host b
finish "start 2: 2 ranks on 1 host, TP2; b does not answer"
echo "a host killed: done after $((SECONDS - begun)) s"
