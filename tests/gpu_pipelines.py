#!/usr/bin/env python3
"""The pipelines on cards of their sizes: what was asked for first, what pipe made of it, and whether the loss falls.

usage: gpu_pipelines.py --bin target/release [--engine docker] [--steps 12] [NAME...]
Each pipeline is run for a few steps with generated data, in a folder that goes away. Needs a CUDA card of at least 32 GB, which
memory.limit makes smaller; for docker DOCKER_HOST as usual."""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

GIB = 2**30
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The folder of the data and what makes it, by pipeline.
DATA = {
    "hybrid-cnn-lstm": ("data/series", ["series", "--rows", "20000", "--features", "32"]),
    "car-clip": ("data/car-clip", ["pictures", "--rows", "1000", "--size", "224"]),
    "mu-sota": ("data/stories", ["stories", "--rows", "4000"]),
    "text-hpo": ("data/text-hpo", ["texts", "--rows", "3000"]),
    "recipes-t5-small": ("data/recipes", ["recipes", "--rows", "3000"]),
}

# Steps until the loss has moved by more than its noise.
SLOW = {"text-hpo": 40}
# Trained weights are not at hand everywhere.
FLAN_T5_SMALL = {
    "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_decoder_layers": 8, "num_heads": 6,
    "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
}


def run(given, name, work):
    folder, command = DATA[name]
    trainer = os.path.join(given.bin, "pipe-trainer")
    subprocess.run([trainer, "data", *command, "--seed", "1", "--out", folder], cwd=work, check=True, capture_output=True)
    with open(os.path.join(ROOT, "pipelines", f"{name}.yaml")) as file:
        text = file.read()
    # A few steps instead of epochs, and an evaluation at the end alone.
    wanted = max(given.steps, SLOW.get(name, 0))
    text = re.sub(r"^  epochs: .*$", f"  steps: {wanted}", text, flags=re.M)
    text = text.replace("  from: google/flan-t5-small", f"  config: {json.dumps(FLAN_T5_SMALL)}")
    text = re.sub(r"every: (epoch|\d+)", "every: 0", text)
    text = re.sub(r"warmup: \d+", f"warmup: {wanted // 6}", text)
    with open(os.path.join(work, f"{name}.yaml"), "w") as file:
        file.write(text)
    began = time.time()
    ended = subprocess.run(
        [os.path.join(given.bin, "pipe"), "run", f"{name}.yaml", "--engine", given.engine, "--name", name],
        cwd=work, capture_output=True, text=True,
    )
    if ended.returncode != 0:
        return print(f"{name:18} FAILED, exit {ended.returncode}\n" + "\n".join(ended.stderr.splitlines()[-12:]), flush=True)
    runs = os.path.join(work, "runs")
    path = os.path.join(runs, next(entry for entry in sorted(os.listdir(runs), reverse=True) if entry.startswith(name + "-2")))
    with open(os.path.join(path, "run.json")) as file:
        attempts = json.load(file)["attempts"]
    with open(os.path.join(path, "events.jsonl")) as file:
        events = [json.loads(line) for line in file]
    steps = [event for event in events if event["type"] == "step"]
    started = [event for event in events if event["type"] == "started"][-1]
    evals = [event for event in events if event["type"] == "eval"]
    story = ", ".join(f"{a['batch']} {a['outcome']}" + (f" ({a['cause']})" if a.get("cause") else "") for a in attempts)
    peak, limit = max(s["peak"] for s in steps) / GIB, started["capacity"] / GIB
    scores = {key: round(value, 3) for key, value in (evals[-1] if evals else {}).items()
              if key not in ("step", "loss", "samples", "ms", "seq", "ts", "attempt", "type")}
    fine = [s["step"] for s in steps] == list(range(1, wanted + 1)) and steps[-1]["loss"] < steps[0]["loss"]
    print(f"{name:18} {story}\n{'':18} params {started['params']:,}, effective batch {started['effective_batch']}, peak "
          f"{peak:.2f} of {limit:.2f} GiB, loss {steps[0]['loss']:.3f} -> {steps[-1]['loss']:.3f} in {len(steps)} steps, "
          f"{steps[-1]['ms']:.0f} ms a step, {time.time() - began:.0f} s in all, {scores}  {'ok' if fine else 'NOT FINE'}", flush=True)
    return fine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=os.path.abspath)
    parser.add_argument("--engine", choices=["docker", "process"], default="process")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        results = [run(given, name, work) for name in given.names or DATA]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
