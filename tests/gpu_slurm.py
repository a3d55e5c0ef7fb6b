#!/usr/bin/env python3
"""The engine slurm with real cards: a Slurm cluster on this one machine that owns its cards (tests/slurm/cluster start --cards), and on
it what the cluster says of its cards, trainings beside the same ones without a cluster, what a job can open, a real out-of-memory that is
retried in a second job, a refusal, and two runs that wait for one card.

usage: gpu_slurm.py --bin target/release --out FOLDER [--slurm ARCHIVE] [PART...]
       (parts: doctor, trainings, choices, devices, memory, refused, queue; all of them by default)
Needs root, a CUDA card, cgroups, and Slurm. For a machine without a network `tests/slurm/pack slurm.tar.xz` puts Slurm into one archive
on a Debian 12 with a network; --slurm unpacks it over / where there is no slurmctld, so the machine should be one that is thrown away.
--without-card tries the script itself on a machine without a card: trainings are on the CPU, and cards only count in the queue."""
import argparse
import concurrent.futures
import fcntl
import glob
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTER = os.path.join(HERE, "slurm", "cluster")
# Where an archive of tests/slurm/pack has libraries.
LIBRARIES = "usr/lib/slurm-libraries/"
SIOCSIFADDR = 0x8916
RESULTS = []

# What a job sees of the cards.
VISIBLE_CARDS = """
import glob, json, os, shutil, subprocess, sys
def opened(path):
    try:
        os.close(os.open(path, os.O_RDWR))
        return "opened"
    except OSError as error:
        return error.strerror
seen = dict(visible=os.environ.get("CUDA_VISIBLE_DEVICES"), devices={path: opened(path) for path in sorted(glob.glob("/dev/nvidia[0-9]*"))})
if shutil.which("nvidia-smi"):
    seen["nvidia-smi"] = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("UUID")
if sys.argv[2] == "card":
    import torch
    # device_count asks NVML, which counts cards that a job cannot open.
    seen["torch"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen["torch"]:
        seen["sum"] = torch.ones(1000, device="cuda").sum().item()
json.dump(seen, open(sys.argv[1], "w"))
"""


def check(name, good, found):
    RESULTS.append((name, bool(good), str(found)))
    print(f"{'ok    ' if good else 'FAILED'} {name}: {found}", flush=True)


def unpack(archive):
    """An archive of tests/slurm/pack, over /. Libraries that this machine has stay its own."""
    if shutil.which("slurmctld"):
        return
    known = {line.split()[0] for line in subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout.splitlines()[1:]}
    with tarfile.open(archive) as files:
        wanted = [file for file in files if not (file.name.startswith(LIBRARIES) and os.path.basename(file.name) in known)]
        files.extractall("/", members=wanted, **(dict(filter="fully_trusted") if hasattr(tarfile, "fully_trusted_filter") else {}))
    print("libraries of the archive:", ", ".join(os.path.basename(file.name) for file in wanted if file.name.startswith(LIBRARIES)) or "none")
    subprocess.run(["ldconfig"], check=True)
    if subprocess.run(["id", "munge"], capture_output=True).returncode:
        subprocess.run(["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", "munge"], check=True)
    for folder, mode in (("/etc/munge", 0o700), ("/var/lib/munge", 0o711), ("/var/log/munge", 0o700), ("/run/munge", 0o755)):
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, mode)
        shutil.chown(folder, "munge", "munge")


def add_address():
    """Slurm asks for names with AI_ADDRCONFIG, which finds not even 127.0.0.1 where that is the only address of a machine."""
    try:
        socket.getaddrinfo("127.0.0.1", None, socket.AF_INET, flags=socket.AI_ADDRCONFIG)
    except socket.gaierror:
        request = struct.pack("16sH2x4s8x", b"lo:slurm", socket.AF_INET, socket.inet_aton("127.0.0.2"))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFADDR, request)


