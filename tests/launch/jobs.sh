# A small job on hosts, for scripts that source this: they run it by `evenkeel launch`, which writes output and
# metrics.jsonl, and compare it with the same job unbroken. Needs $command, $text and $steps.
#     prepare_job       makes $scratch with job.yaml in it and goes there; everything ends with the script
#     fail TEXT         ends the script, with what the job has said
#     await SECONDS WHAT CONDITION...   fails where the condition does not come true in time
#     check_done        after the end: the job is done, with the losses of the unbroken run; nothing of it is left on the
#                       hosts of hosts.sh
#     check_end TEXT    besides: evenkeel launch has said TEXT, and the job went on from a checkpoint
# shellcheck shell=bash disable=SC2154

command -v mpirun >/dev/null || { echo "skipped: no mpirun"; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1

fail() {
  echo "$*" >&2
  tail -n 30 "$scratch/output" >&2 || true
  grep -s event "$scratch/metrics.jsonl" >&2 || true
  exit 1
}

clean_up() {
  if declare -F remove_hosts >/dev/null; then remove_hosts; fi
  rm -rf "$scratch"
}

prepare_job() {
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/evenkeel-hosts-XXXXXX")
  trap clean_up EXIT
  export TMPDIR=$scratch
  cd "$scratch" || fail "no $scratch"
  cat >job.yaml <<END
model: {layers: 2, hidden: 32, heads: 4, ffn: 64, vocab: 256, sequence: 16}
data: {path: $text}
parallel: {dp: 2, tp: 2}
batch: {global: 32}
optimizer: {lr: 1.0e-3, warmup_steps: 10}
train: {steps: $steps}
engine: {timeout_seconds: 2}
checkpoint: {every: 20}
END
  "$command" train --config job.yaml --metrics unbroken.jsonl --quiet
  losses unbroken.jsonl >unbroken
}

await() {
  local seconds=$1 what=$2 begun
  begun=$(date +%s%N)
  shift 2
  until "$@"; do
    (($(date +%s%N) - begun < seconds * 1000000000)) || fail "after $seconds s: $what"
    sleep 0.05
  done
}
is_over() { ! kill -0 "$launch" 2>/dev/null; }
has_step() { grep -qs "^{\"step\":$1," metrics.jsonl; }
is_empty() { [[ -z $(job_processes "$1") ]]; }
has_ended() { grep -qs '"event":"end"' metrics.jsonl; }
job_processes() { processes_on "$1" | grep -v -E ' (munged|slurm)' || true; }

# The loss of each step, of those that were done again the last.
losses() {
  sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1" |
    awk '{ loss[$1] = $2 } END { for (step in loss) print step, loss[step] }' | sort -n
}

check_losses() {
  losses metrics.jsonl | paste -d ' ' unbroken - | awk -v steps="$steps" '
    $1 != $3 || $4 - $2 > 1e-5 * $2 || $2 - $4 > 1e-5 * $2 { print "step", $1, $2, "and", $3, $4; bad = 1 }
    END { exit bad || NR != steps }' || fail "the losses are not those of the unbroken run"
}

check_end() {
  grep -q "$1" output || fail "no \"$1\" in what evenkeel launch said"
  grep -q '"event":"resumed","step":[1-9]' metrics.jsonl || fail "it has not gone on from a checkpoint"
  check_done
}

check_done() {
  local host
  [[ $(tail -n 1 metrics.jsonl) == *'"status":"done"'* ]] || fail "the last record is not that it is done"
  check_losses
  for host in "${!host_pid[@]}"; do
    await 8 "left on $host: $(job_processes "$host")" is_empty "$host"
  done
}
