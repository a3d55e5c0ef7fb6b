"""Random numbers as functions of a purpose, a seed and numbers such as the step, as the trainer of `pipe` has them: a resumed run
needs no saved generator state. Knows no torch."""

from __future__ import annotations

import random as _python_random
import struct
from typing import List, Sequence, Tuple

_MASK = 0xFFFFFFFF
_START = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_ONLY_BLOCK = 1 | 2 | 8  # It is the first of its chunk, the last, and the root.


def _blake3(message: bytes) -> bytes:
    """The first 32 bytes of BLAKE3 of at most 64 bytes."""
    if len(message) > 64:
        raise ValueError("more than one block")
    words = list(struct.unpack("<16I", message.ljust(64, b"\0")))
    state = [*_START, *_START[:4], 0, 0, len(message), _ONLY_BLOCK]
    for turn in range(7):
        for index, (a, b, c, d) in enumerate(_COLUMNS + _DIAGONALS):
            for word, far, near in ((words[2 * index], 16, 12), (words[2 * index + 1], 8, 7)):
                state[a] = (state[a] + state[b] + word) & _MASK
                state[d] = _rotated(state[d] ^ state[a], far)
                state[c] = (state[c] + state[d]) & _MASK
                state[b] = _rotated(state[b] ^ state[c], near)
        if turn < 6:
            words = [words[index] for index in _PERMUTATION]
    return struct.pack("<8I", *(state[index] ^ state[index + 8] for index in range(8)))


def _rotated(word: int, count: int) -> int:
    return (word >> count | word << (32 - count)) & _MASK


def derived(purpose: str, seed: int, numbers: Sequence[int] = ()) -> int:
    """A seed of 64 bits for something smaller."""
    message = purpose.encode() + struct.pack(f"<{1 + len(numbers)}Q", seed, *numbers)
    return int(struct.unpack("<Q", _blake3(message)[:8])[0])


def philox(key: int, counter: Tuple[int, int, int, int]) -> Tuple[int, int, int, int]:
    """Four words of Philox4x32 with 7 rounds, one counter at a time."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & _MASK, key >> 32
    for _ in range(7):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & _MASK, p0 >> 32 ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def shuffled(count: int, seed: int, epoch: int) -> List[int]:
    """The numbers below `count` in the order of an epoch: Fisher-Yates with the one draw whose numbers Python promises to keep."""
    draw = _python_random.Random(derived("order", seed, [epoch])).random
    rows = list(range(count))
    for last in range(count - 1, 0, -1):
        other = int(draw() * (last + 1))
        rows[last], rows[other] = rows[other], rows[last]
    return rows
