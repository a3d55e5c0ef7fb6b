"""The list of cases. A module of cases adds its own with the decorator."""

from dataclasses import dataclass
from typing import Callable

CASES = []


@dataclass
class Case:
    name: str
    needs: tuple
    # How often `--short` runs it.
    short: int
    function: Callable


def case(name, needs=(), short=1):
    """Adds a function of a folder and a random generator that raises a Failure."""
    def add(function):
        CASES.append(Case(name, tuple(needs), short, function))
        return function
    return add


def for_engines(name, needs=(), short=("process", "docker")):
    """The same case on both engines; the function takes the engine's name first. `short` has the engines of the short form."""
    def add(function):
        for engine, needed in (("process", ()), ("docker", ("docker",))):
            bound = lambda folder, rng, engine=engine: function(engine, folder, rng)
            CASES.append(Case(f"{name}/{engine}", (*needed, *needs), int(engine in short), bound))
        return function
    return add
