"""The lanes of one source fetcher, and what its fetch session asks for them. Pure: no socket, no clock.

Lanes are kept under the names that the session has for partitions: topic ids if the source has one for every partition,
topic names otherwise. A lane that changed is looked at before the next request (`apply`), and asked for or forgotten as
it stands then.

Not here: the session's own ids and epochs (fetch_session.py), when a request is sent (source_fetcher.py).
"""

from __future__ import annotations

from collections.abc import Set

from fetcher.fetch_session import PartitionKey, SessionRequest, SourceSession
from fetcher.partition_copy import PartitionCopy, PartitionLane
from wire.frames.fetch import FetchedPartition, FetchPartition

# The first Fetch version that has topic ids instead of names (KIP-516).
FIRST_ID_VERSION = 13
# The most bytes beside records in a fetch answer: of all, of a partition, of a topic by id and by name (FetchResponse).
_HEADERS, _PARTITION_HEADERS, _ID, _NAME = 64, 48, 24, 260


class CursorSession:
    def __init__(self) -> None:
        self.lanes: dict[PartitionKey, PartitionLane] = {}
        #: Whether topics are named by id.
        self.by_id = True
        self._session = SourceSession()
        self._keys_stale = False
        self._generations: dict[PartitionKey, int] = {}
        self._touched: set[PartitionLane] = set()
        #: Asked for, and nothing heard of their source's end since their mirrors were paused.
        self._unheard: set[PartitionLane] = set()
        self._full: set[PartitionLane] = set()
        self._leader_only: set[PartitionLane] = set()

    # --- lanes

    def key(self, mirror: PartitionCopy) -> PartitionKey:
        spec = mirror.spec
        topic_id = spec.source_topic_id if self.by_id else None
        return (spec.topic if topic_id is None else topic_id, spec.partition)

    def adopt(self, lane: PartitionLane) -> None:
        self.lanes[self.key(lane.mirror)] = lane
        self._keys_stale |= self.by_id and lane.mirror.spec.source_topic_id is None
        if lane.leader_only:
            self._leader_only.add(lane)
        self._touched.add(lane)

    def remove(self, lane: PartitionLane) -> None:
        """Forget a lane; an answer for it that is still under way will be dropped."""
        key = self.key(lane.mirror)
        if self.lanes.get(key) is lane:
            del self.lanes[key]
            self._generations.pop(key, None)
            self._session.drop(key)
        self._touched.discard(lane)
        self._unheard.discard(lane)
        self._full.discard(lane)
        self._leader_only.discard(lane)

    def touch(self, lane: PartitionLane) -> None:
        """Something about the lane changed: look at it before the next request."""
        self._touched.add(lane)

    @property
    def some_full(self) -> bool:
        """Whether a lane is not asked for only because its window is full."""
        return bool(self._full)

    @property
    def some_leader_only(self) -> bool:
        """Whether a lane must not be sent to a nearer replica."""
        return bool(self._leader_only)

    # --- requests

    @property
    def in_flight(self) -> bool:
        return self._session.in_flight

    def __len__(self) -> int:
        """Partitions the next request asks for."""
        return len(self._session)

    def begin(self, version: int) -> None:
        """A connection is new: no session is known there, and `version` of Fetch is spoken."""
        self._forget()
        self._rekey(version)

    def apply(self, version: int, partition_bytes: int) -> None:
        """Bring the session up to date with what changed of the lanes."""
        if self._keys_stale:
            self._rekey(version)
        session = self._session
        for lane in self._touched:
            key = self.key(lane.mirror)
            if self.lanes.get(key) is not lane:
                continue
            if lane.wants_data:
                self._full.discard(lane)
                mirror = lane.mirror
                session.want(
                    key,
                    FetchPartition(
                        mirror.spec.partition,
                        mirror.source_leader_epoch,
                        lane.position,
                        lane.last_epoch,
                        -1,
                        partition_bytes,
                    ),
                )
                self._generations[key] = lane.generation
                if not mirror.end_known:
                    self._unheard.add(lane)
            else:
                session.drop(key)
                if lane.full:
                    self._full.add(lane)
                else:
                    self._full.discard(lane)
                    lane.growth = None
        self._touched.clear()

    def records_within(self, size: int) -> int:
        """Bytes of records to ask for, so that the answer with its headers takes no more than `size`."""
        # Counted as if each partition had a topic of its own.
        headers = _HEADERS + len(self) * (_PARTITION_HEADERS + (_ID if self.by_id else _NAME))
        return max(size - headers, size // 2)

    def next_request(self) -> SessionRequest | None:
        """The next request, or None when no partition is wanted."""
        return self._session.next_request()

    def _rekey(self, version: int) -> None:
        """Names or ids, for the whole session: ids if the source has them for every partition."""
        self._keys_stale = False
        by_id = version >= FIRST_ID_VERSION and all(
            lane.mirror.spec.source_topic_id is not None for lane in self.lanes.values()
        )
        if by_id == self.by_id and all(key == self.key(lane.mirror) for key, lane in self.lanes.items()):
            return
        self.by_id = by_id
        lanes = list(self.lanes.values())
        self.lanes = {self.key(lane.mirror): lane for lane in lanes}
        self._forget()

    def _forget(self) -> None:
        self._session = SourceSession()
        for lane in self.lanes.values():
            lane.growth = None
        self._generations.clear()
        self._touched.update(self.lanes.values())

    # --- answers

    def failed(self) -> None:
        """The request in flight, if there is one, will not be answered: its connection is lost."""
        if self._session.in_flight:
            self._session.failed(connection_lost=True)

    def answered(self, error: int, session_id: int) -> bool:
        """Take note of an answer's top level; False when its partitions must be ignored, and are asked for anew."""
        fine = self._session.answered(error, session_id)
        if not fine:
            self._touched.update(self.lanes.values())
        return fine

    def heard(self, part: FetchedPartition) -> PartitionLane | None:
        """The lane that a part of the answer is for; None if it was asked for when the lane stood elsewhere."""
        key = (part.key, part.index)
        lane, sent = self.lanes.get(key), self._session.asked(key)
        if lane is None or sent is None or self._generations.get(key) != lane.generation:
            return None
        return lane if sent.fetch_offset == lane.position else None

    def asks_for(self, lane: PartitionLane) -> bool:
        """Whether the session on this connection has the lane, where it stands."""
        key = self.key(lane.mirror)
        return self._session.asked(key) is not None and self._generations.get(key) == lane.generation

    @property
    def some_unheard(self) -> bool:
        """Whether an answer's silence tells something about a lane."""
        return bool(self._unheard)

    def note_silence(self, named: Set[PartitionKey]) -> None:
        """What an answer of a session does not name ends where it did (KIP-227)."""
        for lane in tuple(self._unheard):
            mirror, key = lane.mirror, self.key(lane.mirror)
            if self.asks_for(lane) and key not in named:
                mirror.note_silence()
            if mirror.end_known:
                self._unheard.discard(lane)
