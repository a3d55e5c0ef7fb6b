"""Checkpoints: one file each, complete under its name or not there. Knows torch only as the writer of a file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Dict, List, Optional

from .report import note, write_whole

_NAME = re.compile(r"checkpoint-(\d+)\.pt")
_PART = re.compile(r"\.checkpoint-\d+\.pt\.\d+")
FORMAT = 1


class BadCheckpoint(RuntimeError):
    """A checkpoint that cannot be used, with what to do."""


def path_of(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step}.pt"


def found(folder: Path) -> List[Path]:
    """The checkpoints of a folder, the newest first."""
    names = [(int(match[1]), name) for name in _names(folder) if (match := _NAME.fullmatch(name))]
    return [folder / name for _, name in sorted(names, reverse=True)]


def _names(folder: Path) -> List[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def save(folder: Path, state: Dict[str, Any], keep: int) -> Path:
    """Writes the checkpoint of `state["step"]` and removes old ones."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, state["step"])
    write_whole(path, lambda file: torch.save(state, file))
    for old in found(folder)[keep:]:
        old.unlink(missing_ok=True)
    return path


def remove_parts(folder: Path) -> None:
    """Removes what a process that was killed while it saved has left."""
    for name in _names(folder):
        if _PART.fullmatch(name):
            (folder / name).unlink(missing_ok=True)


def load(path: Path) -> Dict[str, Any]:
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise BadCheckpoint(f"{path}: there is no such file") from None
    except Exception as error:
        raise BadCheckpoint(f"{path} cannot be read: {error}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise BadCheckpoint(f"{path} is no checkpoint of this version of pipe_train")
    return state


def load_newest(folder: Path) -> Optional[Dict[str, Any]]:
    """The newest checkpoint of a folder that can be read."""
    paths = found(folder)
    for path in paths:
        try:
            return load(path)
        except BadCheckpoint as error:
            note(f"{error}; trying an older one")
    if paths:
        raise BadCheckpoint(f"no checkpoint in {folder} can be read: move them away to start over")
    return None
