#!/usr/bin/env python3
"""Makes a small source tree whose libtorch and CUDA libraries are empty: their wheels in FOLDER/wheels, the lists that name
them in FOLDER/docker, and a trainer that loads them in FOLDER/target/debug. For tests of what fetches and misses libraries.

usage: libtorch_stand_in.py FOLDER"""

import hashlib
import pathlib
import shutil
import subprocess
import sys
import zipfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CUDNN = [f"libcudnn_{part}.so.9" for part in
         ("adv", "cnn", "engines_precompiled", "engines_runtime_compiled", "graph", "heuristic", "ops")]
# Package: its folder in the wheel, and its libraries with what each needs.
BASE = {
    "torch==2.11.0": ("torch/lib", {
        "libtorch_cpu.so": [],
        "libtorch_cuda.so": ["libcublas.so.13", "libcudnn.so.9"],
        "libtorch_cuda_linalg.so": ["libtorch_cuda.so"],
        "libcaffe2_nvrtc.so": ["libnvrtc.so.13"],
    }),
}
CUDA = {
    "nvidia-cublas==13.1": ("nvidia/cu13/lib", {"libcublasLt.so.13": [], "libcublas.so.13": ["libcublasLt.so.13"], "libnvblas.so.13": []}),
    "nvidia-cuda-nvrtc==13.0": ("nvidia/cu13/lib", {"libnvrtc.so.13": [], "libnvrtc-builtins.so.13.0": []}),
    "nvidia-cudnn-cu13==9.19": ("nvidia/cudnn/lib", dict.fromkeys(["libcudnn.so.9", *CUDNN], [])),
}


def library(folder, name, needed):
    arguments = ["cc", "-shared", "-nostdlib", "-xc", "/dev/null", "-o", folder / name, f"-Wl,-soname,{name}", "-Wl,-rpath,$ORIGIN", f"-L{folder}"]
    subprocess.run([*arguments, "-Wl,--no-as-needed", *(f"-l:{other}" for other in needed)], check=True)


def wheel(folder, pin, content, filler=b""):
    """A wheel with these files, and its line for a list."""
    name, version = pin.replace("-", "_").split("==")
    path = folder / f"{name}-{version}-py3-none-manylinux2014_x86_64.whl"
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for place, data in content.items():
            archive.writestr(place, data)
        archive.writestr("filler", filler)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {pin.split('==')[0]}\nVersion: {version}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-manylinux2014_x86_64\n")
        archive.writestr(f"{about}/RECORD", "")
    data = path.read_bytes()
    unpacked = sum(len(data) for data in content.values())
    return f"{pin} --hash=sha256:{hashlib.sha256(data).hexdigest()}  # size={len(data)} unpacked={unpacked}\n"


def make(tree):
    wheels, build, docker, release = (tree / name for name in ("wheels", "build", "docker", "target/debug"))
    for folder in (wheels, build, docker, release):
        folder.mkdir(parents=True)
    for packages in (CUDA, BASE):
        for _, libraries in packages.values():
            for name, needed in libraries.items():
                library(build, name, needed)
    for file, packages in (("libtorch.txt", BASE), ("libtorch-cuda.txt", CUDA)):
        lines = "# empty libraries\n"
        for pin, (place, libraries) in packages.items():
            # Large enough to be cut in the middle.
            lines += wheel(wheels, pin, {f"{place}/{name}": (build / name).read_bytes() for name in libraries}, bytes(600_000))
        (docker / file).write_text(lines)
    shutil.copy(REPOSITORY / "docker/fetch-libtorch", docker)
    shutil.copy(REPOSITORY / "Makefile", tree)
    subprocess.run(["cc", "-o", release / "pipe-trainer", "-xc", "-", f"-L{build}", "-Wl,--no-as-needed", "-l:libtorch_cpu.so",
                    "-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../libtorch/lib"],
                   input=b"int main(void) { return 1; }", check=True)
    shutil.rmtree(build)


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]).absolute())
