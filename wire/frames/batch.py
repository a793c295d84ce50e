"""Record batches (magic 2) as bytes: headers, records, and the walk that stamps the leader epoch.

Nothing here decompresses or copies on the hot path: patch_batches writes four bytes per batch, which lie outside the batch's
CRC. iter_records serves the metadata log, the validator and tests.

Layout of a batch (offset: field): 0 baseOffset i64, 8 length i32 (bytes after it), 12 partitionLeaderEpoch
i32, 16 magic i8, 17 crc u32 (of everything from 21 on), 21 attributes i16, 23 lastOffsetDelta i32, 27
baseTimestamp i64, 35 maxTimestamp i64, 43 producerId i64, 51 producerEpoch i16, 53 baseSequence i32, 57
record count i32, 61 records.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames.primitives import INT32, PARSE_ERRORS, read_varint, read_varlong
from wire.frames.types import Buffer

try:
    from wire.frames._walk import stamp
except ImportError:  # installed without a compiler
    native_walk = None
else:
    native_walk = stamp

BATCH_OVERHEAD = 61
LENGTH_OVERHEAD = 12
"""Bytes of a batch that its length field does not count."""
MIN_LENGTH = BATCH_OVERHEAD - LENGTH_OVERHEAD

_WALK = struct.Struct(">qiib6xi")
_HEADER = struct.Struct(">qiibIhiqqqhii")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35
_unpack_walk = _WALK.unpack_from
_unpack_header = _HEADER.unpack_from
_pack_epoch = INT32.pack_into


class Chunk(NamedTuple):
    """Whole batches next to each other, the unit a window keeps, serves and evicts."""

    start: int
    end: int
    base_offset: int
    next_offset: int  # offset after the last record of the last batch, not the base of the next chunk


class Walk(NamedTuple):
    """The result of patch_batches."""

    chunks: list[Chunk]
    next_offset: int  # -1: not one whole batch
    epochs: list[tuple[int, int]]  # (source leader epoch, base offset) wherever the epoch changes
    batches: int
    largest: int  # bytes of the largest batch
    newest: int = -1  # maxTimestamp of the last batch


def patch_batches(
    buf: bytearray | memoryview, start: int, end: int, leader_epoch: int, chunk_bytes: int, last_epoch: int
) -> Walk:
    """Stamp leader_epoch on every whole batch in buf[start:end] and cut the run into chunks of chunk_bytes at
    most.

    A batch larger than chunk_bytes is a chunk of its own. A partial batch at the end is left alone (a source
    cuts the last batch at the byte limit). `epochs` lists the source's own epochs, seen before they are
    overwritten, so a buffer must be walked only once. On MalformedFrame the batches before the bad one may be
    patched already; the whole buffer is to be dropped.
    """
    unpack = _unpack_walk
    pack = _pack_epoch
    if end > len(buf) or start < 0:
        raise LocalProtocolError(f"batches at [{start}, {end}) lie outside a buffer of {len(buf)} bytes")
    chunks: list[Chunk] = []
    epochs: list[tuple[int, int]] = []
    batches = largest = 0
    floor = 0  # where the next batch may begin: after the one before it, and never below zero
    last = -1
    pos = chunk_start = start
    chunk_base = -1
    if native_walk is not None:
        # The C walk goes as far as batches are ordinary. Errors, a batch that is cut short and the end are handled here.
        cut, epochs, pos, chunk_start, chunk_base, floor, last_epoch, batches, largest, last = native_walk(
            buf, start, end, leader_epoch, chunk_bytes, last_epoch
        )
        chunks = [Chunk._make(one) for one in cut]
    chunk_limit = chunk_start + chunk_bytes
    last_header = end - BATCH_OVERHEAD
    while pos <= last_header:
        base, length, epoch, magic, delta = unpack(buf, pos)
        batch_end = pos + 12 + length
        if magic != 2 or length < MIN_LENGTH or base < floor or delta < 0:
            raise _bad_batch(pos, base, length, magic, delta, floor)
        if batch_end > end:
            break
        if epoch != last_epoch:
            epochs.append((epoch, base))
            last_epoch = epoch
        if epoch != leader_epoch:
            pack(buf, pos + 12, leader_epoch)
        if chunk_base < 0:
            chunk_base = base
        elif batch_end > chunk_limit:
            chunks.append(Chunk(chunk_start, pos, chunk_base, floor))
            chunk_start = pos
            chunk_base = base
            chunk_limit = pos + chunk_bytes
        floor = base + delta + 1
        if length > largest:
            largest = length
        batches += 1
        last = pos
        pos = batch_end
    else:
        _check_stub(buf, pos, end)
    if not batches:
        return Walk(chunks, -1, epochs, 0, 0)
    chunks.append(Chunk(chunk_start, pos, chunk_base, floor))
    (newest,) = _MAX_TIMESTAMP.unpack_from(buf, last + _MAX_TIMESTAMP_AT)
    return Walk(chunks, floor, epochs, batches, largest + LENGTH_OVERHEAD, newest)


def _bad_batch(pos: int, base: int, length: int, magic: int, delta: int, floor: int) -> MalformedFrame:
    if magic in (0, 1):
        why = (
            f"message format v{magic}, from before Kafka 0.11: only v2 can be mirrored; copy the topic with a tool that "
            "reads and writes records, or begin again when such records are gone at the source"
        )
    elif magic != 2:
        why = f"unknown magic {magic}"
    elif length < MIN_LENGTH:
        why = f"length {length} is below the header's size"
    elif base < 0 or delta < 0:
        why = f"negative base offset or offset delta {delta}"
    else:
        why = f"offsets run backwards, expected at least {floor}"
    return MalformedFrame(f"record batch at byte {pos}: {why}", offset=base)


def _check_stub(buf: Buffer, pos: int, end: int) -> None:
    """A tail shorter than a header must still be the beginning of a v2 batch.

    Old message formats have entries shorter than 61 bytes: taken for a partial batch they would stall a
    fetcher forever without an error.
    """
    size = end - pos
    if size < 12:
        return
    base, length = struct.unpack_from(">qi", buf, pos)
    if size >= 17 and buf[pos + 16] != 2:
        raise _bad_batch(pos, base, length, buf[pos + 16], 0, -1)
    if length < MIN_LENGTH:
        raise _bad_batch(pos, base, length, 2, 0, -1)


def seek_batch(buf: Buffer, start: int, end: int, offset: int) -> int:
    """Position of the first batch in buf[start:end] that holds `offset` or comes after it; `end` if there is
    none.

    Only for bytes that patch_batches has walked: chunks are whole, valid batches.
    """
    unpack = _unpack_walk
    pos = start
    while pos < end:
        base, length, _, _, delta = unpack(buf, pos)
        if base + delta >= offset:
            return pos
        pos += LENGTH_OVERHEAD + int(length)
    return end


class BatchHeader(NamedTuple):
    """All fields of one batch's header; `position` and `end` are into the buffer it was read from."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    position: int

    @property
    def end(self) -> int:
        return self.position + LENGTH_OVERHEAD + self.length

    @property
    def size(self) -> int:
        return LENGTH_OVERHEAD + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & 0x07

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)

    def crc_ok(self, buf: Buffer) -> bool:
        """Whether the CRC-32C matches; `buf` is the buffer the header was read from."""
        return bool(crc32c(memoryview(buf)[self.position + 21 : self.end]) == self.crc)


