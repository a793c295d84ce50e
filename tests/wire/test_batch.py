"""Record batches: the stamping walk over every prefix and split, headers, every codec, hostile bytes."""

from __future__ import annotations

import gzip
import struct
from typing import Any

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.batches import build_batch, parse_batches, varint
from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames import compression
from wire.frames.batch import (
    BatchHeader,
    iter_batch_headers,
    iter_records,
    patch_batches,
    read_batch_header,
    seek_batch,
)

EPOCH = 42


@st.composite
def runs(draw: st.DrawFn) -> list[bytes]:
    """Batches of one partition, with compaction gaps and changing source epochs."""
    batches = []
    offset = draw(st.integers(0, 2**40))
    epoch = draw(st.integers(-1, 5))
    for _ in range(draw(st.integers(0, 8))):
        offset += draw(st.integers(0, 3))
        epoch += draw(st.sampled_from([0, 0, 1, EPOCH]))
        count = draw(st.integers(0, 4))
        delta = max(count - 1, 0) + draw(st.integers(0, 3))
        batches.append(
            build_batch(
                count,
                base_offset=offset,
                leader_epoch=epoch,
                value_size=draw(st.integers(0, 200)),
                last_offset_delta=delta,
            )
        )
        offset += delta + 1
    return batches


def fields(batch: bytes) -> tuple[int, int, int]:
    base, epoch, delta = (*struct.unpack_from(">q", batch), *struct.unpack_from(">i7xi", batch, 12))
    return base, epoch, base + delta + 1


def dumb_chunks(batches: list[bytes], start: int, chunk_bytes: int) -> list[tuple[int, int, int, int]]:
    """The deliberately simple way to cut."""
    groups: list[list[bytes]] = []
    for batch in batches:
        if groups and sum(map(len, groups[-1])) + len(batch) <= chunk_bytes:
            groups[-1].append(batch)
        else:
            groups.append([batch])
    chunks = []
    for group in groups:
        end = start + sum(map(len, group))
        chunks.append((start, end, fields(group[0])[0], fields(group[-1])[2]))
        start = end
    return chunks


@settings(max_examples=150)
@given(runs(), st.integers(0, 20), st.integers(1, 1000), st.integers(-1, 5), st.booleans())
def test_every_prefix_of_a_run_is_patched_and_cut_right(
    batches: list[bytes], lead: int, chunk_bytes: int, last_epoch: int, as_view: bool
) -> None:
    original = b"\xee" * lead + b"".join(batches)
    ends = [lead + sum(map(len, batches[: n + 1])) for n in range(len(batches))]
    # Byte by byte around the borders, every 7th byte elsewhere: each prefix takes a new walk.
    stops = {stop for end in [lead, *ends] for stop in range(end - 2, end + 20)} | set(
        range(lead, len(original), 7)
    )
    for stop in sorted(stop for stop in stops if lead <= stop <= len(original)):
        buffer = bytearray(original)
        walk = patch_batches(
            memoryview(buffer) if as_view else buffer, lead, stop, EPOCH, chunk_bytes, last_epoch
        )
        whole = [batch for batch, end in zip(batches, ends, strict=True) if end <= stop]
        assert walk.batches == len(whole)
        assert walk.next_offset == (fields(whole[-1])[2] if whole else -1)
        assert walk.largest == max(map(len, whole), default=0)
        assert walk.chunks == dumb_chunks(whole, lead, chunk_bytes)
        expected_epochs = []
        previous = last_epoch
        for batch in whole:
            base, epoch, _ = fields(batch)
            if epoch != previous:
                expected_epochs.append((epoch, base))
            previous = epoch
        assert walk.epochs == expected_epochs
        expected = bytearray(original)
        for end, batch in zip(ends, batches, strict=True):
            if end <= stop:
                expected[end - len(batch) + 12 : end - len(batch) + 16] = struct.pack(">i", EPOCH)
        assert buffer == expected  # the four epoch bytes of whole batches, nothing else
        for header in iter_batch_headers(buffer, lead, stop):
            assert header.crc_ok(buffer)


