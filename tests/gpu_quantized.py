#!/usr/bin/env python3
"""Quantized weights on a card: what they stand for, to the bit of the CPU; a small llama beside transformers, and trained in one part and in three; the
times of products of few rows; and the times and memory of steps of a Llama with 8 billion random parameters.

usage: gpu_quantized.py --bin FOLDER-OF-THE-BINARIES [bits] [parity] [training] [products] [steps]
Needs a python3 with torch and safetensors, and a CUDA card."""
import argparse
import glob
import json
import os
import subprocess
import tempfile

import torch
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
FIXTURES = os.path.join(HERE, "fixtures")
ENV = {**os.environ, "LD_LIBRARY_PATH": os.path.join(torch.__path__[0], "lib")}


def ended(*words, cwd=None):
    run = subprocess.run(words, env=ENV, capture_output=True, text=True, cwd=cwd)
    if run.returncode != 0:
        raise SystemExit(f"FAILED: {' '.join(words)}\n{run.stderr[-1500:]}")
    return run.stdout


def say(is_right, what):
    print(f"{'ok' if is_right else 'FAILED'}: {what}", flush=True)


def bits(binaries):
    cpu, card = (json.loads(ended(f"{binaries}/pipe-trainer-bench", "quantized-weights", *more)) for more in ((), ("--cuda",)))
    differ = [name for name in cpu if cpu[name] != card[name]]
    say(len(cpu) > 30 and not differ, f"{len(cpu)} matrices made wide are the same bits on both: {differ or 'all'}")


def parity(binaries):
    folder = os.path.join(FIXTURES, "llama-nf4")
    want = load_file(os.path.join(folder, "expect.safetensors"))
    for precision, most in (("fp32", 1e-4), ("bf16", 5e-2)):
        for more in ((), ("--checkpointing",)):
            with tempfile.TemporaryDirectory() as work:
                out = os.path.join(work, "out.safetensors")
                ended(f"{binaries}/pipe-trainer-bench", "parity", "--model", folder, "--adapter", f"{folder}/adapter", "--quantize", "nf4", "--batch",
                      f"{folder}/batch.safetensors", "--out", out, "--precision", precision, "--cuda", *more)
                got = load_file(out)
            apart = max(float((got[name] - want[name]).abs().max() / want[name].abs().max()) for name in want)
            say(apart < most, f"llama-nf4 in {precision} {' '.join(more)}: at most {apart:.1e} from transformers, PEFT and bitsandbytes")


def training(binaries):
    model = os.path.join(FIXTURES, "chat-llama-lora")
    with tempfile.TemporaryDirectory() as work:
        for quantize in ("nf4", "int8"):
            for optimizer in ("adamw", "adamw8bit"):
                curves = []
                for gpus, batch in ((1, 8), (1, 3)):
                    open(os.path.join(work, "chat.yaml"), "w").write(
                        f"version: 1\nname: chat-{quantize}-{optimizer}-{gpus}-{batch}\nmodel: {{from: {model}, quantize: {quantize}}}\n"
                        "adapter: {rank: 64, dropout: 0.1}\n"
                        f"data: {{train: {model}/train.jsonl, fields: {{messages: messages}}, max_length: 96}}\n"
                        f"train: {{steps: 20, batch: {batch}, effective_batch: 8, precision: fp32, optimizer: {{kind: {optimizer}, lr: 2.0e-3}}}}\n"
                        f"container: {{gpus: {gpus}}}\nengine: process\n")
                    ended(f"{binaries}/pipe", "run", "chat.yaml", cwd=work)
                    run = max(glob.glob(f"{work}/runs/chat-{quantize}-{optimizer}-{gpus}-{batch}-*"), key=os.path.getmtime)
                    events = [json.loads(line) for line in open(f"{run}/events.jsonl")]
                    curves.append([event["loss"] for event in events if event["type"] == "step"])
                # New matrices are drawn on the device: only trainings on the card begin alike.
                whole, cut = curves
                apart = max(abs(a - b) for a, b in zip(whole, cut))
                # A moment of 8 bits between two codes may go to either.
                most = 1e-4 if optimizer == "adamw" else 2e-2
                say(len(whole) == len(cut) == 20 and whole[-1] < whole[0] - 0.1 and apart < most,
                    f"{quantize}, {optimizer}: losses {whole[0]:.3f} to {whole[-1]:.3f}; cut into three parts {apart:.1e} apart")


def products(binaries):
    lines = [json.loads(line) for line in ended(f"{binaries}/pipe-trainer-bench", "quantized-products").splitlines()]
    print(f"{'matrix':>15} {'rows':>5} {'ms':>8} {'made wide':>10}")
    for line in lines:
        print(f"{' x '.join(map(str, line['matrix'])):>15} {line['rows']:5} {line['ms']:8.4f} {line['wide_ms']:10.4f}", flush=True)
    few = [line for line in lines if line["rows"] <= 4]
    say(all(line["apart"] < 1e-2 for line in lines), f"products of few rows are at most {max(line['apart'] for line in lines):.1e} from wide ones")
    slow = [line for line in few if line["ms"] > line["wide_ms"]]
    say(few and not slow, f"products of few rows are the faster ones: {slow or 'all'}")


def steps(binaries):
    large = ["--model", "llama-8b", "--lora", "16", "--precision", "bf16", "--steps", "8"]
    shapes = [["--batch", "4", "--source", "2048", "--checkpointing"], ["--batch", "1", "--source", "1024"],
              ["--batch", "1", "--source", "1024", "--checkpointing"]]
    print(f"{'Llama 8B, LoRA 16':60} {'ms':>8} {'GiB':>7} {'reserved':>8}")
    for shape in shapes:
        for kind in ([], ["--quantize", "nf4"], ["--quantize", "nf4", "--optimizer", "adamw8bit"], ["--quantize", "int8"]):
            found = json.loads(ended(f"{binaries}/pipe-trainer-bench", "steps", *large, *shape, *kind))
            print(f"{' '.join(shape + kind):60} {found['ms']:8.1f} {found['peak_allocated']:7.2f} {found['peak_reserved']:8.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("parts", nargs="*", default=["bits", "parity", "training", "products", "steps"])
    given = parser.parse_args()
    for name, part in (("bits", bits), ("parity", parity), ("training", training), ("products", products), ("steps", steps)):
        if name in given.parts:
            part(os.path.abspath(given.bin))


main()
