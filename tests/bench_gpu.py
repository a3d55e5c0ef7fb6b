#!/usr/bin/env python3
"""Our training step on a GPU beside that of transformers, each measured in a process of its own.

usage: bench_gpu.py all --trainer target/release/pipe-trainer
       bench_gpu.py reference --size base --batch 32 --source 512 --target 128 --variant eager
Needs a CUDA card and a python3 with torch and transformers; nothing is fetched: models are made from their configs."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

# flan-t5-base and flan-t5-xl (T5 v1.1): gated, with a head of its own.
SIZES = {
    "base": dict(d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_decoder_layers=12, num_heads=12),
    "xl": dict(d_model=2048, d_kv=64, d_ff=5120, num_layers=24, num_decoder_layers=24, num_heads=32),
}
SHAPES = {"base": dict(batch=32, source=512, target=128), "xl": dict(batch=8, source=512, target=128)}
VOCABULARY = 32128
GIB = 2**30

# Key, size, and the arguments after size and shape: of the reference, or of our trainer.
RUNS = [
    ("base eager", "base", ["--variant", "eager"]),
    ("base compile", "base", ["--variant", "compile"]),
    ("base ours", "base", None),
    ("xl eager", "xl", ["--variant", "eager"]),
    ("xl ours", "xl", None),
    ("xl eager checkpointing", "xl", ["--variant", "checkpointing"]),
    ("xl ours checkpointing 32g", "xl", ["--checkpointing", "--limit", "32g"]),
]
# What is compared, the figure, with what, and the largest ratio that is good enough.
AIMS = [
    ("base ours", "ms", "base compile", 0.95),
    ("base ours", "ms", "base eager", 0.43),
    ("base ours", "peak_allocated", "base compile", 0.6),
    ("xl ours", "ms", "xl eager", 0.45),
    ("xl ours checkpointing 32g", "ms", "xl eager checkpointing", 1 / 1.6),
    ("xl ours checkpointing 32g", "peak_allocated", "xl eager checkpointing", 1.0),
]


def reference(size, batch, source, target, variant):
    """One training step of transformers in bf16: forward, backward, clipping, fused AdamW."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        **SIZES[size], vocab_size=VOCABULARY, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
        dropout_rate=0.1, decoder_start_token_id=0, use_cache=False,
    )
    # Made on the card: the xl model would take minutes to initialise on the CPU.
    with torch.device("cuda"):
        model = T5ForConditionalGeneration(config)
    model = model.to(device="cuda", dtype=torch.bfloat16).train()
    # The fp32 model of a moment ago is no part of the training.
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if variant == "checkpointing":
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model) if variant == "compile" else model
    ids = lambda length: torch.randint(2, VOCABULARY, (batch, length), device="cuda")
    inputs = dict(input_ids=ids(source), labels=ids(target))
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])

    def step():
        torch.cuda.synchronize()
        began = time.perf_counter()
        forward(**inputs).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1000

    warm_up = 8 if variant == "compile" else 5
    ms = statistics.median([step() for _ in range(warm_up + 20)][warm_up:])
    return {
        "what": f"{size} {batch}x{source}x{target} {variant}",
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "ms": ms,
        "peak_allocated": torch.cuda.max_memory_allocated() / GIB,
        "peak_reserved": torch.cuda.max_memory_reserved() / GIB,
    }


def measure(command, env=None):
    """The JSON line that a process prints last, or what it said when it failed."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=1500, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode == 0 and lines:
        return json.loads(lines[-1])
    said = (ended.stderr.strip() or ended.stdout.strip() or "it said nothing").splitlines()
    told = [line for line in said if "error" in line.lower()] or said
    return {"error": f"exit {ended.returncode}: {told[-1].strip()[:200]}"}


def everything(trainer):
    import torch

    # The trainer's own libtorch may be one for the CPU: it uses the one that is measured against.
    ours = {**os.environ, "LD_LIBRARY_PATH": os.path.join(torch.__path__[0], "lib"), "OMP_WAIT_POLICY": "PASSIVE"}
    results = {}
    print(f"{'':27}{'ms':>10}{'allocated':>12}{'reserved':>12}  GiB", flush=True)
    for key, size, arguments in RUNS:
        shape = ["--size", size] + [word for name, value in SHAPES[size].items() for word in (f"--{name}", str(value))]
        if arguments and "--variant" in arguments:
            command = [sys.executable, os.path.abspath(__file__), "reference", *shape, *arguments]
        else:
            command = [trainer, "bench", *shape, "--precision", "bf16", *(arguments or [])]
        result = results[key] = measure(command, ours if command[0] == trainer else None)
        if "error" in result:
            print(f"{key:27}{result['error']}", flush=True)
        else:
            figures = result["ms"], result["peak_allocated"], result["peak_reserved"]
            print(f"{key:27}{figures[0]:10.1f}{figures[1]:12.2f}{figures[2]:12.2f}", flush=True)
    print()
    return all([aim(results, *row) for row in AIMS])


def aim(results, ours, figure, other, most):
    got, want = results[ours].get(figure), results[other].get(figure)
    measured = got is not None and bool(want)
    met = measured and got / want <= most
    verdict = f"{got / want:7.3f}  aim {most:.3f} at most  {'met' if met else 'MISSED'}" if measured else " not measured"
    print(f"{ours + ': ' + figure + ' / ' + other:75}{verdict}")
    return met


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("reference")
    one.add_argument("--size", choices=SIZES, required=True)
    for name in ("batch", "source", "target"):
        one.add_argument(f"--{name}", type=int, required=True)
    one.add_argument("--variant", choices=["eager", "compile", "checkpointing"], required=True)
    commands.add_parser("all").add_argument("--trainer", required=True)
    given = parser.parse_args()
    if given.command == "all":
        sys.exit(0 if everything(given.trainer) else 1)
    print(json.dumps(reference(given.size, given.batch, given.source, given.target, given.variant)))


if __name__ == "__main__":
    main()
