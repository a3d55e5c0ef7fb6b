#!/usr/bin/env bash
# The whole way on a machine with an NVIDIA GPU: the card passed into a container, a real out-of-memory on it, the retry, and
# the same as a child process. The card is made small with memory.limit; nothing on it is changed.
# usage: tests/gpu.sh FOLDER-OF-THE-BINARIES [FOLDER-OF-LIBTORCH]   (DOCKER_HOST as for docker)
set -euo pipefail
bin=$(realpath "$1")
torch=${2:-$(python3 -c 'import torch, os; print(os.path.join(torch.__path__[0], "lib"))')}
export LD_LIBRARY_PATH=$torch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cd "$work"
"$bin/pipe-trainer" data recipes --rows 4000 --seed 3 --out data
cat > gpu.yaml <<'YAML'
version: 1
name: gpu
model:
  arch: t5
  config: {vocab_size: 256, d_model: 256, d_kv: 32, d_ff: 1024, num_layers: 4, num_decoder_layers: 4, num_heads: 8,
           dropout_rate: 0.0, pad_token_id: 0, eos_token_id: 1, decoder_start_token_id: 0}
data: {train: data/train.jsonl, fields: {source: ingredients, target: directions}, max_source: 64, max_target: 256, pad: max}
train: {steps: 30, batch: 256, effective_batch: 256, checkpointing: false, optimizer: {lr: 1.0e-3}}
memory: {limit: 4g, allocator: {expandable_segments: true}}
save: {every: 10}
container: {gpus: 1}
YAML
status=0
check() {
  local name=$1; shift
  local began=$SECONDS
  if "$bin/pipe" run gpu.yaml --name "$name" "$@" > "$name.out" 2> "$name.err"; then
    echo "ok      $name  $((SECONDS - began))s"
  else
    echo "FAILED  $name (exit $?)"; status=1; tail -15 "$name.err"
  fi
  cat "$name.out"
}
"$bin/pipe" doctor || status=1
check process --engine process
check whole --engine process --set memory.limit=60g
if [ -n "${DOCKER_HOST:-}" ] || [ -S /var/run/docker.sock ]; then
  check docker --engine docker
  grep -hE "engine:|image:|training|attempt|retrying" docker.err || true
else
  echo "skipped docker: no daemon"
fi
python3 - <<'PY' || status=1
# Every step once, and the losses of the retried runs those of the one that was given the whole card.
import glob, json, sys
curves = {}
for path in glob.glob("runs/*/events.jsonl"):
    steps = [json.loads(line) for line in open(path)]
    steps = [(e["step"], e["loss"]) for e in steps if e["type"] == "step"]
    curves[path.split("/")[1].split("-")[0]] = steps
want = curves.pop("whole")
for path in glob.glob("runs/*/run.json"):
    ended = [attempt["outcome"] for attempt in json.load(open(path))["attempts"]]
    is_whole = path.split("/")[1].startswith("whole-")
    assert len(ended) == 1 if is_whole else len(ended) > 1, f"{path}: no out-of-memory, or one too many: {ended}"
for name, got in curves.items():
    assert [s for s, _ in got] == list(range(1, 31)), (name, got)
    apart = max(abs(a - b) / max(1, abs(b)) for (_, a), (_, b) in zip(got, want))
    print(f"{name}: 30 steps, at most {apart:.1e} from the run with the whole card")
    assert apart < 1e-3, name
PY
exit $status
