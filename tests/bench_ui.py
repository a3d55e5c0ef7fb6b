#!/usr/bin/env python3
"""`pipe ui` beside TensorBoard and Aim: a thousand runs, and one run that grows.

usage: bench_ui.py --bin FOLDER-OF-THE-BINARIES [--peers PYTHON] [--runs 1000]
PYTHON has the packages `tensorboard` and `aim`. Without it only `pipe` is measured. Each server has the same runs, in its own form.

many   from the start of the server until all runs are known; the first page again, in the median of 20; memory of all its processes;
       processor time while nothing happens and nobody asks.
live   from a step until a page shows it, in the median and the worst; processor time of the server for a minute of that, which trainings on
       the same processors lack. TensorBoard reads again after 1 s instead of 5, and every server but pipe is asked every 100 ms, which no
       browser does.
slowed a training by `pipe` that uses every processor, alone and watched by the server, in turns: the time of its steps, in the median. Aim
       cannot read it, TensorBoard has its event files.
"""
import argparse
import http.client
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

STEPS = 100
LIVE_STEPS, EVERY = 150, 0.2

WRITE = """
import sys, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

def loss(step):
    return 2.0 / (1 + step) + 0.01 * (step % 7)

class Board:
    def __init__(self, folder):
        self.writer = EventFileWriter(folder, flush_secs=1)
    def add(self, step):
        value = Summary.Value(tag="loss", simple_value=loss(step))
        self.writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))
        self.writer.flush()

class AimRun:
    def __init__(self, folder):
        import aim
        self.run = aim.Run(repo=folder, system_tracking_interval=None, capture_terminal_logs=False, log_system_params=False)
        print("hash", self.run.hash, flush=True)
    def add(self, step):
        self.run.track(loss(step), name="loss", step=step)
"""
MANY = WRITE + """
kind, folder, runs, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
for at in range(runs):
    run = Board(f"{folder}/run-{at:04}") if kind == "tensorboard" else AimRun(folder)
    for step in range(1, steps + 1):
        run.add(step)
    run.writer.close() if kind == "tensorboard" else run.run.close()
"""
LIVE = WRITE + """
kind, folder, steps, every = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
run = Board(f"{folder}/live") if kind == "tensorboard" else AimRun(folder)
for step in range(1, steps + 1):
    run.add(step)
    print("step", step, time.time(), flush=True)
    time.sleep(every)
"""
COMMAND = """
import json, sys, time
steps, every, name = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
with open(name, "w") as times:
    for step in range(1, steps + 1):
        print(json.dumps({"step": step, "loss": 2.0 / (1 + step) + 0.01 * (step % 7)}), flush=True)
        print(step, time.time(), file=times, flush=True)
        time.sleep(every)
"""

def tree(pid):
    """A process and all below it."""
    children = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def memory(pid):
    """MiB: what processes share counts once."""
    total = 0
    for one in tree(pid):
        try:
            with open(f"/proc/{one}/smaps_rollup") as file:
                total += int(re.search(r"^Pss:\s+(\d+)", file.read(), re.M)[1])
        except (OSError, TypeError):
            pass
    return total / 1024


