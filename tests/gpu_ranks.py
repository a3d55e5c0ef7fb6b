#!/usr/bin/env python3
"""Several ranks on a machine with one card: NCCL with one rank, Gloo with two ranks that share the card, each beside one rank alone;
a real out-of-memory of one of two ranks through `pipe`; what is foreseen for two ranks beside what they hold; and steps with a
stand-in for the sum over a link that is not there.

usage: gpu_ranks.py --bin target/release --out FOLDER [--only curves,shared,memory,bench]
Needs one card of at least 24 GB, and nothing else. Prints a table.
"""
import argparse
import json
import os
import subprocess
from pathlib import Path

# Published: the rate at which NCCL's sums move data over each link (bus bandwidth), in GB/s, and what a sum takes beside that.
# RTX 5090 over PCIe 5.0 x16 without peer access: through host memory, with few blocks. H200 over NVLink 4: as nccl-tests show it.
LINKS = [
    ("2 x RTX 5090, PCIe", 2, 22.0, 40.0, 4),
    ("8 x RTX 5090, PCIe", 8, 20.0, 90.0, 4),
    ("2 x H200, NVLink", 2, 330.0, 20.0, 16),
    ("8 x H200, NVLink", 8, 370.0, 30.0, 16),
]


class Table:
    def __init__(self):
        self.rows = []

    def add(self, what, found):
        self.rows.append((what, str(found)))
        print(f"{what:<64} {found}", flush=True)


def spec(out, run, data, **train):
    """A small T5 with dropout, in fp32 so that curves can be compared."""
    return {
        "version": 1, "run": str(run), "attempt": 1, "device": "cuda", "threads": None, "tokenizer": str(data / "tokenizer.json"),
        "model": {"arch": "t5", "config": {"d_model": 256, "d_ff": 512, "d_kv": 32, "num_heads": 8, "num_layers": 4, "vocab_size": 160, "dropout_rate": 0.1}},
        "data": {"train": str(data / "train.jsonl"), "eval": str(data / "eval.jsonl"), "fields": {"source": "ingredients", "target": "directions"}, "max_source": 64, "max_target": 128},
        "train": {"steps": 30, "batch": 8, "effective_batch": 31, "split": "fill", "precision": "fp32", "optimizer": {"lr": 0.001, "eps": 1e-6}, "schedule": {}, "clip": 1.0,
                  "checkpointing": False, "dropout": 0.1, "seed": 42, "deterministic": True, **train},
        "memory": {}, "evaluate": {"every": 15, "generate": 1}, "save": {"every": 10},
    }


def train(trainer, out, name, settings, extra=(), env=None):
    run = Path(settings["run"])
    run.mkdir(parents=True, exist_ok=True)
    file = run / "spec.json"
    file.write_text(json.dumps(settings))
    ended = subprocess.run([trainer, "train", "--spec", file, *extra], capture_output=True, text=True, timeout=240, env={**os.environ, **(env or {})})
    events = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode != 0:
        print(f"{name}: exit {ended.returncode}\n{ended.stderr[-3000:]}")
    losses = [event["loss"] for event in events if event["type"] == "step"]
    evals = [event["loss"] for event in events if event["type"] == "eval"]
    started = next((event for event in events if event["type"] == "started"), {})
    return ended, losses, evals, started, events


def apart(one, other):
    if len(one) != len(other) or not one:
        return f"{len(one)} and {len(other)} steps"
    steps = [abs(a - b) for a, b in zip(one, other)]
    return f"{max(steps):.1e} ({', '.join(f'{steps[at - 1]:.0e}' for at in (1, 3, 10, 20, 30) if at <= len(steps))} after 1, 3, 10, ... steps)"


