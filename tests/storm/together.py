"""Two commands at once about the same run."""

import time

from .case import for_engines
from .failure import expect
from .reference import TRAINING_KIND, expect_same, fill, finish


def begin(engine, folder):
    pipeline = fill(folder, TRAINING_KIND)
    folder.pipe("run", pipeline, "--engine", engine, "--detach", code=0)
    folder.wait_for_step(3)
    return pipeline


@for_engines("two-resumes", short=("process",))
def two_resumes(engine, folder, rng):
    """One of them gets the run; the other reports that it is still running."""
    reference = folder.world.reference(TRAINING_KIND, engine)
    begin(engine, folder)
    folder.pipe("stop", "latest", timeout=60, code=0)
    first = folder.start("resume", "latest")
    time.sleep(rng.choice([0, 0, rng.uniform(0, 0.5)]))
    second = folder.start("resume", "latest")
    answers = [first.end(90), second.end(90)]
    expect(sorted(answer.code for answer in answers) == [0, 1], f"{answers[0]}\n{answers[1]}")
    expect_same(folder, reference)


@for_engines("rm-during-run", short=("docker",))
def rm_during_run(engine, folder, rng):
    """Refused: the run continues, and is whole."""
    reference = folder.world.reference(TRAINING_KIND, engine)
    pipeline = fill(folder, TRAINING_KIND)
    running = folder.start("run", pipeline, "--engine", engine)
    folder.wait_until("the run", lambda: folder.state() is not None)
    for _ in range(3):
        time.sleep(rng.uniform(0, 0.6))
        if running.poll() is None:
            answer = folder.pipe("rm", folder.run().name, timeout=60)
            ended = running.wait(0.5) is not None
            expect(answer.code != 0 or ended, f"it was removed while it ran\n{answer}")
    answer = running.end(90)
    if folder.runs():
        expect(answer.code == 0, f"{answer}")
        expect_same(folder, reference)


@for_engines("stop-twice", short=("docker",))
def stop_twice(engine, folder, rng):
    """Both wait for the save: two plain stops are not a kill."""
    reference = folder.world.reference(TRAINING_KIND, engine)
    pipeline = begin(engine, folder)
    first = folder.start("stop", "latest")
    time.sleep(rng.uniform(0, 0.3))
    second = folder.start("stop", "latest")
    for stop in (first, second):
        answer = stop.end(60)
        expect(answer.code == 0, f"{answer}")
    last = folder.state()["attempts"][-1]
    expect(last["outcome"] == "finished" or last["exit_code"] == 143, f"the trainer did not save and end: {last}")
    finish(folder, pipeline, engine)
    expect_same(folder, reference)
