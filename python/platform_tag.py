"""Names the systems that a wheel with the programs runs on: Linux with the glibc that they ask for, or a newer one."""

import pathlib
import re
import subprocess

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformTag(BuildHookInterface):
    def initialize(self, version, build_data):
        programs = [pathlib.Path(self.root, "pipe_train/bin", name) for name in ("pipe", "pipe-trainer")]
        if not all(program.is_file() for program in programs):
            raise FileNotFoundError("the programs of pipe are not beside the package: `make wheel` builds the wheel")
        text = subprocess.run(["readelf", "--version-info", *programs], capture_output=True, text=True, check=True).stdout
        glibc = max(int(minor) for minor in re.findall(r"\bGLIBC_2\.(\d+)\b", text))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{glibc}_x86_64"