class Slurm:
    """The cluster, with the programs of Slurm."""

    def __init__(self, folder, with_card):
        self.folder, self.cards = folder, len(glob.glob("/dev/nvidia[0-9]*")) if with_card else 2
        options = ["--no-accounting", *(["--cards"] if with_card else [])]
        add_address()
        # Logs go to stderr, where a daemon does not come up.
        started = subprocess.run([CLUSTER, "start", folder, "1", *options], stdout=subprocess.PIPE, text=True)
        if started.returncode:
            sys.exit(f"the cluster does not start: {started.returncode}")
        os.environ["SLURM_CONF"] = started.stdout.strip()

    def stop(self):
        subprocess.run([CLUSTER, "stop", self.folder])

    def queue(self):
        lines = subprocess.run(["squeue", "--noheader", "--format=%i %T"], capture_output=True, text=True, check=True).stdout.splitlines()
        return [line for line in lines if "COMPLETING" not in line]

    def cancel_all(self):
        """So that no job of a part that failed has the card."""
        subprocess.run(["scancel", "--user=root"])

    def job(self, number):
        """The fields of a job: StartTime, EndTime, ..."""
        text = subprocess.run(["scontrol", "show", "job", number], capture_output=True, text=True).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def cards_of(self, number):
        asked = re.search(r"gpu:(?:\w+:)?(\d+)", self.job(number).get("TresPerNode", ""))
        return int(asked[1]) if asked else 0


class Run:
    def __init__(self, ended):
        self.code, self.said = ended.returncode, ended.stderr
        lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        state = next((line for line in lines if line["type"] == "run"), dict(attempts=[], folder="none"))
        self.folder = state["folder"]
        self.attempts = [(one["outcome"], one.get("cause"), one["batch"]) for one in state["attempts"]]
        self.losses = {line["step"]: line["loss"] for line in lines if line["type"] == "step"}
        self.device = next((line["device"] for line in lines if line["type"] == "started"), None)
        self.jobs = [open(path).read().strip() for path in sorted(glob.glob(f"{self.folder}/attempts/*/job.started"))]
        if self.code:
            print("       " + "\n       ".join(self.said.strip().splitlines()[-6:]), flush=True)
        for part in ("checkpoints", "model"):
            shutil.rmtree(os.path.join(self.folder, part), ignore_errors=True)

    def apart(self, other):
        """The largest difference of a loss, relative to it; None where steps are missing."""
        if not self.losses or self.losses.keys() != other.losses.keys():
            return None
        return max(abs(loss - other.losses[step]) / max(1, abs(loss)) for step, loss in self.losses.items())


class Pipe:
    def __init__(self, folder, with_card):
        self.folder, self.with_card = os.path.abspath(folder), with_card

    def call(self, *words):
        env = dict(os.environ, PIPE_LEDGER=tempfile.mktemp(prefix="ledger-", dir="."))
        return subprocess.run([f"{self.folder}/pipe", *words], capture_output=True, text=True, env=env, timeout=200)

    def run(self, name, engine="slurm", **sections):
        with open(f"{name}.yaml", "w") as file:
            json.dump(dict(version=1, name=name, engine=engine, slurm=dict(containers="none"), **sections), file)  # JSON is YAML.
        return Run(self.call("run", f"{name}.yaml", "--json"))

    def container(self, gpus=1, **more):
        if self.with_card:
            return dict(gpus=gpus, cpus=4, memory="16g", **more)
        return dict(dict(gpus=0, cpus=1, memory="1g"), **more)

    def small(self, **train):
        """A small T5 with dropout, on rows of all lengths, in steps that batches do not divide."""
        config = dict(d_model=256, d_ff=512, d_kv=32, num_heads=8, num_layers=4, vocab_size=160, dropout_rate=0.1)
        if not self.with_card:
            config.update(d_model=64, d_kv=8, num_layers=2)
        return dict(
            model=dict(arch="t5", config=config),
            data=dict(train="data/train.jsonl", eval="data/eval.jsonl", fields=dict(source="ingredients", target="directions"), max_source=63, max_target=127, pad="longest"),
            train=dict(dict(steps=40, batch=7, effective_batch=31, dropout=0.1, deterministic=True, optimizer=dict(lr=1e-3)), **train),
            evaluate=dict(every=20), save=dict(every=20))

    def wide(self, limit):
        """One that needs more than the limit in its first batch."""
        small = self.small()
        small["model"]["config"].update(dict(d_ff=1024, vocab_size=256) if self.with_card else dict(d_ff=2048))
        small["data"].update(max_target=256 if self.with_card else 128, pad="max")
        # A small eps would make what is rounded otherwise larger.
        small["train"].update(dict(steps=30, batch=256, effective_batch=256) if self.with_card else dict(steps=8, batch=48, effective_batch=48))
        small["train"]["optimizer"].update(eps=1e-3)
        return dict(small, memory=dict(limit=limit, allocator=dict(expandable_segments=True)))


