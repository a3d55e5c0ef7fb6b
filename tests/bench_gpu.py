#!/usr/bin/env python3
"""Our training step on a GPU beside that of transformers, each measured in a process of its own.

usage: bench_gpu.py all --trainer target/release/pipe-trainer [--together 400] [WORD...]     (only runs whose name has one of the words)
       bench_gpu.py kernels --trainer target/release/pipe-trainer --model t5-xl --batch 8     (the kernels of one step by time)
       bench_gpu.py reference --model t5-base --batch 32 --source 512 --target 128 --variant eager
       bench_gpu.py reference --model t5-small --batch 4 --source 128 --target 64 --variant eager --cpu
Needs a python3 with torch and transformers, and a CUDA card except with --cpu, which computes in fp32; nothing is fetched:
models are made from their configs. MU-SOTA is compared with its definition written plainly in torch. --together: what compiles does so side by
side, for so many seconds at most, and is measured when nothing else is under way; the card must have room for all of them."""
import argparse
import collections
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

# flan-t5-small, -base and -xl (T5 v1.1): gated, with a head of its own.
T5 = {
    "t5-small": dict(d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_decoder_layers=8, num_heads=6),
    "t5-base": dict(d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_decoder_layers=12, num_heads=12),
    "t5-xl": dict(d_model=2048, d_kv=64, d_ff=5120, num_layers=24, num_decoder_layers=24, num_heads=32),
}
BERT = {
    "bert-base": dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12),
    "bert-large": dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16),
}
VOCABULARY = 32128
GIB = 2**30

BASE = dict(model="t5-base", batch=32, source=512, target=128, precision="bf16")
XL = dict(model="t5-xl", batch=8, source=512, target=128, precision="bf16")
LARGE = dict(model="bert-large", batch=16, source=384, precision="bf16-mixed")
CLIP = dict(model="clip-vit-b-32", batch=128, precision="bf16-mixed")
ODD = dict(BASE, source=509, target=125)
MU_SOTA = dict(model="mu-sota", batch=4, source=256, precision="bf16-mixed")

# Every way of transformers to compute a step; what is compared with is the best of them.
PEERS = [(f"{variant} {attention}", ["--variant", variant, "--attention", attention])
         for variant in ("eager", "compile", "graphs") for attention in ("eager", "sdpa")]
# `graphs`: compiled, and launched as CUDA graphs. `autotune`: compiled, with matrix products of its own where they are faster.
MODES = {"compile": "default", "graphs": "reduce-overhead", "autotune": "max-autotune-no-cudagraphs"}
# Name, shape, and what else: the variant of the reference, or arguments of our trainer.
RUNS = [
    ("t5-base ours", BASE, []),
    ("t5-base ours odd", ODD, []),
    *((f"t5-base {name}", BASE, words) for name, words in PEERS),
    ("t5-xl ours", XL, []),
    *((f"t5-xl {name}", XL, words) for name, words in PEERS),
    ("t5-xl eager checkpointing", XL, ["--variant", "checkpointing"]),
    ("t5-xl ours checkpointing 32g", XL, ["--checkpointing", "--limit", "32g"]),
    ("bert-large ours", LARGE, []),
    *((f"bert-large {name}", LARGE, words) for name, words in PEERS),
    ("bert-large autotune sdpa", LARGE, ["--variant", "autotune", "--attention", "sdpa"]),
    ("clip eager", CLIP, ["--variant", "eager"]),
    ("clip compile", CLIP, ["--variant", "compile"]),
    ("clip ours", CLIP, []),
    ("mu-sota plain", MU_SOTA, ["--variant", "eager"]),
    ("mu-sota ours", MU_SOTA, []),
]
# What is compared, the figure, with what (the least of all whose names begin so), and the largest ratio that is good enough.
AIMS = [
    ("t5-base ours", "ms", ("t5-base eager", "t5-base compile", "t5-base graphs"), 0.75),
    ("t5-base ours", "peak_allocated", ("t5-base eager", "t5-base compile", "t5-base graphs"), 0.6),
    ("t5-base ours odd", "ms", "t5-base ours", 1.03),
    ("t5-base ours odd", "peak_allocated", "t5-base ours", 1.02),
    ("t5-xl ours", "ms", ("t5-xl eager eager", "t5-xl eager sdpa", "t5-xl compile", "t5-xl graphs"), 0.75),
    ("t5-xl ours checkpointing 32g", "ms", "t5-xl eager checkpointing", 1 / 1.6),
    ("t5-xl ours checkpointing 32g", "peak_allocated", "t5-xl eager checkpointing", 1.0),
    ("bert-large ours", "ms", ("bert-large eager", "bert-large compile", "bert-large graphs", "bert-large autotune"), 0.85),
    ("bert-large ours", "peak_allocated", ("bert-large eager", "bert-large compile", "bert-large graphs", "bert-large autotune"), 0.75),
    ("clip ours", "ms", "clip compile", 1.0),
    ("clip ours", "peak_allocated", "clip compile", 0.8),
    ("mu-sota ours", "ms", "mu-sota plain", 0.2),
    ("mu-sota ours", "activations", "mu-sota plain", 0.1),
]


