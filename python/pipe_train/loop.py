"""The training loop: steps of the effective batch, in parts that fit, with checkpoints between them."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Type, Union

import torch

from . import checkpoint
from .dropout import Drawn, number_dropouts, set_drawn
from .order import Done, Plan, SampleOrder, samples_of_run
from .randomness import derived
from .ranks import Ranks, device
from .report import STOPPED, Reporter, Shortage, note, tell_shortage
from .settings import Settings, settings

__all__ = ["NotFinite", "Part", "Run", "Step", "device", "training"]

# Models that sum gradients themselves, after each part.
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


class NotFinite(ArithmeticError):
    """The loss of a step is not a number that can be trained on."""


class Part:
    """Samples of one forward and backward pass: what `collate` made of them, and as long as they are many.

    `x, y = part`, `part["ids"]` and `model(**part)` read `part.batch`."""

    def __init__(self, batch: Any, rows: List[int]) -> None:
        self.batch = batch
        self.rows = rows
        """Where its samples stand in the dataset."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batch)

    def __getitem__(self, key: Any) -> Any:
        return self.batch[key]

    def keys(self) -> Any:
        return self.batch.keys()


class Step:
    """One optimizer step. It is taken when its last part has been computed: behind `for part in step` the weights are new."""

    def __init__(self, run: "Run", number: int, position: int) -> None:
        self.number = number
        """Counted from 1."""
        self.loss: Optional[float] = None
        """The mean over the step, once it is taken."""
        self._run = run
        self._position = position
        self._parts = 0
        self._weight = 0.0
        self._loss_sum: Union[float, torch.Tensor] = 0.0
        self._open: Optional[Part] = None
        self._values: Dict[str, Any] = {}

    @property
    def epoch(self) -> float:
        """Passes over the data before this step."""
        return self._position / self._run.rows

    def log(self, **values: Any) -> None:
        """Adds numbers to what is reported of this step."""
        self._values.update(values)

    def __iter__(self) -> Iterator[Part]:
        if self._parts or self.loss is not None:
            raise RuntimeError(f"step {self.number} was gone through before")
        run = self._run
        try:
            for share in run._shares(self._position):
                self._parts += 1
                run._phase = "forward"
                self._open = Part(run._next_batch(), share.rows)
                set_drawn(Drawn(run.settings.seed, self.number - 1, share.place, len(share.rows)))
                yield self._open
                if self._open is not None:
                    raise RuntimeError(f"part {self._parts} of step {self.number} had no step.backward(...)")
        finally:
            self._open = None
            set_drawn(None)
        run._take(self)

    def backward(self, loss: torch.Tensor, weight: Optional[float] = None) -> None:
        """The gradient of a part. `loss` is a mean over the part, and `weight` what it is a mean over: samples (the default), or what
        you count, such as tokens. The gradient of the step is that of the mean over all of it."""
        if self._open is None:
            raise RuntimeError("step.backward(...) is called once for each part of a step")
        weight = float(len(self._open) if weight is None else weight)
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight={weight}: a number from 0 on is needed")
        if loss.numel() != 1:
            raise ValueError(f"the loss has the shape {list(loss.shape)}: a single number is needed, the mean over the part")
        self._open = None
        if weight == 0:
            return
        run = self._run
        wide = loss.float() if loss.dtype in (torch.float16, torch.bfloat16) else loss
        precise = wide.detach() if wide.device.type == "mps" else wide.detach().double()
        self._loss_sum = self._loss_sum + precise.reshape(()) * weight
        self._weight += weight
        scaled = wide * (weight / run._reference)
        run._phase = "backward"
        (scaled if run._scaler is None else run._scaler.scale(scaled)).backward()
        run._phase = "forward"


