#!/usr/bin/env python3
"""The wheel of docker/wheel, installed by pip for every Python of this machine, the way that environments, users and systems have it.
torch is a folder with empty libraries, and the trainer says how it was started.

usage: wheel.py PROGRAMS [TEST...]     PROGRAMS is a folder with pipe, such as target/debug"""

import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else REPOSITORY / "target/debug").resolve()
TRAINER = r"""
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
  printf("trainer %s, libraries %s\n", count > 1 ? words[1] : "", getenv("LD_LIBRARY_PATH") ? getenv("LD_LIBRARY_PATH") : "none");
  return 0;
}
"""
# Programs of the profile `dev` are larger than those of a release.
LIMIT = "30000000"
PIPELINE = "version: 1\nname: t\nmodel: {arch: bag-of-words, config: {}}\ndata: {train: t.jsonl}\ncontainer: {gpus: 0}\nengine: process\n"
COMMAND = "version: 1\nname: c\ncommand: [sh, -c, 'echo libraries $LD_LIBRARY_PATH']\ncontainer: {gpus: 0}\nengine: process\n"


def run(*command, code=0, **options):
    """What it prints; its errors too where another exit code is expected."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, **options)
    if done.returncode != code:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + (done.stderr if code else "")


def version_of(python):
    """Its version, as in 3.11; nothing where it is no Python 3 with venv."""
    done = subprocess.run([python, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def pythons():
    """A Python of each version that this machine has, the system's own first."""
    found = {}
    for path in ["/usr/bin/python3", sys.executable, *(shutil.which(f"python3.{minor}") for minor in range(9, 20)),
                 *glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python3"))]:
        if path and os.path.exists(path) and (version := version_of(path)):
            found.setdefault(version, path)
    return found


def library(folder, name, source="", links=(), rpath="$ORIGIN"):
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-shared", "-nostdlib", "-xc", "-", "-o", folder / name, f"-Wl,-soname,{name}", f"-Wl,-rpath,{rpath}",
                    "-Wl,--disable-new-dtags", "-Wl,--no-as-needed", *(f"-L{folder}" for folder, _ in links), *(f"-l:{other}" for _, other in links)],
                   input=source, text=True, check=True)


def add_torch(site, version="2.11.0+cpu"):
    """An empty torch, in the layout of its wheel."""
    cuda, torch = site / "nvidia/cu13/lib", site / "torch/lib"
    library(cuda, "libcudart.so.13")
    library(torch, "libtorch_cpu.so", links=[(cuda, "libcudart.so.13")], rpath="$ORIGIN/../../nvidia/cu13/lib:$ORIGIN")
    set_version(site, version)
    return torch


def set_version(site, version):
    (site / "torch/version.py").write_text(f"from typing import Optional\n\n__version__ = '{version}'\ndebug = False\n")


