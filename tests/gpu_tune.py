#!/usr/bin/env python3
"""A study on a card: bert-base and bert-large from scratch in the space of pipelines/text-tune.yaml, with a limit of 23.56 GiB.

usage: gpu_tune.py --bin target/release --out FOLDER [--trials 30] [--seed 0] [--steps 3]
Needs a card of at least 24 GB, and nothing else. Prints a table: how many settings were foreseen not to fit, how many ran out of memory
and were retried, what both cost, and how far the peaks that were foreseen are from those that were measured.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--sampler", default="tpe")
    parser.add_argument("--hours", type=float, default=0.14)
    args = parser.parse_args()
    pipe, trainer = (args.bin / "pipe").resolve(), (args.bin / "pipe-trainer").resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    subprocess.run([trainer, "data", "texts", "--rows", "1200", "--seed", "1", "--out", args.out / "data/text-hpo"], check=True)
    pipeline = (ROOT / "pipelines/text-hpo.yaml").read_text()
    # Short trials: a few steps, no model, few rows to evaluate; rows as long as they are, the longest first.
    pipeline = re.sub(r"epochs: 3", f"steps: {args.steps}", pipeline)
    pipeline = pipeline.replace("  pad: max\n", "").replace("  eval: data/text-hpo/eval.jsonl\n", "  eval: eval.jsonl\n")
    pipeline = re.sub(r"schedule: .*", "schedule: {kind: constant}", pipeline)
    pipeline = re.sub(r"evaluate: .*", f"evaluate: {{every: {args.steps}, batch: 16}}", pipeline)
    pipeline = re.sub(r"save: .*", "save: {every: 1000, keep: 1, export: false}", pipeline)
    (args.out / "text-hpo.yaml").write_text(pipeline)
    rows = (args.out / "data/text-hpo/eval.jsonl").read_text().splitlines()[:64]
    (args.out / "eval.jsonl").write_text("\n".join(rows) + "\n")
    study = (ROOT / "pipelines/text-tune.yaml").read_text()
    study = re.sub(r"budget: .*", f"budget: {{trials: {args.trials}, hours: {args.hours}}}", study)
    study = study.replace("sampler: tpe", f"sampler: {args.sampler}")
    study = re.sub(r"prune: .*", f"seed: {args.seed}", study)
    (args.out / "text-tune.yaml").write_text(study)
    env = {**os.environ, "PIPE_LEDGER": str(args.out / "ledger"), "PIPE_CACHE": str(args.out / "cache")}
    began = time.monotonic()
    ended = subprocess.run([pipe, "tune", "run", "text-tune.yaml", "--engine", "process"], cwd=args.out, env=env)
    took = time.monotonic() - began
    if not (args.out / "runs").is_dir():
        sys.exit(ended.returncode or 1)

    def read(*words):
        return json.loads(subprocess.run([pipe, *words, "--json"], cwd=args.out, env=env, check=True, capture_output=True, text=True).stdout)

    shown = read("tune", "status")
    (args.out / "study.json").write_text(json.dumps(shown, indent=1))
    runs = [run for run in read("ls", "--trials") if run.get("part_of") == shown["id"]]
    lost = sum(attempt["seconds"] for run in runs for attempt in run["attempts"] if attempt["outcome"] == "oom")
    retried = [run for run in runs if any(attempt["outcome"] == "oom" for attempt in run["attempts"])]
    known = [trial for trial in shown["trials"] if trial["state"] == "infeasible"]
    by_ledger = [trial for trial in known if "error" in trial["attributes"]]
    large = [trial for trial in known if trial["params"]["model.config"] == "bert-large"]
    errors = []
    for trial in shown["trials"]:
        attributes = trial["attributes"]
        # A trial that was retried has held less than what it was foreseen for.
        if trial["state"] == "complete" and attributes.get("attempts") == 1 and attributes.get("predicted_peak"):
            errors.append(attributes["peak_memory"] / attributes["predicted_peak"] - 1)
    counts = shown["counts"]
    table = [
        ("trials that ran", sum(counts[name] for name in ("complete", "pruned", "failed", "running"))),
        ("complete", counts["complete"]),
        ("lost to out-of-memory", sum(trial["state"] == "out_of_memory" for trial in shown["trials"])),
        ("failed otherwise", counts["failed"]),
        ("foreseen not to fit, never started", f"{len(known)} ({len(large)} of bert-large, {len(by_ledger)} known from the ledger)"),
        ("ran out of memory, retried, complete", len(retried)),
        ("the same training as another, never started", counts["repeated"]),
        ("seconds of the study", f"{took:.0f}"),
        ("seconds lost to out-of-memory", f"{lost:.1f}"),
        ("peaks against what was foreseen", f"{min(errors):+.1%} to {max(errors):+.1%}" if errors else "-"),
    ]
    print()
    for name, value in table:
        print(f"| {name} | {value} |")
    sys.exit(ended.returncode)


main()
