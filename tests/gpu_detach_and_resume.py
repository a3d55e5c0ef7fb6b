#!/usr/bin/env python3
"""Leaving a run and coming back to it, on a card: in the background, killed in the middle and taken over with a retry behind it,
stopped and resumed, two that queue for the card, and the same again by `pipe reproduce`; every curve is held against that of an
undisturbed run, bit for bit.

usage: gpu_detach_and_resume.py --bin FOLDER-OF-THE-BINARIES [--engine docker|process]
Needs a CUDA card. The card is made small with memory.limit; nothing on it is changed."""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

RESULTS = []
PIPELINE = dict(
    version=1, name="leave",
    model=dict(arch="t5", config=dict(vocab_size=256, d_model=256, d_kv=32, d_ff=1024, num_layers=4, num_decoder_layers=4, num_heads=8,
                                      dropout_rate=0.1, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)),
    data=dict(train="data/train.jsonl", fields=dict(source="ingredients", target="directions"), max_source=64, max_target=256, pad="max"),
    train=dict(steps=120, batch=256, effective_batch=256, precision="bf16-mixed", deterministic=True, checkpointing=False,
               optimizer=dict(lr=1e-3)),
    memory=dict(limit="1500m", allocator=dict(expandable_segments=True)),
    save=dict(every=40), container=dict(gpus=1))


def check(name, good, found):
    RESULTS.append(bool(good))
    print(f"{'ok    ' if good else 'FAILED'} {name}: {found}", flush=True)


class Pipe:
    def __init__(self, folder, engine):
        self.folder, self.engine = os.path.abspath(folder), engine

    def call(self, *words):
        env = dict(os.environ, PIPE_LEDGER=tempfile.mktemp(prefix="ledger-", dir="."))
        return subprocess.run([f"{self.folder}/pipe", *words], capture_output=True, text=True, env=env)

    def start(self, name, *words):
        """The id of a run in the background."""
        ended = self.call("run", "leave.yaml", "--engine", self.engine, "--name", name, "--detach", "--ignore-ledger", *words)
        if ended.returncode:
            print(ended.stderr[-2000:])
        return ended.stdout.strip()

    def show(self, run):
        ended = self.call("show", run, "--json")
        return json.loads(ended.stdout) if ended.returncode == 0 else dict(attempts=[], status="none")

    def attach(self, run):
        ended = self.call("attach", run)
        if ended.returncode:
            print(ended.stderr[-2000:])
        return ended


def steps(run):
    events = (json.loads(line) for line in open(f"runs/{run}/events.jsonl"))
    return [(event["step"], event["loss"]) for event in events if event["type"] == "step"]


def wait_for(what, found, seconds=180):
    began = time.time()
    while not found():
        if time.time() - began > seconds:
            sys.exit(f"{what} did not happen within 120 s")
        time.sleep(0.02)


def has_step(run, step):
    path = f"runs/{run}/events.jsonl"
    return lambda: os.path.exists(path) and any(one >= step for one, _ in steps(run))


def batches(run):
    return [(one["batch"], one["outcome"], one.get("cause")) for one in run["attempts"]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--engine", default="docker")
    arguments = parser.parse_args()
    pipe = Pipe(arguments.bin, arguments.engine)
    os.chdir(tempfile.mkdtemp(prefix="gpu-leaving-"))
    os.environ["PIPE_QUEUE"] = os.path.abspath("queue")
    subprocess.run([f"{pipe.folder}/pipe-trainer", "data", "recipes", "--rows", "4000", "--seed", "3", "--out", "data"], check=True)
    json.dump(PIPELINE, open("leave.yaml", "w"))
    print(pipe.call("doctor").stdout)

    whole = pipe.start("whole")
    attached = pipe.attach(whole)
    run = pipe.show(whole)
    want = steps(whole)
    check("in the background, attached", attached.returncode == 0 and len(want) == 120, batches(run))
    check("a retry on the way", run["attempts"][0]["outcome"] == "oom" and len(run["attempts"]) >= 2, run["attempts"][0].get("reason"))
    print(open(f"runs/{whole}/lock.json").read())

    killed = pipe.start("killed")
    wait_for("step 20", has_step(killed, 20))
    os.kill(int(open(f"runs/{killed}/.owner").read().split()[0]), signal.SIGKILL)
    time.sleep(0.2)
    orphan = pipe.show(killed)["status"]
    attached = pipe.attach(killed)
    run = pipe.show(killed)
    got = steps(killed)
    same = got == want if pipe.engine == "docker" else [one for one in want if one in got] == got
    check("killed and taken over", orphan == "orphaned" and run["status"] == "finished" and same, f"{orphan}; {batches(run)}; {len(got)} steps")

    early = pipe.start("early")
    wait_for("the first attempt", lambda: pipe.show(early)["attempts"])
    os.kill(int(open(f"runs/{early}/.owner").read().split()[0]), signal.SIGKILL)
    time.sleep(3)
    pipe.attach(early)
    run = pipe.show(early)
    check("killed before the out-of-memory, the retry made by who took over", steps(early) == want, batches(run))

    stopped = pipe.start("stopped")
    wait_for("step 30", has_step(stopped, 30))
    words = pipe.call("stop", stopped).stdout.strip()
    resumed = pipe.call("resume", stopped)
    run = pipe.show(stopped)
    check("stopped and resumed", resumed.returncode == 0 and steps(stopped) == want, f"{words}; {batches(run)}")

    first, second = pipe.start("first"), pipe.start("second")
    wait_for("the queue", lambda: "waiting for" in (pipe.show(second).get("doing") or ""), 60)
    doing = pipe.show(second)["doing"]
    pipe.attach(first)
    pipe.attach(second)
    one, two = pipe.show(first), pipe.show(second)
    ended = max(a["began"] + a["seconds"] for a in one["attempts"])
    check("two queue for the card", two["attempts"][0]["began"] >= ended and steps(second) == want, doing)

    again = pipe.call("reproduce", whole)
    check("reproduced", again.returncode == 0, (again.stdout + again.stderr[-400:]).strip()[-600:])
    print(pipe.call("diff", whole, killed).stdout)
    print(pipe.call("ls").stdout)
    print(f"{sum(RESULTS)} of {len(RESULTS)} ok")
    sys.exit(0 if all(RESULTS) else 1)


if __name__ == "__main__":
    main()
