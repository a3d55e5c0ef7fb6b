#!/usr/bin/env python3
"""The README's way on a machine with a card, with no LD_LIBRARY_PATH and nothing of Python's torch: `pipe doctor`, the pipeline
of `make demo-gpu` in Docker, and recipes-t5.yaml as it stands for 20 steps at 32 GB, with FLAN-T5-XL in the hub cache.

usage: gpu_readme.py [--xl] [--keep]     in a source tree with target/release and target/libtorch (gpu_layout.py lays that out);
DOCKER_HOST as for docker. --xl makes a FLAN-T5-XL with random weights by the transformers of this machine."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

TREE = pathlib.Path(__file__).resolve().parent.parent
PIPE, TRAINER = (TREE / "target/release" / name for name in ("pipe", "pipe-trainer"))
ENV = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
TABLE = []

MAKE_XL = """
import sys, torch
from transformers import T5Config, T5ForConditionalGeneration
torch.manual_seed(1)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = T5ForConditionalGeneration(T5Config(vocab_size=32128, d_model=2048, d_kv=64, d_ff=5120, num_layers=24,
        num_decoder_layers=24, num_heads=32, feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.1,
        decoder_start_token_id=0))
model.save_pretrained(sys.argv[1])
"""


def run(name, *command, code=0, env=()):
    began = time.monotonic()
    answer = subprocess.run(command, cwd=TREE, env={**ENV, **dict(env)}, capture_output=True, text=True)
    ok = answer.returncode == code
    TABLE.append((name, "ok" if ok else f"FAILED, exit {answer.returncode}", f"{time.monotonic() - began:.0f} s"))
    print(f"== {name}: exit {answer.returncode}")
    print(answer.stdout[-3000:], answer.stderr[-3500:], sep="\n")
    return ok, answer


def newest_run():
    return max((TREE / "runs").iterdir(), key=lambda path: path.stat().st_mtime)


def steps(run_folder):
    events = [json.loads(line) for line in (run_folder / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["type"] == "step"]


def xl(options):
    """FLAN-T5-XL where the hub's tools would have put it, with the tokenizer of the generated recipes."""
    cache = TREE / "target/hub"
    snapshot = cache / "models--google--flan-t5-xl/snapshots/0123456789abcdef0123456789abcdef01234567"
    if not snapshot.exists():
        made = subprocess.run([sys.executable, "-c", MAKE_XL, snapshot], capture_output=True, text=True)
        if made.returncode:
            print(made.stderr[-2000:])
            return TABLE.append(("recipes-t5.yaml", "FAILED: no model", ""))
        (cache / "models--google--flan-t5-xl/refs").mkdir()
        (cache / "models--google--flan-t5-xl/refs/main").write_text(snapshot.name)
        shutil.copy(TREE / "data/recipes/tokenizer.json", snapshot)
    env = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    ok, _ = run("recipes-t5.yaml, 20 steps at 32g", PIPE, "run", "pipelines/recipes-t5.yaml", "--ignore-ledger",
                "--set", "memory.limit=32g", "--set", "train.epochs=null", "--set", "train.steps=20", "--set", "evaluate.every=10", "--set", "save.export=false", env=env)
    if ok:
        got = steps(newest_run())
        rate = sum(128 for _ in got[5:]) / (sum(step["ms"] for step in got[5:]) / 1000)
        TABLE.append(("  losses", f"{got[0]['loss']:.3f} to {got[-1]['loss']:.3f}", f"{len(got)} steps"))
        TABLE.append(("  samples/s, peak", f"{rate:.0f}", f"{max(step['peak'] for step in got) / 2**30:.2f} GiB"))


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--xl", action="store_true")
    options.add_argument("--keep", action="store_true", help="keep the runs")
    options = options.parse_args()
    ok, answer = run("pipe doctor", PIPE, "doctor")
    for line in answer.stdout.splitlines():
        if line.startswith("missing"):
            TABLE.append(("  doctor", line, ""))
    run("data", TRAINER, "data", "recipes", "--rows", "2000", "--seed", "7", "--out", "data/demo")
    for engine in ("docker", "process"):
        ok, _ = run(f"demo-gpu.yaml, {engine}", PIPE, "run", "pipelines/demo-gpu.yaml", "--ignore-ledger", "--engine", engine)
        if ok:
            folder = newest_run()
            state = json.loads((folder / "run.json").read_text())
            outcomes = [attempt["outcome"]["kind"] if isinstance(attempt["outcome"], dict) and "kind" in attempt["outcome"] else str(attempt["outcome"])[:40]
                        for attempt in state["attempts"]]
            got = steps(folder)
            TABLE.append(("  attempts", ", ".join(outcomes), f"{got[0]['loss']:.3f} to {got[-1]['loss']:.3f} in {len(got)} steps"))
    if options.xl:
        run("data", TRAINER, "data", "recipes", "--rows", "6000", "--seed", "1", "--out", "data/recipes")
        xl(options)
    if not options.keep:
        shutil.rmtree(TREE / "runs", ignore_errors=True)
    print("\n" + "\n".join(f"{name:<40} {what:<44} {more}" for name, what, more in TABLE))
    sys.exit(any("FAILED" in what for _, what, _ in TABLE))


if __name__ == "__main__":
    main()
