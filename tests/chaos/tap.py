"""What link brokers answer to produces, read off the wire between clients and a sidecar.

Only what was promised matters: answers without an error, each with the moment when its request was seen.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.chaos.checker import Answer
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.schema import codec

PRODUCE = 0
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhi")  # api key, version, correlation id
MOST_FRAME = 64 << 20


@dataclass(frozen=True, slots=True)
class Told:
    """One partition of an answer; the topic by name, or by id from Produce v13 on."""

    broker: str
    topic: str | bytes
    partition: int
    base_offset: int
    asked: float


@dataclass(slots=True)
class _Stream:
    """Frames of one direction. After something that is no frame, nothing more is read."""

    buffer: bytearray = field(default_factory=bytearray)
    broken: bool = False

    def frames(self, data: bytes) -> list[bytes]:
        if self.broken:
            return []
        self.buffer += data
        found: list[bytes] = []
        while len(self.buffer) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self.buffer)
            if not 0 <= size <= MOST_FRAME:
                self.broken = True
                self.buffer.clear()
                return found
            end = _SIZE.size + size
            if len(self.buffer) < end:
                break
            found.append(bytes(self.buffer[_SIZE.size : end]))
            del self.buffer[:end]
        return found


@dataclass(slots=True)
class _Connection:
    requests: _Stream = field(default_factory=_Stream)
    answers: _Stream = field(default_factory=_Stream)
    produces: dict[int, tuple[int, float]] = field(default_factory=dict)  # correlation id -> version, time


class ProduceTap:
    """A proxy.Tap for one sidecar's client address."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.told: list[Told] = []
        self.unread: list[str] = []  # answers that could not be read: the tap is blind, and says so
        self._connections: dict[int, _Connection] = {}

    def asked(self, connection: int, data: bytes, at: float) -> None:
        state = self._connections.setdefault(connection, _Connection())
        for frame in state.requests.frames(data):
            if len(frame) < _HEADER.size:
                continue
            key, version, correlation = _HEADER.unpack_from(frame)
            if key == PRODUCE:
                state.produces[correlation] = (version, at)

    def answered(self, connection: int, data: bytes) -> None:
        state = self._connections.setdefault(connection, _Connection())
        for frame in state.answers.frames(data):
            if len(frame) < _SIZE.size:
                continue
            produce = state.produces.pop(_SIZE.unpack_from(frame)[0], None)
            if produce is not None:
                self._take(frame, *produce)

    def closed(self, connection: int) -> None:
        self._connections.pop(connection, None)

    def _take(self, frame: bytes, version: int, asked: float) -> None:
        try:
            answer = codec.decode_response("produce", version, frame)
        except LinkerError as error:
            self.unread.append(f"{self.broker}: produce v{version}: {error}")
            return
        for topic in answer.responses:
            name = topic.topic_id.bytes if version >= 13 else str(topic.name)
            for one in topic.partition_responses:
                if int(one.error_code) == 0:
                    self.told.append(Told(self.broker, name, int(one.index), int(one.base_offset), asked))

    def answers(self, topics: Mapping[bytes, str]) -> list[Answer]:
        """With topic ids replaced by names; of topics that are not named there, nothing."""
        names = set(topics.values())
        found = []
        for told in self.told:
            name = topics.get(told.topic) if isinstance(told.topic, bytes) else told.topic
            if name in names and name is not None:
                partition = TopicPartition(name, told.partition)
                found.append(Answer(told.broker, partition, told.base_offset, told.asked))
        return found