def build(out, programs):
    return pathlib.Path(run(REPOSITORY / "docker/wheel", out, env={**os.environ, "PROGRAMS": str(programs), "LIMIT": LIMIT}).strip())


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name).resolve()
        cls.programs = cls.work / "programs"
        cls.programs.mkdir()
        subprocess.run(["strip", "-o", cls.programs / "pipe", PROGRAMS / "pipe"], check=True)
        torch = add_torch(cls.work / "site")
        subprocess.run(["cc", "-xc", "-", "-o", cls.programs / "pipe-trainer", f"-L{torch}", "-Wl,--no-as-needed", "-l:libtorch_cpu.so",
                        "-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../lib/pipe:$ORIGIN/../../torch/lib", "-Wl,--unresolved-symbols=ignore-in-shared-libs"],
                       input=TRAINER, text=True, check=True)
        cls.wheel = build(cls.work / "dist", cls.programs)
        cls.pythons = {version: path for version, path in pythons().items() if int(version[2:]) >= 10}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name).resolve()
        (self.home / "t.jsonl").write_text('{"text": "a", "label": "b"}\n{"text": "c", "label": "d"}\n')
        (self.home / "t.yaml").write_text(PIPELINE)
        (self.home / "c.yaml").write_text(COMMAND)

    def environment(self, **more):
        return {"HOME": str(self.home), "PATH": "/usr/bin:/bin", "NO_COLOR": "1", "PIPE_CACHE": str(self.home / "cache"), "HF_HUB_OFFLINE": "1",
                "DOCKER_HOST": "unix:///nowhere", **more}

    def venv(self, python, name="venv", *options):
        """An environment of this Python: its programs and its packages."""
        folder = self.home / name
        run(python, "-m", "venv", "--without-pip", *options, folder)
        return folder / "bin", next(folder.glob("lib/python3*/site-packages"))

    def pip(self, python, *options, code=0, **variables):
        return run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore",
                   "--no-compile", "--no-index", "--no-deps", *options, self.wheel, code=code, env={**os.environ, **variables})

    def call(self, *command, code=0, **variables):
        return run(*command, code=code, cwd=self.home, env=self.environment(**variables))

    def libtorch(self, programs, code=0, **variables):
        """The check of pipe doctor."""
        done = subprocess.run([programs / "pipe", "doctor", "--json"], capture_output=True, text=True, cwd=self.home, env=self.environment(**variables))
        return next(check for check in json.loads(done.stdout) if check["name"] == "libtorch")

    def check_installed(self, programs, torch, **variables):
        """pipe and the trainer start and load this torch."""
        self.assertRegex(self.call(programs / "pipe", "--version", **variables), r"^pipe \d")
        check = self.libtorch(programs, **variables)
        self.assertEqual(check["status"], "ok", check)
        self.assertEqual(os.path.realpath(check["found"].split(", ")[0]), str(torch), check)
        self.assertIn(", 2.11.0+cpu, CPU only", check["found"])
        self.assertTrue(self.call(programs / "pipe-trainer", "hello", **variables).startswith("trainer hello, "))

    def test_environments_of_every_python(self):
        self.assertTrue(self.pythons)
        for version, python in self.pythons.items():
            with self.subTest(version):
                programs, site = self.venv(python, f"venv-{version}")
                self.pip(programs / "python")
                self.check_installed(programs, add_torch(site))
                self.assertIn("libraries none", self.call(programs / "pipe-trainer", "hello"))
                share = programs.parent / "share"
                for name in ["bash-completion/completions/pipe", "zsh/site-functions/_pipe", "fish/vendor_completions.d/pipe.fish",
                             "man/man1/pipe-run.1", "pipe/pipelines/demo.yaml", "pipe/pipelines/python-train/train.py"]:
                    self.assertTrue((share / name).is_file(), name)

    def test_an_older_python_is_refused(self):
        older = pythons().get("3.9")
        if not older:
            self.skipTest("no Python 3.9")
        programs, _ = self.venv(older)
        self.assertIn("requires a different Python", self.pip(programs / "python", code=1))

    def test_packages_of_a_user(self):
        base = self.home / ".local"
        python = next(iter(self.pythons.values()))
        self.pip(python, "--user", "--break-system-packages", PYTHONUSERBASE=str(base))
        site = next(base.glob("lib/python3*/site-packages"))
        self.check_installed(base / "bin", add_torch(site))

    def test_packages_of_a_system(self):
        # Two layouts below a prefix: /usr/lib/python3/dist-packages, and /usr/lib64/python3.12/site-packages.
        for layout in ["lib/python3/dist-packages", "lib64/python3.12/site-packages"]:
            with self.subTest(layout):
                site, root = self.home / layout, self.home / "target"
                shutil.rmtree(root, ignore_errors=True)
                self.pip(next(iter(self.pythons.values())), "--target", root)
                site.parent.mkdir(parents=True)
                shutil.move(root, site)
                self.check_installed(site / "bin", add_torch(site), PYTHONPATH=str(site))

    def test_links_to_the_programs(self):
        # As pipx and uv make them.
        programs, site = self.venv(next(iter(self.pythons.values())), "tools/pipe-train")
        self.pip(programs / "python")
        torch = add_torch(site)
        links = self.home / "bin"
        links.mkdir()
        for name in ("pipe", "pipe-trainer"):
            (links / name).symlink_to(programs / name)
        self.check_installed(links, torch)

    def test_a_torch_that_lies_elsewhere(self):
        programs, site = self.venv(next(iter(self.pythons.values())))
        self.pip(programs / "python")
        elsewhere = self.home / "else where"
        torch = add_torch(elsewhere)
        self.check_installed(programs, torch, PYTHONPATH=str(elsewhere))
        self.assertIn(f"libraries {torch}:/other", self.call(programs / "pipe-trainer", PYTHONPATH=str(elsewhere), LD_LIBRARY_PATH="/other"))
        # The trainer alone is told.
        self.call(programs / "pipe", "run", "c.yaml", PYTHONPATH=str(elsewhere))
        log, = self.home.glob("runs/c-*/attempts/01/log.txt")
        self.assertRegex(log.read_text(), r"(?m)^libraries$")
        # One that lies beside it counts first.
        self.check_installed(programs, add_torch(site), PYTHONPATH=str(elsewhere))

    def test_another_version_of_torch(self):
        programs, site = self.venv(next(iter(self.pythons.values())))
        self.pip(programs / "python")
        torch = add_torch(site, "2.12.1+cu130")
        command = f"`{programs}/python -m pip install torch==2.11.0`"
        check = self.libtorch(programs)
        self.assertEqual(check["status"], "missing")
        self.assertIn(f"the trainer needs torch 2.11.0; {torch}", check["found"].replace("bin/../../", ""))
        self.assertIn("belongs to torch 2.12.1+cu130", check["found"])
        self.assertIn(command, check["hint"])
        for answer in (self.call(programs / "pipe", "run", "t.yaml", code=4), self.call(programs / "pipe-trainer", "hello", code=1)):
            self.assertRegex(answer, r"error: the trainer needs torch 2\.11\.0; .* torch 2\.12\.1\+cu130\n")
            self.assertIn(f"hint: install it: {command}", answer)
        self.assertFalse((self.home / "runs").exists())
        # A program of one's own may have any torch.
        self.call(programs / "pipe", "run", "c.yaml")
        for version in ("2.11.0", "2.11.0+cu128"):
            set_version(site, version)
            self.assertEqual(self.libtorch(programs)["status"], "ok")
        set_version(site, "2.11.0a0+git1")
        self.assertEqual(self.libtorch(programs)["status"], "missing")

    def test_no_torch(self):
        programs, _ = self.venv(next(iter(self.pythons.values())))
        self.pip(programs / "python")
        for answer in (self.call(programs / "pipe", "run", "t.yaml", code=4), self.call(programs / "pipe-trainer", "hello", code=1)):
            self.assertRegex(answer, r"error: the trainer needs torch 2\.11\.0; .* has no torch\n")
            self.assertIn(f"hint: install it: `{programs}/python -m pip install torch==2.11.0`", answer)
        self.call(programs / "pipe", "run", "c.yaml")
        # Environments of uv have no pip.
        with open(programs.parent / "pyvenv.cfg", "a") as file:
            file.write("uv = 0.13.8\n")
        self.assertIn(f"`uv pip install --python {programs}/python torch==2.11.0`", self.call(programs / "pipe-trainer", code=1))

    def test_the_same_files_give_the_same_wheel(self):
        again = build(self.home / "dist", self.programs)
        self.assertEqual(again.name, self.wheel.name)
        self.assertEqual(again.read_bytes(), self.wheel.read_bytes())

    def test_versions_agree(self):
        version = run(REPOSITORY / "docker/version").strip()
        self.assertRegex(self.wheel.name, rf"^pipe_train-{re.escape(version)}-py3-none-manylinux_2_\d+_x86_64\.whl$")
        self.assertEqual(run(self.programs / "pipe", "--version"), f"pipe {version}\n")
        headings = re.findall(r"^## (.*)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
        self.assertRegex(headings[0], rf"^{re.escape(version)}, (unreleased|\d{{4}}-\d\d-\d\d)$")
        torch = re.search(r"^torch==(\S+) ", (REPOSITORY / "docker/libtorch.txt").read_text(), re.MULTILINE)[1]
        with zipfile.ZipFile(self.wheel) as archive:
            metadata = archive.read(f"pipe_train-{version}.dist-info/METADATA").decode()
        self.assertIn(f"\nRequires-Dist: torch=={torch}\n", metadata)
        self.assertIn(f"\nVersion: {version}\n", metadata)
        programs, _ = self.venv(next(iter(self.pythons.values())))
        self.pip(programs / "python")
        self.assertEqual(self.call(programs / "python", "-c", "import pipe_train; print(pipe_train.__version__)"), f"{version}\n")
        self.assertIn(f'TORCH = "{torch}"', (REPOSITORY / "python/program.py").read_text())
        self.assertIn(f'LIBTORCH: &str = "{torch}"', (REPOSITORY / "src/pipe-spec/lib.rs").read_text())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
