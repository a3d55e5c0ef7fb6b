#!/usr/bin/env python3
"""Our training step on a GPU beside that of transformers, each measured in a process of its own.

usage: bench_gpu.py all --trainer target/release/pipe-trainer
       bench_gpu.py reference --size base --batch 32 --source 512 --target 128 --variant eager
       bench_gpu.py reference --size small --batch 4 --source 128 --target 64 --variant eager --cpu
Needs a python3 with torch and transformers, and a CUDA card except with --cpu, which computes in fp32; nothing is fetched:
models are made from their configs."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

# flan-t5-small, -base and -xl (T5 v1.1): gated, with a head of its own.
SIZES = {
    "small": dict(d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_decoder_layers=8, num_heads=6),
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


def reference(size, batch, source, target, variant, cpu):
    """One training step of transformers, in bf16 or on the CPU in fp32: forward, backward, clipping, fused AdamW."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    device, kind = ("cpu", torch.float32) if cpu else ("cuda", torch.bfloat16)
    synchronize = (lambda: None) if cpu else torch.cuda.synchronize
    config = T5Config(
        **SIZES[size], vocab_size=VOCABULARY, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
        dropout_rate=0.1, decoder_start_token_id=0, use_cache=False,
    )
    # Made on the card: the xl model would take minutes to initialise on the CPU.
    with torch.device(device):
        model = T5ForConditionalGeneration(config)
    model = model.to(device=device, dtype=kind).train()
    if not cpu:
        # The fp32 model of a moment ago is no part of the training.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    if variant == "checkpointing":
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model) if variant == "compile" else model
    ids = lambda length: torch.randint(2, VOCABULARY, (batch, length), device=device)
    inputs = dict(input_ids=ids(source), labels=ids(target))
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])

    def step():
        synchronize()
        began = time.perf_counter()
        forward(**inputs).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize()
        return (time.perf_counter() - began) * 1000

    warm_up, steps = 8 if variant == "compile" else 5, 5 if cpu else 20
    ms = statistics.median([step() for _ in range(warm_up + steps)][warm_up:])
    return {
        "what": f"{size} {batch}x{source}x{target} {variant}",
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "ms": ms,
        "peak_allocated": 0.0 if cpu else torch.cuda.max_memory_allocated() / GIB,
        "peak_reserved": 0.0 if cpu else torch.cuda.max_memory_reserved() / GIB,
    }


def matrix_rate(torch):
    """TFLOP/s of a large bf16 matrix product on random data."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(13):
        torch.cuda.synchronize()
        began = time.perf_counter()
        a @ b
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 2 * 8192**3 / statistics.median(times[3:]) / 1e12


def operations(size, batch, source, target):
    """Floating-point operations of a step: the forward pass and twice as much for the backward."""
    s = SIZES[size]
    d, inner, ff = s["d_model"], s["num_heads"] * s["d_kv"], 3 * s["d_model"] * s["d_ff"]
    encoder = s["num_layers"] * source * (4 * d * inner + ff + 2 * source * inner)
    attention = 6 * d * inner + 2 * target * inner + 2 * source * inner
    decoder = s["num_decoder_layers"] * (target * (attention + ff) + source * 2 * d * inner)
    return 6 * batch * (encoder + decoder + target * d * VOCABULARY)


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
    rate = matrix_rate(torch)
    print(f"{torch.cuda.get_device_name()}: bf16 matrix products at {rate:.0f} TFLOP/s\n")
    print(f"{'':27}{'ms':>10}{'GiB alloc.':>12}{'reserved':>10}{'tokens/s':>10}{'of rate':>9}", flush=True)
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
            ms, shape = result["ms"], SHAPES[size]
            tokens = shape["batch"] * (shape["source"] + shape["target"]) * 1000 / ms
            share = operations(size, **shape) / (ms * 1e9) / rate
            figures = f"{ms:10.1f}{result['peak_allocated']:12.2f}{result['peak_reserved']:10.2f}{tokens:10.0f}{share:9.1%}"
            print(f"{key:27}{figures}", flush=True)
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
    one.add_argument("--cpu", action="store_true")
    commands.add_parser("all").add_argument("--trainer", required=True)
    given = parser.parse_args()
    if given.command == "all":
        sys.exit(0 if everything(given.trainer) else 1)
    print(json.dumps(reference(given.size, given.batch, given.source, given.target, given.variant, given.cpu)))


if __name__ == "__main__":
    main()
