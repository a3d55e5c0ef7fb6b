#!/usr/bin/env python3
"""What samples one behind the other are worth: the same rows at 10, 50 and 90 % padding, padded to the longest and packed. The time of a
step goes with tokens, not with the rectangle.

usage: gpu_packing.py --trainer target/release/pipe-trainer [--steps 10] [MODEL...]
Needs a CUDA card; with a python3 that has torch, its libtorch is used. A minute at most."""
import argparse
import importlib.util
import json
import os
import subprocess
import sys

FILLS = "0.9,0.5,0.1"
# Batch, and tokens of a text or of a source and a target.
MODELS = {
    "t5-base": [64, 512, 128],
    "bert-base": [128, 512],
    "deberta-v3-base": [48, 512],
    "clip-vit-b-32": [256, 77],
}
# With this much more of the tokens a packed step may take so much longer, beside the share that does not go with tokens.
SLACK = 1.15
# The models of which all but a little goes with tokens: pictures do not, and DeBERTa's attention is one of rows.
BY_TOKENS = ("t5-base", "bert-base")


def environment():
    torch = importlib.util.find_spec("torch")
    libraries = {"LD_LIBRARY_PATH": os.path.join(os.path.dirname(torch.origin), "lib")} if torch else {}
    return {**os.environ, **libraries, "OMP_WAIT_POLICY": "PASSIVE"}


def measure(trainer, model, steps):
    """One line for each share and form, or what went wrong."""
    batch, source, *target = MODELS[model]
    command = [f"{trainer}-bench", "steps", "--model", model, "--batch", batch, "--source", source, "--precision", "bf16-mixed",
               "--fill-of-rows", FILLS, "--steps", steps, *(["--target", target[0]] if target else [])]
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment())
    if ended.returncode != 0:
        return (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def check(model, lines):
    """That packed steps are no slower than padded ones, and take the time of their tokens."""
    of = {(round(line["padding"], 1), line["rows"]): line for line in lines}
    packed = [line for line in lines if line["rows"] == "packed"]
    good = True
    for (padding, rows), line in of.items():
        if rows == "padded" and (other := of.get((padding, "packed"))) and other["ms"] > line["ms"] * 1.03:
            print(f"SLOWER {model}: packed at {padding:.0%} padding")
            good = False
    most, least = packed[0], packed[-1]
    tokens = lambda line: line["tokens_per_s"] * line["ms"]
    # A line through the two ends: what does not go with tokens is the optimizer's time and that of launches.
    for line in packed[1:-1] if model in BY_TOKENS else []:
        share = (tokens(line) - tokens(least)) / (tokens(most) - tokens(least))
        expected = least["ms"] + share * (most["ms"] - least["ms"])
        if line["ms"] > expected * SLACK:
            print(f"UNEVEN {model}: {line['ms']:.1f} ms at {line['padding']:.0%} padding; by its tokens {expected:.1f} ms")
            good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("models", nargs="*")
    given = parser.parse_args()
    good = True
    print(f"{'':18}{'padding':>9}{'padded ms':>11}{'packed ms':>11}{'ratio':>7}{'padded tokens/s':>17}{'packed tokens/s':>17}"
          f"{'padded GiB':>12}{'packed GiB':>12}", flush=True)
    for model in given.models or MODELS:
        lines = measure(given.trainer, model, given.steps)
        if isinstance(lines, str):
            print(f"{model:18}failed: {lines}", flush=True)
            good = False
            continue
        for padded, packed in zip(lines[::2], lines[1::2], strict=True):
            assert (padded["rows"], packed["rows"]) == ("padded", "packed")
            print(f"{model:18}{padded['padding']:9.0%}{padded['ms']:11.2f}{packed['ms']:11.2f}{packed['ms'] / padded['ms']:7.2f}"
                  f"{padded['tokens_per_s']:17,.0f}{packed['tokens_per_s']:17,.0f}"
                  f"{padded['peak_allocated']:12.2f}{packed['peak_allocated']:12.2f}", flush=True)
        good &= check(model, lines)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
