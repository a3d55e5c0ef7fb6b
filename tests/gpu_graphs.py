#!/usr/bin/env python3
"""CUDA graphs on a card: the losses of a training with them are those without, bit for bit, and parts really are recorded.

usage: gpu_graphs.py --trainer target/release/pipe-trainer
Needs a CUDA card and nothing else."""
import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile

STEPS = 24
T5 = dict(d_model=256, d_ff=512, d_kv=64, num_heads=4, num_layers=3, num_decoder_layers=3, vocab_size=256)
BERT = dict(vocab_size=256, hidden_size=256, num_hidden_layers=3, num_attention_heads=4, intermediate_size=512, max_position_embeddings=128,
            pad_token_id=0)
PAIRS = dict(fields=dict(source="ingredients", target="directions"), max_source=64, max_target=128)
# Architecture, config, data, what the data section has beside its files.
MODELS = {"t5": (T5, "recipes", PAIRS), "bert": (BERT, "texts", dict(max_length=64))}
# Batch of a step of 24, how it is cut, how rows are padded, checkpointing, every how many steps there is an evaluation.
WAYS = {
    "one part": (24, "fixed", "max", False, 0),
    "three parts": (8, "fixed", "max", False, 0),
    "ragged parts, checkpointing": (7, "fixed", "max", True, 0),
    "filled parts of any length": (8, "fill", "longest", False, 0),
    "evaluated": (24, "fixed", "max", False, 5),
}
PRECISIONS = ("bf16", "fp16-mixed", "fp32")


def run(trainer, folder, arch, precision, way, graphs):
    config, kind, data = MODELS[arch]
    batch, split, pad, checkpointing, every = WAYS[way]
    name = f"{arch}-{precision}-{way.replace(' ', '-').replace(',', '')}-{graphs}"
    path = os.path.join(folder, kind)
    files = dict(train=os.path.join(path, "train.jsonl"), **(dict(eval=os.path.join(path, "train.jsonl")) if every else {}))
    spec = dict(version=1, run=os.path.join(folder, name), attempt=1, device="cuda", threads=1, model=dict(arch=arch, config=config),
                tokenizer=os.path.join(path, "tokenizer.json"), data=dict(data, pad=pad, **files),
                train=dict(steps=STEPS, batch=batch, effective_batch=24, split=split, dropout=0.1, precision=precision, clip=1.0, seed=42,
                           optimizer=dict(lr=5e-4, eps=1e-6), schedule={}, checkpointing=checkpointing, cuda_graphs=graphs,
                           # In fp32 some sums are added up in any order otherwise.
                           deterministic=precision == "fp32"),
                memory={}, evaluate=dict(every=every) if every else {}, save=dict(every=0))
    # A run that is repeated begins again.
    shutil.rmtree(spec["run"], ignore_errors=True)
    file = os.path.join(folder, f"{name}.json")
    with open(file, "w") as out:
        json.dump(spec, out)
    ended = subprocess.run([trainer, "train", "--spec", file], capture_output=True, text=True, env={**os.environ, "RUST_LOG": "debug"})
    if ended.returncode != 0:
        return ended.stderr.strip()[-400:]
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    warnings = [event["message"] for event in events if event["type"] == "warning" and "graph" in event["message"]]
    losses = [event["loss"] for event in events if event["type"] in ("step", "eval")]
    return losses, ended.stderr.count("recorded a CUDA graph"), warnings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--at-once", type=int, default=6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(given.at_once) as pool:
        for kind in {kind for _, kind, _ in MODELS.values()}:
            command = [given.trainer, "data", kind, "--rows", "600", "--seed", "1", "--out", os.path.join(folder, kind)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wanted = [(arch, precision, way, graphs) for arch in MODELS for precision in PRECISIONS for way in WAYS for graphs in (True, False)]
        found = dict(zip(wanted, pool.map(lambda one: run(given.trainer, folder, *one), wanted)))
        # Where several share the card each waits for it, and records less: what recorded nothing has it for itself once more.
        for one, result in found.items():
            if one[-1] and not isinstance(result, str) and result[1] == 0:
                found[one] = run(given.trainer, folder, *one)
    good = True
    for arch, precision, way, graphs in wanted:
        if not graphs:
            continue
        with_graphs, without = found[arch, precision, way, True], found[arch, precision, way, False]
        if isinstance(with_graphs, str) or isinstance(without, str):
            fits, said = False, with_graphs if isinstance(with_graphs, str) else without
        else:
            (one, recorded, warnings), (other, _, _) = with_graphs, without
            apart = max(abs(a - b) for a, b in zip(one, other, strict=True))
            # Lengths that hardly ever come up again need not be recorded.
            fits = one == other and not warnings and (recorded > 0 or "any length" in way)
            said = f"{recorded} graphs, {len(one)} losses, {'equal' if one == other else f'apart by {apart:.1e}'} {warnings or ''}"
        good &= fits
        print(f"{'ok    ' if fits else 'FAILED'} {arch} {precision}, {way}: {said}", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
