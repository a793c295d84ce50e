"""The columns of `kafka-batches`, and how headers in a buffer become Arrow batches: field by field for all batches at once.

Only the columns that are asked for are built; the CRC is computed from the bytes only if somebody wants to see it. No
bytes of records are copied: 61 bytes of each header are, and crc32c reads the batch where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from validator.read.spans import Span
from wire.frames.batch import BATCH_OVERHEAD, LENGTH_OVERHEAD
from wire.frames.types import Buffer

HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "unknown-5", "unknown-6", "unknown-7")

BATCH = 0  # `marker`: an ordinary row
UNREADABLE = 1  # the log cannot be read from base_offset on; `note` says why
MOVED = 2  # the log no longer starts, or ends already, where it was planned: what follows was not read

ARROW_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "replica": pa.int32(),  # broker id; -1: the leader, whichever it was
    "base_offset": pa.int64(),
    "last_offset": pa.int64(),
    "record_count": pa.int32(),
    "size": pa.int32(),  # bytes, the 12 of base offset and length included
    "codec": pa.string(),
    "producer_id": pa.int64(),
    "producer_epoch": pa.int32(),
    "base_sequence": pa.int32(),
    "attributes": pa.int32(),
    "max_timestamp": pa.int64(),  # ms since 1970
    "crc": pa.int64(),  # as stored, unsigned
    "crc_computed": pa.int64(),  # from the bytes
    "leader_epoch": pa.int32(),  # differs lawfully between clusters
    "follows": pa.int64(),  # the offset that the log had reached before this batch; -1: not known
    "marker": pa.int32(),
    "note": pa.string(),
    "range_id": pa.int32(),
    "slot": pa.int32(),
}
PUBLIC = tuple(name for name in ARROW_TYPES if name not in ("range_id", "slot"))
"""The columns that `spark.read.format("kafka-batches")` shows without a schema of the user's."""

Array = npt.NDArray[Any]


class HeaderBlock:
    """Headers of batches of one span, and what is made of them on demand."""

    def __init__(self, span: Span, buf: Buffer, positions: Sequence[int], follows: Sequence[int]) -> None:
        self.span = span
        self.rows = len(positions)
        self._view = memoryview(buf)
        self._positions = positions
        self._follows = follows
        raw = np.frombuffer(buf, np.uint8)
        places = np.asarray(positions, np.int64)[:, None] + np.arange(BATCH_OVERHEAD)
        self.headers: Array = raw[places].view(HEADER)[:, 0] if self.rows else np.empty(0, HEADER)

    def column(self, name: str) -> Array:
        """A column as numpy has it; constants as an array of the block's length."""
        made = _COLUMNS.get(name)
        return made(self) if made is not None else self.headers[name].astype(np.int64)

    def crc_computed(self) -> Array:
        """CRC-32C of each batch's bytes."""
        view = self._view
        sizes = self.headers["length"].tolist()
        return np.fromiter(
            (
                crc32c(view[pos + 21 : pos + LENGTH_OVERHEAD + size])
                for pos, size in zip(self._positions, sizes, strict=True)
            ),
            np.int64,
            self.rows,
        )

    def follows(self) -> Array:
        return np.asarray(self._follows, np.int64)

    def fill(self, value: object) -> Array:
        return np.full(self.rows, value)


def _codecs(block: HeaderBlock) -> Array:
    names: Array = np.asarray(CODECS, dtype=object)[block.headers["attributes"].astype(np.int64) & 7]
    return names


_COLUMNS: dict[str, Callable[[HeaderBlock], Array]] = {
    "topic": lambda block: block.fill(block.span.topic),
    "partition": lambda block: block.fill(block.span.partition),
    "replica": lambda block: block.fill(block.span.node),
    "range_id": lambda block: block.fill(block.span.range_id),
    "slot": lambda block: block.fill(block.span.slot),
    "last_offset": lambda block: (
        block.headers["base_offset"].astype(np.int64) + block.headers["last_offset_delta"]
    ),
    "size": lambda block: block.headers["length"].astype(np.int64) + LENGTH_OVERHEAD,
    "codec": _codecs,
    "crc_computed": HeaderBlock.crc_computed,
    "follows": HeaderBlock.follows,
    "marker": lambda block: block.fill(BATCH),
}


class ArrowBuilder:
    """Collects blocks and markers until there are enough rows for an Arrow batch."""

    def __init__(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in ARROW_TYPES]
        if unknown:
            raise ValueError(
                f"kafka-batches has no column {', '.join(unknown)}; it has {', '.join(ARROW_TYPES)}"
            )
        self._names = tuple(names)
        self._schema = pa.schema([(name, ARROW_TYPES[name]) for name in self._names])
        self._parts: dict[str, list[pa.Array]] = {name: [] for name in self._names}
        self.rows = 0

    def add(self, block: HeaderBlock) -> None:
        """Builds the columns at once: the block's buffer is free afterwards."""
        if not block.rows:
            return
        for name in self._names:
            kind = ARROW_TYPES[name]
            array = (
                pa.nulls(block.rows, kind)
                if name == "note"
                else pa.array(block.column(name), kind, safe=False)
            )
            self._parts[name].append(array)
        self.rows += block.rows

    def add_marker(self, span: Span, marker: int, offset: int, note: str) -> None:
        """A row that is no batch."""
        values: dict[str, object] = {
            "topic": span.topic,
            "partition": span.partition,
            "replica": span.node,
            "range_id": span.range_id,
            "slot": span.slot,
            "base_offset": offset,
            "last_offset": offset,
            "codec": CODECS[0],
            "marker": marker,
            "note": note,
        }
        for name in self._names:
            self._parts[name].append(pa.array([values.get(name, 0)], ARROW_TYPES[name]))
        self.rows += 1

    def take(self) -> pa.RecordBatch:
        """The collected rows."""
        arrays = [pa.concat_arrays(self._parts[name]) for name in self._names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._parts = {name: [] for name in self._names}
        self.rows = 0
        return batch
