"""What link brokers answer to produces, read off the wire between clients and a sidecar.

Only what was promised matters: answers without an error, each with the moment when its request was seen. Beside that, for a
reader that stands still: what its connections have asked and were not answered, and their last fetch.
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
FETCH = 1
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhi")  # api key, version, correlation id
_LENGTH = struct.Struct(">h")
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
    #: Correlation id -> api key, version, time.
    open: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    client_id: str = ""
    fetches: int = 0
    last_fetch: tuple[float, int, bytes] | None = None  # when it was asked, its version and its answer


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
            state.open[correlation] = (key, version, at)
            if key == FETCH:
                state.fetches += 1
                state.client_id = state.client_id or _client_id(frame)

    def answered(self, connection: int, data: bytes) -> None:
        state = self._connections.setdefault(connection, _Connection())
        for frame in state.answers.frames(data):
            if len(frame) < _SIZE.size:
                continue
            key, version, at = state.open.pop(_SIZE.unpack_from(frame)[0], (-1, -1, 0.0))
            if key == PRODUCE:
                self._take(frame, version, at)
            elif key == FETCH:
                state.last_fetch = (at, version, frame)

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

    def reading(self, now: float, least: float) -> list[str]:
        """Of each connection that fetches: the requests that have been open for so many seconds, and the last fetch that was
        answered."""
        found = []
        for state in self._connections.values():
            if not state.fetches:
                continue
            waiting = [
                f"api key {key} v{version} for {now - at:.1f} s"
                for key, version, at in state.open.values()
                if now - at >= least
            ]
            found.append(
                f"{self.broker}: {state.client_id}: {state.fetches} fetches, unanswered: {', '.join(waiting) or 'nothing'}; "
                f"the last answer: {_told_of(state.last_fetch, now)}"
            )
        return found

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


def _client_id(frame: bytes) -> str:
    start = _HEADER.size + _LENGTH.size
    if len(frame) < start:
        return ""
    (length,) = _LENGTH.unpack_from(frame, _HEADER.size)
    return frame[start : start + max(0, length)].decode(errors="replace")


def _told_of(fetch: tuple[float, int, bytes] | None, now: float) -> str:
    if fetch is None:
        return "none"
    asked, version, frame = fetch
    try:
        answer = codec.decode_response("fetch", version, frame)
    except LinkerError as error:
        return f"cannot be read: {error}"
    parts = [
        f"{one.partition_index}: error {int(one.error_code)}, {len(one.records or b'')} bytes, "
        f"high watermark {one.high_watermark}, last stable {one.last_stable_offset}"
        for topic in answer.responses
        for one in topic.partitions
    ]
    told = "; ".join(parts) or "no partitions"
    return f"asked {now - asked:.1f} s ago, v{version}, error {int(answer.error_code)}, {told}"
