"""One callback for the Trainer of transformers:

    trainer = Trainer(..., callbacks=[pipe_train.transformers.Callback()])

Under `pipe` it reports the figures of the Trainer, tells an out-of-memory, saves and ends on SIGTERM, and applies batch,
accumulation, output folder and checkpoint of the attempt. Without `pipe` it does nothing."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
from typing import Any, Dict, Optional

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .report import STOPPED, ExceptionHook, Reporter, note, speedless
from .settings import Settings, settings


class Callback(TrainerCallback):
    """See the module."""

    def __init__(self) -> None:
        self._settings = settings()
        self._reporter = Reporter(for_pipe=True, after_bar=True)
        self._hook: Optional[ExceptionHook] = None
        self._stopping = False
        self._handler: Any = None

    @property
    def stop_requested(self) -> bool:
        """Whether SIGTERM was received."""
        return self._stopping

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self._settings.is_under_pipe:
            return
        trainer = _trainer_above(self)
        if trainer is None:
            note("the Trainer was not found: batch and checkpoint are those of the script")
        else:
            _apply(self._settings, trainer)
        self._hook = ExceptionHook(self._settings.record, self._settings.batch, args.process_index)
        self._hook.install()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._hook is None:
            return
        self._hook.has_begun = True
        self._hook.step = state.global_step
        with contextlib.suppress(ValueError):  # Other threads than the first cannot hear signals.
            self._handler = signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, number: int, frame: Any) -> None:
        self._stopping = True

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Optional[Dict[str, Any]] = None, **kwargs: Any) -> None:
        if self._hook is not None and state.is_world_process_zero and logs and "train_runtime" not in logs:
            values = {name: value for name, value in speedless(logs).items() if name != "epoch"}
            self._reporter.tell(state.global_step, state.max_steps or None, values)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._hook is not None:
            self._hook.step = state.global_step
        if self._stopping:
            control.should_save = control.should_training_stop = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None
        if self._stopping:
            # The script would take the model for finished.
            note(f"stopped after step {state.global_step}")
            raise SystemExit(STOPPED)


def _trainer_above(callback: Callback) -> Any:
    """The Trainer that is calling: callbacks are not given it."""
    frame = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if callback in getattr(getattr(found, "callback_handler", None), "callbacks", ()):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _apply(asked: Settings, trainer: Any) -> None:
    args = trainer.args
    ranks = max(1, args.world_size)
    size = max(1, min(asked.batch, asked.effective_batch // ranks))
    args.per_device_train_batch_size = -(-size // max(1, args.n_gpu))
    args.per_device_eval_batch_size = min(args.per_device_eval_batch_size, asked.batch)
    args.gradient_accumulation_steps = -(-asked.effective_batch // (args.train_batch_size * ranks))
    trainer._train_batch_size = args.train_batch_size
    if asked.folder is not None:
        args.output_dir = str(asked.folder)
    if asked.resume is None:
        return
    train = trainer.train

    @functools.wraps(train)
    def resumed(resume_from_checkpoint: Any = None, *words: Any, **options: Any) -> Any:
        return train(str(asked.resume), *words, **options)

    trainer.train = resumed
