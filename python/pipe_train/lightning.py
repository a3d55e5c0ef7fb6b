"""One callback for Lightning:

    trainer = L.Trainer(..., callbacks=[pipe_train.lightning.Callback()])

Under `pipe` it reports the figures of the Trainer, tells an out-of-memory, applies batch and accumulation of the attempt to a plain
DataLoader, and saves after each epoch what a retry continues from. Without `pipe` it does nothing."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, Optional

from torch.utils.data import DataLoader

try:
    from lightning.pytorch import Callback as _Callback
except ImportError:
    from pytorch_lightning import Callback as _Callback  # type: ignore[import-not-found, no-redef, unused-ignore]

from .report import ExceptionHook, Reporter, note, speedless, sync_folder
from .settings import Settings, settings

# What a DataLoader is made of, besides its dataset, its sampler and its batch.
_OPTIONS = ("num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
            "prefetch_factor", "persistent_workers", "pin_memory_device")


class Callback(_Callback):
    """See the module."""

    def __init__(self, keep: int = 2) -> None:
        self._settings = settings()
        self._keep = keep
        self._reporter = Reporter(for_pipe=True, after_bar=True)
        self._hook: Optional[ExceptionHook] = None
        self._losses = 0.0
        self._step = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if not self._settings.is_under_pipe or stage != "fit" or self._hook is not None:
            return
        self._hook = ExceptionHook(self._settings.record, self._settings.batch, trainer.global_rank)
        self._hook.install()
        _apply(self._settings, trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._step = trainer.global_step
        if self._hook is not None:
            self._hook.has_begun, self._hook.step = True, self._step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._hook is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            # It is divided by the accumulation, so that a sum over the step is its mean.
            self._losses += float(loss)
        if trainer.global_step == self._step:
            return
        self._step = self._hook.step = trainer.global_step
        values = {"loss": self._losses, "lr": _rate(trainer)}
        self._losses = 0.0
        if trainer.is_global_zero:
            self._reporter.tell(self._step, self._steps(trainer), values)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self._hook is None or trainer.sanity_checking or not trainer.is_global_zero:
            return
        values = {name: value for name, value in speedless(trainer.callback_metrics).items() if name.startswith(("val_", "eval_"))}
        if values:
            self._reporter.tell(trainer.global_step, self._steps(trainer), values)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        folder = self._settings.folder
        if self._hook is None or folder is None:
            return
        path = folder / f"checkpoint-{trainer.global_step}.ckpt"
        part = folder / f".{path.name}.part"
        # All ranks take part, and the first one writes.
        trainer.save_checkpoint(str(part))
        if trainer.is_global_zero:
            _finish(part, path, self._keep)

    def _steps(self, trainer: Any) -> Optional[int]:
        steps = trainer.estimated_stepping_batches
        return int(steps) if math.isfinite(steps) else None


def _finish(part: Path, path: Path, keep: int) -> None:
    """Gives a checkpoint its name once it is on the disk, and removes old ones."""
    if part.is_dir():
        os.replace(part, path)
        return
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)
    others = [each for each in path.parent.glob("checkpoint-*.ckpt") if each.is_file()]
    for old in sorted(others, key=lambda each: int(each.stem.rpartition("-")[2]))[:-keep]:
        old.unlink()


def _rate(trainer: Any) -> Optional[float]:
    for optimizer in trainer.optimizers:
        return float(optimizer.param_groups[0]["lr"])
    return None


def _apply(asked: Settings, trainer: Any) -> None:
    ranks = max(1, trainer.world_size)
    size = max(1, min(asked.batch, asked.effective_batch // ranks))
    source = getattr(getattr(trainer, "fit_loop", None), "_data_source", None)
    loader = getattr(source, "instance", None)
    if source is not None and type(loader) is DataLoader and loader.batch_size is not None:
        if isinstance(trainer.limit_train_batches, int):
            # They were counted in batches of the script.
            trainer.limit_train_batches = -(-trainer.limit_train_batches * loader.batch_size // size)
        source.instance = _with_batch(loader, size)
        trainer.accumulate_grad_batches = -(-asked.effective_batch // (size * ranks))
    else:
        note("the training data is no plain DataLoader: its batch is that of the script, which finds pipe_train.settings().batch")
    if asked.resume is not None:
        connector = trainer._checkpoint_connector
        restore = connector._restore_modules_and_callbacks

        def resumed(path: Any = None, *words: Any, **options: Any) -> Any:
            return restore(str(asked.resume), *words, **options)

        connector._restore_modules_and_callbacks = resumed


def _with_batch(loader: Any, size: int) -> Any:
    options = {name: getattr(loader, name) for name in _OPTIONS if getattr(loader, name, None) not in (None, "")}
    return DataLoader(loader.dataset, batch_size=size, sampler=loader.sampler, **options)