def build(torch, given, device):
    """A model in fp32 on the device, and what it is given."""
    import transformers

    ids = lambda length, words: torch.randint(2, words, (given.batch, length), device=device)
    if given.model in T5:
        config = transformers.T5Config(
            **T5[given.model], vocab_size=VOCABULARY, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
            dropout_rate=0.1, decoder_start_token_id=0, use_cache=False,
        )
        inputs = dict(input_ids=ids(given.source, VOCABULARY), labels=ids(given.target, VOCABULARY))
        make = transformers.T5ForConditionalGeneration
    elif given.model in BERT:
        # What it would find out in its first step, and then be compiled for again.
        config = transformers.BertConfig(**BERT[given.model], vocab_size=30522, problem_type="single_label_classification")
        labels = torch.randint(0, 2, (given.batch,), device=device)
        inputs = dict(input_ids=ids(given.source, 30522), labels=labels)
        make = transformers.BertForSequenceClassification
    else:
        config = transformers.CLIPConfig()
        pixels = torch.randn(given.batch, 3, 224, 224, device=device)
        inputs = dict(input_ids=ids(77, 49408), pixel_values=pixels, return_loss=True)
        make = transformers.CLIPModel
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if given.attention:
        config._attn_implementation = given.attention
    # Made on the card: a large model would take minutes to initialise on the CPU.
    with torch.device(device):
        return make(config), inputs


