#!/usr/bin/env python3
"""What pipe does about memory, on a card: every cause of an out-of-memory for real, the batch that `pipe fit` names, `train.batch:
auto`, the ledger, and the time from an out-of-memory to the next step.

usage: gpu_memory.py --bin FOLDER-OF-THE-BINARIES [--docker] [--out FILE] [PART...]
       (parts: causes, fragments, neighbour, fit, auto, ledger, recovery; all of them by default; --docker for recovery in a container)
Needs a CUDA card and a python3 with torch. The card is made small with memory.limit; nothing on it is changed."""
import argparse
import concurrent.futures
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

RESULTS = []


def check(name, good, found):
    RESULTS.append((name, bool(good), str(found)))
    print(f"{'ok    ' if good else 'FAILED'} {name}: {found}", flush=True)


def yaml(name, arch, config, data, train, **more):
    sections = dict(version=1, name=name, model=dict(arch=arch, config=config), data=data, train=train, **more)
    path = f"{name}.yaml"
    with open(path, "w") as file:
        json.dump(sections, file)  # JSON is YAML.
    return path


T5_SMALL = dict(d_model=512, d_ff=1024, d_kv=64, num_layers=8, num_heads=6, vocab_size=32128,
                feed_forward_proj="gated-gelu", tie_word_embeddings=False)
