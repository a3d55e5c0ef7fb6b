"""Images that try to reach the host through the run folder. After the run, and after every command that reads its folder, the
host's secret files are as they were and their content is in no file that `pipe` wrote."""

import os

from .case import CASES, Case
from .failure import expect
from .folder import TRAINING
from .reference import expect_nothing_left
from .users import Secrets

PIPELINE = """version: 1
name: hostile
model: {arch: t5, config: {}}
data: {train: train.jsonl}
train: {batch: 8}
on_oom: {retries: 2}
container:
  gpus: 0
  memory: 256m
  image: image/%s.Dockerfile
  env: {TRAP: "%s", SECRETS: "%s", PIDS: "%d"}
"""
DOCKERFILE = "FROM scratch\nCOPY hostile /hostile\nENTRYPOINT [\"/hostile\"]\n"

# What tests/storm/hostile.rs does, and the exit code that it ends with.
TRAPS = ["links 42", "links 0", "links 1", "mounts 1", "fifos 42", "fifos 0", "large 42", "large 0", "holes 0", "line 0",
         "deep 1", "names 3", "events 0"]
# Those of `--short`.
SHORT = ("links 42", "mounts 1", "fifos 42", "names 3")
READERS = (["ls"], ["show"], ["report", "latest"], ["resume", "latest"], ["diff", "latest", "latest"], ["report", "latest"])
# Bytes that `pipe` may hold, whatever it is given to read.
MOST = 768 << 20


def hostile(trap, folder):
    secrets = Secrets(folder.path / "secrets")
    stem = folder.world.image_stem
    # A temporary name with the id of the process in it can be guessed.
    text = PIPELINE % (stem, trap, secrets.path, os.getpid())
    folder.write("hostile.yaml", text).write("train.jsonl", '{"source": "a", "target": "b"}\n').write("tokenizer.json", "{}")
    folder.write(f"image/{stem}.Dockerfile", DOCKERFILE).write("image/hostile", folder.world.hostile.read_bytes())
    (folder.path / "image/hostile").chmod(0o755)
    look(folder, secrets, trap, "run", "hostile.yaml", "--engine", "docker", timeout=TRAINING)
    resolved = (folder.run() / "resolved.yaml").read_text()
    for command in READERS:
        look(folder, secrets, trap, *command, timeout=TRAINING)
    run = folder.run()
    expect(read(run / "resolved.yaml") == resolved.encode(), f"{trap}: resolved.yaml was changed")
    expect(str(secrets.path) not in resolved.replace(f"SECRETS: {secrets.path}", ""), f"{trap}: the job added a mount")
    expect((run / "pipeline.yaml").read_text() == text, f"{trap}: pipeline.yaml was changed")
    logs = b"".join(read(log) for log in (run / "attempts").glob("*/log.txt"))
    expect(b"REACHED" not in logs, f"{trap}: {[line for line in logs.splitlines() if b'REACHED' in line][:5]}")
    expect_nothing_left(folder)
    look(folder, secrets, trap, "rm", run.name)
    expect(not run.exists(), f"{trap}: rm left {run}")


def look(folder, secrets, trap, *command, timeout=30):
    answer = folder.pipe(*command, timeout=timeout)
    expect("\x1b" not in answer.stdout + answer.stderr, f"{trap}: escape codes in the output\n{answer}")
    expect(answer.own_bytes < MOST, f"{trap}: held {answer.own_bytes >> 20} MiB\n{answer}")
    expect(secrets.token not in answer.stdout + answer.stderr, f"{trap}: a secret was printed\n{answer}")
    secrets.expect_unchanged()
    for path in files(folder.path / "runs"):
        expect(secrets.token.encode() not in read(path), f"{trap}: a secret is in {path}\n{answer}")
    return answer


def files(folder):
    """All regular files below, without following links."""
    for path, _, names in os.walk(folder):
        for name in names:
            file = os.path.join(path, name)
            if os.path.isfile(file) and not os.path.islink(file):
                yield file


def read(path):
    """The first 16 MiB: what `pipe` writes is smaller, and a sparse file is large."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(16 << 20)
    except OSError:
        return b""


for trap in TRAPS:
    CASES.append(Case(f"hostile-image/{trap.replace(' ', '-')}", ("docker", "root", "rustc"), int(trap in SHORT),
                      lambda folder, rng, trap=trap: hostile(trap, folder)))
