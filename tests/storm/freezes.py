"""SIGSTOP of a trainer or of `pipe`: a stop ends within its deadline, and a process that is continued goes on."""

import signal
import time

from .case import for_engines
from .failure import expect
from .folder import kill
from .reference import TRAINING_KIND, expect_same, fill, finish

# Seconds that a graceful stop may take, by the pipeline.
STOP_TIMEOUT = 4
# What `pipe stop` may take beyond it.
MARGIN = 20
# After so many seconds more it reports that the other `pipe` does not answer.
STUCK = 90


def begin(engine, folder, *more):
    pipeline = fill(folder, TRAINING_KIND)
    folder.pipe("run", pipeline, "--engine", engine, "--detach", *more, code=0)
    folder.wait_for_step(3)
    return pipeline


def trainers(engine, folder):
    if engine == "process":
        return folder.jobs()
    inspect = lambda container: folder.docker("inspect", "--format", "{{.State.Pid}}", container).strip()
    return [int(pid) for pid in map(inspect, folder.containers()) if pid not in ("", "0")]


@for_engines("freeze-trainer-stop", needs=("root",), short=("process",))
def frozen_trainer_is_stopped(engine, folder, rng):
    reference = folder.world.reference(TRAINING_KIND, engine)
    pipeline = begin(engine, folder, "--set", f"container.stop_timeout={STOP_TIMEOUT}")
    for pid in trainers(engine, folder):
        kill(pid, signal.SIGSTOP)
    folder.pipe("stop", "latest", timeout=STOP_TIMEOUT + MARGIN)
    finish(folder, pipeline, engine)
    expect_same(folder, reference)


@for_engines("freeze-trainer-continue", needs=("root",), short=())
def frozen_trainer_goes_on(engine, folder, rng):
    reference = folder.world.reference(TRAINING_KIND, engine)
    begin(engine, folder)
    frozen = trainers(engine, folder)
    for pid in frozen:
        kill(pid, signal.SIGSTOP)
    time.sleep(rng.uniform(0.2, 3))
    for pid in frozen:
        kill(pid, signal.SIGCONT)
    folder.pipe("attach", "latest", timeout=60, code=0)
    expect_same(folder, reference)


@for_engines("freeze-pipe", short=("docker",))
def frozen_pipe(engine, folder, rng):
    """The frozen `pipe` handles a stop only when it is continued. Where it never is, `pipe stop` ends with an error."""
    reference = folder.world.reference(TRAINING_KIND, engine)
    pipeline = begin(engine, folder, "--set", f"container.stop_timeout={STOP_TIMEOUT}")
    drivers = folder.drivers()
    expect(drivers, "no pipe drives the run")
    for pid in drivers:
        kill(pid, signal.SIGSTOP)
    stop = folder.start("stop", "latest")
    if folder.index % 8 == 7:
        answer = stop.end(STOP_TIMEOUT + STUCK + MARGIN)
        expect(answer.code != 0 and "error" in answer.stderr, f"a stop that had no effect\n{answer}")
    time.sleep(rng.uniform(0, 3))
    for pid in drivers:
        kill(pid, signal.SIGCONT)
    stop.end(STOP_TIMEOUT + MARGIN)
    folder.wait_until("the end of the run", lambda: not folder.drivers(), timeout=60)
    finish(folder, pipeline, engine)
    expect_same(folder, reference)