T5_XL = dict(T5_SMALL, d_model=2048, d_ff=5120, num_layers=24, num_heads=32)
BERT = dict(vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
BERT_LARGE = dict(BERT, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
DEBERTA = dict(BERT, vocab_size=128100, relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm",
               share_att_key=True, pos_att_type="p2c|c2p", position_biased_input=False, type_vocab_size=0)
HYBRID = dict(input_features=8, sequence_length=60, conv_channels=[20480, 160] * 6, kernel_size=3, lstm_hidden=512,
              lstm_layers=2, attention_heads=4, num_classes=3)
CLIP = dict(projection_dim=512,
            text_config=dict(hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8,
                             vocab_size=49408, max_position_embeddings=77, bos_token_id=0, eos_token_id=1, pad_token_id=1),
            vision_config=dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
                               image_size=224, patch_size=32))
RECIPES = dict(train="recipes/train.jsonl", fields=dict(source="ingredients", target="directions"), max_source=512,
               max_target=256)
TEXTS = dict(train="texts/train.jsonl", eval="texts/eval.jsonl", max_length=128)
SERIES = dict(train="series/train.csv", fields=dict(label="label", time="time"))
CARS = dict(train="cars/train.jsonl", max_length=77)
STORIES = dict(train="stories/train.txt", max_length=512)
GPU = dict(gpus=1)
SEGMENTS = dict(expandable_segments=True)


class Pipe:
    def __init__(self, folder, engine):
        self.folder, self.engine = os.path.abspath(folder), engine

    def data(self):
        for words in (["recipes", "--rows", "4000"], ["texts", "--rows", "3000", "--eval-rows", "2100"], ["series", "--rows", "6000"],
                      ["pictures", "--rows", "600"], ["stories", "--rows", "2000"]):
            out = "cars" if words[0] == "pictures" else words[0]
            subprocess.run([f"{self.folder}/pipe-trainer", "data", *words, "--seed", "3", "--out", out], check=True)

    def call(self, *words, ledger=None):
        env = dict(os.environ, PIPE_LEDGER=ledger or tempfile.mktemp(prefix="ledger-", dir="."))
        return subprocess.run([f"{self.folder}/pipe", *words], capture_output=True, text=True, env=env)

    def run(self, path, *words, engine=None, ledger=None):
        """Exit code, the run as JSON, its events."""
        ended = self.call("run", path, "--engine", engine or self.engine, "--json", *words, ledger=ledger)
        lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        run = next((line for line in lines if line["type"] == "run"), None)
        if run is None:
            print(ended.stderr[-2000:])
            run = dict(attempts=[], status="none", error=ended.stderr[-300:])
        for part in ("checkpoints", "model"):
            shutil.rmtree(os.path.join(run.get("folder", "none"), part), ignore_errors=True)
        return ended.returncode, run, lines

    def plan(self, path, *words):
        ended = self.call("plan", path, "--json", *words)
        return json.loads(ended.stdout) if ended.returncode == 0 else dict(error=ended.stderr)


def causes_of(run):
    return [(a["outcome"], a.get("cause"), a["batch"]) for a in run["attempts"]]


def record_of(run, number=1):
    path = os.path.join(run["folder"], "attempts", f"{number:02}", "oom.json")
    return json.load(open(path)) if os.path.exists(path) else {}


def adds_up(record):
    """Sizes in torch's message have two digits behind the point, of GiB or MiB."""
    near = lambda a, b: abs(a - b) <= max(0.01 * max(a, b), 40 << 20)
    need = ("card_total", "card_free", "own", "others", "reserved", "allocated", "requested")
    if any(record.get(key) is None for key in need):
        return f"missing: {[key for key in need if record.get(key) is None]}"
    if not near(record["card_total"], record["card_free"] + record["own"] + record["others"]):
        return "the card is not free + own + others"
    if not (record["allocated"] <= record["reserved"] <= record["own"]):
        return "allocated, reserved and own do not rise"
    return "adds up"


def causes(pipe):
    # Capacity: the batch falls at once to one that fits.
    path = yaml("capacity", "hybrid-cnn-lstm", HYBRID, SERIES, dict(steps=3, batch=256, accum=2, precision="bf16-mixed"),
                memory=dict(limit="12g", allocator=SEGMENTS), container=GPU)
    code, run, lines = pipe.run(path)
    record = record_of(run)
    check("capacity", code == 0 and causes_of(run)[0][1] == "capacity" and len(run["attempts"]) == 2, causes_of(run))
    check("capacity: the record", adds_up(record) == "adds up" and len(record["points"]) == 2,
          f"{adds_up(record)}; points {record.get('points')}; requested {record.get('requested')}")
    peak = max(a["peak_memory"] for a in run["attempts"] if a["outcome"] == "finished") / 2**30
    check("capacity: the batch is not small", peak > 10.5, f"{peak:.2f} of 12 GiB")
    # Evaluation alone.
    path = yaml("eval", "bert", BERT, TEXTS, dict(steps=4, batch=8, precision="bf16-mixed"), evaluate=dict(every=2, batch=2048),
                memory=dict(limit="2.2g", allocator=SEGMENTS), container=GPU)
    code, run, _ = pipe.run(path)
    seen = causes_of(run)
    check("eval only", code == 0 and {cause for _, cause, _ in seen[:-1]} == {"eval_only"} and {b for *_, b in seen} == {8}, seen)
    # The model itself, while it is loaded; and its optimizer, which `then` may change.
    train = dict(steps=2, batch=2, precision="fp32")
    path = yaml("load", "bert", BERT_LARGE, TEXTS, train, memory=dict(limit="1g"), container=GPU)
    code, run, _ = pipe.run(path)
    check("load", code == 7 and causes_of(run) == [("oom", "model", 2)] and record_of(run)["phase"] == "load",
          (code, causes_of(run), record_of(run).get("phase")))
    path = yaml("optimizer", "bert", BERT_LARGE, TEXTS, train, memory=dict(limit="3.4g"), container=GPU,
                on_oom=dict(then=["optimizer=adafactor"]))
    code, run, _ = pipe.run(path)
    check("optimizer, then adafactor", code == 0 and causes_of(run)[0][1] == "model" and record_of(run)["phase"] == "optimizer"
          and run["attempts"][1]["changes"] == ["optimizer=adafactor"], (code, causes_of(run), run["attempts"][-1].get("changes")))

def fragments(pipe):
    """Parts of a step that differ in length: gradients of the first come to lie in what longer ones left, and stay there. Limits
    are tried until one is met at which the training fails with fixed segments for want of whole pieces, and the retry passes."""
    batch, accum, steps = 8, 6, 14
    with open("mixed.jsonl", "w") as out:
        state = 7
        for _ in range(accum * steps):
            state = state * 1103515245 % 2**31
            words = 3 + state // 65536 % 160
            row = json.dumps(dict(ingredients="salt and flour " * words, directions="stir " * (words // 2 + 2)))
            out.write((row + "\n") * batch)
    data = dict(RECIPES, train="mixed.jsonl", tokenizer="recipes/tokenizer.json", shuffle=False)
    train = dict(steps=steps, batch=batch, accum=accum, precision="bf16-mixed")
    model = dict(T5_SMALL, d_model=1024, d_ff=2816, num_layers=12, num_heads=16)

    def attempt(limit, **memory):
        memory = dict(worst_first=False, **memory, **(dict(limit=f"{limit:.3f}g") if limit else {}))
        path = yaml(f"fragments-{limit:.3f}", "t5", model, data, train, memory=memory, container=GPU, save=dict(export=False))
        return pipe.run(path)

    _, run, _ = attempt(0, allocator=SEGMENTS)
    peak = run["attempts"][-1]["peak_memory"] / 2**30
    limits = [peak * share for share in (1.01, 1.02, 1.03, 1.04, 1.055, 1.07, 1.09, 1.12, 1.15, 1.2)]
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        tried = list(zip(limits, pool.map(attempt, limits)))
    found = [(limit, run) for limit, (code, run, _) in tried if code == 0 and ("oom", "fragmented", batch) in causes_of(run)
             and causes_of(run)[-1][0] == "finished"]
    tell = lambda run: (causes_of(run), [f"{record_of(run).get(key, 0) / 2**20:.0f}" for key in ("requested", "reserved", "allocated")])
    check("fragmented, then expandable_segments", found, [(round(limit / peak, 3), *tell(run)) for limit, run in found[:2]] or
          [(round(limit / peak, 3), *tell(run)) for limit, (_, run, _) in tried])


HOLD = """
import sys, time, torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(int(free - float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def neighbour(pipe):
    path = yaml("neighbour", "hybrid-cnn-lstm", HYBRID, SERIES, dict(steps=3, batch=128, precision="bf16-mixed"),
                memory=dict(allocator=SEGMENTS), container=GPU, on_oom=dict(wait=60))
    for engine in dict.fromkeys(["process", pipe.engine]):
        other = subprocess.Popen([sys.executable, "-c", HOLD, "5", "25"], stdout=subprocess.PIPE, text=True)
        other.stdout.readline()
        code, run, _ = pipe.run(path, engine=engine)
        other.wait()
        said = run["attempts"][0].get("reason", "") if run["attempts"] else ""
        check(f"neighbour, {engine}", code == 0 and causes_of(run)[0][1:] == ("neighbour", 128)
              and causes_of(run)[-1] == ("finished", None, 128) and str(other.pid) in said, (code, causes_of(run), said))
        if engine == "process":
            check("neighbour: the record", adds_up(record_of(run)) == "adds up", adds_up(record_of(run)))
    # One that stays: a smaller batch, and the next run starts at the first one again.
    other = subprocess.Popen([sys.executable, "-c", HOLD, "5.5", "600"], stdout=subprocess.PIPE, text=True)
    other.stdout.readline()
    code, run, _ = pipe.run(path, "--set", "on_oom.wait=3", engine="process", ledger=os.path.abspath("grow"))
    other.kill()
    other.wait()
    check("a neighbour that stays", code == 0 and run["attempts"][-1]["batch"] < 128, causes_of(run))
    code, run, _ = pipe.run(path, engine="process", ledger=os.path.abspath("grow"))
    check("grown back", code == 0 and causes_of(run) == [("finished", None, 128)], causes_of(run))


FITS = [
    ("t5-bf16", "t5", T5_SMALL, RECIPES, dict(precision="bf16"), "5g"),
    ("t5-fp32-checkpointing", "t5", T5_SMALL, RECIPES, dict(precision="fp32", checkpointing=True), "6g"),
    ("bert-large-tf32", "bert", BERT_LARGE, dict(TEXTS, pad="max", max_length=384), dict(precision="tf32"), "16g"),
    ("bert-bf16-mixed", "bert", BERT, TEXTS, dict(precision="bf16-mixed"), "4g"),
    ("deberta-fp32", "deberta-v3", DEBERTA, TEXTS, dict(precision="fp32"), "8g"),
    ("clip-fp16", "clip", CLIP, CARS, dict(precision="fp16-mixed"), "6g"),
    ("clip-fp32-checkpointing", "clip", CLIP, CARS, dict(precision="fp32", checkpointing=True), "3.4g"),
    ("hybrid-bf16-mixed", "hybrid-cnn-lstm", HYBRID, SERIES, dict(precision="bf16-mixed"), "12g"),
    ("mu-sota-fp16", "mu-sota", {}, STORIES, dict(precision="fp16-mixed"), "4g"),
    ("mu-sota-fp32-checkpointing", "mu-sota", {}, STORIES, dict(precision="fp32", checkpointing=True), "1.4g"),
]


def fit(pipe):
    def one(entry):
        name, arch, config, data, train, limit = entry
        train = dict(steps=2, batch=1, effective_batch=600, **train)
        path = yaml(f"fit-{name}", arch, config, data, train, memory=dict(limit=limit, allocator=SEGMENTS), container=GPU)
        began = time.time()
        ended = pipe.call("fit", path, "--engine", "process", "--json")
        took = time.time() - began
        lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        fitted = next((line for line in lines if line["type"] == "fitted"), None)
        if fitted is None:
            return name, None, f"no batch: {ended.stderr[-300:]}", False, False
        batch, tries = fitted["batch"], sum(line["type"] == "measured" for line in lines)
        more = min(math.ceil(batch * 1.1), 600)
        run = lambda batch: pipe.run(path, "--ignore-ledger", "--set", f"train.batch={batch}", "--set", "on_oom.retries=0")
        (runs, first, _), (fails, _, _) = run(batch), run(more)
        predicted = pipe.plan(path, "--set", f"train.batch={batch}").get("allocated", 0)
        measured = first["attempts"][0].get("peak_memory") or 1 if first["attempts"] else 1
        found = (f"{batch} in {tries} tries and {took:.0f} s, peak {fitted['peak'] / 2**30:.2f} of {limit}; +10 % ({more}) "
                 f"ends with {fails}; plan {100 * (predicted / measured - 1):+.1f} %")
        return name, batch, found, runs == 0, fails == 7 or batch == 600

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        results = list(pool.map(one, FITS))
    for name, _, found, runs, tight in results:
        print(f"       {name}: {'runs' if runs else 'DOES NOT RUN'}, {'tight' if tight else 'NOT TIGHT'}: {found}")
    good = sum(runs and tight for *_, runs, tight in results)
    check("fit: the batch runs, a tenth more does not", good >= 9, f"{good} of {len(results)}")
    check("fit: every batch runs", all(runs for *_, runs, _ in results), "")


def auto(pipe):
    train = dict(steps=6, batch="auto", effective_batch=200, precision="bf16", dropout=0.0)
    path = yaml("auto", "t5", T5_SMALL, RECIPES, train, memory=dict(limit="3g", allocator=SEGMENTS), container=GPU)
    code, run, lines = pipe.run(path)
    batch = run["attempts"][0]["batch"] if run["attempts"] else None
    check("auto", code == 0 and len(run["attempts"]) == 1 and 1 < batch < 200, (code, causes_of(run)))
    code, plain, other = pipe.run(path, "--set", "train.batch=8", "--set", "memory.worst_first=false")
    losses = lambda lines: [line["loss"] for line in lines if line["type"] == "step"]
    apart = max((abs(a - b) / b for a, b in zip(losses(lines), losses(other))), default=1)
    check("auto: the same training as with batch 8", apart < 2e-2 and len(losses(lines)) == 6, f"{apart:.1e} apart in bf16")
    path = yaml("worst", "bert", BERT, TEXTS, dict(steps=5, batch=32, deterministic=True), container=GPU)
    (_, _, first), (_, _, second) = pipe.run(path), pipe.run(path, "--set", "memory.worst_first=false")
    check("worst first changes no bit", losses(first) == losses(second) and len(losses(first)) == 5, losses(first)[-1:])


def ledger(pipe):
    path = yaml("ledger", "hybrid-cnn-lstm", HYBRID, SERIES, dict(steps=3, batch=256, accum=2, precision="bf16-mixed"),
                memory=dict(limit="12g", allocator=SEGMENTS), container=GPU)
    place = os.path.abspath("known")
    first, second = pipe.run(path, ledger=place), pipe.run(path, ledger=place)
    check("ledger: the second run starts where it fits", causes_of(second[1]) == [("finished", None, first[1]["attempts"][-1]["batch"])],
          (causes_of(first[1]), causes_of(second[1])))
    larger = pipe.run(path, "--set", "memory.limit=24g", ledger=place)
    check("ledger: more memory, the batch that was asked for", causes_of(larger[1]) == [("finished", None, 256)], causes_of(larger[1]))
    smaller = pipe.run(path, "--set", "memory.limit=8g", ledger=place)
    check("ledger: less memory, a batch that fits at once", causes_of(smaller[1])[0][0] == "finished", causes_of(smaller[1]))


def recovery(pipe):
    """From the trainer's out-of-memory to the next step, T5-XL."""
    path = yaml("recovery", "t5", T5_XL, dict(RECIPES, pad="max"), dict(steps=2, batch=32, effective_batch=64, precision="bf16"),
                memory=dict(limit="32g", allocator=SEGMENTS), container=GPU, save=dict(export=False, every=0))
    code, run, lines = pipe.run(path)
    attempts = run["attempts"]
    if code != 0 or len(attempts) < 2:
        check("recovery", False, (code, causes_of(run), run.get("error")))
        return
    one, two = attempts[0], attempts[1]
    event = lambda kind, attempt: next(line for line in lines if line["type"] == kind and line.get("attempt") == attempt)
    ran_out, started, stepped = event("oom", 1)["ts"], event("started", 2), event("step", 2)["ts"]
    ended = one["began"] + one["seconds"]
    parts = dict(exit=ended - ran_out, decision=two["began"] - ended,
                 start=started["ts"] - started["ready_ms"] / 1000 - two["began"], load=started["ready_ms"] / 1000,
                 first_step=stepped - started["ts"])
    whole = stepped - ran_out
    check(f"recovery, {pipe.engine}", abs(sum(parts.values()) - whole) < 0.1 and causes_of(run)[-1][0] == "finished",
          f"{whole:.1f} s: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items()) + f"; {causes_of(run)}")


PARTS = dict(causes=causes, fragments=fragments, neighbour=neighbour, fit=fit, auto=auto, ledger=ledger, recovery=recovery)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--docker", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("parts", nargs="*")
    args = parser.parse_args()
    pipe = Pipe(args.bin, "docker" if args.docker else "process")
    os.chdir(tempfile.mkdtemp(prefix="gpu-memory-"))
    pipe.data()
    for name in args.parts or PARTS:
        began = time.time()
        try:
            PARTS[name](pipe)
        except Exception as error:  # The other parts are still worth their time.
            check(name, False, repr(error))
        print(f"       {name}: {time.time() - began:.0f} s", flush=True)
    bad = [name for name, good, _ in RESULTS if not good]
    print(f"{len(RESULTS) - len(bad)} of {len(RESULTS)} good" + (f"; bad: {', '.join(bad)}" if bad else ""))
    if args.out:
        json.dump(RESULTS, open(args.out, "w"), indent=1)
    sys.exit(len(bad) > 0)


if __name__ == "__main__":
    main()