def reference(given):
    """One training step: forward, backward, clipping, fused AdamW."""
    if given.model == "mu-sota":
        import mu_sota_reference

        return mu_sota_reference.reference(given.batch, given.source, given.precision, given.cpu)
    import torch

    torch.manual_seed(0)
    device = "cpu" if given.cpu else "cuda"
    synchronize = (lambda: None) if given.cpu else torch.cuda.synchronize
    model, inputs = build(torch, given, device)
    mixed = given.precision == "bf16-mixed"
    model = model.to(torch.bfloat16 if given.precision == "bf16" else torch.float32).train()
    if not given.cpu:
        # The fp32 model of a moment ago is no part of the training.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    if given.variant == "checkpointing":
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model, mode=MODES[given.variant]) if given.variant in MODES else model

    def step():
        synchronize()
        began = time.perf_counter()
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed):
            loss = forward(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize()
        return (time.perf_counter() - began) * 1000

    if given.wait:
        for _ in range(4):
            step()
        torch.cuda.empty_cache()
        wait_for_turn()
    warm_up, steps = 20 if given.variant in MODES else 10, 5 if given.cpu else 20
    ms = statistics.median([step() for _ in range(warm_up + steps)][warm_up:])
    return {
        "what": f"{given.model} {given.variant} {given.attention or ''}".strip(),
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "ms": ms,
        "peak_allocated": 0.0 if given.cpu else torch.cuda.max_memory_allocated() / GIB,
        "peak_reserved": 0.0 if given.cpu else torch.cuda.max_memory_reserved() / GIB,
    }


def wait_for_turn():
    """Says that everything is compiled, and waits until nothing else is under way."""
    print("ready", flush=True)
    sys.stdin.readline()


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


def operations(model, batch, source=0, target=0, **_):
    """Floating-point operations of a step, the forward pass and twice as much for the backward; None where it is unknown."""
    if model in BERT:
        s = BERT[model]
        d = s["hidden_size"]
        return 6 * batch * source * s["num_hidden_layers"] * (4 * d * d + 2 * d * s["intermediate_size"] + 2 * source * d)
    if model not in T5:
        return None
    s = T5[model]
    d, inner, ff = s["d_model"], s["num_heads"] * s["d_kv"], 3 * s["d_model"] * s["d_ff"]
    encoder = s["num_layers"] * source * (4 * d * inner + ff + 2 * source * inner)
    attention = 6 * d * inner + 2 * target * inner + 2 * source * inner
    decoder = s["num_decoder_layers"] * (target * (attention + ff) + source * 2 * d * inner)
    return 6 * batch * (encoder + decoder + target * d * VOCABULARY)


def answer(code, stdout, stderr):
    """The JSON line that a process printed last, or what it said when it failed."""
    lines = [line for line in stdout.splitlines() if line.startswith("{")]
    if code == 0 and lines:
        return json.loads(lines[-1])
    said = (stderr.strip() or stdout.strip() or "it said nothing").splitlines()
    errors = [line for line in said if "error" in line.lower()] or said
    return {"error": f"exit {code}: {errors[-1].strip()[:200]}"}


def measure(command, env=None):
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=1500, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    return answer(ended.returncode, ended.stdout, ended.stderr)


class Waiting:
    """A process that gets ready beside others with `--wait`, and measures when it is asked for its answer."""

    def __init__(self, command):
        self.began, self.ready_after, self.lines, self.heard = time.time(), None, [], threading.Event()
        self.stderr = tempfile.TemporaryFile("w+")
        # With a group of its own: those that compile for it end with it.
        self.process = subprocess.Popen(command + ["--wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, text=True,
                                        process_group=0)
        self.reader = threading.Thread(target=self.listen, daemon=True)
        self.reader.start()

    def listen(self):
        for line in self.process.stdout:
            self.lines.append(line)
            if line == "ready\n":
                self.ready_after = time.time() - self.began
                self.heard.set()
        self.heard.set()

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def answer(self, most=300):
        """Where it takes no more than so many seconds."""
        with contextlib.suppress(OSError):  # it may have ended, and says why
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        try:
            code = self.process.wait(most)
        except subprocess.TimeoutExpired:
            code = "none"
        self.end()
        self.reader.join(5)
        self.stderr.seek(0)
        return answer(code, "".join(self.lines), self.stderr.read())


def get_ready(commands, seconds):
    """Starts what compiles, all at once, and says what is ready in time. What is not would disturb the others, and is ended."""
    waiting = {name: Waiting(command) for name, command in commands.items()}
    until = time.time() + seconds
    for one in waiting.values():
        one.heard.wait(max(0.0, until - time.time()))
    for name, one in list(waiting.items()):
        if one.heard.is_set():
            print(f"{name:46}" + (f"ready after {one.ready_after:.0f} s" if one.ready_after else "failed"))
        else:
            waiting.pop(name).end()
            print(f"{name:46}not ready after {seconds:.0f} s")
    print(flush=True)
    return waiting


def everything(trainer, words, together):
    import torch

    # The trainer's own libtorch may be one for the CPU: it uses the one that is measured against.
    ours = {**os.environ, "LD_LIBRARY_PATH": os.path.join(torch.__path__[0], "lib"), "OMP_WAIT_POLICY": "PASSIVE"}
    chosen = lambda name: not words or any(word in name for word in words)
    commands, shapes, results = {}, {}, {}
    for name, shape, more in filter(lambda run: chosen(run[0]), RUNS):
        command = [sys.executable, os.path.abspath(__file__), "reference"] if "--variant" in more else [f"{trainer}-bench", "steps"]
        commands[name] = command + [word for key, value in shape.items() for word in (f"--{key}", str(value))] + more
        shapes[name] = shape
    compiles = lambda name: any(mode in commands[name] for mode in MODES)
    waiting = {}
    if together:
        waiting = get_ready({name: commands[name] for name in filter(compiles, commands)}, together)
        commands = {name: command for name, command in commands.items() if name in waiting or not compiles(name)}
    rate = matrix_rate(torch)
    print(f"{torch.cuda.get_device_name()}: bf16 matrix products at {rate:.0f} TFLOP/s\n")
    print(f"{'':30}{'ms':>10}{'GiB alloc.':>12}{'reserved':>10}{'tokens/s':>10}{'of rate':>9}", flush=True)
    # What waits comes first: it holds memory.
    for name in sorted(commands, key=lambda name: name not in waiting):
        shape, command = shapes[name], commands[name]
        result = waiting[name].answer() if name in waiting else measure(command, ours if command[0] != sys.executable else None)
        results[name] = result
        if "error" in result:
            print(f"{name:30}{result['error']}", flush=True)
            continue
        # What is not weights, gradients and moments: 16 bytes a parameter where those are fp32.
        bytes_each = 8 if shape["precision"] == "bf16" else 16
        result["activations"] = result["peak_allocated"] - bytes_each * result["params"] / GIB
        ms = result["ms"]
        tokens = shape["batch"] * (shape.get("source", 77) + shape.get("target", 0)) * 1000 / ms
        counted = operations(**shape)
        share = f"{counted / (ms * 1e9) / rate:9.1%}" if counted else ""
        print(f"{name:30}{ms:10.1f}{result['peak_allocated']:12.2f}{result['peak_reserved']:10.2f}{tokens:10.0f}{share}", flush=True)
    print()
    return all([aim(results, *row) for row in AIMS if chosen(row[0])])


def aim(results, ours, figure, others, most):
    got = results.get(ours, {}).get(figure)
    others = (others,) if isinstance(others, str) else others
    known = {name: result[figure] for name, result in results.items()
             if result.get(figure) and (name in others or (len(others) > 1 and name.startswith(others)))}
    best = min(known, key=known.get, default=" or ".join(others))
    measured = got is not None and bool(known)
    met = measured and got / known[best] <= most
    verdict = f"{got / known[best]:7.3f}  aim {most:.3f} at most  {'met' if met else 'MISSED'}" if measured else " not measured"
    print(f"{ours + ': ' + figure + ' / ' + best:75}{verdict}")
    return met


def kernels(trainer, arguments):
    """The kernels of one step, those that take longest first."""
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.json")
        said = measure([f"{trainer}-bench", "steps", *arguments, "--trace", trace])
        if "error" in said:
            sys.exit(said["error"])
        with open(trace) as file:
            events = json.load(file)["traceEvents"]
    times = collections.defaultdict(lambda: [0, 0.0])
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            one = times[re.sub(r"\(.*", "", event["name"].replace("(anonymous namespace)::", "")).replace("void ", "")[:90]]
            one[0] += 1
            one[1] += event["dur"] / 1000
    whole = sum(ms for _, ms in times.values())
    print(f"{said['ms']:.1f} ms a step, {whole:.1f} ms of it in {sum(count for count, _ in times.values())} kernels\n")
    print("| kernel | calls | ms | share |\n|---|---|---|---|")
    for name, (count, ms) in sorted(times.items(), key=lambda entry: -entry[1][1])[:25]:
        print(f"| `{name}` | {count} | {ms:.2f} | {ms / whole:.1%} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("reference")
    one.add_argument("--model", choices=[*T5, *BERT, "clip-vit-b-32", "mu-sota"], required=True)
    one.add_argument("--batch", type=int, required=True)
    one.add_argument("--source", type=int, default=512)
    one.add_argument("--target", type=int, default=128)
    one.add_argument("--precision", choices=["fp32", "bf16", "bf16-mixed"], default="bf16")
    one.add_argument("--variant", choices=["eager", *MODES, "checkpointing"], required=True)
    one.add_argument("--attention", choices=["eager", "sdpa"], help="attn_implementation of transformers")
    one.add_argument("--cpu", action="store_true")
    one.add_argument("--wait", action="store_true", help="say `ready` after the first steps, and wait for a line")
    everyone = commands.add_parser("all")
    everyone.add_argument("--trainer", required=True)
    everyone.add_argument("--together", type=float, metavar="SECONDS")
    everyone.add_argument("words", nargs="*")
    step = commands.add_parser("kernels", help="what else is given goes to pipe-trainer-bench steps")
    step.add_argument("--trainer", required=True)
    given, more = parser.parse_known_args()
    if given.command == "kernels":
        return kernels(given.trainer, more)
    if more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if given.command == "all":
        sys.exit(0 if everything(given.trainer, given.words, given.together) else 1)
    if given.cpu:
        given.precision = "fp32"
    print(json.dumps(reference(given)))


if __name__ == "__main__":
    main()
