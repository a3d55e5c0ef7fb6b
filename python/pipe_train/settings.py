"""What `pipe` asks of an attempt, read from its environment variables. Knows no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Optional, Union

_DEFAULT_BATCH = 8
_DEFAULT_SEED = 42


@dataclass(frozen=True)
class Settings:
    """The settings of this attempt: those of `pipe`, and without it those of the script."""

    batch: int
    """Samples in one forward and backward pass of a rank: as many as fit."""
    effective_batch: int
    """Samples in an optimizer step, over all ranks."""
    accum: int
    """Batches in a step of one rank, if there is only one."""
    seed: int
    precision: str
    folder: Optional[Path]
    """Where checkpoints and results belong."""
    resume: Optional[Path]
    """The checkpoint that `pipe` continues from."""
    attempt: int
    record: Optional[Path]
    """The file in which an out-of-memory is told to `pipe`."""
    is_under_pipe: bool


def settings(
    batch: Optional[int] = None,
    effective_batch: Optional[int] = None,
    seed: Optional[int] = None,
    folder: Union[str, "os.PathLike[str]", None] = None,
    *,
    environ: Optional[Mapping[str, str]] = None,
) -> Settings:
    """The settings of this attempt. The arguments are those of a script that runs without `pipe`."""
    given = os.environ if environ is None else environ
    own_batch = _positive("batch", _DEFAULT_BATCH if batch is None else batch)
    own_effective = _positive("effective_batch", own_batch if effective_batch is None else effective_batch)
    size = _number(given, "PIPE_BATCH", own_batch)
    effective = _number(given, "PIPE_EFFECTIVE_BATCH", own_effective)
    path = given.get("PIPE_RUN") or folder
    size = min(size, effective)
    return Settings(
        batch=size,
        effective_batch=effective,
        accum=-(-effective // size),
        seed=_number(given, "PIPE_SEED", _DEFAULT_SEED if seed is None else seed, least=0),
        precision=given.get("PIPE_PRECISION") or "fp32",
        folder=Path(path) if path else None,
        resume=Path(given["PIPE_RESUME"]) if given.get("PIPE_RESUME") else None,
        attempt=_number(given, "PIPE_ATTEMPT", 1),
        record=Path(given["PIPE_OOM_RECORD"]) if given.get("PIPE_OOM_RECORD") else None,
        is_under_pipe=bool(given.get("PIPE_RUN")),
    )


def _positive(name: str, number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name}={number!r}: a whole number above 0 is needed")
    return number


def _number(given: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    text = given.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name}={text}: a whole number from {least} on is needed; `pipe` sets this variable")
    return int(text)
