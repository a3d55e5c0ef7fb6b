#!/usr/bin/env python3
"""Runs every command of README.md, CONTRIBUTING.md and docs/ with the real binaries.

    tests/docs_commands.py --bin target/debug            run them all
    tests/docs_commands.py --bin target/debug watching   only pages whose name contains this
    tests/docs_commands.py --check                       run nothing; check blocks, links, names and lengths of lines

Fenced blocks are found by their language. In ```console the lines behind `$ ` are commands and the others are output; ```sh is a
script. A block is one shell with `set -e`, in a folder that all blocks of the page share, and must end with exit code 0. A comment on
the line before a block says otherwise:

    <!-- exit: 3 -->        it ends with this exit code
    <!-- needs: card -->    it is not run here, and is listed as skipped: card, network, hub, CI, build (compiles this source tree) or
                            root; `docker` is run with PIPE_TEST_ALL=1 where a daemon answers, and PIPE_REQUIRE_DOCKER=1 makes that a must

A ```yaml block whose first line is `# NAME.yaml` is written to the page's folder under that name; README's are there on
every page. Every page starts with 200 generated recipes in data/, and with copies of pipelines/ and tests/fixtures/bert.
Blocks without a language, marks that are not known, links to files or headings that do not exist, lines of over 120
characters, and names of files of this source tree that do not exist (`src/...`, `tests/...`, `docs/...`, `docker/...`,
`pipelines/...`) are failures.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNNABLE = ("console", "sh")
SKIPPED = ("card", "network", "hub", "CI", "build", "root")
TIMEOUT = 180
LINE = 120


@dataclass
class Block:
    page: str
    line: int
    language: str
    needs: str | None = None
    exit: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def name(self):
        return f"{self.page}:{self.line}"

    @property
    def script(self):
        if self.language == "console":
            return "\n".join(line[2:] for line in self.lines if line.startswith("$ "))
        return "\n".join(self.lines)

    @property
    def first(self):
        return next((line for line in self.script.splitlines() if line.strip()), "")


class BadPage(Exception):
    pass


def blocks(path):
    """The fenced blocks of a page, with the marks before them."""
    page = str(path.relative_to(ROOT))
    block, mark = None, ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = re.match(r"\s*```(\S*)", line)
        if block is None and fence:
            if not fence[1]:
                raise BadPage(f"{page}:{number}: a block without a language; write ```text where it is no command")
            block = Block(page, number, fence[1], **marks(mark, f"{page}:{number}"))
        elif fence:
            if block.language in RUNNABLE and not block.script.strip():
                raise BadPage(f"{block.name}: no command; in ```console commands begin with `$ `")
            yield block
            block = None
        elif block is not None:
            block.lines.append(line)
        mark = line
    if block is not None:
        raise BadPage(f"{block.name}: the block does not end")


def marks(line, where):
    found = re.fullmatch(r"\s*<!-- (needs|exit): (\S+) -->\s*", line)
    if not found:
        return {}
    key, value = found.groups()
    if key == "exit":
        return {"exit": int(value)}
    if value not in (*SKIPPED, "docker"):
        raise BadPage(f"{where}: unknown mark {value!r}; known: {', '.join((*SKIPPED, 'docker'))}")
    return {"needs": value}


def files_of(page):
    """YAML blocks that name themselves: {name: text}."""
    found = {}
    for block in page:
        named = re.fullmatch(r"# (\S+\.yaml)", block.lines[0]) if block.language == "yaml" and block.lines else None
        if named:
            found[named[1]] = "\n".join(block.lines) + "\n"
    return found


def broken_names(path):
    """Links of a page to files or headings that do not exist, names of files that do not exist, and long lines."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if len(line) > LINE:
            yield f"{path.relative_to(ROOT)}:{number}: a line of {len(line)} characters; at most {LINE}"
    text = re.sub(r"^\s*```.*?^\s*```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"`((?:src|tests|docs|docker|pipelines)/[\w./-]*)`", text):
        if not (ROOT / name).exists():
            yield f"{path.relative_to(ROOT)}: no such file: {name}"
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        file, _, heading = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (heading and heading not in anchors(target)):
            yield f"{path.relative_to(ROOT)}: broken link: {link}"


def anchors(path):
    """The headings of a page, as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class Scratch:
    """A folder that all pages have below them, and the environment that their commands see."""

    def __init__(self, folder, binaries):
        self.folder = folder
        self.docker_host = os.environ.get("DOCKER_HOST")
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
        self.environment = kept | {
            "PATH": f"{binaries}:{kept.get('PATH', '/usr/bin:/bin')}",
            "HOME": str(folder / "home"),
            "PIPE_LEDGER": str(folder / "ledger"),
            "PIPE_CACHE": str(folder / "cache"),
            "PIPE_QUEUE": str(folder / "queue"),
            "HF_HUB_OFFLINE": "1",
            "NO_COLOR": "1",
        }
        for name in ("home", "cache", "queue"):
            (folder / name).mkdir()

    def prepare(self):
        data = ["pipe-trainer", "data", "recipes", "--rows", "200", "--seed", "7", "--out", "data"]
        subprocess.run(data, cwd=self.folder, env=self.environment, check=True, capture_output=True)

    def page(self, name, files):
        folder = self.folder / name.replace("/", "-")
        folder.mkdir()
        # Copies, so that no command can change this source tree.
        shutil.copytree(ROOT / "pipelines", folder / "pipelines")
        shutil.copytree(ROOT / "tests" / "fixtures" / "bert", folder / "tests" / "fixtures" / "bert")
        shutil.copytree(self.folder / "data", folder / "data")
        for file, text in files.items():
            (folder / file).write_text(text)
        return folder

    def run(self, block, folder):
        """The exit code of a block and what it wrote."""
        # Without a daemon, so that a block needs no image; blocks that show containers say so.
        host = f"unix://{self.folder}/no-daemon" if block.needs != "docker" else self.docker_host
        environment = self.environment | ({"DOCKER_HOST": host} if host else {})
        shell = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", block.script], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )
        try:
            output, _ = shell.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            output, _ = shell.communicate()
            return None, output
        return shell.returncode, output


    def stop_runs(self):
        """Ends what a block that failed has left in the background."""
        for runs in self.folder.glob("*/runs"):
            listed = self.pipe(runs, "ls", "--json")
            left = [run["id"] for run in json.loads(listed or "[]") if run["status"] in ("running", "orphaned")]
            if left:
                self.pipe(runs, "stop", "--now", *left)

    def pipe(self, runs, *arguments):
        done = subprocess.run(["pipe", *arguments], cwd=runs.parent, env=self.environment, capture_output=True, check=False)
        return done.stdout.decode(errors="replace")


def daemon_answers():
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0 if shutil.which("docker") else False


def main():
    parser = argparse.ArgumentParser(description="Run every command of README and docs with the real binaries.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--bin", type=Path, help="the folder with pipe and pipe-trainer")
    what.add_argument("--check", action="store_true", help="run nothing; check blocks, links, names and lengths of lines")
    parser.add_argument("--keep", action="store_true", help="keep the scratch folder, and print where it is")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what every block writes")
    parser.add_argument("only", nargs="*", help="parts of the names of pages")
    args = parser.parse_args()
    try:
        top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
        paths = [*top, *sorted((ROOT / "docs").rglob("*.md"))]
        pages = {str(path.relative_to(ROOT)): list(blocks(path)) for path in paths}
        if args.check:
            found = [problem for path in paths for problem in broken_names(path)]
            sys.exit("\n".join(found) if found else 0)
    except BadPage as problem:
        sys.exit(f"error: {problem}")
    for name in ("pipe", "pipe-trainer", "pipe-trainer-bench"):
        if not (args.bin / name).is_file():
            sys.exit(f"error: no {name} in {args.bin}")

    began, counts, failures, seconds = time.monotonic(), {"passed": 0, "skipped": 0}, [], {}
    test_all, left_out = os.environ.get("PIPE_TEST_ALL") == "1", 0
    for path in paths:
        for problem in broken_names(path):
            failures.append(problem)
            print(f"FAILED   {problem}")
    docker = daemon_answers()
    must = os.environ.get("PIPE_REQUIRE_DOCKER") == "1"
    folder = Path(tempfile.mkdtemp(prefix="pipe-docs-")).resolve()
    scratch = Scratch(folder, args.bin.resolve())
    try:
        scratch.prepare()
        for page, found in pages.items():
            runnable = [block for block in found if block.language in RUNNABLE]
            if not runnable or (args.only and not any(part in page for part in args.only)):
                continue
            place = scratch.page(page, files_of(pages["README.md"]) | files_of(found))
            for block in runnable:
                if block.needs == "docker" and not test_all:
                    left_out += 1
                    print(f"test-all {block.name}: {block.first}")
                    continue
                if block.needs in SKIPPED or (block.needs == "docker" and not docker and not must):
                    counts["skipped"] += 1
                    print(f"skipped  {block.name}: needs {block.needs}: {block.first}")
                    continue
                clock = time.monotonic()
                code, output = scratch.run(block, place)
                passed = code == block.exit
                seconds[page] = seconds.get(page, 0) + time.monotonic() - clock
                print(f"{'passed' if passed else 'FAILED'}   {block.name} ({time.monotonic() - clock:.1f}s): {block.first}", flush=True)
                if passed:
                    counts["passed"] += 1
                else:
                    ended = f"no end within {TIMEOUT} s" if code is None else f"exit code {code}, expected {block.exit}"
                    failures.append(block.name)
                    print(f"  {ended}")
                if args.verbose or not passed:
                    print("".join(f"  | {line}\n" for line in output.splitlines()), end="")
    finally:
        scratch.stop_runs()
        if args.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if path := os.environ.get("PIPE_TEST_TIMES"):
        with open(path, "a") as file:
            file.writelines(f"{taken:8.2f} the commands of {page}\n" for page, taken in seconds.items())
    if left_out:
        print(f"{left_out} tests run only in `make test-all`")
    print(f"{counts['passed']} passed, {len(failures)} failed, {counts['skipped']} skipped in {time.monotonic() - began:.0f} s")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
