"""Dropout by sample: what is dropped depends on the seed, the step, the sample's place in the step, the place in the model and the
position in the sample, and on nothing else. It is the function of the trainer of `pipe`: docs/dev/dropout.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Tuple

import torch

from .randomness import derived


@dataclass
class Drawn:
    """The part that is being computed."""

    seed: int
    """The seed of the run."""
    step: int
    """Steps done before."""
    place: int
    """Where its first sample stands in the step."""
    samples: int

    def __post_init__(self) -> None:
        self.step_seed = derived("dropout", self.seed, [self.step])
        # How often each dropout was used in this part.
        self.uses: Dict[int, int] = {}


# Draws that are computed at once: each takes some hundred bytes for a moment.
_DRAWS = 1 << 20

_drawn: Optional[Drawn] = None


def set_drawn(drawn: Optional[Drawn]) -> None:
    global _drawn
    _drawn = drawn


def _philox(key: int, counter: Tuple[torch.Tensor, ...]) -> Tuple[torch.Tensor, ...]:
    """Philox4x32 with 7 rounds on tensors of 64 bits that hold words of 32."""
    mask = 0xFFFFFFFF
    c0, c1, c2, c3 = counter
    k0, k1 = key & mask, key >> 32
    for _ in range(7):
        # A product keeps its lower 64 bits, whatever sign they give it.
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (p1 >> 32 & mask) ^ c1 ^ k0, p1 & mask
        c2, c3 = (p0 >> 32 & mask) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0, c1, c2, c3


def _threshold(p: float) -> int:
    # Rounded as in Rust, where a half goes up.
    return int(p * 65536 + 0.5)


def _numbers(words: Tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Two more dimensions: the four words, and their halves of 16 bits, the lower first."""
    stacked = torch.stack(torch.broadcast_tensors(*words), -1)  # type: ignore[no-untyped-call]
    return torch.stack((stacked & 0xFFFF, stacked >> 16), -1)


