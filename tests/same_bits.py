#!/usr/bin/env python3
"""Records what the programs compute, and compares two records: a change that should not change a result must not change a bit.

    python3 tests/same_bits.py record --bin target/debug --out before.json
    python3 tests/same_bits.py compare before.json after.json      exit 1 if anything differs

Programs that were copied elsewhere find libtorch by LD_LIBRARY_PATH=target/libtorch/lib.

It runs on the CPU, one thread for each training: the demo with its out-of-memory retries, one training of every model with and
without dropout, training options, a retried run, a stopped and a killed run that are resumed, and the logits and gradients of
every fixture. A record holds each loss and each evaluation as the text that the trainer wrote, and the SHA-256 of the
exported model files and the last checkpoint."""

import argparse
import concurrent.futures
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
FIXTURES = REPOSITORY / "tests/fixtures"
# What an event says about time and memory differs between two runs of the same program.
MEASURED = {"seq", "ts", "attempt", "ms", "data_ms", "allocated", "reserved", "peak"}
TRAIN = "{steps: 12, batch: 3, effective_batch: 8, optimizer: {lr: 1.0e-3}, schedule: {kind: cosine, warmup: 3}%s}"
T5 = """
version: 1
name: t5
model:
  arch: t5
  config: {vocab_size: 128, d_model: 32, d_kv: 16, d_ff: 64, num_layers: 2, num_decoder_layers: 2, num_heads: 8,
           dropout_rate: 0.1, pad_token_id: 0, eos_token_id: 1, decoder_start_token_id: 0}
data:
  train: data/train.jsonl
  eval: data/eval.jsonl
  fields: {source: ingredients, target: directions}
  max_source: 64
  max_target: 128
evaluate: {every: 10, batch: 8, generate: 2}
container: {gpus: 0, cpus: 1}
"""


