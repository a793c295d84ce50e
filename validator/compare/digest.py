"""A digest of a set of batches that does not depend on their order and adds up over ranges.

Each batch (base offset, last offset, record count, CRC) is hashed into two lanes of 64 bits; a set's digest is the sum of
each lane modulo 2^64, written as 32 hex digits. Equal digests of a replica and of the source over one range mean the same
batches, as far as CRC-32C tells them apart: it guards against damage, not against somebody who forges it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_SEEDS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # the finalizer of SplitMix64

Columns = npt.NDArray[np.int64]


def digest_of(base: Columns, last: Columns, count: Columns, crc: Columns) -> int:
    """The digest of the batches in these columns."""
    lanes = 0
    for seed in _SEEDS:
        state = np.full(len(base), seed, np.uint64)
        for column in (base, last, count, crc):
            state = _mix(state ^ column.astype(np.uint64, copy=False))
        lanes = lanes << 64 | int(state.sum(dtype=np.uint64))
    return lanes


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
    return state ^ (state >> np.uint64(31))


def digest_of_one(base: int, last: int, count: int, crc: int) -> int:
    """The same for one batch, without columns."""
    lanes = 0
    for state in _SEEDS:
        for value in (base, last, count, crc):
            state ^= value & _MASK
            state = (state ^ state >> 30) * _FIRST & _MASK
            state = (state ^ state >> 27) * _SECOND & _MASK
            state ^= state >> 31
        lanes = lanes << 64 | state
    return lanes


def add(one: int, other: int) -> int:
    """The digest of two sets together."""
    return ((one >> 64) + (other >> 64) & _MASK) << 64 | (one + other) & _MASK


def to_hex(digest: int) -> str:
    return f"{digest:032x}"


def from_hex(text: str | None) -> int:
    """None is the digest of nothing."""
    return 0 if text is None else int(text, 16)
