"""One partition's log in memory: raw batches, epochs, watermarks, and the producers' states."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.fakes.batches import BatchInfo, build_batch, control_batch, crc_ok, parse_batches

CORRUPT_MESSAGE = 2
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47


class AppendResult(NamedTuple):
    error: int
    base_offset: int = -1
    duplicate: bool = False


@dataclass
class StoredBatch:
    info: BatchInfo
    data: bytes


@dataclass
class ProducerState:
    """The last five batches of one producer, as Kafka remembers them."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(
        default_factory=lambda: deque(maxlen=5)
    )  # first, last, offset


class FakeLog:
    """A log whose high watermark follows its end unless `hold_high_watermark` is set."""

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.hold_high_watermark = False
        self._high_watermark = 0
        self.epochs: list[tuple[int, int]] = []  # (leader epoch, start offset)
        self.producers: dict[int, ProducerState] = {}
        self.open_transactions: dict[int, int] = {}  # producer id -> first offset
        self.aborted: list[tuple[int, int, int]] = []  # producer id, first offset, last offset

    # --- watermarks -----------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        return self._high_watermark if self.hold_high_watermark else self.log_end_offset

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self.hold_high_watermark = True
        self._high_watermark = offset

    @property
    def last_stable_offset(self) -> int:
        return min([self.high_watermark, *self.open_transactions.values()])

    # --- writing --------------------------------------------------------------------------------------------

    def append(self, data: bytes, leader_epoch: int) -> AppendResult:
        """What a leader does with the records of one produce request."""
        try:
            infos = parse_batches(data, allow_partial=False)
        except ValueError:
            return AppendResult(CORRUPT_MESSAGE)
        if not infos or not all(crc_ok(data, info) for info in infos):
            return AppendResult(CORRUPT_MESSAGE)
        for info in infos:
            if info.producer_id >= 0 and not info.is_control:
                error, offset = self._check_sequence(info)
                if error or offset is not None:
                    return AppendResult(error, -1 if offset is None else offset, offset is not None)
        base_offset = self.log_end_offset
        for info in infos:
            self._store(data[info.position : info.position + info.size], self.log_end_offset, leader_epoch)
        return AppendResult(0, base_offset)

    def add(
        self, records: object = 1, *, leader_epoch: int = 0, at: int | None = None, **batch: object
    ) -> int:
        """Put a batch at the end, or further on at offset `at` (a gap, as compaction leaves them); its base
        offset.
        """
        base_offset = self.log_end_offset if at is None else at
        self._store(build_batch(records, **batch), base_offset, leader_epoch)  # type: ignore[arg-type]
        return base_offset

    def end_transaction(
        self, producer_id: int, producer_epoch: int, *, commit: bool, leader_epoch: int = 0
    ) -> int:
        base_offset = self.log_end_offset
        self._store(control_batch(producer_id, producer_epoch, commit=commit), base_offset, leader_epoch)
        first = self.open_transactions.pop(producer_id, None)
        if first is not None and not commit:
            self.aborted.append((producer_id, first, base_offset))
        return base_offset

    def truncate(self, offset: int) -> None:
        """Forget everything from `offset` on, as an unclean election does."""
        self.batches = [b for b in self.batches if b.info.last_offset < offset]
        self.log_end_offset = offset
        if self.hold_high_watermark:
            self._high_watermark = min(self._high_watermark, offset)
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < offset]
        self.open_transactions = {p: first for p, first in self.open_transactions.items() if first < offset}
        self.producers.clear()
        for stored in self.batches:
            self._remember_producer(stored.info)

    def delete_until(self, offset: int) -> None:
        """Move the log start, as retention or DeleteRecords does."""
        self.log_start_offset = max(self.log_start_offset, offset)
        self.batches = [b for b in self.batches if b.info.last_offset >= self.log_start_offset]
        self.log_end_offset = max(self.log_end_offset, self.log_start_offset)

    def _store(self, data: bytes, base_offset: int, leader_epoch: int) -> None:
        placed = bytearray(data)
        struct.pack_into(">q", placed, 0, base_offset)
        struct.pack_into(">i", placed, 12, leader_epoch)
        (info,) = parse_batches(placed)
        self.batches.append(StoredBatch(info, bytes(placed)))
        self.log_end_offset = info.last_offset + 1
        if not self.epochs or self.epochs[-1][0] != leader_epoch:
            # LeaderEpochFileCache: what does not ascend with the newest entry is removed.
            self.epochs = [one for one in self.epochs if one[0] < leader_epoch and one[1] < base_offset]
            self.epochs.append((leader_epoch, base_offset))
        self._remember_producer(info)

    def _check_sequence(self, info: BatchInfo) -> tuple[int, int | None]:
        """(error, first offset of the batch this one repeats)."""
        state = self.producers.get(info.producer_id)
        if state is None:
            return 0, None
        if info.producer_epoch < state.epoch:
            return INVALID_PRODUCER_EPOCH, None
        if info.producer_epoch > state.epoch:
            return (0 if info.base_sequence == 0 else OUT_OF_ORDER_SEQUENCE_NUMBER), None
        for first, last, offset in state.batches:
            if (first, last) == (info.base_sequence, info.last_sequence):
                return 0, offset
        if state.batches and info.base_sequence != (state.batches[-1][1] + 1) & 0x7FFFFFFF:
            return OUT_OF_ORDER_SEQUENCE_NUMBER, None
        return 0, None

    def _remember_producer(self, info: BatchInfo) -> None:
        if info.producer_id < 0 or info.is_control:
            return
        state = self.producers.get(info.producer_id)
        if state is None or state.epoch != info.producer_epoch:
            state = self.producers[info.producer_id] = ProducerState(info.producer_epoch)
        state.batches.append((info.base_sequence, info.last_sequence, info.base_offset))
        if info.is_transactional:
            self.open_transactions.setdefault(info.producer_id, info.base_offset)

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, until: int, whole_first: bool = True) -> bytes:
        """From the batch that holds `offset` up to offset `until`; the last batch is cut at max_bytes."""
        found = bytearray()
        for stored in self.batches:
            if stored.info.last_offset < offset:
                continue
            if stored.info.base_offset >= until or len(found) >= max_bytes:
                break
            if not found and len(stored.data) > max_bytes:
                return stored.data if whole_first else b""
            found += stored.data
        return bytes(found[:max_bytes])

    def bytes(self) -> bytes:
        """Everything, as one buffer."""
        return b"".join(stored.data for stored in self.batches)

    def epoch_end(self, epoch: int, current_epoch: int) -> tuple[int, int]:
        """LeaderEpochFileCache.endOffsetFor: the largest epoch <= `epoch` and where it ended; (-1, -1) if
        unknown.
        """
        if epoch == -1:
            return -1, -1
        latest = self.epochs[-1][0] if self.epochs else -1
        if epoch in (latest, current_epoch):
            return epoch, self.log_end_offset
        higher = next(((e, start) for e, start in self.epochs if e > epoch), None)
        if higher is None:
            return -1, -1
        floor = [e for e, _ in self.epochs if e <= epoch]
        return (floor[-1] if floor else epoch), higher[1]

    def epoch_of(self, offset: int) -> int:
        found = [epoch for epoch, start in self.epochs if start <= offset]
        return found[-1] if found else -1
