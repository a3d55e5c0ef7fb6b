"""What a job tells `pipe`: steps as lines, and its out-of-memory as a record and an exit code. Knows no torch, but asks one that was
imported."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterator, Mapping, Optional

DEVICE_OUT_OF_MEMORY = 42
HOST_OUT_OF_MEMORY = 43
STOPPED = 143

# Characters of a message that are kept.
_MESSAGE = 2000
# How errors of torch that have no class of their own begin to say that memory ran out.
_OF_DEVICE = re.compile(
    r"(CUDA|HIP) out of memory|(CUDA|HIP) (driver |runtime )?error: out of memory|MPS backend out of memory|XPU out of memory"
    r"|(CUBLAS|CUDNN|CUSOLVER|HIPBLAS)_STATUS_ALLOC_FAILED|Cuda failure (\d+ )?'out of memory'"
)
_OF_HOST = re.compile(
    r"DefaultCPUAllocator: (can't allocate memory|not enough memory)|unable to (mmap|allocate shared memory)"
    r"|Cannot allocate memory|std::bad_alloc"
)


class Shortage:
    """An error that says that memory ran out."""

    def __init__(self, error: BaseException, is_host: bool) -> None:
        self.error = error
        self.is_host = is_host
        self.exit_code = HOST_OUT_OF_MEMORY if is_host else DEVICE_OUT_OF_MEMORY

    @classmethod
    def find(cls, error: Optional[BaseException]) -> "Optional[Shortage]":
        """An out-of-memory, if an error is one or was raised because of one."""
        seen = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            if isinstance(error, MemoryError):
                return cls(error, is_host=True)
            names = {each.__name__ for each in type(error).__mro__}
            text = str(error)
            if "OutOfMemoryError" in names or (isinstance(error, RuntimeError) and _OF_DEVICE.search(text)):
                return cls(error, is_host=False)
            if isinstance(error, (RuntimeError, OSError)) and _OF_HOST.search(text):
                return cls(error, is_host=True)
            # Of a cause that Python names itself, not of an earlier error that was survived.
            error = error.__cause__
        return None

    def record(self, phase: str, step: int, batch: int, rank: int) -> Dict[str, Any]:
        """The record as `pipe` reads it. Sizes stand in the message."""
        record: Dict[str, Any] = {
            "memory": "host" if self.is_host else "device",
            "phase": phase,
            "step": step,
            "batch": batch,
            "rank": rank,
            "message": f"{type(self.error).__name__}: {self.error}"[:_MESSAGE],
        }
        if not self.is_host:
            record.update(_figures_of_card())
        return record


def _figures_of_card() -> Dict[str, Any]:
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return {}
        stats = torch.cuda.memory_stats()
        conf = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
        return {
            "peak": stats.get("reserved_bytes.all.peak"),
            "alloc_retries": stats.get("num_alloc_retries"),
            "allocator": conf or None,
        }
    except Exception:  # A card in this state may not answer, and the record is worth more without its figures than not at all.
        return {}


def write_whole(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Writes a file that is complete or not there."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(part, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Keeps a new name in a folder through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tell_shortage(path: Optional[Path], record: Mapping[str, Any]) -> bool:
    """Writes the record for `pipe`; whether it could be."""
    if path is None:
        return False
    try:
        write_whole(path, lambda file: file.write(json.dumps(record).encode()))
        return True
    except OSError as error:
        # The message of torch is in the log, where `pipe` looks as well.
        note(f"cannot write {path}: {error}")
        return False


def note(text: str) -> None:
    """A line for people."""
    print(f"pipe_train: {text}", file=sys.stderr, flush=True)


def _numbers(values: Mapping[str, Any]) -> Iterator[Any]:
    for name, value in values.items():
        try:
            number = value.item() if hasattr(value, "item") else value
            finite = isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number)
        except (TypeError, ValueError, RuntimeError):
            continue
        if finite:
            yield name, number


class Reporter:
    """Prints the figures of steps: as JSON for `pipe`, else for people."""

    def __init__(self, for_pipe: bool, after_bar: bool = False) -> None:
        self._for_pipe = for_pipe
        # After the return of a carriage a line is its own, also where a progress bar stands before it.
        self._start = "\r" if after_bar else ""
        self._last = 0.0

    def tell(self, step: int, steps: Optional[int], values: Mapping[str, Any], is_last: bool = False) -> None:
        numbers = dict(_numbers(values))
        if self._for_pipe:
            told: Dict[str, Any] = {"step": step}
            if steps is not None:
                told["total_steps"] = steps
            told.update(numbers)
            print(self._start + json.dumps(told), flush=True)
            return
        now = time.monotonic()
        is_step = "loss" in numbers
        if is_step and now - self._last < 0.5 and not is_last:
            return
        self._last = now if is_step else self._last
        shown = "  ".join(f"{name} {number:.6g}" for name, number in numbers.items())
        print(f"step {step}{f'/{steps}' if steps is not None else ''}  {shown}", flush=True)


# Functions in a traceback, the innermost first, with the phase that they belong to.
_PHASES = {
    "backward": "backward",
    "evaluation_loop": "eval",
    "prediction_step": "eval",
    "validation_step": "eval",
    "_save_checkpoint": "checkpoint",
    "save_checkpoint": "checkpoint",
    "_load_from_checkpoint": "resume",
    "_load_optimizer_and_scheduler": "resume",
    "restore_training_state": "resume",
}


def phase_of(error: BaseException, has_begun: bool) -> str:
    """What a framework was doing when an error was raised, by its traceback. `has_begun` says whether it has computed anything."""
    frames = [(frame.f_code.co_filename, frame.f_code.co_name) for frame, _ in traceback.walk_tb(error.__traceback__)]
    for file, name in reversed(frames):
        if "/torch/optim/" in file.replace("\\", "/"):
            return "optimizer"
        if name in _PHASES:
            return _PHASES[name]
    return "forward" if has_begun else "load"


class ExceptionHook:
    """Ends a program whose out-of-memory nobody has caught with a record for `pipe` and its exit code."""

    def __init__(self, path: Optional[Path], batch: int, rank: int = 0) -> None:
        self._path = path
        self._batch = batch
        self._rank = rank
        self._before: Any = None
        self.step = 0
        """Steps done."""
        self.has_begun = False

    def install(self) -> None:
        if self._before is None:
            self._before, sys.excepthook = sys.excepthook, self._hear

    def _hear(self, kind: Any, error: BaseException, trace: Any) -> None:
        self._before(kind, error, trace)
        shortage = Shortage.find(error)
        if shortage is None:
            return
        phase = phase_of(shortage.error, self.has_begun)
        step = self.step + (phase in ("forward", "backward", "optimizer"))
        if tell_shortage(self._path, shortage.record(phase, step, self._batch, self._rank)):
            # An exit code other than 1 is possible here only without Python's own end.
            with contextlib.suppress(Exception):
                atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(shortage.exit_code)


def speedless(values: Mapping[str, Any]) -> Dict[str, Any]:
    """The figures of a framework without those that say how fast it is."""
    return {name: value for name, value in values.items() if not name.endswith(("_runtime", "_per_second", "_preparation_time"))}
