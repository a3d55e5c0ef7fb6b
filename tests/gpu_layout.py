#!/usr/bin/env python3
"""For a machine with a card and no network: lays out in DIR/lib what `make libtorch CUDA=1` would have fetched, from the torch
and nvidia packages of this machine's Python. Every library of docker/libraries.txt must be among them.

usage: gpu_layout.py DIR"""

import importlib.metadata
import os
import pathlib
import shutil
import sys
import sysconfig

folder = pathlib.Path(sys.argv[1]) / "lib"
folder.mkdir(parents=True, exist_ok=True)
roots = {pathlib.Path(path) for path in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path) if path}
found = {}
for root in roots:
    for pattern in ("torch/lib/*.so*", "nvidia/*/lib/*.so*"):
        found.update({path.name: path for path in root.glob(pattern)})
missing, others = [], []
for line in (pathlib.Path(__file__).parent.parent / "docker/libraries.txt").read_text().splitlines():
    name, pin = line.split()
    if name not in found:
        missing.append(line)
        continue
    package, version = pin.split("==")
    have = importlib.metadata.version(package).split("+")[0]
    if have != version:
        others.append(f"{pin} (here {have})")
    target = folder / name
    target.unlink(missing_ok=True)
    try:
        os.link(found[name].resolve(), target)
    except OSError:
        shutil.copy(found[name], target)
print(f"{len(list(folder.iterdir()))} libraries in {folder}")
if others:
    print("in another version:", ", ".join(sorted(set(others))))
if missing:
    sys.exit("not among this machine's packages: " + ", ".join(missing))
