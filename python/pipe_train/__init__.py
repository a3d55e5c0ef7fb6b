"""A training loop of your own that keeps its result through out-of-memory retries, stops and any number of ranks.

    with pipe_train.training(model, optimizer, dataset) as run:
        for step in run:
            for part in step:
                step.backward(loss_of(part), weight=len(part))

Under `pipe` the batch, the effective batch, the seed and the checkpoint to continue from come from its pipeline. Without it the
same script runs with what it says itself. The package needs torch and nothing else, and imports it when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .report import DEVICE_OUT_OF_MEMORY, HOST_OUT_OF_MEMORY, STOPPED
from .settings import Settings, settings

if TYPE_CHECKING:
    from .dropout import Dropout, replace_dropout
    from .loop import NotFinite, Part, Run, Step, device, training

__all__ = [
    "DEVICE_OUT_OF_MEMORY",
    "HOST_OUT_OF_MEMORY",
    "STOPPED",
    "Dropout",
    "NotFinite",
    "Part",
    "Run",
    "Settings",
    "Step",
    "device",
    "replace_dropout",
    "settings",
    "training",
]

_NEEDS_TORCH = {"Dropout": "dropout", "replace_dropout": "dropout"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("pipe_train")
        except PackageNotFoundError:  # Not installed, but found as a folder.
            return "0"
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module("." + _NEEDS_TORCH.get(name, "loop"), __name__)
    globals().update({each: getattr(module, each) for each in __all__ if hasattr(module, each)})
    return globals()[name]
