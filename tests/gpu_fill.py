#!/usr/bin/env python3
"""Parts that are filled by memory on a card, with rows of very different lengths: never out of memory, and the limit nearly reached.

usage: gpu_fill.py --trainer target/release/pipe-trainer [--steps 300] [LIMIT...]     (12g, 24g and 32g by default)
Needs a CUDA card and nothing else. The batch is the largest that fits (`train.batch: auto`); rows have 60 tokens in the mean and 512 at most."""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

CONFIG = dict(d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_decoder_layers=12, num_heads=12, vocab_size=32128,
              feed_forward_proj="gated-gelu", tie_word_embeddings=False)
LONGEST, MEAN, EFFECTIVE = 512, 60, 256


def write_rows(folder, count):
    """Rows whose lengths have a heavy tail, made of the words of generated recipes."""
    path = os.path.join(folder, "recipes", "train.jsonl")
    with open(path) as file:
        words = sorted({word for line in file for word in json.loads(line)["directions"].split()})
    chance = random.Random(5)
    length = lambda: max(2, min(LONGEST, int(MEAN * 0.35 * chance.paretovariate(1.3))))
    text = lambda most: " ".join(chance.choice(words) for _ in range(min(length(), most)))
    with open(path, "w") as file:
        for _ in range(count):
            file.write(json.dumps(dict(ingredients=text(LONGEST), directions=text(LONGEST // 2))) + "\n")


def run(trainer, folder, limit, checkpointing, steps):
    name = f"{limit}-{checkpointing}"
    data = os.path.join(folder, "recipes")
    spec = dict(version=1, run=os.path.join(folder, name), attempt=1, device="cuda", threads=None, model=dict(arch="t5", config=CONFIG),
                tokenizer=os.path.join(data, "tokenizer.json"),
                data=dict(train=os.path.join(data, "train.jsonl"), fields=dict(source="ingredients", target="directions"), max_source=512, max_target=256),
                train=dict(steps=steps, batch="auto", effective_batch=EFFECTIVE, split="fill", precision="bf16", optimizer=dict(lr=1e-4), schedule={},
                           clip=1.0, seed=1, checkpointing=checkpointing, deterministic=False),
                memory=dict(limit=limit, allocator=dict(expandable_segments=True)), evaluate={}, save=dict(every=0, export=False))
    file = os.path.join(folder, f"{name}.json")
    with open(file, "w") as out:
        json.dump(spec, out)
    ended = subprocess.run([trainer, "train", "--spec", file], capture_output=True, text=True)
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    done = [event for event in events if event["type"] == "step"]
    started = next((event for event in events if event["type"] == "started"), None)
    if ended.returncode != 0 or len(done) < steps or not started:
        return False, f"exit {ended.returncode} after {len(done)} steps: {ended.stderr.strip().splitlines()[-1][:200]}"
    peak = max(event["peak"] for event in done) / started["capacity"]
    parts = sum(event["parts"] for event in done) / len(done)
    rate = EFFECTIVE * len(done[20:]) / sum(event["ms"] for event in done[20:]) * 1000
    said = f"batch {started['batch']}, {parts:.1f} parts a step, peak {peak:.1%} of the limit, {rate:.0f} samples/s"
    # A step that is one part has nothing more to fill it with.
    return peak > 0.85 or (parts == 1 and started["batch"] == EFFECTIVE), said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("limits", nargs="*", default=["12g", "24g", "32g"])
    given = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "recipes")
        subprocess.run([given.trainer, "data", "recipes", "--rows", "2000", "--seed", "1", "--out", out], check=True, stdout=subprocess.DEVNULL)
        write_rows(folder, 40000)
        for limit in given.limits:
            for checkpointing in ("auto", False) if limit == "24g" else ("auto",):
                fits, said = run(given.trainer, folder, limit, checkpointing, given.steps)
                good &= fits
                print(f"{'ok    ' if fits else 'FAILED'} {limit}, checkpointing: {str(checkpointing).lower()}: {said}", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
