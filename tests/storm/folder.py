"""A working folder of one case: `pipe` is run in it as a user would, and what belongs to it can be found again."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from .failure import Failure, expect
from .running import Running

# In the environment of every program that a case starts, with the folder as its value.
MARK = "PIPE_STORM_FOLDER"

# For a command that only reads the run folder.
READING = 30
# For a command that trains.
TRAINING = 90


class Folder:
    def __init__(self, world, path, **env):
        self.world = world
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.env = env
        # Its number within the case.
        self.index = 0
        self.commands = 0

    def write(self, name, content):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self

    def environment(self):
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PIPE_", "HF_"))}
        env.update({
            MARK: str(self.path), "NO_COLOR": "1", "HF_HUB_OFFLINE": "1",
            "PIPE_CACHE": str(self.world.base / "cache"),
            "PIPE_LEDGER": str(self.path / "ledger"), "PIPE_QUEUE": str(self.path / "queue"),
        })
        env.update(self.env)
        return {name: value for name, value in env.items() if value is not None}

    def start(self, *args, program=None, **options):
        self.commands += 1
        log = self.path / "commands"
        log.mkdir(exist_ok=True)
        program = program or self.world.pipe
        options = {"cwd": self.path, "env": self.environment(), **options}
        return Running([str(program), *map(str, args)], log / f"{self.commands:03}-{args[0]}", **options)

    def pipe(self, *args, timeout=READING, code=None, **options):
        answer = self.start(*args, **options).end(timeout)
        expect(code is None or answer.code == code, f"expected exit code {code}\n{answer}")
        return answer

    def runs(self):
        """The run folders, oldest first."""
        runs = Path(self.env.get("PIPE_RUNS", self.path / "runs"))
        return sorted(run for run in runs.iterdir() if run.is_dir()) if runs.is_dir() else []

    def run(self):
        """The newest run folder."""
        runs = self.runs()
        expect(runs, "there is no run folder")
        return max(runs, key=lambda run: (run.name.rsplit("-", 3)[1:3], run.stat().st_ctime))

    def state(self):
        """run.json of the newest run, where it can be read."""
        try:
            return json.loads((self.run() / "run.json").read_bytes())
        except (OSError, ValueError, Failure):
            return None

    def stage(self):
        """What the newest run is doing, as its run.json says; its status where it does nothing."""
        state = self.state()
        return "before the run" if state is None else state.get("doing") or state["status"]

    def is_unfinished(self):
        """Whether the newest run goes on, or has not begun."""
        state = self.state()
        return state is None or state["status"] == "running"

    def state_time(self):
        """When run.json of the newest run was written."""
        try:
            return (self.run() / "run.json").stat().st_mtime_ns
        except (OSError, Failure):
            return None

    def wait_for_step(self, step, timeout=60):
        """Waits until events.jsonl of the newest run has this step."""
        self.wait_until(f"step {step}", lambda: any(one >= step for one, _ in self.steps()), timeout)

    def wait_until(self, what, is_so, timeout=60):
        end = time.monotonic() + timeout
        while not is_so():
            expect(time.monotonic() < end, f"{what} did not happen within {timeout} s")
            time.sleep(0.02)

    def steps(self, run=None):
        """Step and loss of every step event of a run, of the newest one by default, as they stand in events.jsonl."""
        try:
            lines = ((run or self.run()) / "events.jsonl").read_bytes().splitlines()
        except (OSError, Failure):
            return []
        events = (parse(line) for line in lines if b'"step"' in line)
        return [(event["step"], repr(event["loss"])) for event in events if event.get("type") == "step"]

    def processes(self):
        """The ids of the living processes that this folder's commands started."""
        mark = f"{MARK}={self.path}".encode()
        return [pid for pid in process_ids() if mark in read_bytes(f"/proc/{pid}/environ").split(b"\0")]

    def jobs(self):
        """Those of them that are trainers."""
        words = {pid: read_bytes(f"/proc/{pid}/cmdline").split(b"\0") for pid in self.processes()}
        # The first process of a job has the words of its program behind its own.
        return [pid for pid, words in words.items() if b"--spec" in words and b"--record" not in words]

    def drivers(self):
        """Those of them that are `pipe`."""
        is_pipe = lambda pid: read_bytes(f"/proc/{pid}/cmdline").split(b"\0")[0] == str(self.world.pipe).encode()
        return [pid for pid in self.processes() if is_pipe(pid)]

    def containers(self):
        if not self.world.has_docker:
            return []
        output = self.docker("ps", "--all", "--no-trunc", "--filter", "label=pipe.run", "--format",
                             '{{.ID}} {{.Label "pipe.folder"}}')
        pairs = (line.split(" ", 1) for line in output.splitlines() if " " in line)
        return [name for name, folder in pairs if folder.startswith(f"{self.path}/")]

    def docker(self, *args):
        env = dict(os.environ)
        if "DAEMON" in self.env:
            env["DOCKER_HOST"] = self.env["DAEMON"]
        return subprocess.run(["docker", *args], capture_output=True, text=True, timeout=60, env=env).stdout

    def end_everything(self):
        """Kills what is left of it."""
        for pid in self.processes():
            kill(pid, signal.SIGKILL)
        containers = self.containers()
        if containers:
            self.docker("rm", "--force", *containers)

    def remove(self):
        self.end_everything()
        shutil.rmtree(self.path, ignore_errors=True)


def parse(line):
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def process_ids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_bytes(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def kill(pid, number):
    """Sends a signal. Whether the process was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
