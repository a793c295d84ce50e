"""The cursors of one source fetcher, and what its fetch session asks for them. Pure: no socket, no clock.

Cursors are kept under the names that the session has for partitions: topic ids if the source has one for every partition,
topic names otherwise. A cursor that changed is looked at before the next request (`apply`), and asked for or forgotten as
it stands then.

Not here: the session's own ids and epochs (fetch_session.py), when a request is sent (source_fetcher.py).
"""

from __future__ import annotations

from collections.abc import Collection, Set

from fetcher.fetch_session import PartitionKey, SessionRequest, SourceSession
from fetcher.partition_copy import PartitionCopy, PartitionCursor
from wire.frames.fetch import FetchedPartition, FetchPartition

# The first Fetch version that has topic ids instead of names (KIP-516).
FIRST_ID_VERSION = 13
# The most bytes beside records in a fetch answer: of all, of a partition, of a topic by id and by name (FetchResponse).
_HEADERS, _PARTITION_HEADERS, _ID, _NAME = 64, 48, 24, 260


class CursorSession:
    def __init__(self) -> None:
        self.cursors: dict[PartitionKey, PartitionCursor] = {}
        #: Whether topics are named by id.
        self.by_id = True
        self._session = SourceSession()
        self._keys_stale = False
        self._generations: dict[PartitionKey, int] = {}
        self._touched: set[PartitionCursor] = set()
        #: Cursors that are asked for, and whose source has not told its end since their mirrors were paused.
        self._unheard: set[PartitionCursor] = set()
        self._full: set[PartitionCursor] = set()
        self._leader_only: set[PartitionCursor] = set()

    # --- cursors

    def key(self, mirror: PartitionCopy) -> PartitionKey:
        spec = mirror.spec
        topic_id = spec.source_topic_id if self.by_id else None
        return ((spec.source_name or spec.topic) if topic_id is None else topic_id, spec.partition)

    def adopt(self, cursor: PartitionCursor) -> None:
        self.cursors[self.key(cursor.mirror)] = cursor
        self._keys_stale |= self.by_id and cursor.mirror.spec.source_topic_id is None
        if cursor.leader_only:
            self._leader_only.add(cursor)
        self._touched.add(cursor)

    def remove(self, cursor: PartitionCursor) -> None:
        """Forget a cursor; an answer for it that is still under way will be dropped."""
        key = self.key(cursor.mirror)
        if self.cursors.get(key) is cursor:
            del self.cursors[key]
            self._generations.pop(key, None)
            self._session.drop(key)
        self._touched.discard(cursor)
        self._unheard.discard(cursor)
        self._full.discard(cursor)
        self._leader_only.discard(cursor)

    def touch(self, cursor: PartitionCursor) -> None:
        """Something about the cursor changed: look at it before the next request."""
        self._touched.add(cursor)

    @property
    def touched(self) -> Collection[PartitionCursor]:
        """Those that the next `apply` looks at."""
        return self._touched

    @property
    def some_full(self) -> bool:
        """Whether a cursor is not asked for only because its window is full, or because replicas do not have it all."""
        return bool(self._full)

    @property
    def some_leader_only(self) -> bool:
        """Whether a cursor must not be sent to a nearer replica."""
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
        """Bring the session up to date with what changed of the cursors."""
        if self._keys_stale:
            self._rekey(version)
        session = self._session
        for cursor in self._touched:
            key = self.key(cursor.mirror)
            if self.cursors.get(key) is not cursor:
                continue
            if cursor.wants_data:
                self._full.discard(cursor)
                mirror, fed = cursor.mirror, cursor.fed
                session.want(
                    key,
                    FetchPartition(
                        mirror.spec.partition,
                        cursor.leader_epoch if fed else mirror.source_leader_epoch,
                        cursor.position,
                        cursor.last_epoch,
                        # A leader's DeleteRecords waits for the log start of all replicas.
                        mirror.log_start_offset if fed else -1,
                        partition_bytes,
                    ),
                )
                self._generations[key] = cursor.generation
                if not mirror.end_known:
                    self._unheard.add(cursor)
            else:
                session.drop(key)
                if cursor.full or cursor.held:
                    self._full.add(cursor)
                else:
                    self._full.discard(cursor)
                    cursor.growth = None
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
            cursor.mirror.spec.source_topic_id is not None for cursor in self.cursors.values()
        )
        if by_id == self.by_id and all(
            key == self.key(cursor.mirror) for key, cursor in self.cursors.items()
        ):
            return
        self.by_id = by_id
        cursors = list(self.cursors.values())
        self.cursors = {self.key(cursor.mirror): cursor for cursor in cursors}
        self._forget()

    def _forget(self) -> None:
        self._session = SourceSession()
        for cursor in self.cursors.values():
            cursor.growth = None
        self._generations.clear()
        self._touched.update(self.cursors.values())

    # --- answers

    def failed(self) -> None:
        """The request in flight, if there is one, will not be answered: its connection is lost."""
        if self._session.in_flight:
            self._session.failed(connection_lost=True)

    def answered(self, error: int, session_id: int) -> bool:
        """Take note of an answer's top level; False when its partitions must be ignored, and are asked for anew."""
        fine = self._session.answered(error, session_id)
        if not fine:
            self._touched.update(self.cursors.values())
        return fine

    def heard(self, part: FetchedPartition) -> PartitionCursor | None:
        """The cursor that a part of the answer is for; None if it was asked for when the cursor stood elsewhere."""
        key = (part.key, part.index)
        cursor, sent = self.cursors.get(key), self._session.asked(key)
        if cursor is None or sent is None or self._generations.get(key) != cursor.generation:
            return None
        return cursor if sent.fetch_offset == cursor.position else None

    def asks_for(self, cursor: PartitionCursor) -> bool:
        """Whether the session on this connection has the cursor, where it stands."""
        key = self.key(cursor.mirror)
        return self._session.asked(key) is not None and self._generations.get(key) == cursor.generation

    @property
    def some_unheard(self) -> bool:
        """Whether an answer's silence tells something about a cursor."""
        return bool(self._unheard)

    def note_silence(self, named: Set[PartitionKey]) -> None:
        """A partition that an answer of a session does not name ends where it did (KIP-227)."""
        for cursor in tuple(self._unheard):
            mirror, key = cursor.mirror, self.key(cursor.mirror)
            if self.asks_for(cursor) and key not in named:
                mirror.note_silence()
            if mirror.end_known:
                self._unheard.discard(cursor)
