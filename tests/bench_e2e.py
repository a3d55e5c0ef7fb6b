#!/usr/bin/env python3
"""Training from a file to the end on a card: pipe beside transformers, with the same rows, model, limit of memory and samples in a step.

usage: bench_e2e.py --trainer target/release/pipe-trainer [--steps 200] [--together 200] [WORD...]     (only runs whose name has one of the words)
       bench_e2e.py peer --model t5-xl --limit 32 --batch 32 ...                     (one run of transformers, in a process of its own)
Needs a python3 with torch and transformers, and a CUDA card; nothing is fetched: models are made from their configs, rows by
`pipe-trainer data`. samples/s are those of the second half of the steps, busy is the share of that time in which the driver saw a kernel
running. transformers gets rows that are sorted within a step and padded before the clock starts: to the longest of a part, as pipe has
them, or to a few lengths, for each of which it is compiled before the clock starts. --together: what compiles does so side by side, for so
many seconds at most, and is measured when nothing else is under way."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from bench_gpu import BERT, GIB, MODES, T5, VOCABULARY, answer, get_ready, wait_for_turn

PAIRS = dict(fields=dict(source="ingredients", target="directions"), max_source=512, max_target=256)
TEXTS = dict(max_length=512)
# Name: model, data, GB, samples in a step, precision, and how it is cut.
XL, BASE, SMALL = ("t5-xl", "recipes", 32, 128, "bf16"), ("t5-base", "recipes", 32, 128, "bf16"), ("bert-base", "texts", 32, 64, "bf16-mixed")
FIXED = dict(split="fixed", cuda_graphs=False)
OURS = {
    "xl, fixed, one by one": (*XL, dict(FIXED, batch=8, checkpointing=True)),
    "xl, fill, one by one": (*XL, dict(batch=8, split="fill", checkpointing="auto", cuda_graphs=False)),
    "xl, pipe": (*XL, dict(batch=8, split="fill", checkpointing="auto")),
    "base, fixed, one by one": (*BASE, dict(FIXED, batch=8, checkpointing=False)),
    "base, fill, one by one": (*BASE, dict(batch=32, split="fill", checkpointing="auto", cuda_graphs=False)),
    "base, pipe": (*BASE, dict(batch=32, split="fill", checkpointing="auto")),
    "bert, fixed, one by one": (*SMALL, dict(FIXED, batch=8, checkpointing=False)),
    "bert, fill, one by one": (*SMALL, dict(batch=8, split="fill", checkpointing="auto", cuda_graphs=False)),
    "bert, pipe": (*SMALL, dict(batch=8, split="fill", checkpointing="auto")),
}
# Name, which of the above it is the peer of, and its batch, checkpointing, attention, variant and the lengths that it pads to, if not to the longest.
PEERS = [
    ("xl, transformers as the file says", "xl", 8, True, "sdpa", "eager", []),
    *((f"xl, transformers {batch} checkpointing", "xl", batch, True, "eager", "eager", []) for batch in (64, 128)),
    *((f"xl, transformers {batch} {attention}", "xl", batch, False, attention, "eager", [])
      for batch, attention in ((16, "eager"), (32, "eager"), (32, "sdpa"), (64, "eager"))),
    *((f"base, transformers {batch} {variant}", "base", batch, False, "eager", variant, []) for batch in (64, 128) for variant in ("eager", "compile")),
    *((f"base, transformers {batch} {variant} few lengths", "base", batch, False, "eager", variant, [64, 128])
      for batch, variant in ((128, "compile"), (128, "graphs"), (64, "graphs"))),
    *((f"bert, transformers {batch} sdpa {variant}", "bert", batch, False, "sdpa", variant, [])
      for batch, variant in ((8, "eager"), (64, "eager"), (64, "compile"))),
    *((f"bert, transformers {batch} sdpa {variant} few lengths", "bert", batch, False, "sdpa", variant, [64, 128, 512])
      for batch, variant in ((16, "compile"), (16, "graphs"), (8, "graphs"))),
]
SHAPES = {name.split(",")[0]: (model, kind, limit, effective, precision) for name, (model, kind, limit, effective, precision, _) in OURS.items()}


class Busy:
    """How much of the time between two moments the driver saw the card at work."""

    def __init__(self):
        self.samples, self.ended = [], threading.Event()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if self.ended.is_set():
                break
            if line.strip().isdigit():
                self.samples.append((time.time(), int(line)))
        process.kill()

    def between(self, begin, end):
        self.ended.set()
        seen = [share for at, share in self.samples if begin <= at <= end]
        return statistics.mean(seen) if seen else float("nan")


def rates(done, effective, busy):
    """From the ends of steps."""
    begin = done[len(done) // 2]
    of = lambda since: effective * sum(1 for at in done if at > since) / (done[-1] - since)
    return {"rate": of(begin), "whole": of(done[0]), "busy": busy.between(begin, done[-1])}


def config_of(model):
    if model in T5:
        return dict(T5[model], vocab_size=VOCABULARY, feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.1)
    return dict(BERT[model], vocab_size=30522, max_position_embeddings=512)


def ours(trainer, folder, name, steps):
    model, kind, limit, effective, precision, cut = OURS[name]
    arch, data = ("t5", PAIRS) if kind == "recipes" else ("bert", TEXTS)
    spec = dict(version=1, run=os.path.join(folder, name.replace(", ", "-").replace(" ", "-")), attempt=1, device="cuda", threads=None,
                model=dict(arch=arch, config=config_of(model)), tokenizer=os.path.join(folder, kind, "tokenizer.json"),
                data=dict(data, train=os.path.join(folder, kind, "train.jsonl"), workers=4, prefetch=4),
                train=dict(steps=steps, effective_batch=effective, precision=precision, optimizer=dict(lr=1e-4), schedule={}, clip=1.0, seed=1,
                           deterministic=False, **cut),
                memory=dict(limit=f"{limit}g", allocator=dict(expandable_segments=True)), evaluate={}, save=dict(every=0, export=False))
    file = os.path.join(folder, "spec.json")
    with open(file, "w") as out:
        json.dump(spec, out)
    busy = Busy()
    log = os.path.join(folder, "log")
    with open(log, "w") as stderr:
        process = subprocess.Popen([trainer, "train", "--spec", file], stdout=subprocess.PIPE, stderr=stderr, text=True)
    done, parts, peak, filled = [], [], 0, []
    for line in process.stdout:
        event = json.loads(line)
        if event["type"] == "step":
            done.append(time.time())
            parts.append(event["parts"])
            peak = max(peak, event["peak"])
            filled.append(event.get("filled") or 0)
            if len(done) == steps:
                process.kill()  # instead of waiting for its last checkpoint
    process.wait()
    if len(done) < steps:
        with open(log) as said:
            return {"error": said.read().strip()[-300:]}
    shutil.rmtree(spec["run"], ignore_errors=True)
    return {**rates(done, effective, busy), "peak": peak / GIB,
            "parts": f"{statistics.mean(parts):.1f} parts" + (f", {max(filled):.0%} full" if any(filled) else "")}


def rows_of(folder, kind, count):
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, kind, "tokenizer.json"))
    with open(os.path.join(folder, kind, "train.jsonl")) as file:
        rows = [json.loads(line) for line, _ in zip(file, range(count))]
    ids = lambda texts, most: [encoding.ids[:most] for encoding in tokenizer.encode_batch(texts)]
    if kind == "recipes":
        return list(zip(ids([row["ingredients"] for row in rows], 512), ids([row["directions"] for row in rows], 256)))
    labels = sorted({row["label"] for row in rows})
    return list(zip(ids([row["text"] for row in rows], 512), ([labels.index(row["label"])] for row in rows)))


def peer(given):
    import torch
    import torch._dynamo
    import transformers

    torch.cuda.set_per_process_memory_fraction(min(1.0, given.limit * 1e9 / torch.cuda.get_device_properties(0).total_memory))
    torch.manual_seed(0)
    is_t5 = given.model in T5
    if is_t5:
        config = transformers.T5Config(**config_of(given.model), decoder_start_token_id=0, use_cache=False)
        make = transformers.T5ForConditionalGeneration
    else:
        config = transformers.BertConfig(**config_of(given.model), num_labels=3, problem_type="single_label_classification")
        make = transformers.BertForSequenceClassification
    config._attn_implementation = given.attention
    mixed = given.precision == "bf16-mixed"
    torch.set_default_dtype(torch.float32 if mixed else torch.bfloat16)
    with torch.device("cuda"):
        model = make(config).train()
    torch.set_default_dtype(torch.float32)
    if given.checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compiles, graphs = given.variant in MODES, given.variant == "graphs"
    # One graph for each of a few lengths, or one for all lengths.
    torch._dynamo.config.recompile_limit = 64
    forward = torch.compile(model, dynamic=not given.lengths, mode=MODES[given.variant]) if compiles else model
    rows = rows_of(given.folder, given.kind, given.effective * given.steps)

    def length(lists):
        longest = max(len(one) for one in lists)
        return min((length for length in given.lengths if length >= longest), default=longest)

    def padded(lists, fill):
        return torch.tensor([one + [fill] * (length(lists) - len(one)) for one in lists]).pin_memory()

    def parts(step):
        samples = sorted(rows[step * given.effective:(step + 1) * given.effective], key=lambda row: -len(row[0]) - len(row[1]))
        for start in range(0, len(samples), given.batch):
            sources, targets = zip(*samples[start:start + given.batch])
            labels = padded(targets, -100) if is_t5 else torch.tensor([target[0] for target in targets]).pin_memory()
            yield dict(input_ids=padded(sources, 0), attention_mask=padded([[1] * len(one) for one in sources], 0), labels=labels)

    def compute(part):
        part = {name: tensor.cuda(non_blocking=True) for name, tensor in part.items()}
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=mixed):
            loss = forward(**part).loss * (len(part["labels"]) / given.effective)
        loss.backward()
        return loss

    steps = [list(parts(step)) for step in range(given.steps)]
    if graphs:
        # What a graph leaves is overwritten by the next one: it is added to gradients that stay.
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    if compiles:
        shapes = {tuple(tensor.shape for tensor in part.values()): part for step in steps for part in step}
        first = list(shapes.values()) if given.lengths else steps[0]
        for part in [part for part in first for _ in range(4)]:
            compute(part)
        optimizer.zero_grad(set_to_none=not graphs)
    if given.wait:
        torch.cuda.empty_cache()
        wait_for_turn()
    done = []
    busy = Busy()
    for step in steps:
        for part in step:
            loss = compute(part)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not graphs)
        loss.item()
        done.append(time.time())
    print(json.dumps({**rates(done, given.effective, busy), "peak": torch.cuda.max_memory_allocated() / GIB,
                      "parts": f"{-(-given.effective // given.batch)} parts" + (f", {len(shapes)} shapes" if compiles else "")}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if sys.argv[1:2] == ["peer"]:
        for name, kind in (("model", str), ("kind", str), ("folder", str), ("limit", float), ("effective", int), ("precision", str), ("batch", int),
                           ("attention", str), ("variant", str), ("steps", int)):
            parser.add_argument(f"--{name}", type=kind, required=True)
        parser.add_argument("--lengths", type=int, nargs="*", default=[])
        parser.add_argument("--checkpointing", action="store_true")
        parser.add_argument("--wait", action="store_true")
        return peer(parser.parse_args(sys.argv[2:]))
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--together", type=float, metavar="SECONDS")
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    chosen = lambda name: not given.words or any(word in name for word in given.words)
    print(f"{'':46}{'samples/s':>10}{'of all':>8}{'busy':>7}{'GiB':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("recipes", "texts"):
            command = [given.trainer, "data", kind, "--rows", "20000", "--seed", "1", "--out", os.path.join(folder, kind)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

        def show(name, result):
            said = result.get("error") or f"{result['rate']:10.1f}{result['whole']:8.1f}{result['busy']:6.0f}%{result['peak']:8.2f}  {result['parts']}"
            print(f"{name:46}{said}", flush=True)

        def command_of(of, batch, checkpointing, attention, variant, lengths):
            model, kind, limit, effective, precision = SHAPES[of]
            values = dict(model=model, kind=kind, folder=folder, limit=limit, effective=effective, precision=precision, batch=batch,
                          attention=attention, variant=variant, steps=given.steps)
            command = [sys.executable, os.path.abspath(__file__), "peer", *(["--checkpointing"] if checkpointing else [])]
            return command + [word for key, value in values.items() for word in (f"--{key}", str(value))] + ["--lengths", *map(str, lengths)]

        peers = {name: command_of(*how) for name, *how in PEERS if chosen(name)}
        compiled = {name: command for name, command in peers.items() if any(mode in command for mode in MODES)} if given.together else {}
        for name, waiting in get_ready(compiled, given.together).items() if compiled else ():
            show(name, waiting.answer())
        for name in filter(chosen, OURS):
            show(name, ours(given.trainer, folder, name, given.steps))
        for name, command in peers.items():
            if name not in compiled:
                ended = subprocess.run(command, capture_output=True, text=True)
                show(name, answer(ended.returncode, ended.stdout, ended.stderr))


if __name__ == "__main__":
    main()
