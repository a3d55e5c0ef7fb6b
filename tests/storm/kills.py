"""SIGKILL at random moments; then `pipe resume` until the run has finished, with the bits of an undisturbed one. Every kill is
shown to have struck: the process was alive, and run.json names the stage."""

import shutil
import signal
import time

from .case import case, for_engines
from .failure import Failure, expect
from .folder import kill
from .reference import TRAINING_KIND, expect_same, fill, finish

# Runs out of memory in the middle, and goes on with half the batch.
RETRIES = "walk 24 40 4"
# The stage in run.json while Docker builds.
BUILDING = "building the image"


# How often a case is repeated none of whose kills struck.
TRIES = 5


def storm(engine, folder, rng, kind, victims):
    """One to four kills of a run, each at any moment of what is left of it. At least one strikes a run that goes on."""
    reference = folder.world.reference(kind, engine)
    pipeline = fill(folder, kind)
    within = reference.seconds
    for _ in range(TRIES):
        struck = kills(engine, folder, rng, pipeline, victims, within)
        finish(folder, pipeline, engine)
        expect_same(folder, reference)
        if struck:
            folder.world.struck.extend(struck)
            return
        # The run was over before the first kill: another run, killed earlier.
        shutil.rmtree(folder.path / "runs")
        within /= 2
    raise Failure(f"no kill struck a run that went on, in {TRIES} tries")


def kills(engine, folder, rng, pipeline, victims, within):
    """Disturbs one run. Returns the kills that struck before its end: what was killed, and the stage that run.json names."""
    struck = []
    running = folder.start("run", pipeline, "--engine", engine)
    for _ in range(rng.randint(1, 4)):
        time.sleep(rng.uniform(0, within))
        for victim in rng.choice(victims):
            if kill_one(folder, rng, running, victim) and folder.is_unfinished():
                struck.append(f"{victim} {folder.stage()}")
        if running.wait(0.2) is not None or rng.random() < 0.3:
            running.kill()
            # A run that had not begun has nothing to resume.
            args = ("resume", "latest") if folder.state() else ("run", pipeline, "--engine", engine)
            running = folder.start(*args)
    if rng.random() < 0.5 and running.kill() and folder.is_unfinished():
        struck.append(f"pipe {folder.stage()}")
    running.end(90)
    return struck


def kill_one(folder, rng, running, victim):
    """Whether anything was killed: the `pipe` that was started, its job, or one process of that."""
    if victim == "pipe":
        return running.kill()
    jobs, containers = folder.jobs(), folder.containers()
    if victim == "rank":
        return bool(jobs) and kill(rng.choice(jobs), signal.SIGKILL)
    killed = [pid for pid in jobs if kill(pid, signal.SIGKILL)]
    killed += [container for container in containers if folder.docker("kill", container).strip()]
    return bool(killed)


@for_engines("kill-training")
def kill_training(engine, folder, rng):
    storm(engine, folder, rng, TRAINING_KIND, [["pipe"], ["pipe"], ["job"], ["pipe", "job"], ["job", "pipe"]])


@case("kill-ranks/process")
def kill_ranks(folder, rng):
    storm("process", folder, rng, "ranks 60", [["pipe"], ["job"], ["rank"], ["rank"], ["pipe", "rank"], ["rank", "pipe"]])


@case("kill-adapter/process")
def kill_adapter(folder, rng):
    storm("process", folder, rng, "adapter 60", [["pipe"], ["job"], ["pipe", "job"], ["job", "pipe"]])


@for_engines("kill-retries", short=("docker",))
def kill_retries(engine, folder, rng):
    storm(engine, folder, rng, RETRIES, [["pipe"]])


@case("kill-build/docker", needs=("docker", "rustc"))
def kill_build(folder, rng):
    """While the image is built, which takes two seconds and is in no cache."""
    reference = folder.world.reference(RETRIES, "docker")
    pipeline = fill(folder, RETRIES)
    stem = folder.world.image_stem
    lines = ("FROM scratch", "COPY job /job", f'LABEL {stem}="{folder.path}"', 'ENV JOB="pause 2000"', 'RUN ["/job"]',
             'ENTRYPOINT ["/job"]', "")
    folder.write(f"image/{stem}.Dockerfile", "\n".join(lines))
    for _ in range(rng.randint(1, 3)):
        args = ("resume", "latest") if folder.state() else ("run", pipeline, "--engine", "docker")
        written = folder.state_time()
        running = folder.start(*args)
        # The run.json of the pipe that was killed before says the same.
        builds = lambda: folder.state_time() != written and folder.stage() == BUILDING
        folder.wait_until("the build", lambda: running.poll() is not None or builds())
        time.sleep(rng.uniform(0, 1.5))
        struck = running.kill() and builds()
        expect(struck, f"the kill struck at {folder.stage()!r} and not at {BUILDING!r}")
        folder.world.struck.append(f"pipe {BUILDING}")
    finish(folder, pipeline, "docker")
    expect_same(folder, reference)
