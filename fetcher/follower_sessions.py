"""The server's side of incremental fetch sessions (KIP-227) of followers. Pure: no socket; time is passed in.

A session remembers what its follower asks for, and which of its partitions may have something to tell
(`dirty`, in turn order). A fetch then costs what changed. Partitions mark themselves through
PartitionCopy.listeners; what is told about a partition is decided in followers.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from fetcher.partition_copy import PartitionCopy
from fetcher.progress import FollowerProgress
from wire.frames.error_codes import (
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_SESSION_TOPIC_ID_ERROR,
    INVALID_FETCH_SESSION_EPOCH,
)
from wire.frames.fetch import FetchPartition, FetchRequest, TopicKey

INITIAL_EPOCH, FINAL_EPOCH, MAX_EPOCH = 0, -1, 0x7FFFFFFF

PartitionKey = tuple[TopicKey, int]


class SessionPartition:
    """One partition of a session: what the follower asked last and what it was told last."""

    __slots__ = (
        "high_watermark_sent",
        "hold_until",
        "index",
        "key",
        "log_start_sent",
        "mirror",
        "patient_until",
        "progress",
        "request",
        "session",
    )

    def __init__(self, session: FollowerFetchSession, key: TopicKey, request: FetchPartition) -> None:
        self.session = session
        self.key = key
        self.index: int = request.index
        self.request = request
        self.mirror: PartitionCopy | None = None
        self.progress: FollowerProgress | None = None
        self.high_watermark_sent = -1
        self.log_start_sent = -1
        #: Until then its follower is not told of an error that may be over in a moment (monotonic).
        self.patient_until = 0.0
        #: The same while a switch is about to make the partition ours, whatever the follower's own patience.
        self.hold_until = 0.0

    def bind(self, mirror: PartitionCopy | None) -> None:
        """Listen to this mirror partition from now on, and to no other."""
        if mirror is self.mirror:
            return
        if self.mirror is not None:
            self.mirror.listeners.discard(self.changed)
        self.mirror = mirror
        self.progress = None
        if mirror is not None:
            mirror.listeners.add(self.changed)

    def changed(self, mirror: PartitionCopy) -> None:
        self.session.mark(self)


class FollowerFetchSession:
    """A follower's session, or, with id 0, the partitions of one fetch without a session."""

    def __init__(self, session_id: int, replica_id: int, by_id: bool, now: float) -> None:
        self.id = session_id
        self.replica_id = replica_id
        #: Epoch of the broker incarnation that fetches, -1 before Fetch v15 (KIP-903).
        self.replica_epoch = -1
        self.by_id = by_id
        #: Whether its fetches say of which leader epoch its last batch is (from Fetch v12 on, KIP-595). A follower that
        #: speaks an older one asks with OffsetForLeaderEpoch where to truncate.
        self.tells_epochs = True
        self.epoch = 1
        self.last_used = now
        self.partitions: dict[PartitionKey, SessionPartition] = {}
        self.dirty: dict[SessionPartition, None] = {}
        #: Called when a partition turns dirty while a fetch waits; set by the follower server.
        self.wake: Callable[[], None] | None = None
        #: The connection the session was last used on (any object with identity).
        self.connection: object = None

    def mark(self, partition: SessionPartition) -> None:
        self.dirty[partition] = None
        if self.wake is not None:
            self.wake()

    def added(self, mirror: PartitionCopy) -> None:
        """The partition may not have been there when the follower named it: from now on the session hears of its
        changes."""
        for key in (mirror.spec.topic_id, mirror.tp.topic):
            partition = self.partitions.get((key, mirror.tp.partition))
            if partition is not None:
                partition.bind(mirror)

    def update(self, request: FetchRequest) -> list[SessionPartition]:
        """Apply a request's partitions and forgotten ones; returns those it named."""
        named = []
        for key, partitions in request.topics:
            for asked in partitions:
                known = self.partitions.get((key, asked.index))
                if known is None:
                    known = SessionPartition(self, key, asked)
                    self.partitions[key, asked.index] = known
                else:
                    known.request = asked
                self.dirty[known] = None
                named.append(known)
        for key, indexes in request.forgotten:
            for index in indexes:
                gone = self.partitions.pop((key, index), None)
                if gone is not None:
                    if gone.progress is not None and gone.progress.session is self:
                        gone.progress.session = None  # the session goes on, but no longer asks for this
                    gone.bind(None)
                    self.dirty.pop(gone, None)
        return named

    def next_turn(self, partition: SessionPartition) -> None:
        """The follower was told something of this partition, and there may be more: it stays dirty, behind the others."""
        self.dirty.pop(partition, None)
        self.dirty[partition] = None

    def advance_epoch(self) -> None:
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1

    def close(self) -> None:
        self.wake = None
        for partition in self.partitions.values():
            partition.bind(None)
        self.partitions.clear()
        self.dirty.clear()


class SessionCache:
    """Sessions by id, bounded; one that was not used for `evict_after` seconds makes room for a new one."""

    def __init__(self, limit: int = 1000, evict_after: float = 120.0) -> None:
        self._limit = limit
        self._evict_after = evict_after
        self._sessions: dict[int, FollowerFetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[FollowerFetchSession]:
        return list(self._sessions.values())

    def create(self, replica_id: int, by_id: bool, now: float) -> FollowerFetchSession | None:
        """A new session, or None when there is no room: the follower then sends full fetches."""
        if len(self._sessions) >= self._limit:
            oldest = min(self._sessions.values(), key=lambda session: session.last_used)
            if now - oldest.last_used < self._evict_after:
                return None
            self.remove(oldest.id)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = secrets.randbelow(MAX_EPOCH)
        session = FollowerFetchSession(session_id, replica_id, by_id, now)
        self._sessions[session_id] = session
        return session

    def find(self, request: FetchRequest, by_id: bool) -> FollowerFetchSession | int:
        """The session an incremental fetch belongs to, or the error it gets."""
        session = self._sessions.get(request.session_id)
        if session is None or session.replica_id != request.replica_id:
            return FETCH_SESSION_ID_NOT_FOUND
        if session.by_id != by_id:
            return FETCH_SESSION_TOPIC_ID_ERROR
        if session.epoch != request.session_epoch:
            return INVALID_FETCH_SESSION_EPOCH
        return session

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()