@settings(max_examples=60)
@given(runs(), st.integers(50, 1000))
def test_a_run_read_in_two_pieces_is_the_run_read_at_once(batches: list[bytes], chunk_bytes: int) -> None:
    """A source cuts anywhere; the next answer begins again with the batch that was cut."""
    original = b"".join(batches)
    whole = bytearray(original)
    at_once = patch_batches(whole, 0, len(whole), EPOCH, chunk_bytes, -2)
    for split in range(0, len(original) + 1, 5):
        buffer = bytearray(original)
        first = patch_batches(buffer, 0, split, EPOCH, chunk_bytes, -2)
        resume = first.chunks[-1].end if first.chunks else 0
        last_epoch = first.epochs[-1][0] if first.epochs else -2
        second = patch_batches(buffer, resume, len(buffer), EPOCH, chunk_bytes, last_epoch)
        assert buffer == whole
        assert first.batches + second.batches == at_once.batches
        assert first.epochs + second.epochs == at_once.epochs
        assert max(first.next_offset, second.next_offset) == at_once.next_offset


def test_a_batch_larger_than_a_chunk_is_its_own_chunk() -> None:
    batches = [build_batch(1, base_offset=n, value_size=size) for n, size in enumerate((10, 5000, 10, 10))]
    buffer = bytearray(b"".join(batches))
    walk = patch_batches(buffer, 0, len(buffer), EPOCH, 400, -1)
    assert [(c.base_offset, c.next_offset) for c in walk.chunks] == [(0, 1), (1, 2), (2, 4)]
    assert walk.largest == len(batches[1])


def test_a_chunk_may_be_exactly_as_large_as_allowed() -> None:
    batches = [build_batch(1, base_offset=n) for n in range(5)]
    size = len(batches[0])
    for chunk_bytes, expected in ((2 * size, [2, 2, 1]), (2 * size - 1, [1, 1, 1, 1, 1]), (5 * size, [5])):
        buffer = bytearray(b"".join(batches))
        walk = patch_batches(buffer, 0, len(buffer), EPOCH, chunk_bytes, -1)
        assert [(chunk.end - chunk.start) // size for chunk in walk.chunks] == expected


def damaged(**changes: Any) -> bytearray:
    buffer = bytearray(build_batch(2, base_offset=10) + build_batch(2, base_offset=12))
    second = len(buffer) // 2
    for name, value in changes.items():
        layout, at = {"base": (">q", 0), "length": (">i", 8), "magic": (">b", 16), "delta": (">i", 23)}[name]
        struct.pack_into(layout, buffer, second + at, value)
    return buffer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"magic": 1}, "format v1"),
        ({"magic": 0}, "format v0"),
        ({"magic": 3}, "magic 3"),
        ({"magic": -1}, "magic -1"),
        ({"length": 48}, "length 48"),
        ({"length": -1}, "length -1"),
        ({"length": -(2**31)}, "length"),
        ({"base": 11}, "backwards"),
        ({"base": -1}, "negative"),
        ({"delta": -1}, "negative"),
    ],
)
def test_a_bad_batch_is_named_with_its_place(changes: dict[str, int], message: str) -> None:
    buffer = damaged(**changes)
    with pytest.raises(MalformedFrame, match=message) as caught:
        patch_batches(buffer, 0, len(buffer), EPOCH, 1 << 20, -1)
    assert f"byte {len(buffer) // 2}" in str(caught.value)
    assert caught.value.offset == changes.get("base", 12)


def test_an_old_message_shorter_than_a_header_is_not_taken_for_a_partial_batch() -> None:
    old = struct.pack(">qiIbbq", 10, 22, 0, 1, 0, 0) + b"\xff\xff\xff\xff\0\0\0\0"
    assert len(old) < 61
    for tail in (old, old[:17], struct.pack(">qi", 10, 14)):
        buffer = bytearray(build_batch(1, base_offset=3) + tail)
        with pytest.raises(MalformedFrame):
            patch_batches(buffer, 0, len(buffer), EPOCH, 1 << 20, -1)
        with pytest.raises(MalformedFrame):
            list(iter_batch_headers(buffer, 0, len(buffer)))


