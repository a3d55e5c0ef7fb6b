#!/usr/bin/env bash
# Runs the kernels on a CPU and compares them with fp64: no card, no CUDA. Needs g++ 12 or newer on x86-64; about a minute.
# usage: tests/cuda_on_cpu/run.sh
set -euo pipefail
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
compile() { ${CXX:-g++} -std=c++20 "$1" -march=native -Wall -Wno-unknown-pragmas -Wno-unused -o "$work/$2" "$here/$2.cpp"; }
parts=2; status=0; jobs=()
(for name in quantized layers; do compile -O1 $name && "$work/$name" || exit 1; done) > "$work/layers.out" 2>&1 & jobs+=($!)
compile -O2 attention
for ((part = 0; part < parts; part++)); do
  "$work/attention" $part $parts > "$work/$part.out" 2>&1 & jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job" || status=1; done
cat "$work"/*.out
[ $status = 0 ] && echo "ok" || echo "FAILED"
exit $status
