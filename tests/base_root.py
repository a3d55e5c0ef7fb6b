#!/usr/bin/env python3
"""Writes a base system to stdout as a tar archive: the essential Debian packages of this machine, what they depend on, and
libstdc++. No compiler, no Python, nothing of this tree; but the packages that are named.

usage: base_root.py [PACKAGE...] | docker import - NAME"""

import os
import pathlib
import re
import subprocess
import sys
import tarfile


def packages():
    fields = "${Package}\t${Essential}\t${Pre-Depends}, ${Depends}\n"
    known = {}
    for line in subprocess.run(["dpkg-query", "-Wf", fields], capture_output=True, text=True, check=True).stdout.splitlines():
        name, essential, depends = line.split("\t")
        # Of alternatives the first.
        known[name] = essential == "yes", [match[0] for part in depends.split(",") if (match := re.match(r"[\w.+-]+", part.strip()))]
    wanted, open_ = set(), [name for name, (essential, _) in known.items() if essential] + ["libstdc++6", *sys.argv[1:]]
    while open_:
        name = open_.pop()
        if name in known and name not in wanted:
            wanted.add(name)
            open_ += known[name][1]
    return sorted(wanted)


def main():
    listed = subprocess.run(["dpkg", "-L", *packages()], capture_output=True, text=True, check=True).stdout.splitlines()
    skip = ("/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/info")
    paths = set()
    for path in listed:
        if path.startswith("/") and os.path.lexists(path) and not path.startswith(skip):
            # /bin and /lib are links on a merged system; what lies below is archived where it really is.
            paths.add(os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)))
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        for path in sorted(paths | {path for path in ("/bin", "/sbin", "/lib", "/lib64") if os.path.islink(path)}):
            if path not in ("/", "/tmp"):
                archive.add(path, arcname=path.lstrip("/"), recursive=False)
        directory = tarfile.TarInfo("tmp")
        directory.type, directory.mode = tarfile.DIRTYPE, 0o1777
        archive.addfile(directory)


if __name__ == "__main__":
    main()