class Scratch:
    """A working folder with the programs to record."""

    def __init__(self, binaries, path):
        self.binaries = binaries
        self.path = path
        path.mkdir()
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("PIPE_", "RUST_LOG"))}
        self.env.update(PIPE_LEDGER=str(path / "ledger"), PIPE_CACHE=str(path / "cache"), PIPE_QUEUE=str(path / "queue"),
                        HF_HUB_OFFLINE="1", NO_COLOR="1", OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")

    def start(self, program, *args):
        log = open(self.path / "output.txt", "ab")
        return subprocess.Popen([self.binaries / program, *map(str, args)], cwd=self.path, env=self.env,
                                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def call(self, program, *args):
        code = self.start(program, *args).wait()
        if code != 0:
            output = (self.path / "output.txt").read_text(errors="replace")
            raise RuntimeError(f"{program} {' '.join(map(str, args))} exits {code}\n{output[-3000:]}")

    def pipeline(self, text):
        (self.path / "pipeline.yaml").write_text(text)

    def run(self, *more):
        self.call("pipe", "run", "pipeline.yaml", "--engine", "process", *more)

    def run_folder(self):
        [folder] = (self.path / "runs").iterdir()
        return folder

    def wait_for_step(self, number):
        """Waits until the log of the first attempt has this step."""
        deadline = time.monotonic() + 120
        while not any(f'"step":{number},' in path.read_text() for path in self.path.glob("runs/*/attempts/01/log.txt")):
            if time.monotonic() > deadline:
                raise RuntimeError(f"step {number} did not come within 120 s")
            time.sleep(0.005)

    def result(self):
        """What the only run computed, by name."""
        run = self.run_folder()
        found = {}
        counts = {}
        for line in (run / "events.jsonl").read_text().splitlines():
            event = json.loads(line, parse_float=str, parse_int=str)
            kind = event.pop("type")
            if kind not in ("step", "eval", "sample", "finished"):
                continue
            key = f"{kind} {int(event.get('step') or 0):04}"
            if kind == "sample":
                counts[key] = counts.get(key, 0) + 1
                key += f" {counts[key]}"
            found[key] = {name: value for name, value in event.items() if name not in MEASURED}
        attempts = json.loads((run / "run.json").read_text())["attempts"]
        found["attempts"] = [[attempt["batch"], attempt["outcome"]] for attempt in attempts]
        for path in sorted((run / "model").iterdir()):
            found[f"model/{path.name}"] = sha256(path)
        last = max((run / "checkpoints").iterdir())
        for path in sorted(last.glob("*.safetensors")):
            found[f"checkpoints/{last.name}/{path.name}"] = sha256(path)
        return found


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def demo(scratch):
    scratch.call("pipe-trainer", "data", "recipes", "--rows", 2000, "--seed", 7, "--out", "data/demo")
    scratch.pipeline((REPOSITORY / "pipelines/demo.yaml").read_text())
    scratch.run("--ignore-ledger", "--set", "container.cpus=1", "--set", "memory.limit=300m")
    result = scratch.result()
    assert len(result["attempts"]) > 1, f"no retry: {result['attempts']}"
    return result


def t5(scratch, more):
    scratch.call("pipe-trainer", "data", "recipes", "--rows", 400, "--seed", 3, "--out", "data")
    scratch.pipeline(T5 + more)


def trained_t5(train, more=""):
    def case(scratch):
        t5(scratch, f"train: {train}\n{more}")
        scratch.run()
        return scratch.result()
    return case


def retried(scratch):
    train = "{steps: 8, batch: 48, effective_batch: 48, optimizer: {lr: 2.0e-3}}"
    t5(scratch, f"train: {train}\nsave: {{every: 3}}\nmemory: {{limit: 265m}}\n")
    scratch.run("--set", "data.pad=max")
    result = scratch.result()
    assert len(result["attempts"]) > 1, f"no retry: {result['attempts']}"
    return result


INTERRUPTED = "train: {steps: 40, batch: 4, effective_batch: 8, optimizer: {lr: 2.0e-3}}\nsave: {every: 7}\n"


def killed(scratch):
    t5(scratch, INTERRUPTED)
    running = scratch.start("pipe", "run", "pipeline.yaml", "--engine", "process")
    scratch.wait_for_step(10)
    running.send_signal(signal.SIGKILL)
    running.wait()
    scratch.call("pipe", "attach")
    return interrupted(scratch)


def stopped(scratch):
    t5(scratch, INTERRUPTED)
    scratch.run("--detach")
    scratch.wait_for_step(10)
    scratch.call("pipe", "stop", "latest")
    scratch.call("pipe", "resume", "latest")
    return interrupted(scratch)


def interrupted(scratch):
    """The attempts of a run that was interrupted at a step that the clock decides are not compared, only their number."""
    result = scratch.result()
    result["attempts"] = len(result["attempts"])
    assert result["attempts"] == 2, "the run ended before it was interrupted"
    return result


def model(arch, data, source="from: {fixture}", fixture=None):
    """A training of one fixture, `train` more of the pipeline's `train`."""
    folder = FIXTURES / (fixture or arch)

    def case(train):
        def run(scratch):
            scratch.pipeline(
                f"version: 1\nname: same-bits\nmodel: {{arch: {arch}, {source}}}\ndata: {data}\n"
                f"train: {TRAIN % train}\nevaluate: {{every: 6, batch: 4}}\ncontainer: {{gpus: 0, cpus: 1}}\n"
                .replace("{fixture}", str(folder)))
            scratch.run()
            return scratch.result()
        return run
    return case


BATCHES = "[{fixture}/batch.safetensors, {fixture}/batch-1.safetensors]"
ROWS = "{train: {fixture}/train.jsonl, eval: {fixture}/train.jsonl, max_length: 40}"
XLM = ("config: {vocab_size: 400, hidden_size: 24, intermediate_size: 40, num_hidden_layers: 2, num_attention_heads: 3, "
       "max_position_embeddings: 64, pad_token_id: 1, type_vocab_size: 1}")
MODELS = {
    "t5": model("t5", "{train: {fixture}/train.jsonl, eval: {fixture}/train.jsonl, max_source: 48, max_target: 64}",
                fixture="t5-gated"),
    "bert": model("bert", ROWS),
    "roberta": model("roberta", ROWS),
    # Its fixture has no tokenizer: a new model of the same size, on the texts of RoBERTa.
    "xlm-roberta": model("xlm-roberta", ROWS[:-1] + ", tokenizer: {fixture}/tokenizer.json}", XLM, "roberta"),
    "deberta-v3": model("deberta-v3", ROWS),
    "deberta-bin": model("deberta-v3", ROWS, fixture="deberta-bin"),
    "clip": model("clip", "{train: {fixture}/train.jsonl, eval: {fixture}/train.jsonl}"),
    "hybrid-cnn-lstm": model("hybrid-cnn-lstm", "{train: %s, eval: {fixture}/batch-2.safetensors}" % BATCHES),
    "hybrid-batch-norm": model("hybrid-cnn-lstm", "{train: {fixture}/batch.safetensors, eval: {fixture}/batch.safetensors}",
                               fixture="hybrid-batch-norm"),
    "mu-sota": model("mu-sota", "{train: %s, eval: {fixture}/batch-2.safetensors}" % BATCHES),
}


def parity(fixture):
    """Loss, logits and gradients of the fixture's batch."""
    def case(scratch):
        # Older builds have it in the trainer itself.
        program = "pipe-trainer-bench" if (scratch.binaries / "pipe-trainer-bench").is_file() else "pipe-trainer"
        scratch.call(program, "parity", "--model", fixture, "--batch", fixture / "batch.safetensors", "--out", "out.safetensors")
        figures = (scratch.path / "output.txt").read_text()
        printed = [line for line in figures.splitlines() if line.startswith("{")]
        return {"printed": printed, "out.safetensors": sha256(scratch.path / "out.safetensors")}
    return case


def cases():
    short = "steps: 12, batch: 4, effective_batch: 8, optimizer: {lr: 2.0e-3}"
    every = {
        "demo": demo,
        "retried": retried,
        "killed": killed,
        "stopped": stopped,
        "uninterrupted": trained_t5(INTERRUPTED.split("train: ")[1].split("\n")[0], "save: {every: 7}\n"),
        "checkpointing": trained_t5(f"{{{short}, checkpointing: true}}"),
        "adafactor": trained_t5("{steps: 12, batch: 4, effective_batch: 8, optimizer: {kind: adafactor, lr: 2.0e-3}}"),
        "bf16": trained_t5(f"{{{short}, precision: bf16}}"),
        "bf16-mixed": trained_t5(f"{{{short}, precision: bf16-mixed}}"),
        "clip": trained_t5(f"{{{short}, clip: 0.5}}"),
        "auto-batch": trained_t5("{steps: 6, batch: auto, effective_batch: 8, optimizer: {lr: 2.0e-3}}",
                                 "memory: {limit: 2g}\n"),
    }
    for name, train in MODELS.items():
        every[f"{name}/default-dropout"] = train("")
        every[f"{name}/dropout"] = train(", dropout: 0.1")
    # Pairs of answers are for another fixture's model.
    for batch in sorted(path for path in FIXTURES.glob("*/batch.safetensors") if (path.parent / "config.json").exists()):
        every[f"{batch.parent.name}/parity"] = parity(batch.parent)
    return every


def record(options):
    binaries = Path(options.bin).resolve()
    chosen = {name: case for name, case in cases().items() if name.startswith(options.only)}
    began = time.monotonic()
    failed = 0
    results = {}
    with tempfile.TemporaryDirectory(prefix="pipe-same-bits-") as base, \
            concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        def run(name, case):
            start = time.monotonic()
            result = case(Scratch(binaries, Path(base) / name.replace("/", "-")))
            return result, time.monotonic() - start
        waiting = {pool.submit(run, name, case): name for name, case in chosen.items()}
        for done in concurrent.futures.as_completed(waiting):
            name = waiting[done]
            try:
                results[name], seconds = done.result()
                print(f"{name}: {seconds:.1f} s", flush=True)
            except Exception as error:  # The other cases are recorded, and the exit code tells.
                failed += 1
                results[name] = {"failed": True}
                print(f"{name}: FAILED: {error}", file=sys.stderr, flush=True)
    Path(options.out).write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    print(f"{len(results)} cases, {failed} failed, {time.monotonic() - began:.0f} s, written to {options.out}")
    return 1 if failed else 0


def compare(options):
    first, second = (json.loads(Path(path).read_text()) for path in (options.first, options.second))
    differences = 0
    for name in sorted(first.keys() | second.keys()):
        a, b = first.get(name), second.get(name)
        if a == b and a != {"failed": True}:
            continue
        differences += 1
        if a is None or b is None or "failed" in a or "failed" in b:
            state = lambda side: "missing" if side is None else "failed" if "failed" in side else "recorded"
            print(f"{name}: {state(a)} in the first, {state(b)} in the second")
            continue
        keys = [key for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]
        print(f"{name}: {len(keys)} of {len(a.keys() | b.keys())} values differ")
        for key in keys[:3]:
            print(f"  {key}\n    first:  {json.dumps(a.get(key))[:300]}\n    second: {json.dumps(b.get(key))[:300]}")
    print(f"{differences} of {len(first.keys() | second.keys())} cases differ")
    return 1 if differences else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    recorder = commands.add_parser("record", help="run everything and write down the results")
    recorder.add_argument("--bin", default="target/debug", help="the folder of pipe and pipe-trainer")
    recorder.add_argument("--out", required=True, help="the JSON file to write")
    recorder.add_argument("--jobs", type=int, default=2, help="how many cases run at the same time")
    recorder.add_argument("--only", default="", metavar="NAME", help="cases whose name begins so")
    recorder.set_defaults(run=record)
    comparer = commands.add_parser("compare", help="say what differs between two records")
    comparer.add_argument("first")
    comparer.add_argument("second")
    comparer.set_defaults(run=compare)
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
