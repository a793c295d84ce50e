"""Small logs for the comparison's tests: a good one, copies of it, and what may be wrong with a copy."""

from __future__ import annotations

import struct
from collections.abc import Callable

from crc32c import crc32c

from tests.fakes.batches import build_batch
from tests.fakes.log import FakeLog, StoredBatch
from validator.compare.columns import UNREADABLE
from validator.compare.judging import COLUMNS
from validator.compare.verdict import LogSide

RECORDS = 5
BATCHES = 20


def make_log(batches: int = BATCHES, *, records: int = RECORDS, value_size: int = 10) -> FakeLog:
    """Offsets 0 to batches * records - 1, each batch with contents of its own."""
    log = FakeLog()
    for number in range(batches):
        values = [f"{number}-{i}-".encode() + b"x" * value_size for i in range(records)]
        log.add(values, timestamp=1_700_000_000_000 + number)
    return log


def copy_log(log: FakeLog) -> FakeLog:
    """What a replica holds that has followed it; with another leader epoch, as a mirror's replicas have it."""
    copied = FakeLog()
    for stored in log.batches:
        data = bytearray(stored.data)
        struct.pack_into(">i", data, 12, 7)
        copied.batches.append(StoredBatch(stored.info, bytes(data)))
    copied.log_start_offset, copied.log_end_offset = log.log_start_offset, log.log_end_offset
    return copied


def index_of(log: FakeLog, offset: int) -> int:
    return next(i for i, stored in enumerate(log.batches) if stored.info.base_offset == offset)


def change(log: FakeLog, offset: int, edit: Callable[[bytearray], None], *, fix_crc: bool = False) -> None:
    """Edit the bytes of the batch at `offset`; the place it is found by stays."""
    at = index_of(log, offset)
    stored = log.batches[at]
    data = bytearray(stored.data)
    edit(data)
    if fix_crc:
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    log.batches[at] = StoredBatch(stored.info, bytes(data))


def flip_bit(data: bytearray) -> None:
    data[-3] ^= 0x10


def shift_offset(data: bytearray) -> None:
    """The base offset lies outside of the CRC."""
    data[7] ^= 0x02


def break_length(data: bytearray) -> None:
    struct.pack_into(">i", data, 8, 3)


def drop(log: FakeLog, offset: int) -> None:
    del log.batches[index_of(log, offset)]


def double(log: FakeLog, offset: int) -> None:
    at = index_of(log, offset)
    log.batches.insert(at, log.batches[at])


def swap(log: FakeLog, offset: int) -> None:
    """The batch at `offset` and the one after it change places."""
    at = index_of(log, offset)
    log.batches[at : at + 2] = log.batches[at + 1], log.batches[at]


def cut_record(log: FakeLog) -> None:
    """The last batch loses its last record: the log ends one record earlier."""
    stored = log.batches.pop()
    info = stored.info
    log.log_end_offset = info.base_offset
    log.add(info.count - 1, timestamp=info.max_timestamp)


def clean(log: FakeLog, offset: int) -> None:
    """What the cleaner leaves of a batch: fewer records, the same offsets."""
    at = index_of(log, offset)
    info = log.batches[at].info
    data = build_batch(
        1, base_offset=offset, last_offset_delta=info.last_offset - offset, timestamp=info.max_timestamp
    )
    log.batches[at] = StoredBatch(info, data)


def copies(log: FakeLog) -> list[LogSide]:
    """The log's batches as rows, in log order, the way a reader would tell of them."""
    rows = []
    reached = -1
    for stored in log.batches:
        data = stored.data
        base, length, _, magic, crc, attributes, delta, _, latest, producer, epoch, sequence, count = (
            struct.unpack_from(">qiibIhiqqqhii", data)
        )
        if magic != 2 or length + 12 != len(data):
            rows.append(LogSide(*[max(reached, 0)] * 2, *[0] * 9, marker=UNREADABLE, note="no batch"))
            break
        rows.append(
            LogSide(
                base,
                base + delta,
                count,
                len(data),
                attributes,
                producer,
                epoch,
                sequence,
                latest,
                crc,
                crc32c(data[21:]),
                reached,
            )
        )
        reached = max(reached, base + delta + 1)
    return rows


def rows_of(range_id: int, logs: list[FakeLog]) -> list[dict[str, object]]:
    """All sides' rows of one range, sorted as a comparison wants them; the first log is the source's."""
    rows = [
        {"range_id": range_id, "slot": slot, **copy._asdict()}
        for slot, log in enumerate(logs)
        for copy in copies(log)
    ]
    rows.sort(key=lambda row: (row["range_id"], row["base_offset"], row["slot"]))
    return [{name: row[name] for name in COLUMNS} for row in rows]