def read_batch_header(buf: Buffer, pos: int) -> BatchHeader:
    """Header of the batch at pos; MalformedFrame unless the whole batch is there and is magic 2."""
    try:
        header = BatchHeader._make((*_unpack_header(buf, pos), pos))
    except struct.error as error:
        raise MalformedFrame(f"record batch at byte {pos} is shorter than its header") from error
    if (
        header.magic != 2
        or header.length < MIN_LENGTH
        or header.base_offset < 0
        or header.last_offset_delta < 0
    ):
        raise _bad_batch(pos, header.base_offset, header.length, header.magic, header.last_offset_delta, -1)
    if header.end > len(buf):
        raise MalformedFrame(f"record batch at byte {pos} ends after the buffer", offset=header.base_offset)
    return header


def iter_batch_headers(buf: Buffer, start: int, end: int) -> Iterator[BatchHeader]:
    """Headers of the whole batches in buf[start:end]; a partial batch at the end is left out."""
    pos = start
    while pos + BATCH_OVERHEAD <= end:
        length: int = INT32.unpack_from(buf, pos + 8)[0]
        if length >= MIN_LENGTH and pos + LENGTH_OVERHEAD + length > end and buf[pos + 16] == 2:
            return
        header = read_batch_header(buf, pos)
        yield header
        pos = header.end
    _check_stub(buf, pos, end)


