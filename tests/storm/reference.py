"""Runs that nothing disturbs, and the check that a disturbed one ended with the same bits."""

import hashlib
import time
from pathlib import Path

from .failure import Failure, expect
from .folder import TRAINING

T5 = """version: 1
name: t5
model:
  arch: t5
  config: {vocab_size: 128, d_model: 32, d_kv: 16, d_ff: 64, num_layers: 2, num_decoder_layers: 2, num_heads: 8,
           dropout_rate: 0.1, pad_token_id: 0, eos_token_id: 1, decoder_start_token_id: 0}
data:
  train: data/train.jsonl
  fields: {source: ingredients, target: directions}
  max_source: 32
  max_target: 48
train: {steps: %d, batch: 4, effective_batch: 8, optimizer: {lr: 2.0e-3}}
save: {every: 7}
container:
  gpus: 0
  cpus: 1
"""

# Two processes that share each step.
RANKS = T5.replace("optimizer", "ranks: 2, optimizer").replace("batch: 4", "batch: 2").replace("cpus: 1", "cpus: 2")

# An adapter with dropout beside weights that stay as they are.
ADAPTER = """version: 1
name: adapter
model: {from: %s}
adapter: {rank: 4, dropout: 0.2, targets: [q_proj, v_proj, down_proj]}
data: {train: %s/train.jsonl, fields: {messages: messages}, max_length: 96}
train: {steps: %d, batch: 2, effective_batch: 4, dropout: 0.1, optimizer: {lr: 5.0e-3}}
save: {every: 7}
container:
  gpus: 0
  cpus: 1
"""

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"

JOB = """version: 1
name: job
model: {arch: t5, config: {}}
data: {train: train.jsonl}
train: {batch: 8}
container:
  gpus: 0
  memory: 64m
  image: image/%s.Dockerfile
  env: {JOB: "%s"}
"""

DOCKERFILE = "FROM scratch\nCOPY job /job\nENTRYPOINT [\"/job\"]\n"

# The training by the real trainer that most cases disturb.
TRAINING_KIND = "t5 100"

# What a pipeline's result is.
MODELS = ("model/model.safetensors", "model/adapter_model.safetensors", "model/weights")


class Reference:
    """What an undisturbed run of a pipeline gives: steps with their losses, the model's hash, how long it takes."""

    def __init__(self, folder, seconds):
        self.steps = folder.steps()
        self.model = model_hash(folder.run())
        self.seconds = seconds
        self.bytes = sum(file.stat().st_blocks * 512 for file in folder.run().rglob("*"))


def model_hash(run):
    for name in MODELS:
        if (run / name).is_file():
            return hashlib.sha256((run / name).read_bytes()).hexdigest()
    return None


def fill(folder, kind):
    """Writes what a run of this kind needs into the folder: `t5 STEPS`, `ranks STEPS` or `adapter STEPS`, a training by the real
    trainer; or what tests/job does for this value of JOB. Returns the name of the pipeline."""
    what, count = kind.split()[:2]
    if what in ("t5", "ranks"):
        (folder.path / "data").symlink_to(folder.world.recipes)
        folder.write("t5.yaml", (T5 if what == "t5" else RANKS) % int(count))
        return "t5.yaml"
    if what == "adapter":
        model = FIXTURES / "chat-llama-lora"
        folder.write("adapter.yaml", ADAPTER % (model, model, int(count)))
        return "adapter.yaml"
    folder.env["PIPE_TRAINER"] = str(folder.world.job)
    stem = folder.world.image_stem
    folder.write("job.yaml", JOB % (stem, kind)).write("train.jsonl", '{"source": "a", "target": "b"}\n')
    folder.write("tokenizer.json", "{}").write(f"image/{stem}.Dockerfile", DOCKERFILE)
    folder.write("image/job", folder.world.job.read_bytes())
    (folder.path / "image/job").chmod(0o755)
    return "job.yaml"


def measure(world, kind, engine):
    """Runs a pipeline undisturbed."""
    folder = world.folder(f"reference-{kind.replace(' ', '-')}-{engine}")
    try:
        pipeline = fill(folder, kind)
        if engine == "docker":
            folder.pipe("image", "build", *folder.path.glob("image/*.Dockerfile"), timeout=300, code=0)
        began = time.monotonic()
        folder.pipe("run", pipeline, "--engine", engine, timeout=TRAINING, code=0)
        reference = Reference(folder, time.monotonic() - began)
        expect(reference.steps, "the reference run has no steps")
        return reference
    finally:
        # Where it failed, the next case that needs it tries again.
        folder.remove()


def expect_same(folder, reference):
    """The newest run finished as if nothing had happened, and left nothing behind."""
    run = folder.run()
    state = folder.state()
    expect(state is not None and state["status"] == "finished", f"status is {state and state['status']}")
    expect_steps(folder.steps(), reference.steps)
    expect(model_hash(run) == reference.model, f"another model: {model_hash(run)} instead of {reference.model}")
    expect((run / "report.html").is_file(), "no report.html")
    expect_nothing_left(folder)


def expect_steps(got, want):
    """Each step once, in order, each with its loss to the bit."""
    if got == want:
        return
    numbers = [step for step, _ in got]
    wanted = [step for step, _ in want]
    missing = sorted(set(wanted) - set(numbers))
    doubled = sorted({step for step in numbers if numbers.count(step) > 1}) if len(numbers) < 10_000 else []
    losses = dict(want)
    other = [f"step {step}: {loss} instead of {losses[step]}" for step, loss in got if losses.get(step, loss) != loss]
    raise Failure(f"events.jsonl has {len(got)} of {len(want)} steps: missing {brief(missing)}, doubled {brief(doubled)}, "
                  f"in order: {numbers == sorted(numbers)}, other losses: {brief(other)}")


def brief(items):
    return f"{len(items)} {items[:4]}" if items else "none"


def expect_nothing_left(folder):
    folder.wait_until("the end of its processes", lambda: not folder.processes(), timeout=15)
    containers = folder.containers()
    expect(not containers, f"containers were left: {containers}")


def finish(folder, pipeline, engine, tries=3):
    """Resumes the run until it has finished; starts one where there is none. Every refusal has an error message."""
    answer = None
    for _ in range(tries):
        if folder.state() is None:
            answer = folder.pipe("run", pipeline, "--engine", engine, timeout=TRAINING)
        else:
            answer = folder.pipe("resume", "latest", timeout=TRAINING)
        if answer.code == 0:
            return answer
        expect("error" in answer.stderr, f"a failure without an error message\n{answer}")
    raise Failure(f"not finished after {tries} tries\n{answer}")