def training(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    *,
    epochs: Optional[float] = None,
    steps: Optional[int] = None,
    batch: Optional[int] = None,
    effective_batch: Optional[int] = None,
    seed: Optional[int] = None,
    shuffle: bool = True,
    collate: Optional[Callable[[List[Any]], Any]] = None,
    workers: int = 0,
    schedule: Any = None,
    scaler: Any = None,
    clip: Optional[float] = None,
    evaluate: Optional[Tuple[Any, Callable[[Part], Any]]] = None,
    evaluate_every: Optional[int] = None,
    save_every: Optional[int] = None,
    save_minutes: float = 10,
    keep: int = 2,
    folder: Union[str, "os.PathLike[str]", None] = None,
    others: Optional[Mapping[str, Any]] = None,
) -> "Run":
    """A training to go through with `with` and `for`. Its `batch`, `effective_batch`, `seed` and `folder` are those of `pipe`, and
    without it those given here.

    `dataset` has a length and items; `collate` makes a batch of a list of them, as in a DataLoader. `schedule` is stepped after each
    step. `evaluate` is a dataset with a function from a part of it to its mean loss, or to numbers by name, or to a pair of that and
    its weight; it is computed every `evaluate_every` steps and at the end. Checkpoints are written to `folder` every `save_every`
    steps, every `save_minutes`, on SIGTERM, at the end, and when memory has run out, and a run continues from the newest one there.
    Without `pipe` and without a `folder` nothing is written. `others` are more objects with `state_dict` that belong to a
    checkpoint."""
    asked = settings(batch, effective_batch, seed, folder)
    for name, number in (("epochs", epochs), ("steps", steps), ("evaluate_every", evaluate_every), ("save_every", save_every), ("keep", keep)):
        if number is not None and number <= 0:
            raise ValueError(f"{name}={number}: a number above 0 is needed")
    if epochs is not None and steps is not None:
        raise ValueError("give epochs or steps, not both")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError("the dataset needs __len__ and __getitem__: one that can only be gone through has no order to continue")
    if type(model).__name__ in _WRAPPERS:
        raise TypeError(f"give the model itself, not a {type(model).__name__}: gradients are summed over ranks once a step")
    run = Run(model, optimizer, dataset, asked)
    run._length = (steps, epochs)
    run._loading = dict(collate_fn=collate, num_workers=workers)
    run._shuffle, run._schedule, run._scaler, run._clip = shuffle, schedule, scaler, clip
    run._evaluation, run._evaluate_every = evaluate, evaluate_every
    run._save_every, run._save_seconds, run._keep = save_every, save_minutes * 60, keep
    run._others = dict(others or {})
    return run


