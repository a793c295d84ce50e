"""What members of a classic group subscribed to, read out of DescribeGroups.

The bytes are written by clients (Kafka: ConsumerProtocolSubscription) and may be anything; what cannot be read names
nothing. Only the leading fields, which every version has, are read.
"""

from __future__ import annotations

import struct

_LARGEST = 100_000  # topics or partitions of one member


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        """One big-endian number of a struct form."""
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def count(self) -> int:
        """Of an array; ValueError for one that cannot be there."""
        size = self.number(">i")
        if not 0 <= size <= min(_LARGEST, len(self._data)):
            raise ValueError(f"an array of {size}")
        return size

    def text(self) -> str:
        size = self.number(">h")
        if size < 0 or self._at + size > len(self._data):
            raise ValueError(f"a text of {size} bytes")
        raw = self._data[self._at : self._at + size]
        self._at += size
        return raw.decode()


def subscribed_topics(metadata: bytes) -> tuple[str, ...]:
    """Topics of a member's subscription; empty if it cannot be read."""
    try:
        reader = _Reader(metadata)
        reader.number(">h")
        return tuple(reader.text() for _ in range(reader.count()))
    except (struct.error, ValueError):
        return ()
