"""SIGKILL among the runs that a run consists of: the stages of a pipeline, the trials of a study. Each of them has a `pipe` of its own,
and any of these is killed, or the one that began it all."""

import hashlib
import json
import signal
import time

from .case import case
from .failure import Failure, expect
from .folder import TRAINING, kill
from .reference import expect_nothing_left, expect_steps, model_hash

MODEL = """
      arch: t5
      config: {vocab_size: 128, d_model: 32, d_kv: 16, d_ff: 64, num_layers: 2, num_decoder_layers: 2, num_heads: 2, dropout_rate: 0.1}
"""

TRAINING_STAGE = f"""
    needs: [rows]
    model: {MODEL}
    data:
      train: "{{steps.rows.rows}}/train.jsonl"
      fields: {{source: ingredients, target: directions}}
      max_source: 24
      max_target: 24
    train: {{steps: 40, batch: 4, effective_batch: 8, seed: %d, optimizer: {{lr: 2.0e-3}}}}
    save: {{every: 7}}
"""

# Two trainings side by side on what a command has made, and a command that reads both models.
STAGES = """version: 1
name: staged
engine: process
container: {gpus: 0, cpus: 1}
steps:
  rows:
    command: [sh, -c, "sleep 0.3 && mkdir -p {run}/rows && head -n 120 data/train.jsonl > {run}/rows/train.jsonl"]
    inputs: [data/train.jsonl]
    outputs: {rows: rows}
  left: %s
  right: %s
  end:
    needs: [left, right]
    command: [sh, -c, "sleep 0.3 && cat {steps.left.model}/model.safetensors {steps.right.model}/model.safetensors > {run}/both"]
    outputs: {both: both}
""" % (TRAINING_STAGE % 1, TRAINING_STAGE % 5)

TRIAL = f"""version: 1
name: trial
engine: process
model: {MODEL}
data:
  train: data/train.jsonl
  eval: data/eval.jsonl
  fields: {{source: ingredients, target: directions}}
  max_source: 24
  max_target: 24
train: {{steps: 20, batch: 4, optimizer: {{lr: 2.0e-3}}}}
evaluate: {{every: 10}}
save: {{every: 7}}
container: {{gpus: 0, cpus: 1}}
"""

STUDY = """version: 1
tune: study
pipeline: trial.yaml
objective: {metric: eval.loss, direction: minimize}
space:
  train.optimizer.lr: {low: 1.0e-4, high: 3.0e-2, log: true}
  train.batch: [2, 4]
budget: {trials: 6}
seed: 11
"""

# More than this many kills of one part are no accident: `pipe` gives it up, and says so.
MOST = 6


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def whole(folder):
    """The run that the others are parts of."""
    return next((run for run in folder.runs() if "." not in run.name.rsplit("-", 1)[-1]), None)


def state(run):
    """Its run.json, where there is one."""
    try:
        return json.loads((run / "run.json").read_bytes()) if run else None
    except (OSError, ValueError):
        return None


def disturb(folder, rng, start, seconds, jobs):
    """Kills `pipe` processes of a run until it has finished, and `jobs` as well. Returns how many were struck."""
    struck = 0
    running = folder.start(*start)
    for _ in range(rng.randint(2, MOST)):
        time.sleep(rng.uniform(0, seconds / 2))
        victims = folder.drivers()
        if jobs and rng.random() < 0.3:
            victims += folder.jobs()
        for victim in rng.sample(victims, min(len(victims), rng.choice([1, 1, 1, 2, 9]))):
            struck += kill(victim, signal.SIGKILL)
        if running.wait(0.2) is not None:
            if (state(whole(folder)) or {}).get("status") == "finished":
                break
            running = folder.start(*(("resume", "latest") if whole(folder) else start))
    running.wait(TRAINING)
    running.kill()
    for _ in range(4):
        answer = folder.pipe("resume", "latest", timeout=TRAINING) if whole(folder) else folder.pipe(*start, timeout=TRAINING)
        if answer.code == 0:
            return struck
        expect("error" in answer.stderr, f"a failure without an error message\n{answer}")
    raise Failure(f"not finished after 4 tries\n{answer}")


def undisturbed(world, name, write, start, result):
    """What comes out where nothing is killed, and the seconds that it takes."""
    def measure(_):
        folder = world.folder(f"reference-{name}")
        write(folder)
        began = time.monotonic()
        folder.pipe(*start, timeout=TRAINING, code=0)
        world.references[name] = result(folder), time.monotonic() - began
        folder.remove()
    world.once(name, measure)
    return world.references[name]


def storm(folder, rng, name, write, start, result, jobs):
    want, seconds = undisturbed(folder.world, name, write, start, result)
    write(folder)
    struck = disturb(folder, rng, start, seconds, jobs)
    compare(result(folder), want)
    expect_nothing_left(folder)
    folder.world.struck.extend([f"pipe {name.split()[0]}"] * struck)


def compare(got, want):
    expect(got.keys() == want.keys(), f"parts {sorted(got)} instead of {sorted(want)}")
    for name, (steps, *rest) in got.items():
        expect_steps(steps, want[name][0])
    for name, (_, *rest) in sorted(got.items(), key=lambda part: part[0] == "end"):
        expect(rest == list(want[name][1:]), f"{name}: {rest} instead of {want[name][1:]}")


def parts(folder):
    """The run of each part, by its name."""
    whole_name = whole(folder).name
    found = {}
    for run in folder.runs():
        name = run.name.removeprefix(f"{whole_name}.")
        if name != run.name:
            found[name] = run
    return found


def write_stages(folder):
    (folder.path / "data").symlink_to(folder.world.recipes)
    folder.write("staged.yaml", STAGES)


def result_of_stages(folder):
    expect(state(whole(folder))["status"] == "finished", "the pipeline has not finished")
    result = {}
    for name, run in parts(folder).items():
        status = state(run)["status"]
        both = run / "output/both"
        result[name] = (folder.steps(run), status, model_hash(run), sha256(both.read_bytes()) if both.is_file() else None)
    return result


@case("kill-stages/process")
def kill_stages(folder, rng):
    storm(folder, rng, "stages", write_stages, ("run", "staged.yaml"), result_of_stages, jobs=True)


def write_study(folder):
    (folder.path / "data").symlink_to(folder.world.recipes)
    folder.write("trial.yaml", TRIAL).write("study.yaml", STUDY)


def result_of_study(folder):
    shown = json.loads(folder.pipe("tune", "status", "--json", code=0).stdout)
    result = {}
    for trial in shown["trials"]:
        result[str(trial["number"])] = ([], trial["state"], repr(trial.get("value") or trial.get("values")), repr(trial["params"]))
    return result


@case("kill-study/process")
def kill_study(folder, rng):
    """One trial after the other: what is proposed depends on those before it, so that all of it is compared. A job that somebody kills
    is a failed trial."""
    storm(folder, rng, "study", write_study, ("tune", "run", "study.yaml"), result_of_study, jobs=False)