class Run:
    """A training that is being done."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, dataset: Any, asked: Settings) -> None:
        self.model = model
        self.optimizer = optimizer
        self.settings = asked
        self.rows = len(dataset)
        self.step = 0
        """Steps done."""
        self.samples = 0
        """Samples of these steps."""
        self.evaluation: Dict[str, float] = {}
        """The last evaluation."""
        self.device = next((each.device for each in model.parameters()), torch.device("cpu"))
        self._dataset = dataset
        self._parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self._length: Tuple[Optional[int], Optional[float]] = (None, None)
        self._loading: Dict[str, Any] = {}
        self._shuffle = True
        self._schedule: Any = None
        self._scaler: Any = None
        self._clip: Optional[float] = None
        self._evaluation: Optional[Tuple[Any, Callable[[Part], Any]]] = None
        self._evaluate_every: Optional[int] = None
        self._save_every: Optional[int] = None
        self._save_seconds = 600.0
        self._keep = 2
        self._others: Dict[str, Any] = {}
        self._ranks: Optional[Ranks] = None
        self._plan: Optional[Plan] = None
        self._batches: Optional[Iterator[Any]] = None
        self._reporter = Reporter(asked.is_under_pipe)
        self._phase = "load"
        # Whether weights and optimizer are those after a whole step.
        self._is_whole = True
        self._evaluation_due = False
        self._saved_step = -1
        self._saved_at = time.monotonic()
        # Losses are computed in units of a power of two near the weight of a step, so that fp16 has numbers to hold. It changes no bit of fp32.
        self._reference = _power_of_two(asked.effective_batch)
        self._stopping = False
        self._stop_agreed = False
        self._handler: Any = None

    @property
    def folder(self) -> Optional[Path]:
        """Where checkpoints are, and where results belong."""
        return self.settings.folder

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.step + self._entered()[1].steps_from(self.samples)

    @property
    def rank(self) -> int:
        return self._entered()[0].index

    @property
    def ranks(self) -> int:
        return self._entered()[0].count

    @property
    def stop_requested(self) -> bool:
        """Whether SIGTERM was received: the run saves after its step, and ends with exit code 143."""
        return self._stopping or self._stop_agreed

    def _entered(self) -> Tuple[Ranks, Plan]:
        if self._ranks is None or self._plan is None:
            raise RuntimeError("a run begins with `with pipe_train.training(...) as run:`")
        return self._ranks, self._plan

    def __enter__(self) -> "Run":
        self._phase = "resume"
        try:
            self._begin()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        self._phase = "forward"
        return self

    def _begin(self) -> None:
        ranks = self._ranks = Ranks(self.device)
        number_dropouts(self.model)
        state = self._newest()
        if state is not None:
            self._restore(state)
        ranks.broadcast(self.model)
        order = SampleOrder(self.rows, self.settings.seed, self._shuffle)
        steps, epochs = self._length
        samples = samples_of_run(self.rows, self.settings.effective_batch, steps, epochs, Done(self.step, self.samples))
        self._plan = Plan(order, self.settings.effective_batch, samples)
        if self.folder is not None and ranks.is_first:
            checkpoint.remove_parts(self.folder)
        self.optimizer.zero_grad(set_to_none=True)
        # Other threads than the first cannot hear signals.
        with contextlib.suppress(ValueError):
            self._handler = signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, number: int, frame: Optional[FrameType]) -> None:
        self._stopping = True

    def _newest(self) -> Optional[Dict[str, Any]]:
        if self.settings.resume is not None:
            return checkpoint.load(self.settings.resume)
        return checkpoint.load_newest(self.folder) if self.folder is not None else None

    def __iter__(self) -> Iterator[Step]:
        ranks, plan = self._entered()
        if self._batches is not None:
            raise RuntimeError("a run is gone through once")
        order = SampleOrder(self.rows, self.settings.seed, self._shuffle)
        ahead = Plan(order, plan.effective_batch, plan.samples)
        self._batches = iter(self._loader(self._dataset, ahead.all_parts(self.samples, self.settings.batch, ranks.index, ranks.count)))
        self._end_turn()
        while self.samples < plan.samples:
            step = Step(self, self.step + 1, self.samples)
            self._seed_generators()
            self._phase = "forward"
            yield step
            if step.loss is None:
                raise RuntimeError(f"step {step.number} was left after {step._parts} of its parts: go through all of them")
            if ranks.is_first:
                self._reporter.tell(step.number, self.steps, step._values, is_last=self.samples >= plan.samples)
            every = self._evaluate_every
            self._evaluation_due = self._evaluation is not None and (
                self.samples >= plan.samples or (every is not None and self.step % every == 0)
            )
            self._end_turn()

    def _end_turn(self) -> None:
        """All that happens between two steps, and after a resume what was left to do."""
        ranks, plan = self._entered()
        if self._evaluation_due:
            self.evaluate()
        is_due = self._save_every is not None and self.step % self._save_every == 0
        is_due = is_due or time.monotonic() - self._saved_at >= self._save_seconds or self.samples >= plan.samples
        stops = self._stop_agreed or (self._stopping and ranks.count == 1)
        if (is_due and self.step > 0) or stops:
            self.save()
        if stops:
            if ranks.is_first:
                note(f"stopped after step {self.step}" + ("" if self.folder is None else ", saved"))
            raise SystemExit(STOPPED)

    def _seed_generators(self) -> None:
        """Random numbers of a step depend on seed, step and rank: no state of a generator needs to be kept."""
        seed = derived("step", self.settings.seed, [self.step, self.rank]) >> 1
        torch.manual_seed(seed)
        random.seed(seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(seed & 0xFFFFFFFF)

    def _loader(self, dataset: Any, rows: Any) -> Any:
        pinned = self.device.type == "cuda"
        # The seeds of the workers.
        generator = torch.Generator().manual_seed(derived("workers", self.settings.seed, [self.step, self.rank]) >> 1)
        return torch.utils.data.DataLoader(dataset, batch_sampler=rows, pin_memory=pinned, generator=generator, **self._loading)

    def _shares(self, position: int) -> Any:
        ranks, plan = self._entered()
        return plan.parts(position, self.settings.batch, ranks.index, ranks.count)

    def _next_batch(self) -> Any:
        assert self._batches is not None
        return _moved(next(self._batches), self.device)

    def _take(self, step: Step) -> None:
        """The optimizer step, once all parts of this rank are computed."""
        ranks, plan = self._entered()
        self._phase = "optimizer"
        loss, weight, stops = ranks.sum([float(step._loss_sum), step._weight, float(self._stopping)])
        if weight == 0:
            raise ValueError(f"the weights of step {step.number} add up to 0: there is nothing to train on in it")
        step.loss = loss / weight
        if self._scaler is None and not math.isfinite(step.loss):
            raise NotFinite(f"the loss of step {step.number} is {step.loss}: lower the learning rate, or look at the samples of this step")
        values = {"loss": step.loss, "lr": self.optimizer.param_groups[0]["lr"]}
        ranks.sum_gradients(self._parameters)
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        gradients = [each.grad for each in self._parameters if each.grad is not None]
        if any(each.is_sparse for each in gradients):
            for gradient in gradients:
                gradient.mul_(self._reference / weight)
        elif gradients:
            torch._foreach_mul_(gradients, self._reference / weight)
        if self._clip is not None:
            values["grad_norm"] = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._clip))
        self._is_whole = False
        self._update()
        self.step, self.samples = step.number, self.samples + plan.samples_of(self.samples)
        self._reference = _power_of_two(weight)
        self._is_whole = True
        self._stop_agreed = stops > 0
        if self.device.type == "cuda":
            values["peak_memory"] = torch.cuda.max_memory_allocated(self.device)
        step._values = {**values, **step._values}
        # What the loop does before its next turn, such as an evaluation of its own.
        self._phase = "eval"

    def _update(self) -> None:
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        if self._schedule is not None:
            self._schedule.step()
        self.optimizer.zero_grad(set_to_none=True)

    def evaluate(self) -> Dict[str, float]:
        """The numbers of `evaluate=`, as means over its dataset. All ranks call it."""
        if self._evaluation is None:
            raise RuntimeError("training(...) was given no evaluate=(dataset, function)")
        ranks, _ = self._entered()
        dataset, function = self._evaluation
        before, self._phase, self._evaluation_due = self._phase, "eval", True
        plan = Plan(SampleOrder(len(dataset), 0, shuffle=False), len(dataset), len(dataset))
        shares = plan.parts(0, self.settings.batch, ranks.index, ranks.count)
        sums: Dict[str, List[float]] = {}
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                for share, batch in zip(shares, self._loader(dataset, [share.rows for share in shares])):
                    part = Part(_moved(batch, self.device), share.rows)
                    _add(sums, function(part), len(part))
        finally:
            self.model.train(was_training)
        totals: Dict[str, List[float]] = {}
        for of_rank in ranks.gather(sums):
            for name, (value, weight) in of_rank.items():
                known = totals.setdefault(name, [0.0, 0.0])
                totals[name] = [known[0] + value, known[1] + weight]
        self.evaluation = {name: value / weight for name, (value, weight) in totals.items() if weight > 0}
        if ranks.is_first:
            told = {name if name.startswith("eval_") else f"eval_{name}": value for name, value in self.evaluation.items()}
            self._reporter.tell(self.step, self.steps, told)
        self._phase, self._evaluation_due = before, False
        return self.evaluation

    def save(self) -> None:
        """Writes a checkpoint of the last whole step, where there is a folder for it. The first rank writes it."""
        if self.rank == 0:
            self._save()

    def _save(self) -> None:
        if self.folder is None or self._saved_step == self.step:
            return
        before, self._phase = self._phase, "checkpoint"
        checkpoint.save(self.folder, self._state(), self._keep)
        self._saved_step, self._saved_at = self.step, time.monotonic()
        self._phase = before

    def _state(self) -> Dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self._schedule, "scaler": self._scaler, **self._named_others()}
        return {
            "format": checkpoint.FORMAT,
            "step": self.step,
            "samples": self.samples,
            "order": self._order(),
            "effective_batch": self.settings.effective_batch,
            "reference": self._reference,
            "evaluation_due": self._evaluation_due,
            **{name: part.state_dict() for name, part in parts.items() if part is not None},
        }

    def _order(self) -> Dict[str, Any]:
        return {"seed": self.settings.seed, "rows": self.rows, "shuffle": self._shuffle}

    def _named_others(self) -> Dict[str, Any]:
        return {f"others.{name}": part for name, part in self._others.items()}

    def _restore(self, state: Dict[str, Any]) -> None:
        for name, now in self._order().items():
            if state["order"][name] != now:
                then = state["order"][name]
                raise checkpoint.BadCheckpoint(
                    f"the checkpoint was made with {name} {then}, and now it is {now}: the samples would come in another order. Use the "
                    "same, or start over"
                )
        is_first = self._ranks is None or self._ranks.is_first
        if state["effective_batch"] != self.settings.effective_batch and is_first:
            note(f"effective batch {self.settings.effective_batch} instead of {state['effective_batch']}: this changes the result")
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self._schedule, "scaler": self._scaler, **self._named_others()}
        for name, part in parts.items():
            if part is not None:
                if name not in state:
                    raise checkpoint.BadCheckpoint(f"the checkpoint has no state of {name}: continue with the script that made it")
                part.load_state_dict(state[name])
        self.step, self.samples = state["step"], state["samples"]
        self._reference, self._evaluation_due = state["reference"], state["evaluation_due"]
        self._saved_step = -1 if self._evaluation_due else self.step
        if is_first:
            note(f"continuing after step {self.step}")

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        set_drawn(None)
        self._batches = None
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None
        shortage = Shortage.find(error)
        if shortage is not None:
            self._end_without_memory(shortage)
        elif error is None or isinstance(error, KeyboardInterrupt):
            if self._is_whole and self._ranks is not None and self.step > 0:
                self.save()
        if self._ranks is not None:
            self._ranks.close(wait=error is None or (isinstance(error, SystemExit) and self._stop_agreed))

    def _end_without_memory(self, shortage: Shortage) -> None:
        """Tells `pipe` of it and saves the last whole step."""
        rank = 0 if self._ranks is None else self._ranks.index
        record = shortage.record(self._phase, self.step + self._is_training(), self.settings.batch, rank)
        is_told = self.settings.record is not None
        if is_told:
            # The exit that follows prints nothing.
            traceback.print_exception(type(shortage.error), shortage.error, shortage.error.__traceback__)
        self._free(shortage.error)
        # Whichever rank it is: all have the same after a step.
        if self._is_whole and self._phase not in ("load", "resume") and self.step > 0:
            try:
                self._save()
            except Exception as error:
                note(f"the last step could not be saved: {error}")
        if tell_shortage(self.settings.record, record):
            raise SystemExit(shortage.exit_code)

    def _is_training(self) -> bool:
        return self._phase in ("forward", "backward", "optimizer")

    def _free(self, error: BaseException) -> None:
        """Lets go of what the failed step holds, so that there is room to save."""
        each: Optional[BaseException] = error
        while each is not None:
            traceback.clear_frames(each.__traceback__)
            each = each.__cause__ or each.__context__
        if self._is_whole:
            self.optimizer.zero_grad(set_to_none=True)
        gc.collect()
        if self.device.type == "cuda":
            with contextlib.suppress(Exception):
                torch.cuda.empty_cache()


def _power_of_two(number: float) -> float:
    return 2.0 ** round(math.log2(number))


def _add(sums: Dict[str, List[float]], found: Any, count: int) -> None:
    weight = float(count)
    if isinstance(found, tuple):
        found, weight = found[0], float(found[1])
    if weight == 0:
        return
    for name, value in (found if isinstance(found, Mapping) else {"loss": found}).items():
        known = sums.get(name, [0.0, 0.0])
        sums[name] = [known[0] + float(value) * weight, known[1] + weight]


def _moved(batch: Any, where: torch.device) -> Any:
    """A batch with its tensors on a device."""
    if hasattr(batch, "to"):
        return batch.to(where)
    if isinstance(batch, Mapping):
        return {name: _moved(each, where) for name, each in batch.items()}
    if isinstance(batch, tuple):
        each = [_moved(each, where) for each in batch]
        return type(batch)(*each) if hasattr(batch, "_fields") else tuple(each)
    if isinstance(batch, list):
        return [_moved(each, where) for each in batch]
    return batch
