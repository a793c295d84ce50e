"""Building and reading v2 record batches the plain way, independent of the product's own code."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import crc32c

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, base timestamp, max timestamp,
# producer id, producer epoch, base sequence, record count
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
_AFTER_CRC = 21

Record = tuple[bytes | None, bytes | None]


class BatchInfo(NamedTuple):
    """The header of one batch with its place in the buffer."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.last_offset - self.base_offset) & 0x7FFFFFFF


def varint(value: int) -> bytes:
    """Zig-zag, as in records."""
    number = (value << 1) ^ (value >> 63)
    out = bytearray()
    while number & ~0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def build_batch(
    records: Sequence[Record | bytes] | int = 1,
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    timestamp: int = 1_700_000_000_000,
    attributes: int = 0,
    transactional: bool = False,
    value_size: int = 10,
    last_offset_delta: int | None = None,
) -> bytes:
    """An uncompressed batch; `records` is a count, a list of values, or a list of (key, value)."""
    if isinstance(records, int):
        records = [(None, bytes([65 + i % 26]) * value_size) for i in range(records)]
    body = bytearray()
    count = 0
    for index, item in enumerate(records):
        key, value = (None, item) if isinstance(item, bytes) else item
        record = bytearray(b"\0") + varint(0) + varint(index)
        for part in (key, value):
            record += varint(-1) if part is None else varint(len(part)) + part
        record += varint(0)
        body += varint(len(record)) + record
        count += 1
    if transactional:
        attributes |= 0x10
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    batch = bytearray(HEADER_SIZE) + body
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - 12,
        leader_epoch,
        2,
        0,
        attributes,
        delta,
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[_AFTER_CRC:])))
    return bytes(batch)


def control_batch(
    producer_id: int, producer_epoch: int, *, commit: bool, base_offset: int = 0, leader_epoch: int = 0
) -> bytes:
    """A transaction marker."""
    key = struct.pack(">hh", 0, 1 if commit else 0)
    value = struct.pack(">hi", 0, 0)
    return build_batch(
        [(key, value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=0x30,
    )


def parse_batches(data: bytes | bytearray | memoryview, *, allow_partial: bool = True) -> list[BatchInfo]:
    """The headers of the whole batches in `data`."""
    batches = []
    position = 0
    while position + HEADER_SIZE <= len(data):
        fields = HEADER.unpack_from(data, position)
        size = fields[1] + 12
        if fields[3] != 2:
            raise ValueError(f"magic {fields[3]} at {position}")
        if position + size > len(data):
            break
        base, _, epoch, _, crc, attributes, delta, first, last, pid, pepoch, sequence, count = fields
        batches.append(
            BatchInfo(
                position,
                size,
                base,
                base + delta,
                epoch,
                crc,
                attributes,
                first,
                last,
                pid,
                pepoch,
                sequence,
                count,
            )
        )
        position += size
    if position != len(data) and not allow_partial:
        raise ValueError(f"{len(data) - position} bytes after the last whole batch")
    return batches


def crc_ok(data: bytes | memoryview, batch: BatchInfo) -> bool:
    return crc32c.crc32c(bytes(data[batch.position + _AFTER_CRC : batch.position + batch.size])) == batch.crc


def values_of(data: bytes | bytearray | memoryview) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record of the whole uncompressed batches in `data`."""
    found: list[tuple[int, bytes | None]] = []
    raw = bytes(data)
    for batch in parse_batches(raw):
        position = batch.position + HEADER_SIZE
        for _ in range(batch.count):
            length, position = _read_varint(raw, position)
            end = position + length
            _, at = _read_varint(raw, position + 1)
            delta, at = _read_varint(raw, at)
            key_length, at = _read_varint(raw, at)
            at += max(key_length, 0)
            value_length, at = _read_varint(raw, at)
            found.append(
                (batch.base_offset + delta, None if value_length < 0 else raw[at : at + value_length])
            )
            position = end
    return found


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
        shift += 7