class Record(NamedTuple):
    """One record; key, value and header values are views into the (decompressed) batch."""

    offset: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None
    headers: tuple[tuple[str, memoryview | None], ...]


def iter_records(buf: Buffer, header: BatchHeader) -> Iterator[Record]:
    """Records of one batch, decompressed if need be. Any damage is a MalformedFrame."""
    data = memoryview(buf)[header.position + BATCH_OVERHEAD : header.end]
    if header.compression:
        from wire.frames.compression import (
            decompress,  # megabytes of memory, and few callers look into compressed batches
        )

        data = memoryview(decompress(header.compression, data, header.base_offset))
    if header.record_count < 0 or header.record_count * 7 > len(data):
        raise MalformedFrame(f"{header.record_count} records in {len(data)} bytes", offset=header.base_offset)
    pos = 0
    for _ in range(header.record_count):
        try:
            record, pos = _read_record(data, pos, header)
        except PARSE_ERRORS as error:
            raise MalformedFrame(
                f"record at byte {pos} of its batch: {error}", offset=header.base_offset
            ) from error
        yield record
    if pos != len(data):
        raise MalformedFrame(f"{len(data) - pos} bytes after the last record", offset=header.base_offset)


def _read_record(data: memoryview, pos: int, header: BatchHeader) -> tuple[Record, int]:
    size, pos = read_varint(data, pos)
    end = pos + size
    if size < 0 or end > len(data):
        raise MalformedFrame(f"record of {size} bytes at byte {pos} of its batch", offset=header.base_offset)
    timestamp_delta, pos = read_varlong(data, pos + 1)  # the attributes byte has no use yet
    offset_delta, pos = read_varint(data, pos)
    key, pos = _read_field(data, pos, end)
    value, pos = _read_field(data, pos, end)
    count, pos = read_varint(data, pos)
    if count < 0 or count * 2 > end - pos:
        raise MalformedFrame(f"{count} record headers in {end - pos} bytes", offset=header.base_offset)
    headers = []
    for _ in range(count):
        name, pos = _read_field(data, pos, end)
        if name is None:
            raise MalformedFrame("record header without a name", offset=header.base_offset)
        header_value, pos = _read_field(data, pos, end)
        headers.append((str(name, "utf-8"), header_value))
    if pos != end:
        raise MalformedFrame(f"record ends at byte {pos}, not {end} of its batch", offset=header.base_offset)
    timestamp = header.max_timestamp if header.attributes & 0x08 else header.base_timestamp + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers)), end


def _read_field(data: memoryview, pos: int, end: int) -> tuple[memoryview | None, int]:
    size, pos = read_varint(data, pos)
    if size < 0:
        if size != -1:
            raise MalformedFrame(f"field of {size} bytes in a record")
        return None, pos
    if pos + size > end:
        raise MalformedFrame(f"field of {size} bytes ends after its record")
    return data[pos : pos + size], pos + size