def test_a_range_outside_the_buffer_is_our_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        patch_batches(bytearray(100), 0, 101, EPOCH, 1, -1)
    with pytest.raises(LocalProtocolError):
        patch_batches(bytearray(100), -1, 50, EPOCH, 1, -1)


flips = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=5)


@settings(max_examples=400)
@given(runs(), flips)
def test_flipped_bytes_are_malformed_or_give_chunks_inside_the_buffer(
    batches: list[bytes], flips: list[tuple[int, int]]
) -> None:
    buffer = bytearray(b"".join(batches) + b"\0" * 5)
    for position, value in flips:
        buffer[position % len(buffer)] = value
    try:
        walk = patch_batches(buffer, 0, len(buffer), EPOCH, 300, -1)
    except MalformedFrame:
        return
    at = 0
    for chunk in walk.chunks:
        assert chunk.start == at < chunk.end <= len(buffer)
        assert chunk.base_offset < chunk.next_offset
        at = chunk.end


@given(runs())
def test_seek_agrees_with_a_plain_search(batches: list[bytes]) -> None:
    buffer = b"".join(batches)
    starts = [sum(map(len, batches[:n])) for n in range(len(batches))]
    for number, batch in enumerate(batches):
        base, _, after = fields(batch)
        for offset in (base, after - 1):
            assert seek_batch(buffer, 0, len(buffer), offset) == starts[number]
    after_all = fields(batches[-1])[2] if batches else 0
    assert seek_batch(buffer, 0, len(buffer), after_all) == len(buffer)


@given(runs())
def test_headers_are_what_an_independent_reader_sees(batches: list[bytes]) -> None:
    buffer = b"".join(batches)
    headers = list(iter_batch_headers(buffer, 0, len(buffer)))
    assert [
        (h.position, h.size, h.base_offset, h.last_offset, h.leader_epoch, h.crc, h.record_count)
        for h in headers
    ] == [
        (b.position, b.size, b.base_offset, b.last_offset, b.leader_epoch, b.crc, b.count)
        for b in parse_batches(buffer)
    ]


def test_a_changed_byte_fails_the_crc() -> None:
    batch = bytearray(build_batch(3))
    header = read_batch_header(batch, 0)
    assert header.crc_ok(batch)
    for position in range(21, len(batch)):
        batch[position] ^= 1
        assert not header.crc_ok(batch)
        batch[position] ^= 1


def test_a_header_of_a_cut_batch_is_malformed() -> None:
    batch = build_batch(3)
    for end in range(len(batch)):
        with pytest.raises(MalformedFrame):
            read_batch_header(batch[:end], 0)


Rec = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
field = st.none() | st.binary(max_size=50)
record_lists = st.lists(
    st.tuples(
        st.integers(-(2**40), 2**40),
        field,
        field,
        st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), field), max_size=2),
    ),
    max_size=20,
)


def encode_records(records: list[Rec]) -> bytes:
    out = bytearray()
    for delta, (timestamp, key, value, headers) in enumerate(records):
        body = bytearray(b"\0") + varint(timestamp) + varint(delta)
        for part in (key, value):
            body += varint(-1) if part is None else varint(len(part)) + part
        body += varint(len(headers))
        for name, header_value in headers:
            raw = name.encode()
            body += varint(len(raw)) + raw
            body += varint(-1) if header_value is None else varint(len(header_value)) + header_value
        out += varint(len(body)) + body
    return bytes(out)


def xerial(data: bytes) -> bytes:
    """As Java's SnappyOutputStream writes: a header, then blocks of 32 KiB (here: 1000 bytes)."""
    out = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for at in range(0, len(data), 1000):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + 1000]))
        out += struct.pack(">i", len(block)) + block
    return out