def _chunks(count: int, draws: int) -> Iterator[Tuple[int, int]]:
    """Slices of `count` things with so many draws each."""
    size = max(1, _DRAWS // max(draws, 1))
    return ((start, min(start + size, count)) for start in range(0, count, size))


def kept(key: int, place: int, shape: Tuple[int, int, int], p: float, device: torch.device) -> torch.Tensor:
    """True where something of [samples, positions, features] is kept."""
    samples, positions, features = shape
    groups, threshold = -(-features // 8), _threshold(p)
    keep = torch.empty((samples * positions, features), dtype=torch.bool, device=device)
    group = torch.arange(groups, device=device).view(1, -1)
    zero = torch.zeros((), dtype=torch.int64, device=device)
    for start, end in _chunks(samples * positions, groups):
        row = torch.arange(start, end, device=device).view(-1, 1)
        counter = (group, row % positions, torch.div(row, positions, rounding_mode="floor") + place, zero)
        numbers = _numbers(_philox(key, counter)).reshape(end - start, groups * 8)
        keep[start:end] = numbers[:, :features] >= threshold
    return keep.view(shape)


def kept_weights(key: int, place: int, shape: Tuple[int, int, int, int], p: float, device: torch.device) -> torch.Tensor:
    """True where a weight of [samples, heads, queries, keys] is kept."""
    samples, heads, queries, keys = shape
    rows, columns, threshold = -(-queries // 16), -(-keys // 16), _threshold(p)
    keep = torch.empty((samples * heads, queries, keys), dtype=torch.bool, device=device)
    # Tiles of queries, queries in a tile modulo 8, tiles of keys, pairs of keys in half a tile.
    row, query, column, pair = (
        torch.arange(size, device=device).view([-1 if at == index else 1 for at in range(5)])
        for index, size in enumerate((rows, 8, columns, 4), 1)
    )
    for start, end in _chunks(samples * heads, rows * columns * 32):
        both = torch.arange(start, end, device=device).view(-1, 1, 1, 1, 1)
        sample, head = torch.div(both, heads, rounding_mode="floor") + place, both % heads + 1
        words = _numbers(_philox(key, (column * 32 + query * 4 + pair, row, sample, head)))
        # The word is two bits: which half of the tile the key is in, and which the query.
        tiles = words.reshape(end - start, rows, 8, columns, 4, 2, 2, 2)
        tiles = tiles.permute(0, 1, 6, 2, 3, 5, 4, 7).reshape(end - start, rows * 16, columns * 16)
        keep[start:end] = tiles[:, :queries, :keys] >= threshold
    return keep.view(shape)


class Dropout(torch.nn.Module):
    """Drops a share `p` of what it gets, by sample: samples come first and features last, and all between are positions. With
    `attention=True` it gets weights [samples, heads, queries, keys].

    `place` names it in the model. Without one it is its number among the dropouts of the model that `training` was given."""

    def __init__(self, p: float = 0.5, *, attention: bool = False, place: Optional[int] = None) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p={p}: a share from 0 on and below 1 is needed")
        self.p = p
        self.attention = attention
        self.place = place
        self.number = place

    def extra_repr(self) -> str:
        return f"p={self.p}" + (", attention=True" if self.attention else "")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        threshold = _threshold(self.p)
        if not self.training or threshold == 0:
            return input
        keep = self._kept(input)
        return torch.where(keep, input * (65536 / (65536 - threshold)), torch.zeros((), dtype=input.dtype, device=input.device))

    @torch.no_grad()
    def _kept(self, input: torch.Tensor) -> torch.Tensor:
        drawn = _drawn
        if drawn is None:
            raise RuntimeError(
                "pipe_train.Dropout drops by the samples of a step: compute inside `for part in step`, or after model.eval()"
            )
        if self.number is None:
            raise RuntimeError("this pipe_train.Dropout is not in the model that pipe_train.training was given: give it a place=")
        if input.dim() < 2 or input.shape[0] != drawn.samples:
            raise RuntimeError(
                f"pipe_train.Dropout got {list(input.shape)} in a part of {drawn.samples} samples: its first dimension must be the samples"
            )
        key = derived("dropout", drawn.step_seed, [self.number, self._use(drawn, self.number)])
        shape = tuple(input.shape)
        if self.attention:
            if len(shape) != 4:
                raise RuntimeError(f"attention=True needs [samples, heads, queries, keys], not {list(shape)}")
            return kept_weights(key, drawn.place, shape, self.p, input.device)
        positions = input[0].numel() // max(shape[-1], 1)
        return kept(key, drawn.place, (shape[0], positions, shape[-1]), self.p, input.device).view(shape)

    def _use(self, drawn: Drawn, number: int) -> int:
        """How often it was used before in this part."""
        uses = drawn.uses.get(number, 0)
        if torch._C._current_graph_task_id() == -1:
            drawn.uses[number] = uses + 1
            return uses
        # Gradient checkpointing computes a piece of the model a second time, in an order of its own.
        if uses > 1:
            raise RuntimeError(
                f"a pipe_train.Dropout is used {uses} times in a pass, and gradient checkpointing computes it again: give each use "
                "a Dropout of its own"
            )
        return 0


def number_dropouts(model: torch.nn.Module) -> None:
    """Gives the dropouts of a model without a place their numbers. What is dropped depends on them."""
    dropouts: List[Dropout] = [module for module in model.modules() if isinstance(module, Dropout)]
    for number, module in enumerate(dropouts):
        module.number = number if module.place is None else module.place
    numbers = [module.number for module in dropouts]
    if len(set(numbers)) < len(numbers):
        raise ValueError("two dropouts of the model have the same place")


def replace_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """Puts `Dropout` in place of every torch.nn.Dropout of a model; returns the model."""
    for name, module in model.named_modules():
        share = module.dropout if isinstance(module, (torch.nn.MultiheadAttention, torch.nn.RNNBase)) else 0.0
        if share:
            raise ValueError(
                f"{name or 'the model'} is a {type(module).__name__} that drops inside ({share}), which cannot be replaced: set its dropout to 0"
            )
    seen: Dict[int, Dropout] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Dropout:
                own = seen.setdefault(id(child), Dropout(child.p))
                own.train(child.training)
                setattr(parent, name, own)
    return model
