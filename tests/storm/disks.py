"""Run folders on a disk that becomes full: an error message, and with free space again the run resumes to the same bits."""

import shutil
import subprocess

from .case import case
from .failure import Failure, expect
from .folder import TRAINING
from .reference import TRAINING_KIND, expect_same, fill, finish


@case("full-disk/process", needs=("root",))
def full_disk(folder, rng):
    reference = folder.world.reference(TRAINING_KIND, "process")
    pipeline = fill(folder, TRAINING_KIND)
    size = int(reference.bytes * rng.uniform(0.0, 1.1)) // 1024 + 8
    runs = folder.path / "runs"
    runs.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size}k", "tmpfs", runs)
    try:
        answer = folder.pipe("run", pipeline, "--engine", "process", timeout=TRAINING)
        expect(answer.code == 0 or "error" in answer.stderr, f"a failure without an error message on {size} KiB\n{answer}")
        for command in (["ls"], ["show"], ["report", "latest"]):
            folder.pipe(*command)
        mount("-o", "remount,size=64m", runs)
        if answer.code != 0:
            # With free space again the first resume must finish.
            finish(folder, pipeline, "process", tries=1)
        expect_same(folder, reference)
    except Failure:
        # The files on it are lost with the mount.
        shutil.copytree(runs, folder.path / "runs-copy", symlinks=True)
        raise
    finally:
        folder.end_everything()
        subprocess.run(["umount", "-l", str(runs)], capture_output=True)


def mount(*args):
    subprocess.run(["mount", *map(str, args)], check=True, capture_output=True)
