#!/usr/bin/env python3
"""docker/release, with the CUDA libraries of tests/libtorch_stand_in.py, which are empty: what a release consists of, and that a second
one has the same bytes.

usage: release.py PROGRAMS     PROGRAMS is a folder with pipe, such as target/debug"""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest

import libtorch_stand_in

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = pathlib.Path(sys.argv[1]).resolve()


class Release(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name)
        tree = cls.work / "tree"
        libtorch_stand_in.make(tree)
        subprocess.run(["make", "-C", tree, "libtorch", "CUDA=1"], check=True, capture_output=True,
                       env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tree / "wheels"), "MAKEFLAGS": ""})
        cls.programs = tree / "target/debug"
        subprocess.run(["strip", "-o", cls.programs / "pipe", PROGRAMS / "pipe"], check=True)
        cls.first = cls.make("first")
        cls.version = subprocess.run([REPOSITORY / "docker/version"], capture_output=True, text=True).stdout.strip()

    @classmethod
    def make(cls, name, code=0, **variables):
        done = subprocess.run([REPOSITORY / "docker/release", cls.work / name], capture_output=True, text=True,
                              env={**os.environ, "PROGRAMS": str(cls.programs), "COMPRESS": "gzip -1n", **variables})
        assert done.returncode == code, done.stderr
        return cls.work / name if code == 0 else done.stderr

    def names(self, archive):
        with tarfile.open(self.first / archive) as tar:
            return {name.partition("/")[2] for name in tar.getnames()}

    def test_the_files(self):
        version = self.version
        names = sorted(path.name for path in self.first.iterdir())
        wheel, = (name for name in names if name.endswith(".whl"))
        archives = [f"pipe-{version}-x86_64-linux{kind}.tar.gz" for kind in ("", "-cuda")]
        others = [f"pipe-{version}.{kind}" for kind in ("Dockerfile", "cdx.json", "schema.json")]
        self.assertEqual(names, sorted([wheel, *archives, *others, "NOTES.md", "SHA256SUMS"]))
        sums = dict(reversed(line.split("  ")) for line in (self.first / "SHA256SUMS").read_text().splitlines())
        self.assertEqual(sums, {name: hashlib.sha256((self.first / name).read_bytes()).hexdigest() for name in names if name != "SHA256SUMS"})
        self.assertEqual((self.first / others[2]).read_text(), (REPOSITORY / "pipelines/schema.json").read_text())
        self.assertIn("- **Run.**", (self.first / "NOTES.md").read_text())
        without, cuda = (self.names(archive) for archive in archives)
        self.assertLess(without, cuda)
        self.assertIn("lib/pipe/libtorch_cpu.so", without)
        self.assertIn("share/man/man1/pipe.1", without)
        self.assertTrue({"lib/pipe/libtorch_cuda.so", "lib/pipe/libcublas.so.13", "lib/pipe/libcudnn_ops.so.9"} <= cuda - without)
        self.assertFalse([name for name in without if "cuda" in name or "nvrtc" in name or "cublas" in name])

    def test_the_bill_of_materials(self):
        bill = json.loads((self.first / f"pipe-{self.version}.cdx.json").read_text())
        self.assertEqual((bill["bomFormat"], bill["metadata"]["component"]["version"]), ("CycloneDX", self.version))
        listed = {component["bom-ref"]: component for component in bill["components"]}
        locked = dict(re.findall(r'^name = "(.+)"\nversion = "(.+)"', (REPOSITORY / "Cargo.lock").read_text(), re.MULTILINE))
        for name in ("tch", "clap", "bollard", "pipe", "pipe-trainer", "pipe-job"):
            self.assertIn(f"pkg:cargo/{name}@{locked[name]}", listed)
        self.assertEqual(listed["pkg:pypi/torch@2.11.0"]["hashes"][0]["content"][:8], "7aa2f9bb")
        # A crate that only tests use.
        self.assertNotIn("libtest-mimic", {component["name"] for component in bill["components"]})
        for name, component in listed.items():
            self.assertTrue("hashes" in component or component["name"].startswith("pipe"), name)
            self.assertTrue("licenses" in component or name.startswith("pkg:pypi/"), name)
        references = {"pipe", *listed}
        for entry in bill["dependencies"]:
            self.assertLessEqual({entry["ref"], *entry["dependsOn"]}, references)

    def test_a_second_one_has_the_same_bytes(self):
        second = self.make("second")
        self.assertEqual((second / "SHA256SUMS").read_text(), (self.first / "SHA256SUMS").read_text())

    def test_programs_of_another_version_are_refused(self):
        (self.work / "old").mkdir()
        (self.work / "old/pipe").write_text("#!/bin/sh\necho pipe 0.0.1\n")
        (self.work / "old/pipe").chmod(0o755)
        said = self.make("third", code=1, PROGRAMS=str(self.work / "old"))
        self.assertIn("compile it again", said)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
