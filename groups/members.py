"""Subscriptions of classic members, decoded from DescribeGroups; whether the coordinator could decode them too.

The bytes are written by clients (Kafka: ConsumerProtocolSubscription) and may be anything; unreadable ones name no
topic. For the topics only the leading fields, which every version has, are read.

A classic coordinator never decodes them. One that has a classic client in a group of the consumer protocol does
(GroupMetadataManager.deserializeSubscription), and answers the JoinGroup of a client whose bytes do not fit their
version with UNKNOWN_SERVER_ERROR ("Malformed embedded consumer protocol"), each time. kafka-go is such a client: it
says version 1 and omits the owned partitions of that version.
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

    def skip(self, form: str) -> None:
        """Bytes or a text, which may be null, after their length."""
        size = self.number(form)
        if size < -1 or self._at + size > len(self._data):
            raise ValueError(f"{size} bytes")
        self._at += max(size, 0)

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


def coordinator_can_read(metadata: bytes) -> bool:
    """Whether a coordinator can decode the whole subscription in its version. A newer version than the coordinator's
    newest is decoded as that one; bytes behind the last field do not matter."""
    try:
        reader = _Reader(metadata)
        version = reader.number(">h")
        if version < 0:
            return False
        for _ in range(reader.count()):
            reader.text()
        reader.skip(">i")  # userData
        if version >= 1:
            for _ in range(reader.count()):  # ownedPartitions
                reader.text()
                for _ in range(reader.count()):
                    reader.number(">i")
        if version >= 2:
            reader.number(">i")  # generationId
        if version >= 3:
            reader.skip(">h")  # rackId
    except (struct.error, ValueError):
        return False
    return True
