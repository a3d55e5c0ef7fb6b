#!python
# Starts the program of this name, which lies in the package pipe_train. The program finds libtorch in the package torch beside it;
# of a torch that this Python imports from elsewhere, this tells it the folder.
import os
import sys

TORCH = "2.11.0"
LIBRARY = "torch/lib/libtorch_cpu.so"


def find(path):
    """The first of this name in the folders that this Python imports from."""
    return next((found for folder in sys.path if os.path.exists(found := os.path.join(folder, path))), None)


def installer():
    """The command that installs packages for this Python. Environments of uv have no pip."""
    python = f"'{sys.executable}'" if " " in sys.executable else sys.executable
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg")) as file:
            if any(line.startswith("uv =") for line in file):
                return f"uv pip install --python {python}"
    except OSError:
        pass
    return f"{python} -m pip install"


def check_version(folder):
    """Ends this program where the trainer would load a libtorch of another version than it was made for."""
    found = "has no torch"
    if folder:
        with open(os.path.join(folder, "../version.py")) as file:
            version = next(line.split("=")[1].strip("'\" \n") for line in file if line.startswith("__version__ ="))
        if version.split("+")[0] == TORCH:
            return
        found = f"has torch {version}"
    sys.exit(f"error: the trainer needs torch {TORCH}; {sys.executable} {found}\nhint: install it: `{installer()} torch=={TORCH}`")


def main():
    name = os.path.basename(os.path.realpath(__file__))
    program = find(f"pipe_train/bin/{name}")
    if program is None:
        sys.exit(f"error: {sys.executable} has no package pipe_train\nhint: install the wheel of pipe again")
    library = os.path.join(os.path.dirname(program), "../..", LIBRARY)
    is_beside = os.path.exists(library)
    folder = os.path.dirname(library if is_beside else find(LIBRARY) or "")
    os.environ["PIPE_INSTALLER"] = installer()
    os.environ.pop("PIPE_LIBTORCH", None)
    if folder and not is_beside:
        os.environ["PIPE_LIBTORCH"] = folder
    if name == "pipe-trainer":
        check_version(folder)
        if folder and not is_beside:
            others = os.environ.get("LD_LIBRARY_PATH")
            os.environ["LD_LIBRARY_PATH"] = f"{folder}:{others}" if others else folder
    os.execv(program, sys.argv)


main()
