#!/usr/bin/env python3
"""Commands on a card: a PyTorch script that runs out of memory is retried to its end, with the curve of one that had the whole card;
a loop with pipe_train goes through an out-of-memory, a kill, a stop and resumes with the curve of an undisturbed one; a neighbour is
waited for; a fragmented allocator gets expandable_segments.

usage: gpu_commands.py --bin FOLDER-OF-THE-BINARIES [--docker] [PART...]     (parts: retry, loop, neighbour, fragments; all by default)
Needs a CUDA card and a python3 with torch. With --docker the script runs in a container that sees this machine's Python read-only.
The card is made small with memory.limit; nothing on it is changed."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TRAIN = os.path.join(HERE, "..", "pipelines", "python-train", "train.py")
PACKAGE = os.path.realpath(os.path.join(HERE, "..", "python"))
LOOP = os.path.join(HERE, "fixtures", "own_loop.py")
LOOP_STEPS = 16
HOLD = """
import sys, time, torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(int(free - float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""
# Three pieces of 2 GiB, in each of which a small block stays, and then one that is larger than what is left of any.
FRAGMENTS = """
import torch
block = lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")
small, rest = [], []
for _ in range(3):
    x = block(2 << 30)
    del x
    small.append(block(100 << 20))
    rest.append(block((2 << 30) - (100 << 20)))
rest.clear()
x = block(3 << 30)
print('{"step": 1, "loss": 1.0}')
"""
RESULTS = []


def check(name, good, found):
    RESULTS.append((name, bool(good)))
    print(f"{'ok    ' if good else 'FAILED'} {name}: {found}", flush=True)


def mounts():
    """The folders that Python and torch are in."""
    wanted = {"/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    there = sorted(path for path in wanted if os.path.exists(path))
    outer = [path for path in there if not any(path.startswith(other + "/") for other in there)]
    return [dict(host=os.path.realpath(path), container=path) for path in outer]


class Pipe:
    def __init__(self, folder, engine):
        self.pipe, self.engine = os.path.join(os.path.abspath(folder), "pipe"), engine

    def write(self, name, command, **sections):
        container = dict(gpus=1, memory="32g", env=dict(PYTHONPATH=PACKAGE))
        if self.engine == "docker":
            os.makedirs("image", exist_ok=True)
            for script in (TRAIN, LOOP):
                shutil.copy(script, "image")
            with open("image/Dockerfile", "w") as file:
                file.write("FROM scratch\nCOPY train.py own_loop.py /\n")
            package = dict(host=PACKAGE, container="/python")
            container.update(image="image/Dockerfile", mounts=[*mounts(), package], env=dict(PATH=os.environ["PATH"], PYTHONPATH="/python"))
        with open(f"{name}.yaml", "w") as file:
            json.dump(dict(version=1, name=name, command=command, container=container, **sections), file)

    def run(self, name, command, *words, **sections):
        self.write(name, command, **sections)
        return self.end(self.start("run", f"{name}.yaml", "--engine", self.engine, *words))

    def start(self, *words):
        env = dict(os.environ, PIPE_LEDGER=tempfile.mktemp(prefix="ledger-", dir="."))
        return subprocess.Popen([self.pipe, words[0], "--json", *words[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)

    def end(self, process):
        ended = subprocess.CompletedProcess([], 0, *process.communicate())
        ended.returncode = process.returncode
        lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        run = next((line for line in lines if line["type"] == "run"), None) or dict(attempts=[], error=ended.stderr[-1500:])
        found = [(line["step"], line.get("values", line)) for line in lines if line["type"] == "metrics"]
        losses = {step: values["loss"] for step, values in found if "loss" in values}
        return ended.returncode, run, losses

    def train(self, name, batch, limit, *words, **on_oom):
        script = "/train.py" if self.engine == "docker" else TRAIN
        command = [sys.executable, script, "--steps", "12", "--width", "1024", "--layers", "4", "--heads", "16", "--length", "256", "--save-every", "4",
                   "--batch-size", "{batch}", "--grad-accum", "{accum}", "--effective-batch", "{effective_batch}", "--precision", "{precision}",
                   "--out", "{run}", "--resume", "{resume}"]
        sections = dict(train=dict(batch=batch, effective_batch=256, precision="fp32"), checkpoints=dict(pattern="checkpoint-*.pt"))
        if limit:
            sections["memory"] = dict(limit=limit)
        return self.run(name, command, *words, **sections, on_oom=on_oom or dict(retries=6))


def attempts(run):
    seen = [(one["outcome"], one.get("cause"), one["batch"]) for one in run["attempts"]]
    if not seen or seen[-1][0] == "failed":
        print(f"       {run.get('error')}")
    return seen


def retry(pipe):
    code, run, losses = pipe.train("small", 256, "8g")
    seen = attempts(run)
    good = code == 0 and seen[0][:2] == ("oom", "capacity") and seen[-1][0] == "finished" and seen[-1][2] < 256
    check(f"retry, {pipe.engine}", good and sorted(losses) == list(range(1, 13)), (code, seen, sorted(losses)[-1:]))
    path = os.path.join(run.get("folder", "none"), "attempts", "01", "oom.json")
    record = json.load(open(path)) if os.path.exists(path) else {}
    known = {key: record.get(key) for key in ("requested", "total", "card_total", "allocated", "reserved")}
    check("retry: the record", all(known.values()) and abs(known["total"] / 2**33 - 1) < 0.02, known)
    code, run, whole = pipe.train("whole", 256, None)
    apart = max((abs(losses[step] - whole[step]) / whole[step] for step in whole if step in losses), default=1)
    check("retry: the curve", code == 0 and len(whole) == 12 and apart < 1e-3, f"{apart:.1e} from the run with the whole card, {attempts(run)}")


def loop(pipe):
    """A user's loop with pipe_train: the losses of the undisturbed run, with dropout."""
    script = "/own_loop.py" if pipe.engine == "docker" else LOOP

    def asked(batch, pause, limit=None):
        command = [sys.executable, script, "--steps", str(LOOP_STEPS), "--hidden", "4096", "--pause", str(pause)]
        sections = dict(train=dict(batch=batch, effective_batch=32, seed=2), on_oom=dict(accumulates=True), checkpoints={})
        return command, dict(sections, memory=dict(limit=limit)) if limit else sections

    command, sections = asked(32, 0)
    code, run, whole = pipe.run("loop-whole", command, **sections)
    check(f"loop, {pipe.engine}", code == 0 and sorted(whole) == list(range(1, LOOP_STEPS + 1)), (code, attempts(run)))
    apart = lambda losses: max((abs(losses[step] - whole[step]) for step in whole if step in losses), default=1)

    # The long text is in step 6, and does not fit.
    command, sections = asked(32, 0, "600m")
    code, run, losses = pipe.run("loop-small", command, **sections)
    seen = run["attempts"]
    good = code == 0 and seen[0]["outcome"] == "oom" and seen[0]["exit_code"] == 42 and seen[-1]["outcome"] == "finished"
    check("loop: out of memory", good and seen[1]["first_step"] == 6, (code, attempts(run), seen[-1].get("first_step")))
    path = os.path.join(run.get("folder", "none"), "attempts", "01", "oom.json")
    record = json.load(open(path)) if os.path.exists(path) else {}
    known = {key: record.get(key) for key in ("requested", "allocated", "reserved", "card_total", "step", "phase")}
    check("loop: the record", all(known.values()) and known["step"] == 6, known)
    check("loop: the curve", len(losses) == LOOP_STEPS and apart(losses) < 1e-5, f"{apart(losses):.1e} from the undisturbed run")

    command, sections = asked(8, 0.5)
    pipe.write("loop-cut", command, **sections)
    losses = {}
    for step, signal in ((5, "KILL"), (10, "TERM"), (None, None)):
        before = set(os.listdir("runs"))
        words = ("resume", "loop-cut") if losses else ("run", "loop-cut.yaml", "--engine", pipe.engine)
        process = pipe.start(*words)
        if signal:
            wait_for_checkpoint(step)
            end_job(process, signal)
        code, run, found = pipe.end(process)
        losses.update(found)
        check(f"loop: {signal or 'the end'}", (code == 0) == (signal is None) and len(set(os.listdir("runs")) - before) <= 1, (code, attempts(run)))
    check("loop: the curve after a kill and a stop", len(losses) == LOOP_STEPS and apart(losses) < 1e-5, f"{apart(losses):.1e}")


def wait_for_checkpoint(step):
    """Of the newest run of loop-cut."""
    began = time.time()
    while time.time() - began < 120:
        runs = [run for run in os.listdir("runs") if run.startswith("loop-cut-")]
        if any(os.path.exists(os.path.join("runs", run, "output", f"checkpoint-{step}.pt")) for run in runs):
            return
        time.sleep(0.01)
    raise RuntimeError(f"no checkpoint of step {step}")


def end_job(process, signal):
    """Kills the script of the loop, or asks `pipe` to stop."""
    if signal == "TERM":
        process.terminate()
        return
    for id in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{id}/cmdline").read().split("\0")
        except OSError:
            continue
        # Of those that watch it the first word is another.
        if words[0] == sys.executable and any(word.endswith("own_loop.py") for word in words[1:]):
            os.kill(int(id), 9)


def neighbour(pipe):
    other = subprocess.Popen([sys.executable, "-c", HOLD, "4", "25"], stdout=subprocess.PIPE, text=True)
    other.stdout.readline()
    code, run, _ = pipe.train("neighbour", 128, None, wait=90, retries=6)
    other.kill()
    seen = attempts(run)
    check(f"neighbour, {pipe.engine}", code == 0 and seen[0][1:] == ("neighbour", 128) and seen[-1] == ("finished", None, 128), (code, seen))


def fragments(pipe):
    command = [sys.executable, "-c", FRAGMENTS]
    code, run, _ = pipe.run("fragments", command, memory=dict(limit="8g"), train=dict(batch=8))
    seen = attempts(run)
    check(f"fragmented, {pipe.engine}", code == 0 and seen == [("oom", "fragmented", 8), ("finished", None, 8)], (code, seen))


PARTS = dict(retry=retry, loop=loop, neighbour=neighbour, fragments=fragments)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--docker", action="store_true")
    parser.add_argument("parts", nargs="*")
    given = parser.parse_args()
    pipe = Pipe(given.bin, "docker" if given.docker else "process")
    os.chdir(tempfile.mkdtemp(prefix="gpu-commands-"))
    for name in given.parts or PARTS:
        began = time.time()
        try:
            PARTS[name](pipe)
        except Exception as error:  # The other parts are still worth their time.
            check(name, False, repr(error))
        print(f"       {name}: {time.time() - began:.0f} s", flush=True)
    bad = [name for name, good in RESULTS if not good]
    print(f"{len(RESULTS) - len(bad)} of {len(RESULTS)} good" + (f"; bad: {', '.join(bad)}" if bad else ""))
    sys.exit(len(bad) > 0)


if __name__ == "__main__":
    main()