def curves(args, trainer, table):
    data = args.out / "data"
    subprocess.run([trainer, "data", "recipes", "--rows", "400", "--seed", "1", "--out", data], check=True)
    _, plain, plain_evals, _, _ = train(trainer, args.out, "one rank", spec(args.out, args.out / "one", data))
    for batch in (4, 16):
        _, other, *_ = train(trainer, args.out, "another batch", spec(args.out, args.out / f"batch-{batch}", data, batch=batch))
        table.add(f"one rank, batch {batch} instead of 8: apart", apart(plain, other))
    for name, changed in (("fp32", {}), ("bf16-mixed, 60 steps", {"precision": "bf16-mixed", "steps": 60})):
        # One rank of one: joined as every rank is, with a file of heartbeats as the launcher makes it.
        alone = spec(args.out, args.out / f"nccl-{name}", data, **changed)
        folder = args.out / f"nccl-{name}/attempts/01/job/ranks"
        folder.mkdir(parents=True)
        (folder / "heartbeats-0").write_bytes(bytes(40))
        ended, losses, evals, started, _ = train(trainer, args.out, "NCCL, one rank", alone, ["--rank", "0"], {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"})
        _, other, *_ = train(trainer, args.out, "one rank", spec(args.out, args.out / f"none-{name}", data, **changed))
        table.add(f"one rank by {started.get('sums_by')}, {name}: apart from none", apart(other, losses))
    for shard in ("none", "optimizer"):
        two = spec(args.out, args.out / f"two-{shard}", data, ranks=2, shard=shard)
        two["rank"] = {"index": 0, "count": 2}
        ended, losses, evals, started, events = train(trainer, args.out, f"two ranks, shard {shard}", two)
        table.add(f"two ranks on one card by {started.get('sums_by')}, shard {shard}: apart", f"{apart(plain, losses)}, evaluation {apart(plain_evals, evals)}")
        again = {**two, "run": str(args.out / f"again-{shard}")}
        _, repeated, *_ = train(trainer, args.out, "again", again)
        table.add(f"  deterministic, once more: the same bits", losses == repeated and bool(losses))
    for precision in ("bf16-mixed", "bf16"):
        one = spec(args.out, args.out / f"one-{precision}", data, precision=precision)
        two = spec(args.out, args.out / f"two-{precision}", data, precision=precision, ranks=2, checkpointing=True)
        two["rank"] = {"index": 0, "count": 2}
        _, first, *_ = train(trainer, args.out, precision, one)
        _, second, *_ = train(trainer, args.out, precision, two)
        table.add(f"two ranks, {precision}, checkpointing, CUDA graphs: apart from one", apart(first, second))
    two_nccl = spec(args.out, args.out / "two-nccl", data, ranks=2)
    two_nccl.update(rank={"index": 0, "count": 2}, cards=2)
    ended, *_ = train(trainer, args.out, "two cards asked for, one there", two_nccl)
    table.add("two cards asked for where there is one", next((line for line in ended.stderr.splitlines() if line.startswith("error:")), ended.returncode))


TWO_ON_ONE = """
import os, sys, torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
x = torch.ones(4, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
print("summed", x[0].item())
"""


def shared_card(args, table):
    """Whether NCCL itself takes two ranks on one card, asked through Python's torch."""
    store = args.out / "store"
    command = ["timeout", "60", "python3", "-c", TWO_ON_ONE, str(store)]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in (0, 1)]
    said = [rank.communicate()[0] for rank in ranks]
    why = next((line.strip() for text in said for line in text.splitlines() if "Duplicate GPU" in line or "summed" in line), said[0].strip().splitlines()[-1:] or "")
    table.add("NCCL, two ranks on one card", str(why)[:150])


PIPELINE = """
version: 1
name: ranks
model: {arch: t5, config: {d_model: 512, d_ff: 2048, d_kv: 64, num_heads: 8, num_layers: 6, vocab_size: 160}}
data: {train: data/train.jsonl, fields: {source: ingredients, target: directions}, max_source: 256, max_target: 128, pad: max}
train: {steps: 12, batch: 64, effective_batch: 128, ranks: 2, split: fixed, precision: bf16-mixed, checkpointing: false, cuda_graphs: false}
memory: {limit: 2g}
on_oom: {reduce: halve}
evaluate: {every: 0}
save: {every: 0, export: false}
container: {gpus: 1}
engine: process
"""


def pipe_run(pipe, args, name, *settings):
    env = {**os.environ, "PIPE_LEDGER": str(args.out / "ledger"), "PIPE_CACHE": str(args.out / "cache")}
    words = [pipe, "run", "ranks.yaml", "--json", *[word for setting in settings for word in ("--set", setting)]]
    ended = subprocess.run(words, cwd=args.out, env=env, capture_output=True, text=True, timeout=280)
    if ended.returncode != 0:
        print(f"{name}: exit {ended.returncode}\n{ended.stdout[-1500:]}\n{ended.stderr[-1500:]}")
    folder = max((args.out / "runs").glob("ranks-*"), key=lambda path: path.stat().st_mtime)
    return ended, folder, env


def curve(folder):
    losses = {}
    for line in (folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["type"] == "step":
            losses[event["step"]] = event["loss"]
    return [losses[step] for step in sorted(losses)]


def memory(args, pipe, table):
    (args.out / "ranks.yaml").write_text(PIPELINE)
    ended, folder, env = pipe_run(pipe, args, "out of memory")
    state = json.loads((folder / "run.json").read_text())
    outcomes = [(attempt["batch"], (attempt.get("outcome") or {}) if isinstance(attempt.get("outcome"), dict) else attempt.get("outcome")) for attempt in state["attempts"]]
    record = json.loads((folder / "attempts/01/job/oom.json").read_text()) if (folder / "attempts/01/job/oom.json").exists() else {}
    table.add("two ranks, 2 GiB each, through pipe: exit, attempts", f"{ended.returncode}, {outcomes}")
    table.add("  the record: rank, phase, step", f"{record.get('rank', 0)}, {record.get('phase')}, {record.get('step')}")
    _, free, _ = pipe_run(pipe, args, "undisturbed", "memory.limit=60g", "train.batch=16")
    table.add("  apart from the undisturbed run of the same batch", apart(curve(folder), curve(free)))
    for settings in (["train.batch=16"], ["train.batch=16", "train.shard=optimizer"], ["train.batch=64"]):
        settings += ["memory.limit=60g", "memory.worst_first=false"]
        foreseen = subprocess.run([pipe, "plan", "ranks.yaml", "--json", *[word for setting in settings for word in ("--set", setting)]], cwd=args.out, env=env, capture_output=True, text=True)
        _, folder, _ = pipe_run(pipe, args, "measured", *settings)
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        steps = [event for event in events if event["type"] == "step"]
        peaks = [max(step["ranks"][rank]["peak"] for step in steps) for rank in range(2)] if steps else []
        try:
            plan = json.loads(foreseen.stdout)
            allocated = plan["allocated"]
        except (ValueError, KeyError):
            print(foreseen.stdout[-500:], foreseen.stderr[-500:])
            continue
        table.add(f"foreseen and held by each rank, MiB ({', '.join(settings[:-2])})", f"{allocated >> 20}, {[peak >> 20 for peak in peaks]}, {max(peaks) / allocated - 1:+.2%}")


def bench(args, trainer, table):
    models = [("t5-base", 16, 512, 128, "bf16-mixed", "adamw", 1), ("t5-xl", 8, 512, 128, "bf16", "adafactor", 1)]
    lines = []
    for model, batch, source, target, precision, optimizer, accum in models:
        def run(*extra):
            words = [f"{trainer}-bench", "steps", "--model", model, "--batch", str(batch), "--source", str(source), "--target", str(target), "--precision", precision,
                     "--optimizer", optimizer, "--accum", str(accum), "--steps", "12", *extra]
            ended = subprocess.run(words, capture_output=True, text=True, timeout=280)
            if ended.returncode != 0:
                print(ended.stderr[-800:])
                return None
            return json.loads(ended.stdout.splitlines()[-1])
        alone, plain, free = run(), run("--no-graphs"), run("--sums", "1e9")
        if not (alone and plain and free):
            continue
        size = 2 if precision == "bf16" else 4
        gradient = free["params"] * size
        table.add(f"{model} {batch} x {source}/{target} {precision}: one card, no graphs, free sums", f"{alone['ms']:.1f}, {plain['ms']:.1f}, {free['ms']:.1f} ms; {gradient / 1e9:.2f} GB in {free['sums']['buckets']} buckets")
        for name, count, bus, latency, blocks in LINKS:
            rate = bus / (2 * (count - 1) / count)
            link = ["--sums", f"{rate:.3f}", "--sum-latency", f"{latency}", "--sum-blocks", f"{blocks}"]
            found, after = run(*link), run(*link, "--sums-after")
            if not (found and after):
                continue
            length = gradient / rate / 1e6 + latency / 1e3 * found["sums"]["buckets"]
            shown = found["ms"] - free["ms"]
            hidden = 1 - shown / length
            table.add(f"  {name}: sum, step, hidden", f"{length:.1f} ms, {found['ms']:.1f} ms, {hidden:.0%}; after a graph {after['ms']:.1f} ms")
            lines.append({"model": model, "link": name, "ranks": count, "alone_ms": alone["ms"], "free_ms": free["ms"], "sum_ms": length, "step_ms": found["ms"], "after_ms": after["ms"], "hidden": hidden})
    (args.out / "sums.json").write_text(json.dumps(lines, indent=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="curves,shared,memory,bench")
    args = parser.parse_args()
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    pipe, trainer = (args.bin / "pipe").resolve(), (args.bin / "pipe-trainer").resolve()
    table = Table()
    parts = {"curves": lambda: curves(args, trainer, table), "shared": lambda: shared_card(args, table), "memory": lambda: memory(args, pipe, table), "bench": lambda: bench(args, trainer, table)}
    for name in args.only.split(","):
        try:
            parts[name]()
        except Exception as error:  # One part must not cost the others their time on the card.
            print(f"{name}: {error!r}")
    (args.out / "table.json").write_text(json.dumps(table.rows, indent=1))


if __name__ == "__main__":
    main()
