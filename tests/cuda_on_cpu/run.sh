#!/usr/bin/env bash
# Runs the attention kernels on a CPU and compares them with fp64: no card, no CUDA. Needs g++ 12 or newer on x86-64; about 40 s.
# usage: tests/cuda_on_cpu/run.sh
set -euo pipefail
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
${CXX:-g++} -std=c++20 -O2 -march=native -Wall -Wno-unknown-pragmas -Wno-unused -o "$work/attention" "$here/attention.cpp"
parts=2; status=0; jobs=()
for ((part = 0; part < parts; part++)); do
  "$work/attention" $part $parts > "$work/$part.out" 2>&1 & jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job" || status=1; done
cat "$work"/*.out
[ $status = 0 ] && echo "ok" || echo "FAILED"
exit $status
