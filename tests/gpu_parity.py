#!/usr/bin/env python3
"""What the models compute on the card against what transformers computed on the CPU, for every fixture: the kernels of the card
are others than those of the CPU, and only this looks at their results.

usage: gpu_parity.py --trainer target/release/pipe-trainer [FIXTURE...]
Needs a python3 with torch and safetensors, and a CUDA card."""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
# The norm of the difference, as a share of the tensor's. The models are tiny and their weights large, so that narrow numbers
# stand for little more than the right kernel with the right kind.
TOLERANCES = {"fp32": 1e-4, "fp16-mixed": 0.05, "bf16-mixed": 0.4, "bf16": 0.5}
# Near ties in ReLU and max-pooling, which any rounding to 16 bits decides: torch's autocast of the same model, on the CPU and on a
# card, is 22 % away from fp32 as well, in the same elements.
TIES = {("resnet-basic", "fp16-mixed"): 0.25}
AT_ONCE = 8


def compare(trainer, name, precision, checkpointing):
    folder = os.path.join(FIXTURES, name)
    with open(os.path.join(folder, "expect.json")) as file:
        quantize = json.load(file).get("quantize")
    with tempfile.TemporaryDirectory() as work:
        out = os.path.join(work, "out.safetensors")
        command = [f"{trainer}-bench", "parity", "--model", folder, "--batch", os.path.join(folder, "batch.safetensors"), "--out", out,
                   *(["--adapter", f"{folder}/adapter"] if os.path.isdir(f"{folder}/adapter") else []),
                   *(["--quantize", quantize] if quantize else []), "--precision", precision, "--cuda",
                   *(["--checkpointing"] if checkpointing else [])]
        env = {**os.environ, "LD_LIBRARY_PATH": os.path.join(torch.__path__[0], "lib")}
        ended = subprocess.run(command, capture_output=True, text=True, env=env)
        if ended.returncode != 0:
            return None, (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        got = load_file(out)
    want = load_file(os.path.join(folder, "expect.safetensors"))
    mask = load_file(os.path.join(folder, "batch.safetensors")).get("attention_mask")
    # What a training of them comes to is for other tests.
    want.pop("trained", None)
    for key in ("last_hidden_state", "logits"):
        if mask is not None and key in want and key in got and want[key].shape[:2] == mask.shape and want[key].dim() == 3:
            # The values at padding are not compared: kernels differ there.
            got[key], want[key] = (tensors[key].reshape(want[key].shape) * mask.unsqueeze(-1) for tensors in (got, want))
    apart = {}
    # A gradient that is nothing but rounding, such as that of a key's bias, is held against the largest one.
    largest = max([tensor.norm().item() for key, tensor in want.items() if key.startswith("grad.")], default=0.0)
    for key, tensor in want.items():
        if key not in got:
            return None, f"no {key}"
        apart[key] = (got[key].reshape(tensor.shape) - tensor).norm().item() / max(tensor.norm().item(), 1e-3 * largest)
    worst = max(apart, key=apart.get)
    return apart[worst], worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", required=True)
    parser.add_argument("fixtures", nargs="*")
    given = parser.parse_args()
    # Pairs of answers are for another fixture's model.
    has_batch = lambda name: all(os.path.exists(os.path.join(FIXTURES, name, file)) for file in ("batch.safetensors", "config.json"))
    names = given.fixtures or sorted(filter(has_batch, os.listdir(FIXTURES)))
    runs = [(name, precision, checkpointing) for name in names for precision in TOLERANCES
            for checkpointing in ((False, True) if precision == "fp32" else (False,))]
    good = True
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        results = pool.map(lambda run: compare(given.trainer, *run), runs)
        for (name, precision, checkpointing), (worst, where) in zip(runs, results):
            ok = worst is not None and worst <= TIES.get((name, precision), TOLERANCES[precision])
            good &= ok
            figure = f"{worst:.1e}" if worst is not None else "failed"
            mode = precision + (" checkpointing" if checkpointing else "")
            print(f"{'ok' if ok else 'WRONG':6}{name:28}{mode:22}{figure:>9}  {where}", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
