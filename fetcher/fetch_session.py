"""The client's side of one incremental fetch session (KIP-227) to one source node. Pure: no socket, no clock.

The caller says which partitions it wants at which offset (`want`, `drop`) whenever that changes;
`next_request` then names only the changes since the last request, so a fetch costs what moved and not what
exists. Two views are kept apart: `_held` is what the server will hold after the request in flight, the
changes wait in `_changed`/`_dropped`.

One request is in flight at most. An answer that could not be had, or an error about the session itself,
makes the next request a full one that also closes the old session, as Kafka's own fetchers do.
"""

from __future__ import annotations

from typing import NamedTuple

from wire.errors import LocalProtocolError
from wire.frames.error_codes import (
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_SESSION_TOPIC_ID_ERROR,
    INVALID_FETCH_SESSION_EPOCH,
)
from wire.frames.fetch import FetchPartition, TopicKey

MAX_EPOCH = 0x7FFFFFFF
#: Those that mend themselves with the next request.
SESSION_ERRORS = (FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR)

PartitionKey = tuple[TopicKey, int]


class SessionRequest(NamedTuple):
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[FetchPartition]]]
    forgotten: list[tuple[TopicKey, list[int]]]


class SourceSession:
    def __init__(self) -> None:
        self._session_id = 0
        self._epoch = 0
        self._in_flight = False
        self._held: dict[PartitionKey, FetchPartition] = {}
        self._changed: dict[PartitionKey, FetchPartition] = {}
        self._dropped: set[PartitionKey] = set()

    @property
    def in_flight(self) -> bool:
        return self._in_flight

    def __len__(self) -> int:
        """Partitions the next request asks for."""
        fresh = sum(1 for key in self._changed if key not in self._held)
        return len(self._held) - len(self._dropped) + fresh

    def asked(self, key: PartitionKey) -> FetchPartition | None:
        """The part of a partition in the request in flight, or in the last one."""
        return self._held.get(key)

    def want(self, key: PartitionKey, partition: FetchPartition) -> None:
        """From the next request on fetch this partition so."""
        self._dropped.discard(key)
        if self._held.get(key) == partition:
            self._changed.pop(key, None)
        else:
            self._changed[key] = partition

    def drop(self, key: PartitionKey) -> None:
        """From the next request on do not fetch this partition."""
        self._changed.pop(key, None)
        if key in self._held:
            self._dropped.add(key)

    def next_request(self) -> SessionRequest | None:
        """The next request, or None when no partition is wanted; the session then stays as it is, unasked."""
        if self._in_flight:
            raise LocalProtocolError("a fetch is in flight already in this session")
        if not len(self):
            return None
        full = self._epoch == 0
        forgotten = [] if full else sorted(self._dropped, key=_sort_key)
        for key in self._dropped:
            del self._held[key]
        self._dropped.clear()
        if full:
            # Rotation: without a session the server always begins with the first partition of the request.
            self._held.update(self._changed)
            keys = list(self._held)
            for key in keys[: len(keys) // 2]:
                self._held[key] = self._held.pop(key)
            sent = self._held
        else:
            sent = self._changed
            self._held.update(sent)
        request = SessionRequest(self._session_id, self._epoch, _by_topic(sent), _group(forgotten))
        self._changed = {}
        self._in_flight = True
        return request

    def answered(self, error: int, session_id: int) -> bool:
        """Take note of an answer's top level; False when its partitions must be ignored."""
        if not self._in_flight:
            raise LocalProtocolError("a fetch answer arrived that nobody asked for")
        self._in_flight = False
        if error == FETCH_SESSION_ID_NOT_FOUND:
            self._start_over(keep_id=False)
            return False
        if error:
            self._start_over(keep_id=True)
            return False
        if session_id == 0:
            # The server has no room for a session (or closed it): every request is a full one.
            self._start_over(keep_id=False)
        else:
            self._epoch = 1 if session_id != self._session_id or self._epoch == MAX_EPOCH else self._epoch + 1
            self._session_id = session_id
        return True

    def failed(self, *, connection_lost: bool) -> None:
        """The request in flight will not be answered, or its answer could not be read."""
        self._in_flight = False
        self._start_over(keep_id=not connection_lost)

    def _start_over(self, *, keep_id: bool) -> None:
        """Next request: full. With keep_id it asks the server to close the old session as well."""
        if not keep_id:
            self._session_id = 0
        self._epoch = 0


def _sort_key(key: PartitionKey) -> tuple[str, bytes, int]:
    topic, index = key
    return ("", topic, index) if isinstance(topic, bytes) else (topic, b"", index)


def _by_topic(partitions: dict[PartitionKey, FetchPartition]) -> list[tuple[TopicKey, list[FetchPartition]]]:
    topics: dict[TopicKey, list[FetchPartition]] = {}
    for (topic, _), partition in partitions.items():
        topics.setdefault(topic, []).append(partition)
    return list(topics.items())


def _group(keys: list[PartitionKey]) -> list[tuple[TopicKey, list[int]]]:
    topics: dict[TopicKey, list[int]] = {}
    for topic, index in keys:
        topics.setdefault(topic, []).append(index)
    return list(topics.items())
