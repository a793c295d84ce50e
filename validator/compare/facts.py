"""Findings of a comparison: the kinds of difference, the batches concerned, and the small types that go with them.

Plain data, shared by the messages of the validator process and by the evidence. Record contents never get in here, only
sizes and checksums: findings are shown to people, stored and logged.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_FINDINGS = 20
"""Findings of one replica that are told, the first by offset; `findings_count` counts them all."""

Offset = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
"""Of a set of batches, in hex: the sum modulo 2^128 of a hash of each (validator/compare/digest.py); sums of ranges
add up."""


class Facts(BaseModel):
    """Base of plain data: never changed, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FindingKind(StrEnum):
    """The fault of a replica. The `record_*` kinds are found in mode `records` only."""

    MISSING = "missing"  # a batch of the source is not on the replica
    EXTRA = "extra"  # a batch of the replica is not at the source
    DIFFERING = "differing"  # the same offsets, other bytes
    OVERLAPPING = "overlapping"  # a batch shares offsets with another one of the replica; a doubled one does
    CORRUPT = "corrupt"  # the bytes do not match the CRC they carry
    GAP = "gap"  # offsets that the source has are on no batch of the replica, which goes on behind them
    SHORT = "short"  # the replica ended before the end it had to have
    LATE_START = "late_start"  # the replica starts later than the source and the mirror
    REORDERED = "reordered"  # batches lie in another order than their offsets
    RECREATED = "recreated"  # the topic is not the one that the mirror was started from
    PARTITION_COUNT = "partition_count"  # source or target has another number of partitions
    RECORD_MISSING = "record_missing"
    RECORD_EXTRA = "record_extra"
    RECORD_DIFFERING = "record_differing"


class BatchFacts(Facts):
    """One batch as a log holds it, as far as a comparison needs it."""

    base_offset: int
    last_offset: int
    records: int
    size: int  # bytes, the 12 of base offset and length included
    crc: int  # as stored
    crc_computed: int  # from the bytes
    attributes: int
    codec: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_timestamp: int  # ms since 1970


class Missing(Facts):
    """Offsets [start, end) before a replica's log start, of which the source still holds something. `records` counts what
    the source's batches there hold, transaction markers left out; `exact` is False where it is an upper bound (a log start
    inside a batch that a cleaner has been at)."""

    start: Offset
    end: Offset
    batches: Count
    records: Count
    exact: bool = True
    why: str


class Finding(Facts):
    """Something wrong, at an offset. `source` and `replica`: the batches there, None where a side has none."""

    kind: FindingKind
    offset: int
    detail: str
    source: BatchFacts | None = None
    replica: BatchFacts | None = None
