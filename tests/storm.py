#!/usr/bin/env python3
"""Disturbs runs of the real `pipe` in every way we know, for a bounded time, and checks what comes out of them against
undisturbed runs: the same losses to the bit, the same model, each step once, no container and no process left.

    python3 tests/storm.py --bin target/debug --minutes 10     what `make storm` runs
    python3 tests/storm.py --bin target/debug --short          what `make test-all` runs: one of most cases, always the same
    python3 tests/storm.py --bin target/debug --few            what `make test` runs: some of those
    python3 tests/storm.py --list
    python3 tests/storm.py --only kill-training/docker --seed 7 --index 3    one that failed, again
"""

import argparse
import collections
import os
import random
import signal
import sys
import time
import traceback

from storm.case import CASES
from storm.failure import Failure
from storm.world import World
from storm import commands, corruption, disks, freezes, hostile, inputs, kills, parts, sockets, together, users  # noqa: F401

SHORT_SEED = 1

# One for each kind of disturbance.
FEW = ("corrupt/run.json", "full-disk/process", "freeze-trainer-stop/process", "two-users/links", "hostile-image/links-42", "read-pickle",
       "kill-training/process", "cut-socket/docker", "two-resumes/process")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="target/debug", help="the folder of pipe and pipe-trainer")
    parser.add_argument("--minutes", type=float, default=10, help="no case is started after so many")
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--short", action="store_true", help="one of most cases, with a fixed seed")
    parser.add_argument("--few", action="store_true", help="some of those")
    parser.add_argument("--list", action="store_true", help="the names of the cases")
    parser.add_argument("--only", metavar="CASE", help="cases whose name begins so")
    parser.add_argument("--index", type=int, help="with --only: the one with this number alone")
    options = parser.parse_args()
    options.short |= options.few
    return options


class Tally:
    """How often a case ran and failed."""

    def __init__(self, case, skipped):
        self.case = case
        self.skipped = skipped
        self.count = 0
        self.failures = 0
        self.seconds = 0.0

    def row(self):
        if self.skipped:
            return f"{self.case.name:32} {'skipped: ' + self.skipped}"
        note = "" if self.count else "  not reached"
        return f"{self.case.name:32} {self.count:5} {self.failures:8} {self.seconds:7.0f}s{note}"


def run_one(world, case, index):
    """Runs a case once. Returns the message of its failure and the folder that was kept, or nothing."""
    folder = world.folder(f"{case.name.replace('/', '-')}-{index}")
    folder.index = index
    message = None
    try:
        case.function(folder, world.random(case.name, index))
    except Failure as failure:
        message = str(failure)
    except Exception:  # A fault of the case itself is a failure as well, and must not end the others.
        message = traceback.format_exc()
    finally:
        folder.end_everything()
    if message is None:
        folder.remove()
        return None
    return message, folder.path


def order(tallies, options, seed):
    """The cases and their numbers, one of each at a time, in an order that the seed decides."""
    runnable = [tally for tally in tallies if not tally.skipped]
    if options.index is not None:
        return ((tally, options.index) for tally in runnable)
    if options.short:
        return ((tally, index) for tally in runnable for index in range(tally.case.short))
    shuffled = random.Random(seed).sample(runnable, len(runnable))
    return ((tally, index) for index in range(1_000_000) for tally in shuffled)


def storm(world, tallies, options):
    """Runs cases until the time is up. Returns the folders of those that failed."""
    end = time.monotonic() + options.minutes * 60
    kept = []
    for tally, index in order(tallies, options, world.seed):
        if time.monotonic() > end:
            break
        began = time.monotonic()
        failed = run_one(world, tally.case, index)
        tally.count += 1
        tally.seconds += time.monotonic() - began
        if failed:
            tally.failures += 1
            message, folder = failed
            kept.append(folder)
            repeat = again(world, options, tally, index)
            print(f"FAILED {tally.case.name} {index}: {message}\n  folder: {folder}\n  again:  {repeat}", flush=True)
    return kept


def again(world, options, tally, index):
    return (f"python3 tests/storm.py --bin {options.bin} --seed {world.seed} --only {tally.case.name} --index {index}")


def interrupted(*_):
    raise KeyboardInterrupt


def main():
    # A shell starts background jobs with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    options = arguments()
    chosen = [case for case in CASES if case.name.startswith(options.only or "") and (case.short or not options.short)]
    left_out = [case for case in chosen if options.few and case.name not in FEW]
    chosen = [case for case in chosen if case not in left_out]
    if options.list:
        print("\n".join(case.name for case in chosen))
        return 0
    if not chosen:
        print(f"no case is called {options.only}", file=sys.stderr)
        return 2
    seed = options.seed if options.seed is not None else SHORT_SEED if options.short else random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    world = World(options.bin, seed, options.short)
    if not (world.pipe.is_file() and world.trainer.is_file()):
        print(f"{options.bin} has no pipe and pipe-trainer; run `make build` first", file=sys.stderr)
        world.remove([])
        return 2
    tallies = [Tally(case, world.missing(case.needs)) for case in chosen]
    kept = []
    try:
        kept = storm(world, tallies, options)
    finally:
        world.remove(kept)
    write_times(tallies)
    code = summarize(tallies, seed, world.struck)
    if left_out:
        print(f"{len(left_out)} tests run only in `make test-all`")
    return code


def write_times(tallies):
    """Adds the seconds of each case to the file that PIPE_TEST_TIMES names."""
    if path := os.environ.get("PIPE_TEST_TIMES"):
        with open(path, "a") as file:
            file.writelines(f"{tally.seconds:8.2f} storm {tally.case.name}\n" for tally in tallies if tally.count)


def summarize(tallies, seed, struck):
    """Prints the table. Returns the exit code."""
    print(f"\n{'case':32} {'count':>5} {'failures':>8} {'time':>8}")
    print("\n".join(tally.row() for tally in tallies))
    if struck:
        counts = collections.Counter(struck).most_common()
        print("kills that struck: " + ", ".join(f"{what} {count}" for what, count in counts))
    failures = sum(tally.failures for tally in tallies)
    must = os.environ.get("PIPE_REQUIRE_DOCKER") == "1"
    lacking = [tally for tally in tallies if must and tally.skipped and "docker" in tally.case.needs]
    for tally in lacking:
        print(f"PIPE_REQUIRE_DOCKER=1 and {tally.case.name} was skipped: {tally.skipped}")
    print(f"seed {seed}: {sum(tally.count for tally in tallies)} cases, {failures} failures, "
          f"{sum(bool(tally.skipped) for tally in tallies)} skipped")
    return 1 if failures or lacking else 0


if __name__ == "__main__":
    sys.exit(main())