def doctor(pipe, slurm):
    ended = pipe.call("doctor", "--engine", "slurm")
    lines = {line.split()[1]: line for line in ended.stdout.splitlines() if line.startswith(("ok ", "note ", "missing "))}
    found = [lines.get(name, f"no line {name}") for name in ("gres", "job")]
    good = f"nodes have up to {slurm.cards} GPUs" in found[0] and found[1].startswith("ok ")
    found += [line for line in lines.values() if line.startswith("missing ")]
    check("doctor names the GPUs of nodes", ended.returncode == 0 and good, "; ".join(" ".join(line.split()) for line in found))


def trainings(pipe, slurm):
    for precision in ("fp32", "bf16-mixed") if pipe.with_card else ("fp32",):
        sections = dict(pipe.small(precision=precision), container=pipe.container())
        alone, run = pipe.run(f"alone-{precision}", "process", **sections), pipe.run(f"slurm-{precision}", **sections)
        apart = run.apart(alone)
        same = "bit for bit" if apart == 0 else f"{apart} apart"
        check(f"{precision}: the losses of engine process", run.code == 0 and apart is not None and apart <= 1e-5, f"{len(run.losses)} steps, {same}, on {run.device} and {alone.device}")
        if pipe.with_card:
            cards = slurm.cards_of(run.jobs[0])
            check("  the job had a card", cards == 1 and run.device != "cpu", f"job {run.jobs[0]}, {cards} cards")


def choices(pipe, slurm):
    sections = pipe.small(steps=4)
    run = pipe.run("auto", **sections, container=dict(pipe.container(), gpus="auto"))
    cards = slurm.cards_of(run.jobs[0])
    # Without a card the training fails, after its job was given one that is none.
    good = run.code == 0 and run.device != "cpu" if pipe.with_card else run.code == 6
    check("gpus: auto takes a card", good and cards == 1, f"exit {run.code}, {cards} cards, {run.device}")
    run = pipe.run("cpu", **sections, container=pipe.container(gpus=0))
    cards = slurm.cards_of(run.jobs[0])
    check("gpus: 0 trains on the CPU", run.code == 0 and cards == 0 and run.device == "cpu", f"exit {run.code}, {cards} cards, {run.device}")


def devices(pipe, slurm):
    with open("visible_cards.py", "w") as file:
        file.write(VISIBLE_CARDS)
    command = [sys.executable, os.path.abspath("visible_cards.py"), "{run}/seen.json", "card" if pipe.with_card else "none"]
    for gpus in (1, 0):
        run = pipe.run(f"command-{gpus}", command=command, container=dict(gpus=gpus))
        path = os.path.join(run.folder, "output", "seen.json")
        seen = json.load(open(path)) if os.path.exists(path) else {}
        opened = list(seen.get("devices", {}).values()).count("opened")
        good = bool(seen.get("visible")) == (gpus > 0) and (seen.get("visible") == "0" or not gpus)
        if glob.glob("/dev/nvidia[0-9]*"):
            good = good and opened == gpus
        if pipe.with_card:
            good = good and seen.get("torch") == gpus and seen.get("sum", 1000) == 1000
        check(f"a command with gpus: {gpus} sees " + ("one card" if gpus else "and opens none"), run.code == 0 and good, seen)


