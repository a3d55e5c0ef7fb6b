"""What all cases share: the programs, the seed, the tools of this machine, the undisturbed runs."""

import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

from .failure import Failure
from .folder import Folder
from .reference import measure

REPOSITORY = Path(__file__).resolve().parent.parent.parent


class World:
    def __init__(self, binaries, seed, is_short):
        self.pipe = Path(binaries).resolve() / "pipe"
        self.trainer = Path(binaries).resolve() / "pipe-trainer"
        self.seed = seed
        # Whether cases are to be quick.
        self.is_short = is_short
        self.base = Path(tempfile.mkdtemp(prefix="pipe-storm-")).resolve()
        # Another user's processes must reach the folders of their case.
        self.base.chmod(0o711)
        self.image_stem = f"storm-{os.getpid()}"
        self.is_root = os.geteuid() == 0
        self.has_docker = answers("docker", "info", "--format", "{{.ServerVersion}}")
        self.has_rustc = answers("rustc", "--version")
        self.references = {}
        # The kills that struck, each with the stage of its run.
        self.struck = []
        self.made = {}

    def missing(self, needs):
        """The first need of a case that this machine lacks, as a message."""
        lacks = {
            "docker": None if self.has_docker else "no Docker daemon answers",
            "root": None if self.is_root else "not root",
            "rustc": None if self.has_rustc else "no rustc",
        }
        return next((lacks[need] for need in needs if lacks[need]), None)

    def random(self, case, index):
        """The same numbers for the same seed, case and index, whatever ran before."""
        return random.Random(f"{self.seed}/{case}/{index}")

    def folder(self, name, **env):
        return Folder(self, self.base / name, **env)

    def reference(self, kind, engine):
        if (kind, engine) not in self.references:
            self.references[kind, engine] = measure(self, kind, engine)
        return self.references[kind, engine]

    @property
    def recipes(self):
        return self.once("recipes", lambda path: run(self.trainer, "data", "recipes", "--rows", "400", "--seed", "3",
                                                     "--out", path))

    @property
    def job(self):
        """The stand-in for a trainer."""
        return self.once("job", lambda path: run(REPOSITORY / "tests/compile-job", self.pipe.parent, path))

    @property
    def hostile(self):
        return self.once("hostile", lambda path: compile_static(REPOSITORY / "tests/storm/hostile.rs", path))

    @property
    def nvml(self):
        """The folder of the stand-in for NVIDIA's management library."""
        def build(path):
            path.mkdir()
            run("rustc", "--edition", "2024", "--crate-type", "cdylib", "-o", path / "libnvidia-ml.so.1",
                REPOSITORY / "tests/nvml.rs")
        return self.once("nvml", build)

    def once(self, name, make):
        if name not in self.made:
            path = self.base / name
            make(path)
            self.made[name] = path
        return self.made[name]

    def remove(self, keep):
        """Everything but the folders to keep, and the images that cases built."""
        if self.has_docker:
            # By name, and by label what builds that were killed left without one.
            for which in (f"pipe-{self.image_stem}", "--filter=label=" + self.image_stem):
                images = subprocess.run(["docker", "images", "--quiet", which], capture_output=True, text=True).stdout.split()
                if images:
                    subprocess.run(["docker", "rmi", "--force", *images], capture_output=True)
        if not keep:
            shutil.rmtree(self.base, ignore_errors=True)
            return
        shared = {self.base / name for name in ("recipes", "job", "hostile", "nvml", "stopped")}
        for path in self.base.iterdir():
            if path not in keep and path not in shared:
                shutil.rmtree(path, ignore_errors=True)


def compile_static(source, to):
    run("rustc", "--edition", "2024", "-C", "opt-level=1", "-C", "target-feature=+crt-static", "-o", to, source)


def answers(*command):
    try:
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"{command[0]} failed: {done.stderr[-2000:]}")
