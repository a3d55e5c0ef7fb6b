"""Commands of the user: every line of a long output arrives, whatever the daemon does with its logs, and nothing that a command leaves
behind outlives it by more than 5 seconds."""

import json
import re
import time

from .case import CASES, Case, for_engines
from .failure import expect
from .folder import TRAINING, parse
from .reference import DOCKERFILE, expect_nothing_left
from .sockets import Proxy, daemon_socket

PIPELINE = """version: 1
name: job
engine: %s
command: %s command %s --batch {batch} --out {run}
train: {batch: 8}
container: {gpus: 0, memory: 64m, image: image/%s.Dockerfile}
on_oom: {then: [effective_batch]}
"""

# What a command prints, in the short form and otherwise.
LINES = (60_000, 400_000)

# Where a daemon can put what containers print. The first rotates after half a second of it, the last keeps nothing.
LOGS = {
    "json-file": {"Type": "json-file", "Config": {"max-size": "64k", "max-file": "2"}},
    "local": {"Type": "local", "Config": {"max-size": "64k", "max-file": "2"}},
    "none": {"Type": "none", "Config": {}},
}

# Seconds that a process may outlive its command, and those that a busy machine may need to end it.
LIMIT = 5
MARGIN = 4


class LogDriver(Proxy):
    """A way to the daemon on which every container is made with another LogConfig."""

    def __init__(self, path, log):
        super().__init__(path, daemon_socket())
        self.log = log

    def change(self, source, data):
        if not re.match(rb"POST \S*/containers/create\b", data):
            return data
        while b"\r\n\r\n" not in data:
            data += source.recv(1 << 16)
        head, body = data.split(b"\r\n\r\n", 1)
        length = int(re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)[1])
        while len(body) < length:
            body += source.recv(1 << 16)
        request = json.loads(body)
        request["HostConfig"]["LogConfig"] = self.log
        body = json.dumps(request).encode()
        head = re.sub(rb"(?i)(\r\ncontent-length: *)\d+", rb"\g<1>%d" % len(body), head)
        return head + b"\r\n\r\n" + body


def fill(folder, engine, words):
    """Writes a pipeline that runs the stand-in as `job command WORDS`."""
    stem = folder.world.image_stem
    folder.write("image/job", folder.world.job.read_bytes()).write(f"image/{stem}.Dockerfile", DOCKERFILE)
    (folder.path / "image/job").chmod(0o755)
    program = "/job" if engine == "docker" else folder.path / "image/job"
    folder.write("job.yaml", PIPELINE % (engine, program, words, stem))


def many_lines(engine, folder, rng):
    """`pipe` is killed while the command prints, and resumed."""
    lines = LINES[not folder.world.is_short]
    fill(folder, engine, f"many {lines}")
    if engine == "docker":
        folder.pipe("image", "build", *folder.path.glob("image/*.Dockerfile"), timeout=60, code=0)
    running = folder.start("run", "job.yaml")
    folder.wait_until("the first line", lambda: list(folder.path.glob("runs/*/attempts/01/log.txt")))
    time.sleep(rng.uniform(0.5, 1.5))
    struck = running.kill()
    expect(struck or folder.index % 2, "the command had ended before pipe was killed")
    folder.pipe("resume", "latest", timeout=TRAINING, code=0)
    run = folder.run()
    # A container goes on without `pipe`; a process is ended with it, and the next attempt prints all.
    log = max(run.glob("attempts/*/log.txt")).read_bytes()
    printed = [parse(line).get("step") for line in log.splitlines() if line.startswith(b'{"step"')]
    expect(printed == list(range(1, lines + 1)), f"log.txt has {len(printed)} of {lines} lines")
    attempt = json.loads((run / "run.json").read_bytes())["attempts"][-1]["number"]
    events = [parse(line) for line in (run / "events.jsonl").read_bytes().splitlines() if b'"metrics"' in line]
    steps = [event["step"] for event in events if event.get("attempt", attempt) == attempt]
    expect(steps == list(range(1, lines + 1)), f"events.jsonl has {len(steps)} of {lines} steps")
    expect_nothing_left(folder)


def with_log(log, folder, rng):
    proxy = LogDriver(folder.path / "docker.sock", log)
    folder.env["DOCKER_HOST"] = f"unix://{proxy.path}"
    try:
        many_lines("docker", folder, rng)
    finally:
        proxy.close()


CASES.append(Case("many-lines/process", ("rustc",), 0, lambda folder, rng: many_lines("process", folder, rng)))
for name, log in LOGS.items():
    CASES.append(Case(f"many-lines/docker-{name}", ("docker", "rustc"), int(name == "json-file"),
                      lambda folder, rng, log=log: with_log(log, folder, rng)))


@for_engines("stray", needs=("rustc",), short=("process",))
def stray(engine, folder, rng):
    """The first attempt leaves a process in another session, without an environment, which holds the output and writes to the
    run folder; then it runs out of memory."""
    fill(folder, engine, "stray 4" + rng.choice(("", " --quiet")))
    began = time.time()
    folder.pipe("run", "job.yaml", timeout=60, code=0)
    output = folder.run() / "output"
    first, second = (float((output / name).read_text()) for name in ("end-8", "begin-4"))
    noise = [float(line) for line in (output / "noise").read_text().split()]
    expect(noise[0] > began and noise[0] < first, "the process that is left behind did not run")
    expect(max(noise) < first + LIMIT + MARGIN, f"it ran for {max(noise) - first:.1f} s after the command")
    expect(max(noise) < second, f"it wrote {max(noise) - second:.1f} s after the next attempt had begun")
    size = (output / "noise").stat().st_size
    time.sleep(0.5)
    expect((output / "noise").stat().st_size == size, "it writes after the end of the run")
    expect_nothing_left(folder)
