"""Which samples a step takes, and how ranks and parts share them. Knows no torch."""

from __future__ import annotations

import math
from typing import Iterator, List, NamedTuple, Optional

from .randomness import shuffled


class Share(NamedTuple):
    """Samples of one part, with the place of the first of them in the step."""

    rows: List[int]
    place: int


class SampleOrder:
    """The samples of a run, one after the other: pass after pass over the data, each in an order that depends on seed and epoch
    alone."""

    def __init__(self, rows: int, seed: int, shuffle: bool) -> None:
        if rows < 1:
            raise ValueError("the dataset is empty: there is nothing to train on")
        self.rows = rows
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = -1
        self._order: List[int] = []

    def take(self, start: int, count: int) -> List[int]:
        """The rows of `count` samples from the position `start` on."""
        return [self._row(position) for position in range(start, start + count)]

    def _row(self, position: int) -> int:
        epoch, index = divmod(position, self.rows)
        if not self._shuffle:
            return index
        if epoch != self._epoch:
            self._epoch, self._order = epoch, shuffled(self.rows, self._seed, epoch)
        return self._order[index]


class Plan:
    """The steps of a run from a position on."""

    def __init__(self, order: SampleOrder, effective_batch: int, samples: int) -> None:
        self.order = order
        self.effective_batch = effective_batch
        self.samples = samples

    def samples_of(self, position: int) -> int:
        """Samples of the step that begins at a position: the last one may be smaller."""
        return min(self.effective_batch, self.samples - position)

    def steps_from(self, position: int) -> int:
        return -(-max(self.samples - position, 0) // self.effective_batch)

    def parts(self, position: int, batch: int, rank: int, ranks: int) -> List[Share]:
        """The parts of a rank in the step that begins at a position."""
        count = self.samples_of(position)
        first, end = count * rank // ranks, count * (rank + 1) // ranks
        rows = self.order.take(position + first, end - first)
        return [Share(rows[at : at + batch], first + at) for at in range(0, len(rows), batch)]

    def all_parts(self, position: int, batch: int, rank: int, ranks: int) -> Iterator[List[int]]:
        """The rows of every part of a rank, from a position to the end of the run."""
        while position < self.samples:
            for share in self.parts(position, batch, rank, ranks):
                yield share.rows
            position += self.samples_of(position)


def samples_of_run(rows: int, effective_batch: int, steps: Optional[int], epochs: Optional[float], done: "Done") -> int:
    """Samples of a whole run, counted with their repetitions. `done` are steps of a resumed run, whose steps may have been larger."""
    if steps is not None:
        return done.samples + max(steps - done.steps, 0) * effective_batch
    product = (1.0 if epochs is None else epochs) * rows
    nearest = round(product)
    return max(nearest if abs(product - nearest) < 1e-6 else math.ceil(product), 1)


class Done(NamedTuple):
    """How far a run has come."""

    steps: int = 0
    samples: int = 0