COMPRESS = {
    "none": (0, bytes),
    "gzip": (1, gzip.compress),
    "snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "snappy of Java": (2, xerial),
    "lz4": (3, lambda data: bytes(cramjam.lz4.compress(data))),
    "zstd": (4, lambda data: bytes(cramjam.zstd.compress(data))),
}


def compressed_batch(codec: str, payload: bytes, count: int, attributes: int = 0) -> bytearray:
    number, compress = COMPRESS[codec]
    body = compress(payload)
    tail = (
        struct.pack(">hiqqqhii", attributes | number, max(count - 1, 0), 1000, 5000, -1, -1, -1, count) + body
    )
    return bytearray(struct.pack(">qiibI", 100, len(tail) + 9, 0, 2, crc32c(tail)) + tail)


@pytest.mark.parametrize("codec", COMPRESS)
@settings(max_examples=40)
@given(records=record_lists)
def test_records_of_every_codec_are_read_back(codec: str, records: list[Rec]) -> None:
    batch = compressed_batch(codec, encode_records(records), len(records))
    header = read_batch_header(batch, 0)
    assert header.crc_ok(batch)
    read = [
        (
            r.timestamp - 1000,
            None if r.key is None else bytes(r.key),
            None if r.value is None else bytes(r.value),
            [(name, None if value is None else bytes(value)) for name, value in r.headers],
        )
        for r in iter_records(batch, header)
    ]
    assert read == records
    assert [r.offset for r in iter_records(batch, header)] == list(range(100, 100 + len(records)))


def test_log_append_time_comes_from_the_batch() -> None:
    batch = compressed_batch("none", encode_records([(7, None, None, [])]), 1, attributes=0x08)
    assert next(iter_records(batch, read_batch_header(batch, 0))).timestamp == 5000


@pytest.mark.parametrize("codec", COMPRESS)
def test_damaged_records_are_malformed_or_valid_never_another_error(codec: str) -> None:
    payload = encode_records([(n, b"key" * n, b"value" * 20, [("h", b"v")]) for n in range(10)])
    batch = compressed_batch(codec, payload, 10)
    for position in range(61, len(batch)):
        for value in (0, 0x7F, 0x80, 0xFF):
            copy = bytearray(batch)
            copy[position] = value
            try:
                list(iter_records(copy, read_batch_header(copy, 0)))
            except MalformedFrame as error:
                assert error.offset is not None or error.message
    for size in range(len(batch) - 61):
        cut = bytearray(batch[: 61 + size])
        struct.pack_into(">i", cut, 8, 49 + size)
        with pytest.raises(MalformedFrame):
            list(iter_records(cut, read_batch_header(cut, 0)))


@settings(max_examples=300)
@given(st.binary(max_size=200), st.integers(-1, 300), st.integers(0, 7))
def test_garbage_records_are_malformed_or_valid(payload: bytes, count: int, codec: int) -> None:
    batch = compressed_batch("none", payload, count, attributes=codec)
    try:
        list(iter_records(batch, read_batch_header(batch, 0)))
    except MalformedFrame:
        pass


@pytest.mark.parametrize("codec", [name for name in COMPRESS if name != "none"])
def test_a_decompression_bomb_is_refused(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_UNCOMPRESSED", 1 << 20)
    payload = encode_records([(0, None, bytes(1 << 20), [])])
    batch = compressed_batch(codec, payload, 1)
    with pytest.raises(MalformedFrame, match="does not decompress"):
        list(iter_records(batch, read_batch_header(batch, 0)))
    monkeypatch.setattr(compression, "MAX_UNCOMPRESSED", 2 << 20)
    assert len(list(iter_records(batch, read_batch_header(batch, 0)))) == 1


def test_flags() -> None:
    batch = build_batch(1, attributes=0x30)
    header = read_batch_header(batch, 0)
    assert isinstance(header, BatchHeader)
    assert header.is_control
    assert header.is_transactional
    assert not read_batch_header(build_batch(1), 0).is_control
