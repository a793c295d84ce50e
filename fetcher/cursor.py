"""A cursor: one reading position in a source partition, its window, and the followers it serves. Pure.

A mirror partition has one cursor as long as its followers are close together. A follower that lags gets a cursor of its
own and joins the leading one again when it has caught up (cursors.py decides that). A cursor asks for data while it has
followers and room; link_fetcher.py decides who fetches for it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Generic, Protocol, TypeVar

from fetcher.window import Window, WindowChunk
from wire.frames.types import Node


class ReadPartition(Protocol):
    """The mirror partition that a cursor reads for (partition_copy.PartitionCopy), as far as a cursor needs it."""

    @property
    def may_fetch(self) -> bool: ...

    @property
    def forgotten_epochs(self) -> Collection[int]: ...

    @property
    def fetch_until(self) -> int: ...

    def source_epoch_before(self, offset: int) -> int: ...


class CursorFetcher(Protocol):
    """The fetcher that asks the source for a cursor (source_fetcher.SourceFetcher)."""

    @property
    def node(self) -> Node: ...

    @property
    def slot(self) -> int: ...

    def follows(self, cursor: Any) -> bool: ...

    def touch(self, cursor: Any) -> None: ...

    def remove(self, cursor: Any) -> None: ...

    def release(self, cursor: Any) -> None: ...


MirrorT = TypeVar("MirrorT", bound=ReadPartition)


class Cursor(Generic[MirrorT]):
    __slots__ = (
        "active_at",
        "appended",
        "expected",
        "expected_until",
        "failures",
        "fed",
        "fetcher",
        "followers",
        "generation",
        "growth",
        "held",
        "keep_from",
        "leader_epoch",
        "leader_only_since",
        "limit",
        "mirror",
        "offset_bytes",
        "starved_from",
        "starved_since",
        "suspended",
        "window",
        "woke",
    )

    def __init__(self, mirror: MirrorT, start: int, limit: int) -> None:
        self.mirror = mirror
        self.window = Window(start)
        self.limit = limit
        #: Attached followers and their fetch offsets: nothing above the lowest is dropped.
        self.followers: dict[int, int] = {}
        #: Replicas that have not fetched yet; until `expected_until` the window waits for them as well.
        self.expected: set[int] = set()
        self.expected_until = 0.0
        #: Changes whenever the position moves other than by reading on: answers to older requests are stale.
        self.generation = 0
        self.fetcher: CursorFetcher | None = None
        #: When it last got records, or something about it changed (the event loop's clock; kept by its fetcher).
        self.active_at = 0.0
        #: Got records while it was with a quiet fetcher.
        self.woke = False
        #: Consecutive failures that are this cursor's own (an answer that does not parse).
        self.failures = 0
        #: When a non-leader replica of the source misled us, or was away (monotonic): only the leader will do for a while.
        self.leader_only_since: float | None = None
        #: Bytes that ever came into the window: while it is full, what the slowest follower has taken out.
        self.appended = 0
        #: Since when the slowest follower holds others back, and `appended` then.
        self.starved_since: float | None = None
        self.starved_from = 0
        #: Bytes per offset of what it read last, 0 if that is unknown; and who reckons with what comes, as long as the
        #: source is asked for it.
        self.offset_bytes = 0.0
        self.growth: object = None
        #: Waits after an error, or for its place.
        self.suspended = False
        #: Read as a replica of the source does, beyond its high watermark (in_sync.py); then under this leader epoch.
        self.fed = False
        self.leader_epoch = -1
        #: The source must not be told the position: not all replicas have shown yet that they have the records before
        #: it.
        self.held = False
        #: The window keeps everything from this offset on: a replica that reads elsewhere just now can get it from
        #: nowhere else.
        self.keep_from: int | None = None

    @property
    def leader_only(self) -> bool:
        return self.leader_only_since is not None

    @property
    def position(self) -> int:
        """Next offset to fetch from the source."""
        return self.window.next_offset

    @property
    def full(self) -> bool:
        return self.window.bytes >= self.limit

    @property
    def wants_data(self) -> bool:
        return (
            bool(self.followers)
            and not self.suspended
            and not self.held
            and not self.full
            and self.mirror.may_fetch
            and self.position < self.mirror.fetch_until
        )

    @property
    def followed(self) -> bool:
        """Whether the source is asked for what comes next, and answers: more would be here in a moment. Not so while it is
        paused, full, or waits after an error or for its place, nor with a source node that is away or has fallen silent.
        """
        asked = self.wants_data or (self.held and self.mirror.may_fetch)
        return asked and self.fetcher is not None and self.fetcher.follows(self)

    @property
    def last_epoch(self) -> int:
        """The source's epoch of the batch before the position; -1 if it is unknown, or of no use with this leader."""
        epoch = self.mirror.source_epoch_before(self.position)
        return -1 if epoch in self.mirror.forgotten_epochs else epoch

    def feed(self) -> None:
        """From now on it is read as a replica; nothing is told to the source before `release_hold`."""
        self.fed = self.held = True
        self.leader_only_since = None

    def feed_no_more(self) -> None:
        self.fed = self.held = False
        self.keep_from = None
        self.leader_epoch = -1

    def release_hold(self) -> None:
        """All replicas have what is before its position."""
        self.held = False
        self.keep_from = None

    def append(self, chunk: WindowChunk) -> None:
        if self.fed:
            self._hold(self.position)
        self.window.append(chunk)
        self.appended += chunk.size

    def restart(self, offset: int) -> None:
        """Read on from another offset; what the window holds is dropped."""
        self.generation += 1
        self.window.reset(offset)
        self.starved_since = None
        if self.fed:
            self._hold(offset)

    def truncate(self, offset: int) -> None:
        self.generation += 1
        self.window.truncate(offset)
        if self.fed:
            self._hold(self.position)

    def _hold(self, offset: int) -> None:
        self.held = True
        self.keep_from = offset if self.keep_from is None else min(self.keep_from, offset)

    def release(self, keep: int) -> int:
        """Drop what every follower has fetched past; returns the bytes dropped."""
        if not self.followers or self.expected:
            return 0
        needed = min(self.followers.values())
        if self.keep_from is not None:
            needed = min(needed, self.keep_from)
        return self.window.release(needed, keep, self.limit)

    def slowest(self) -> list[int]:
        """Followers that hold the window back, as long as a faster one waits at its end."""
        if len(self.followers) < 2 or max(self.followers.values()) < self.window.next_offset:
            return []
        low = min(self.followers.values())
        if low >= self.window.next_offset:
            return []
        return [replica for replica, offset in self.followers.items() if offset == low]