def processor(pid):
    """Seconds of processor time."""
    total = 0
    for one in tree(pid):
        try:
            with open(f"/proc/{one}/stat") as file:
                numbers = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += int(numbers[11]) + int(numbers[12])
    return total / os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """A server, asked over one connection."""

    def __init__(self, command, env=None, cwd=None, port=None):
        self.began = time.time()
        self.process = subprocess.Popen(command, env={**os.environ, **(env or {})}, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True, start_new_session=True)
        self.port, self.headers, self.connection = port, {}, None

    def ask(self, path, method="GET", body=None, headers=()):
        for attempt in (1, 2):
            try:
                self.connection = self.connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
                self.connection.request(method, path, body, {**self.headers, **dict(headers)})
                answer = self.connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                self.connection = None
                if attempt == 2:
                    return 0, b""

    def end(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Pipe(Server):
    def __init__(self, given, folder):
        super().__init__([f"{given.bin}/pipe", "ui", "--listen", "127.0.0.1:0"], {"PIPE_RUNS": f"{folder}/runs", "PIPE_CACHE": f"{folder}/cache"})
        address = self.process.stdout.readline().strip()
        host, path = address.removeprefix("http://").split("/", 1)
        self.port, self.base = int(host.rsplit(":", 1)[1]), "/" + path.split("?")[0]
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", "/" + path)
        self.headers = {"Cookie": connection.getresponse().getheader("Set-Cookie").split(";")[0]}

    def knows(self, runs):
        return f"of {runs:,}".encode() in self.ask(self.base)[1]

    def first_page(self):
        self.ask(self.base)

    def watch(self, seen, has_ended):
        """As the script of the page: told of a change, it asks for what has changed."""
        events = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        events.request("GET", f"{self.base}events", headers=self.headers)
        stream = events.getresponse()
        while not has_ended():
            try:
                line = stream.readline()
            except OSError:
                continue
            if line.startswith(b"data:"):
                began = time.time()
                found = re.findall(rb"(\d+) steps?\b|step (\d+)", self.ask(self.base, headers={"X-Pipe-Parts": "*"})[1])
                seen(max((int(one or other) for one, other in found), default=0))
                time.sleep(max(0.12, 2 * (time.time() - began)))


class Polled(Server):
    def watch(self, seen, has_ended):
        while not has_ended():
            seen(self.last_step())
            time.sleep(0.1)


class TensorBoard(Polled):
    def __init__(self, given, folder):
        port = free_port()
        super().__init__([given.peers, "-m", "tensorboard.main", "--logdir", folder, "--port", str(port), "--reload_interval", "1"], port=port)

    def knows(self, runs):
        status, text = self.ask("/data/runs")
        return status == 200 and len(json.loads(text)) == runs

    def first_page(self):
        for path in ("/", "/index.js", "/data/environment", "/data/runs", "/data/plugins_listing", "/data/plugin/timeseries/tags"):
            self.ask(path)

    # The run and the curve that are watched.
    watched = ("live", "loss")

    def last_step(self):
        run, tag = map(urllib.parse.quote, self.watched)
        status, text = self.ask(f"/data/plugin/scalars/scalars?run={run}&tag={tag}")
        return max((row[1] for row in json.loads(text)), default=0) if status == 200 else 0


class Aim(Polled):
    def __init__(self, given, folder):
        port = free_port()
        super().__init__([os.path.join(os.path.dirname(given.peers), "aim"), "up", "--repo", folder, "--port", str(port), "--yes"], port=port)

    def knows(self, runs):
        status, text = self.ask("/api/projects/activity/?timezone_offset=0", headers={"X-Timezone-Offset": "0"})
        return status == 200 and json.loads(text).get("num_runs", 0) >= runs

    def first_page(self):
        for path in ("/", "/api/projects/", "/api/runs/search/run/?q=&limit=45&report_progress=false&exclude_params=false"):
            status, _ = self.ask(path, headers={"X-Timezone-Offset": "0"})
            assert status in (200, 307), (path, status)

    def last_step(self):
        body = json.dumps([{"name": "loss", "context": {}}])
        status, text = self.ask(f"/api/runs/{self.hash}/metric/get-batch/?record_range=", "POST", body,
                                {"Content-Type": "application/json", "X-Timezone-Offset": "0"})
        if status != 200:
            return 0
        return max((step for metric in json.loads(text) for step in metric.get("iters", [])), default=0)


SERVERS = {"pipe": Pipe, "tensorboard": TensorBoard, "aim": Aim}


def pipeline(folder, name, steps, every):
    """A command that prints its steps, as a run of `pipe` in the process engine."""
    with open(f"{folder}/steps.py", "w") as file:
        file.write(COMMAND)
    with open(f"{folder}/{name}.yaml", "w") as file:
        file.write(f"version: 1\nname: {name}\nengine: process\ncommand: [{sys.executable}, {folder}/steps.py, '{steps}', '{every}', {folder}/times]\n"
                   "metrics: json\ncontainer: {gpus: 0}\n")
    return f"{folder}/{name}.yaml"


def write_many(given, kind, folder):
    if kind != "pipe":
        if kind == "aim":
            subprocess.run([os.path.join(os.path.dirname(given.peers), "aim"), "init", "--repo", folder, "--yes"], check=True, stdout=subprocess.DEVNULL)
        words = [given.peers, "-c", MANY, kind, folder, str(given.runs), str(STEPS)]
        return subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    env = {**os.environ, "PIPE_RUNS": f"{folder}/runs", "PIPE_CACHE": f"{folder}/cache", "PIPE_LEDGER": f"{folder}/ledger"}
    subprocess.run([f"{given.bin}/pipe", "run", pipeline(folder, "many", STEPS, 0)], check=True, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (run,) = os.listdir(f"{folder}/runs")
    with open(f"{folder}/runs/{run}/run.json") as file:
        state = file.read()
    for at in range(given.runs - 1):
        name = f"many-20260101-000000-{at:04}"
        shutil.copytree(f"{folder}/runs/{run}", f"{folder}/runs/{name}", symlinks=True)
        with open(f"{folder}/runs/{name}/run.json", "w") as file:
            file.write(state.replace(run, name))


def many(given, kind, folder):
    write_many(given, kind, folder)
    server = SERVERS[kind](given, folder)
    try:
        until = time.time() + 300
        while not server.knows(given.runs):
            if time.time() > until:
                return {"all runs known after s": None}
            time.sleep(0.02)
        known = time.time() - server.began
        pages = []
        for _ in range(20):
            began = time.time()
            server.first_page()
            pages.append(time.time() - began)
        time.sleep(5)
        before = processor(server.process.pid)
        time.sleep(given.idle)
        idle = processor(server.process.pid) - before
        return {"all runs known after s": known, "first page ms": 1000 * statistics.median(pages), "memory MiB": memory(server.process.pid),
                "idle % of a processor": 100 * idle / given.idle}
    finally:
        server.end()


def start_live(given, kind, folder):
    """A process that makes a step every 0.2 s, and where the times of the steps will be."""
    if kind == "pipe":
        env = {**os.environ, "PIPE_RUNS": f"{folder}/runs", "PIPE_CACHE": f"{folder}/cache", "PIPE_LEDGER": f"{folder}/ledger"}
        file = pipeline(folder, "live", LIVE_STEPS, EVERY)
        return subprocess.Popen([f"{given.bin}/pipe", "run", file], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return subprocess.Popen([given.peers, "-c", LIVE, kind, folder, str(LIVE_STEPS), str(EVERY)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def live(given, kind, folder):
    os.makedirs(f"{folder}/runs", exist_ok=True)
    if kind == "aim":
        subprocess.run([os.path.join(os.path.dirname(given.peers), "aim"), "init", "--repo", folder, "--yes"], check=True, stdout=subprocess.DEVNULL)
    server = SERVERS[kind](given, folder)
    made, shown = {}, {}
    try:
        time.sleep(5)
        writer = start_live(given, kind, folder)
        if kind != "pipe":
            if kind == "aim":
                server.hash = writer.stdout.readline().split()[1]
            reader = threading.Thread(target=lambda: made.update((int(step), float(at)) for _, step, at in map(str.split, writer.stdout)))
            reader.start()

        def seen(step):
            shown.setdefault(step, time.time())

        before, began = processor(server.process.pid), time.time()
        over = []

        def has_ended():
            if not over and writer.poll() is not None:
                over.append(time.time())
            return bool(over) and (time.time() - over[0] > 15 or LIVE_STEPS in shown)

        server.watch(seen, has_ended)
        used = (processor(server.process.pid) - before) * 60 / (time.time() - began)
        if kind == "pipe":
            with open(f"{folder}/times") as file:
                made.update((int(step), float(at)) for step, at in map(str.split, file))
        else:
            reader.join()
        # A page that shows a later step shows this one too.
        waits = []
        for step, at in made.items():
            after = [when for later, when in shown.items() if later >= step]
            waits.append(min(after) - at if after else float("inf"))
        return {"a step is shown after ms": 1000 * statistics.median(waits), "the worst ms": 1000 * max(waits), "s of a processor in a minute": used}
    finally:
        server.end()


TURNS = 4
TRAINING = """version: 1
name: training
engine: process
model:
  arch: t5
  config: {vocab_size: 256, d_model: 128, d_kv: 32, d_ff: 256, num_layers: 2, num_decoder_layers: 2, num_heads: 4, dropout_rate: 0.1}
data: {train: data/train.jsonl, fields: {source: ingredients, target: directions}, max_source: 32, max_target: 48, pad: max}
train: {steps: 250, batch: 4, optimizer: {lr: 1.0e-3}}
container: {gpus: 0}
track: {tensorboard: true}
"""


def seconds_of_steps(given, folder):
    """The time from the tenth step of a new run to its last."""
    env = {**os.environ, "PIPE_RUNS": f"{folder}/runs", "PIPE_CACHE": f"{folder}/cache", "PIPE_LEDGER": f"{folder}/ledger"}
    before = set(os.listdir(f"{folder}/runs"))
    subprocess.run([f"{given.bin}/pipe", "run", "training.yaml"], cwd=folder, check=True, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (run,) = set(os.listdir(f"{folder}/runs")) - before
    with open(f"{folder}/runs/{run}/events.jsonl") as file:
        steps = [event for event in map(json.loads, file) if event["type"] == "step"]
    return steps[-1]["ts"] - steps[9]["ts"]


def slowed(given, kind, folder):
    if kind == "aim":
        return {}
    os.makedirs(f"{folder}/runs")
    subprocess.run([f"{given.bin}/pipe-trainer", "data", "recipes", "--rows", "400", "--seed", "3", "--out", f"{folder}/data"], check=True)
    with open(f"{folder}/training.yaml", "w") as file:
        file.write(TRAINING)
    seconds_of_steps(given, folder)
    alone, watched = [], []
    for _ in range(TURNS):
        alone.append(seconds_of_steps(given, folder))
        server = SERVERS[kind](given, folder if kind == "pipe" else f"{folder}/runs")
        over = threading.Event()
        watcher = threading.Thread(target=server.watch, args=(lambda step: None, over.is_set))
        # A curve as long as the one that grows.
        server.watched = (f"{sorted(os.listdir(f'{folder}/runs'))[-1]}/tensorboard", "train/loss")
        try:
            time.sleep(8)
            watcher.start()
            watched.append(seconds_of_steps(given, folder))
        finally:
            over.set()
            watcher.join()
            server.end()
    return {"alone s": statistics.median(alone), "watched s": statistics.median(watched),
            "slower by %": 100 * (statistics.median(watched) / statistics.median(alone) - 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--peers")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--idle", type=int, default=20)
    parser.add_argument("--only", type=lambda name: [globals()[name]], help="one of many, live, slowed")
    given = parser.parse_args()
    given.bin = os.path.abspath(given.bin)
    kinds = list(SERVERS) if given.peers else ["pipe"]
    for what in given.only or (many, live, slowed):
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                found = what(given, kind, folder)
            print(f"{what.__name__:6} {kind:12}", ", ".join(f"{name} {'never' if value is None else format(value, '.3g')}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
