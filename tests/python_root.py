#!/usr/bin/env python3
"""Lays out in DIR a folder to build an image from, without a registry: DIR/root is a file system with this python3, its standard
library, torch for the CPU and the shared libraries that these load; DIR/Dockerfile copies it. With --transformers it has the
Trainer of transformers as well. The packages are those of tests/python.txt and tests/python-transformers.txt.

The torch of PyPI is linked with the libraries of CUDA. Those that only a card needs become stubs: the names that the
loader looks for, and no code behind them. torch.cuda.is_available() is False.

DIR must not exist yet. Its files may be links to those below target/: read them, do not change them.

usage: python_root.py DIR [--transformers]
       docker build -t NAME DIR"""

import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# What libtorch_python.so is linked with and no training on the CPU calls: how its names begin, or the libraries that have them.
STUBBED = {"libtorch_cuda.so": ["libtorch_cuda.so", "libtorch_nvshmem.so"], "libcudnn.so.9": "cudnn", "libcufile.so.0": "cuFile"}
# Libraries that are opened when a card is used, tools, headers.
NOT_OF_PACKAGES = ["torch/bin/protoc*", "torch/bin/ptxas", "torch/include", "torch/share", "torch/lib/libtorch_cuda*", "torch/lib/libtorch_nvshmem.so",
                   "torch/lib/libcaffe2_nvrtc.so", "nvidia/cu13/bin", "nvidia/cu13/include", "nvidia/cu13/lib/libnvperf*",
                   "nvidia/cu13/lib/libpcsampling*", "nvidia/cu13/lib/libcheckpoint*", "bin", "complete"]
NOT_OF_LIBRARY = ["site-packages", "test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "config-*", "lib-dynload/_tkinter*"]
PROGRAMS = ["sh", "cat", "sleep"]
DOCKERFILE = 'FROM scratch\nCOPY root /\nENV PATH=/usr/local/bin:/bin\nCMD ["python3"]\n'


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def link_or_copy(source, target):
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def copy_tree(source, target, skip):
    def skipped(folder, names):
        places = {name: os.path.relpath(os.path.join(folder, name), source) for name in names}
        return [name for name, place in places.items() if any(fnmatch.fnmatch(place, pattern) for pattern in skip)]

    shutil.copytree(source, target, copy_function=link_or_copy, symlinks=True, dirs_exist_ok=True, ignore=skipped)


def symbols(library, which):
    """The dynamic symbols of a library: version, type and size of each."""
    found = {}
    for line in output("nm", "-D", "-S", which, "--with-symbol-versions", library).splitlines():
        *numbers, kind, name = line.split()
        name, _, version = name.partition("@")
        found[name] = version.strip("@"), kind, int(numbers[1], 16) if len(numbers) > 1 else 0
    return found


def stub(name, folder, wanted):
    """Writes a library `name` to `folder` that has the names in `wanted`, and does nothing."""
    # As a pointer `zeros` is one to zeros, as a truth value false: torch calls a few of the functions when it is imported.
    code = "static _Alignas(65536) char zeros[65536];\nextern char _ZTVN10__cxxabiv117__class_type_infoE[];\n"
    for symbol, (_, kind, size) in sorted(wanted.items()):
        if symbol.startswith("_ZTI"):
            # A class of C++ by its name.
            code += f'void *{symbol}[8] = {{_ZTVN10__cxxabiv117__class_type_infoE + 16, "{symbol[4:]}"}};\n'
        else:
            code += f"void *{symbol}(void) {{ return zeros; }}\n" if kind in "TWU" else f"_Alignas(64) char {symbol}[{size}];\n"
    versions = {version for version, _, _ in wanted.values() if version}
    with tempfile.TemporaryDirectory() as work:
        source, script = pathlib.Path(work, "stub.c"), pathlib.Path(work, "versions")
        source.write_text(code)
        script.write_text("".join(f"{version} {{ global: *; }};\n" for version in sorted(versions)))
        options = [f"-Wl,--version-script={script}"] if versions else []
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-fno-builtin", "-nostdlib", f"-Wl,-soname,{name}", *options, "-o", folder / name, source],
                       check=True)


