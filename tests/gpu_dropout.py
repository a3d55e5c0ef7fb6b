#!/usr/bin/env python3
"""Dropout on a card: the masks of the CPU, bit for bit, and one training however a step is cut.

usage: gpu_dropout.py --trainer target/release/pipe-trainer
Needs a CUDA card and nothing else."""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

STEPS = 30
PRECISIONS = ("fp32", "bf16", "fp16-mixed")
# Of a step of 12 samples: batch, checkpointing.
CUTS = ((12, True), (7, False), (5, True), (1, False))

TOWER = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=96,
             max_position_embeddings=16, bos_token_id=0, eos_token_id=1, pad_token_id=1, image_size=32, patch_size=8)
BERT = dict(vocab_size=192, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
            max_position_embeddings=64, pad_token_id=0)
# Data, architecture, config, what the data section has beside its files.
MODELS = {
    "t5": ("recipes", dict(d_model=64, d_ff=96, d_kv=16, num_heads=4, num_layers=2, num_decoder_layers=2, vocab_size=160),
           dict(fields=dict(source="ingredients", target="directions"), max_source=64, max_target=128)),
    "bert": ("texts", BERT, {}),
    "deberta-v3": ("texts", dict(BERT, relative_attention=True, position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True,
                                 pos_att_type="p2c|c2p", position_biased_input=False), {}),
    "clip": ("pictures", dict(projection_dim=32, text_config=TOWER, vision_config=TOWER), {}),
    "mu-sota": ("stories", dict(vocab_size=160, n_layers=2, n_blocks=4, block_dim=8, block_heads=2, cross_heads=4, ffn_dim=96,
                                max_seq_len=64), dict(max_length=48)),
    "hybrid-cnn-lstm": ("series", dict(input_features=8, sequence_length=24, conv_channels=[16, 24], lstm_hidden=16, lstm_layers=2,
                                       attention_heads=4, num_classes=3, norm="layer"), {}),
}
FILES = {"stories": "train.txt", "series": "train.csv"}


def run(trainer, folder, arch, device, precision, batch, checkpointing, steps=STEPS):
    kind, config, data = MODELS[arch]
    name = f"{arch}-{device}-{precision}-{batch}-{checkpointing}-{steps}"
    # New weights are other ones on a card: all begin with what one step on the CPU made.
    model = dict(arch=arch, config=config) if steps == 1 else dict(arch=arch, **{"from": os.path.join(folder, f"{arch}-cpu-fp32-12-False-1", "model")})
    path = os.path.join(folder, kind)
    tokenizer = None if kind == "series" else os.path.join(path, "tokenizer.json")
    spec = dict(version=1, run=os.path.join(folder, name), attempt=1, device=device, threads=1, model=model,
                tokenizer=tokenizer, data=dict(data, train=os.path.join(path, FILES.get(kind, "train.jsonl"))),
                train=dict(steps=steps, batch=batch, effective_batch=12, dropout=0.1, precision=precision, clip=1.0, seed=42,
                           optimizer=dict(lr=5e-4, eps=1e-6), schedule={}, checkpointing=checkpointing, deterministic=False),
                memory={}, evaluate={}, save=dict(every=0))
    file = os.path.join(folder, f"{name}.json")
    with open(file, "w") as out:
        json.dump(spec, out)
    ended = subprocess.run([trainer, "train", "--spec", file], capture_output=True, text=True)
    if ended.returncode != 0:
        return ended.stderr.strip()[-300:]
    events = (json.loads(line) for line in ended.stdout.splitlines())
    return [event["loss"] for event in events if event["type"] == "step"]


def furthest(one, other):
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--at-once", type=int, default=8)
    given = parser.parse_args()
    good = True

    def check(name, fits, found):
        nonlocal good
        good &= bool(fits)
        print(f"{'ok    ' if fits else 'FAILED'} {name}: {found}", flush=True)

    def masks(precision, *words):
        ended = subprocess.run([f"{given.trainer}-bench", "dropout-masks", "--precision", precision, *words], capture_output=True, text=True)
        return json.loads(ended.stdout) if ended.returncode == 0 else {"error": ended.stderr.strip()[-300:]}

    first = masks("fp32")
    for precision in PRECISIONS:
        here, there = masks(precision), masks(precision, "--cuda")
        wrong = [name for name in first if there.get(name) != first[name] or here.get(name) != first[name]]
        check(f"masks {precision}", not wrong, there.get("error") or wrong or f"{len(first)} equal on CPU and card")
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(given.at_once) as pool:
        for kind in {kind for kind, _, _ in MODELS.values()}:
            size = ["--size", "32"] if kind == "pictures" else []
            command = [given.trainer, "data", kind, "--rows", "600", "--seed", "1", *size, "--out", os.path.join(folder, kind)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        list(pool.map(lambda arch: run(given.trainer, folder, arch, "cpu", "fp32", 12, False, 1), MODELS))
        wanted = [(arch, "cpu", "fp32", 12, False) for arch in MODELS]
        wanted += [(arch, "cuda", precision, *cut) for arch in MODELS for precision in PRECISIONS for cut in ((12, False), *CUTS)]
        curves = dict(zip(wanted, pool.map(lambda one: run(given.trainer, folder, *one), wanted)))
    for arch in MODELS:
        failed = {one: curve for one, curve in curves.items() if one[0] == arch and isinstance(curve, str)}
        if failed:
            check(arch, False, failed)
            continue
        whole = {precision: curves[arch, "cuda", precision, 12, False] for precision in PRECISIONS}
        apart = furthest(curves[arch, "cpu", "fp32", 12, False], whole["fp32"])
        check(f"{arch}: CPU and card in fp32, {STEPS} steps", apart < 1e-4, f"{apart:.1e}")
        for precision in PRECISIONS:
            cuts = {cut: curves[arch, "cuda", precision, *cut] for cut in CUTS}
            if precision == "fp32":
                apart = {cut: furthest(whole[precision], curve) for cut, curve in cuts.items()}
                check(f"{arch}: fp32, every cut, {STEPS} steps", max(apart.values()) < 1e-5, {cut: f"{x:.0e}" for cut, x in apart.items()})
            else:
                # What is added up is added up in another order, in numbers of 8 or 11 bits.
                rounding = 2 ** (-8 if precision == "bf16" else -11)
                apart = {cut: abs(curve[0] / whole[precision][0] - 1) for cut, curve in cuts.items()}
                check(f"{arch}: {precision}, every cut, step 1", max(apart.values()) < rounding, {cut: f"{x:.0e}" for cut, x in apart.items()})
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
