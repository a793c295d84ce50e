"""How far one follower has copied a partition, by its own fetches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Protocol

from fetcher.cursor import Cursor

UNKNOWN_OFFSET = -1
_KEPT_RESTARTS = 8


class Behind(Enum):
    """The fate of a follower below the log start."""

    MOVE = "it begins again at the log start"
    WAIT = "other replicas may have more: ask again"
    FAIL = "no copy has what the source no longer has"


class FollowerSession(Protocol):
    """The fetch session a follower's progress comes from; idle partitions are not named in every fetch."""

    @property
    def last_used(self) -> float: ...


class FollowerLog:
    """A replica's log as its fetches show it, longer than a leader epoch."""

    __slots__ = ("asked", "restarts")

    def __init__(self) -> None:
        #: Where it asked last in the leader epoch before.
        self.asked = UNKNOWN_OFFSET
        #: Where it was first seen, and each time it asked for less than before: (offset, monotonic), both rising. The
        #: records behind such an offset are lost, however far it has come again.
        self.restarts: tuple[tuple[int, float], ...] = ()

    def restarted(self, offset: int, now: float) -> None:
        # Something higher that was noted before says nothing more: this is lower, and later.
        kept = [one for one in self.restarts if one[0] < offset]
        if len(kept) >= _KEPT_RESTARTS:
            # The lower offset at the later time: rather a loss too many than one too few.
            kept[:2] = [(kept[0][0], kept[1][1])]
        self.restarts = (*kept, (offset, now))


class FollowerLogs:
    """The logs of all replicas of a partition, as their fetches tell."""

    def __init__(self) -> None:
        self._logs: dict[int, FollowerLog] = {}
        #: Replicas that were seen with nothing in this process, and have not been at the source's end yet.
        self.copying_anew: set[int] = set()

    def first_fetch(self, replica: int, offset: int, log_start_offset: int, now: float) -> FollowerLog:
        """The first fetch of a replica under this leader epoch. Returns the replica's log."""
        log = self._logs.get(replica)
        if log is None and offset <= max(log_start_offset, 0):
            self.copying_anew.add(replica)
        if log is None or offset < log.asked:
            log = self._logs.setdefault(replica, FollowerLog())
            log.restarted(offset, now)
        return log


class FollowerProgress:
    """How far one replica has copied, by its own fetches."""

    __slots__ = (
        "broker_epoch",
        "caught_up_monotonic",
        "copied_to",
        "cursor",
        "fetch_offset",
        "last_fetch",
        "log",
        "log_start_offset",
        "newest",
        "refused",
        "session",
        "told_newest",
        "told_to",
    )

    def __init__(self, log: FollowerLog) -> None:
        self.log = log
        self.fetch_offset = UNKNOWN_OFFSET
        #: The same, if its fetch showed no batches of another log; a position alone says nothing of that.
        self.copied_to = UNKNOWN_OFFSET
        #: Where the batches end that it was answered last; what it asks for next says whether it took them.
        self.told_to = UNKNOWN_OFFSET
        #: The timestamp of the last of these batches, and of the last one that it has, as far as known: milliseconds, or -1.
        self.told_newest = -1
        self.newest = -1
        #: How often in a row it asked again for what it had been answered.
        self.refused = 0
        #: Epoch of the broker incarnation that asked, -1 where its fetch version does not say.
        self.broker_epoch = -1
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_fetch = 0.0
        #: Last time its fetch offset was at the high watermark.
        self.caught_up_monotonic = 0.0
        self.cursor: Cursor[Any] | None = None
        self.session: FollowerSession | None = None

    @property
    def last_fetch_monotonic(self) -> float:
        return self.last_fetch if self.session is None else max(self.last_fetch, self.session.last_used)

    @property
    def restarts(self) -> tuple[tuple[int, float], ...]:
        return self.log.restarts

    @property
    def has_data(self) -> bool:
        return 0 <= self.log_start_offset < self.fetch_offset

    def has_more(self) -> bool:
        """Whether there is something in memory behind its fetch offset."""
        return self.cursor is not None and self.fetch_offset < self.cursor.window.next_offset

    def may_pass(self, offset: int) -> bool:
        """Whether it holds something from `offset` on, or an answer on its way may carry it there. A cursor tells nothing of
        that: the follower may have left it, and a cursor's end goes back with the source's.
        """
        return self.fetch_offset > offset or self.told_to > offset


class TruncationDebts(dict[int, int]):
    """Replica -> the offset that it must truncate to before it gets data again."""

    def owe(self, offset: int, replicas: Iterable[int], followers: Mapping[int, FollowerProgress]) -> bool:
        """Every replica that may hold something from `offset` on has to be seen below it first. Whether one does."""
        news = False
        for replica in {*replicas, *followers}:
            progress = followers.get(replica)
            if progress is None or progress.may_pass(offset):
                self[replica] = min(offset, self.get(replica, offset))
                news = True
        return news