def add_packages(target, transformers):
    """torch and, where asked for, transformers: from a folder below target/, to which they are fetched once."""
    for name, what in [("python", "torch (540 MB, once)")] + [("python-transformers", "transformers (40 MB, once)")] * transformers:
        fetched = REPOSITORY / "target" / name
        subprocess.run([REPOSITORY / "tests/fetch-packages", REPOSITORY / f"tests/{name}.txt", fetched, what], check=True)
        copy_tree(fetched, target, NOT_OF_PACKAGES)
    libraries, fetched = target / "torch/lib", REPOSITORY / "target/python/torch/lib"
    wanted = symbols(libraries / "libtorch_python.so", "--undefined-only")
    for name, names in STUBBED.items():
        if isinstance(names, str):
            stub(name, libraries, {symbol: entry for symbol, entry in wanted.items() if symbol.startswith(names)})
        else:
            defined = {symbol: entry for library in names for symbol, entry in symbols(fetched / library, "--defined-only").items()}
            stub(name, libraries, {symbol: defined[symbol] for symbol in wanted if symbol in defined})
    for name in ("libtorch_cpu.so", "libtorch_python.so"):
        # To another file: this one may be a link to what was fetched.
        subprocess.run(["strip", "--strip-unneeded", "-o", libraries / "stripped", libraries / name], check=True)
        os.replace(libraries / "stripped", libraries / name)


def is_elf(path):
    if path.is_symlink() or not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def add_libraries(root):
    """What the programs and libraries below `root` load and is not there, where the loader finds it."""
    known = {}
    for line in output("/sbin/ldconfig", "-p").splitlines():
        if (entry := re.match(r"\s*(\S+) \(.*x86-64.*\) => (\S+)", line)):
            known.setdefault(entry[1], entry[2])
    own = pathlib.Path(sysconfig.get_config_var("LIBDIR"))
    here = {path.name for path in root.rglob("*.so*")}
    system = pathlib.Path(known["libc.so.6"]).parent
    todo = [path for path in root.rglob("*") if is_elf(path)]
    while todo:
        path = todo.pop()
        text = output("readelf", "-dl", path)
        if (loader := re.search(r"interpreter: (\S+)\]", text)) and loader[1] not in here:
            here.add(loader[1])
            add_file(root, loader[1], loader[1])
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text):
            if name not in here:
                source = own / name if (own / name).exists() else pathlib.Path(known[name])
                here.add(name)
                todo.append(add_file(root, source, system / name))


def add_file(root, source, place):
    target = root / str(place).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(os.path.realpath(source), target)
    return target


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--transformers"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    folder, transformers = pathlib.Path(arguments[0]).absolute(), "--transformers" in sys.argv
    root = folder / "root"
    root.mkdir(parents=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = root / "usr/local/lib" / version
    copy_tree(sysconfig.get_path("stdlib"), library, [*NOT_OF_LIBRARY, "__pycache__", "*/__pycache__"])
    packages = library / "site-packages"
    add_packages(packages, transformers)
    program = add_file(root, sys.executable, "/usr/local/bin/python3")
    program.with_name("python").symlink_to("python3")
    for name in PROGRAMS:
        add_file(root, shutil.which(name), f"/bin/{name}")
    add_libraries(root)
    for place, mode in (("tmp", 0o1777), ("etc", 0o755), ("proc", 0o755), ("dev", 0o755)):
        (root / place).mkdir()
        (root / place).chmod(mode)
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    # What is imported is compiled now: the root of a container is read-only.
    names = "torch, torch._dynamo, torch.utils.data"
    if transformers:
        names += ", accelerate, transformers.trainer, transformers.models.bert.modeling_bert, transformers.models.t5.modeling_t5"
    subprocess.run([program, "-s", "-E", "-c", f"import {names}"], check=True, cwd="/", env={"TMPDIR": "/tmp", "HF_HUB_OFFLINE": "1"})
    (folder / "Dockerfile").write_text(DOCKERFILE)


if __name__ == "__main__":
    main()
