"""Run folders whose files were damaged: no command panics or hangs, and a resume gives the same bits or an error message."""

import re
import shutil

from .case import CASES, Case
from .failure import expect
from .folder import TRAINING
from .mutation import mutate
from .reference import TRAINING_KIND, expect_nothing_left, fill, model_hash

# In place of a string of a JSON file: longer than any column, and what a terminal would obey.
STRINGS = ["x" * 70_000, "\x1b]0;title\x07\x1b[31m", "\u202e\r\n", "", "../../../etc"]
NUMBERS = ["-1", "0", "1e308", "18446744073709551615", "4294967295", "9" * 40, "null", "NaN", "[]"]
# What is damaged, and the files of it.
PARTS = {"run.json": "run.json", "events.jsonl": "events.jsonl", "lock.json": "lock.json", "resolved.yaml": "resolved.yaml",
         "checkpoints": "checkpoints/**/*", "attempts": "attempts/**/*", "any-file": "**/*"}
# Those of `--short`.
SHORT = ("run.json", "checkpoints", "any-file")
READERS = [["ls"], ["ls", "--json"], ["show"], ["show", "--json"], ["report", "latest"], ["diff", "latest", "latest"]]


def original(world):
    """A run that was stopped in the middle, made once; its folder is copied by every case."""
    def make(path):
        folder = world.folder("stopped")
        pipeline = fill(folder, TRAINING_KIND)
        folder.pipe("run", pipeline, "--engine", "process", "--detach", code=0)
        folder.wait_for_step(30)
        folder.pipe("stop", "latest", timeout=60, code=0)
        path.symlink_to(folder.run())
    return world.once("original", make).resolve()


def corrupt(part, folder, rng):
    """Damages files of one part of the run folder."""
    reference = folder.world.reference(TRAINING_KIND, "process")
    source = original(folder.world)
    run = folder.path / "runs" / source.name
    shutil.copytree(source, run, symlinks=True)
    folder.env["PIPE_RUNS"] = str(folder.path / "runs")
    damaged = [damage(run, part, rng) for _ in range(rng.choice([1, 1, 2, 4]))]
    folder.write("damage.txt", "\n".join(damaged) + "\n")
    for command in READERS:
        look(folder, *command)
    answer = look(folder, "resume", "latest", timeout=TRAINING)
    if answer.code == 0:
        same = model_hash(run) == reference.model
        expect(same, f"finished with another model after: {'; '.join(damaged)}\n{answer}")
    else:
        expect("error" in answer.stderr, f"a refusal without an error message after: {'; '.join(damaged)}\n{answer}")
    look(folder, "report", "latest")
    expect_nothing_left(folder)
    look(folder, "rm", source.name)


def look(folder, *command, timeout=30):
    answer = folder.pipe(*command, timeout=timeout)
    expect("\x1b" not in answer.stdout + answer.stderr, f"escape codes in the output\n{answer}")
    expect(answer.own_bytes < 1 << 30, f"held {answer.own_bytes >> 20} MiB\n{answer}")
    return answer


def damage(run, part, rng):
    """Damages one file; says how."""
    files = sorted(path for path in run.glob(PARTS[part]) if path.is_file() and not path.is_symlink())
    if not files:
        return f"{part}: nothing is left of it"
    path = rng.choice(files)
    name = path.relative_to(run)
    kind = rng.random()
    if kind < 0.12:
        path.unlink()
        return f"{name} deleted"
    if kind < 0.18:
        path.unlink()
        path.mkdir()
        return f"{name} is a folder"
    if kind < 0.45 and path.suffix in (".json", ".jsonl"):
        # What is no text any more stays as it is around the change.
        text, how = change_json(path.read_text(errors="surrogateescape"), rng)
        path.write_text(text, errors="surrogateescape")
        return f"{name}: {how}"
    path.write_bytes(mutate(path.read_bytes(), rng))
    return f"{name} mutated"


def change_json(text, rng):
    """Puts another value in the place of one."""
    values = list(re.finditer(r'(?<=: )-?[0-9][0-9.e+-]*|(?<=:)-?[0-9][0-9.e+-]*|"(?:[^"\\]|\\.)*"', text))
    if not values:
        return text, "nothing to change"
    value = rng.choice(values)
    if value[0].startswith('"'):
        string = rng.choice(STRINGS)
        new = '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 32 else c for c in string) + '"'
    else:
        new = rng.choice(NUMBERS)
    return text[:value.start()] + new + text[value.end():], f"{value[0][:40]} became {new[:40]!r}"


for part in PARTS:
    CASES.append(Case(f"corrupt/{part}", (), int(part in SHORT), lambda folder, rng, part=part: corrupt(part, folder, rng)))
