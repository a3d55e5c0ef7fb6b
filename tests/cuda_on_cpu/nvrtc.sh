#!/usr/bin/env bash
# Compiles the kernels with NVRTC for every kind of card, without one: they compile, fit into shared memory and do not spill. With
# PIPE_TEST_ALL=1 every kernel for every card (minutes), else each kernel for one of them. NVRTC is that of target/libtorch, or what
# `make nvrtc` has fetched; where neither is there the test is skipped.
# usage: tests/cuda_on_cpu/nvrtc.sh
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$here/../..
torch=$root/src/pipe-trainer/torch
library=$(ls -d "$root"/target/libtorch/lib/libnvrtc.so.[0-9]* "$root"/target/nvrtc/nvidia/*/lib/libnvrtc.so.[0-9]* 2> /dev/null | head -n 1 || true)
if [ -z "$library" ]; then
  echo "warning: skipped, no NVRTC: the kernels are not compiled for any card (\`make nvrtc\` fetches it)"
  [ "${PIPE_REQUIRE_NVRTC:-}" != 1 ]
  exit
fi
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
# The files that the trainer compiles, in its order.
grep -o 'include_str!("[a-z_]*\.[a-z]*")' "$torch/card.rs" | cut -d '"' -f 2 | while read -r name; do cat "$torch/$name"; done > "$work/kernels.cu"
${CXX:-g++} -std=c++17 -O1 -Wall -o "$work/nvrtc" "$here/nvrtc.cpp" -ldl
parts=2; status=0; jobs=()
for ((part = 0; part < parts; part++)); do
  "$work/nvrtc" "$library" "$work/kernels.cu" $part $parts ${PIPE_TEST_ALL:+all} > "$work/$part.out" 2>&1 & jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job" || status=1; done
cat "$work"/*.out
[ $status = 0 ] && echo "ok" || echo "FAILED"
exit $status
