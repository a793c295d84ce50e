"""Records of compressed batches, decompressed up to a limit.

A module of its own, so that its library is loaded only when needed: a sidecar copies batches as they are and seldom looks
into one.
"""

import struct
import zlib
from collections.abc import Callable

import cramjam

from wire.errors import MalformedFrame
from wire.frames.primitives import INT32
from wire.frames.types import Buffer

MAX_UNCOMPRESSED = 128 << 20
"""The most bytes that one batch may decompress to: a bomb must not take the process down."""


def decompress(codec: int, data: memoryview, offset: int) -> Buffer:
    """The records of a batch with that codec (1 gzip, 2 snappy, 3 lz4, 4 zstd) and base offset; MalformedFrame."""
    try:
        if codec == 1:
            return _gunzip(data)
        if codec == 2:
            return _unsnappy(data)
        if codec == 3:
            return _decompress_into(cramjam.lz4.decompress_into, data)
        if codec == 4:
            return _decompress_into(cramjam.zstd.decompress_into, data)
    except (cramjam.DecompressionError, zlib.error, OSError, ValueError, struct.error) as error:
        raise MalformedFrame(
            f"batch with codec {codec} does not decompress: {error}", offset=offset
        ) from error
    raise MalformedFrame(f"unknown compression codec {codec}", offset=offset)


def _gunzip(data: memoryview) -> bytes:
    inflate = zlib.decompressobj(31)
    out = inflate.decompress(data, MAX_UNCOMPRESSED)
    if not inflate.eof:
        raise ValueError(f"gzip data is cut short or unpacks into more than {MAX_UNCOMPRESSED} bytes")
    return out


_XERIAL_MAGIC = b"\x82SNAPPY\0"


def _unsnappy(data: memoryview) -> bytearray:
    """Raw snappy, or the blocks of xerial's stream that Java writes: 16 bytes of header, then (size, raw)
    pairs.
    """
    if data[:8] != _XERIAL_MAGIC:
        return _unsnappy_raw(data, 0)
    out = bytearray()
    pos = 16
    while pos < len(data):
        size: int = INT32.unpack_from(data, pos)[0]
        pos += 4
        if size < 0 or pos + size > len(data):
            raise ValueError(f"snappy block of {size} bytes ends after the batch")
        out += _unsnappy_raw(data[pos : pos + size], len(out))
        pos += size
    return out


def _unsnappy_raw(data: memoryview, before: int) -> bytearray:
    size = int(cramjam.snappy.decompress_raw_len(data))
    if before + size > MAX_UNCOMPRESSED:
        raise ValueError(f"snappy data unpacks into more than {MAX_UNCOMPRESSED} bytes")
    out = bytearray(size)
    if cramjam.snappy.decompress_raw_into(data, out) != size:
        raise ValueError("snappy data is cut short")
    return out


def _decompress_into(decompress: Callable[[memoryview, bytearray], int], data: memoryview) -> memoryview:
    """Unpack into a buffer of a guessed size, grown up to the bound: the library itself knows none."""
    capacity = max(1 << 16, len(data) * 8)
    while True:
        out = bytearray(min(capacity, MAX_UNCOMPRESSED))
        try:
            return memoryview(out)[: decompress(data, out)]
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise
        if capacity >= MAX_UNCOMPRESSED:
            raise ValueError(f"data unpacks into more than {MAX_UNCOMPRESSED} bytes")
        capacity *= 4