def memory(pipe, slurm):
    whole = pipe.run("whole", "process", **pipe.wide("60g" if pipe.with_card else "900m"), container=pipe.container())
    run = pipe.run("limited", **pipe.wide("1200m" if pipe.with_card else "300m"), container=pipe.container())
    apart = run.apart(whole)
    first, last = (run.attempts or [(None,) * 3])[0], (run.attempts or [(None,) * 3])[-1]
    retried = run.code == 0 and first[0] == "oom" and last[0] == "finished" and last[2] < first[2] and len(set(run.jobs)) == len(run.attempts)
    check("out of memory: retried in another job, with a smaller batch", retried, f"{run.attempts}, jobs {run.jobs}")
    check("  the losses of the run with the whole card", whole.code == 0 and len(whole.attempts) == 1 and apart is not None and apart < 1e-3, f"{len(run.losses)} steps, {apart} apart")


def refused(pipe, slurm):
    gpus = slurm.cards + 1
    run = pipe.run("refused", **pipe.small(), container=dict(pipe.container(), gpus=gpus))
    why = next((line for line in run.said.splitlines() if line.startswith("error:")), "no error")
    check(f"gpus: {gpus} is refused with exit 4", run.code == 4 and "refused" in why and not run.jobs, f"exit {run.code}, {why}")
    check("  nothing is left in the queue", not slurm.queue(), slurm.queue())


def queue(pipe, slurm):
    # Without a card one that needs all CPUs of the node.
    container = dict(pipe.container(), gpus=slurm.cards) if pipe.with_card else pipe.container(cpus=4)
    sections = dict(pipe.small(steps=60), container=container)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        both = [threads.submit(pipe.run, name, **sections) for name in ("first", "second")]
        runs = [one.result() for one in both]
    jobs = sorted((slurm.job(run.jobs[0]) for run in runs if run.jobs), key=lambda job: job["StartTime"])
    times = [(job["StartTime"][11:], job["EndTime"][11:]) for job in jobs]
    good = len(jobs) == 2 and jobs[0]["EndTime"] <= jobs[1]["StartTime"]
    check("two runs at once: one after the other", good and not any(run.code for run in runs), f"{times}")
    check("  the same losses", runs[0].apart(runs[1]) == 0, f"{runs[0].apart(runs[1])} apart")


PARTS = dict(doctor=doctor, trainings=trainings, choices=choices, devices=devices, memory=memory, refused=refused, queue=queue)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--slurm")
    parser.add_argument("--without-card", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("parts", nargs="*")
    given = parser.parse_args()
    if given.slurm:
        unpack(given.slurm)
    pipe = Pipe(given.bin, not given.without_card)
    os.makedirs(given.out, exist_ok=True)
    os.chdir(given.out)
    for name in ("runs", "cache", "queue"):
        os.environ[f"PIPE_{name.upper()}"] = os.path.abspath(name)
    if {"trainings", "choices", "memory", "refused", "queue"} & set(given.parts or PARTS):
        subprocess.run([f"{pipe.folder}/pipe-trainer", "data", "recipes", "--rows", "1000", "--seed", "3", "--out", "data"], check=True)
    began = time.time()
    slurm = Slurm(os.path.abspath("cluster"), pipe.with_card)
    try:
        for name in given.parts or PARTS:
            at = time.time()
            try:
                PARTS[name](pipe, slurm)
            except Exception as error:  # The other parts are still worth their time.
                check(name, False, repr(error))
                slurm.cancel_all()
            print(f"       {name}: {time.time() - at:.0f} s", flush=True)
        check("the queue is empty at the end", not slurm.queue(), slurm.queue())
    finally:
        slurm.stop()
    print(f"\nafter {time.time() - began:.0f} s:")
    for name, good, found in RESULTS:
        print(f"{'ok    ' if good else 'FAILED'} {name:<62} {found[:170]}")
    bad = [name for name, good, _ in RESULTS if not good]
    print(f"{len(RESULTS) - len(bad)} of {len(RESULTS)} good")
    sys.exit(len(bad) > 0)


if __name__ == "__main__":
    main()
