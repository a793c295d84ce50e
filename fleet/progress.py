"""Reports about the copies that sidecars lead, and the promote's view of all of them.

A follower's position holds for the leader epoch under which it was seen: a cancelled reassignment makes the same
brokers begin again from nothing, and raises the epoch. So a report of another epoch than the metadata log's says
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from controller.cluster_view import ImageView
from controller.judge.alignment import ReplicaPosition
from controller.judge.hand_over import find
from fleet.messages import BadMessage
from wire.errors import LinkerError
from wire.frames.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerReport:
    """A real broker that copies the partition. Times in seconds before the report was made; None: never.

    `restarts`: from where it was first seen to ask, and each time it asked for less than before, with the time."""

    fetch_offset: int
    broker_epoch: int = -1
    silent: float | None = None
    behind: float | None = None
    restarts: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """One partition, by the sidecar that leads it."""

    link: str
    topic: str
    partition: int
    leader_epoch: int
    loaded: bool
    high_watermark: int
    log_start_offset: int
    end_known: bool = True
    heard: bool = True  # the source has answered since the leader epoch began
    followers: Mapping[int, FollowerReport] = field(default_factory=dict)
    failed: str | None = None
    trouble: str | None = None
    bytes_fetched: int = 0
    bytes_served: int = 0
    # Of forwarded writes: how many offsets the source acknowledged, and the highest one + 1; since the process began.
    forwarded: int = 0
    acked_end: int = 0

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


_LONGEST_POLL = 0.02

_copies: TypeAdapter[list[CopyReport]] = TypeAdapter(list[CopyReport])


def encode_copies(copies: Iterable[CopyReport]) -> list[dict[str, Any]]:
    """As messages carry them."""
    encoded: list[dict[str, Any]] = _copies.dump_python(list(copies), mode="json")
    return encoded


def decode_copies(raw: list[dict[str, Any]]) -> list[CopyReport]:
    """BadMessage if they are none."""
    try:
        return _copies.validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BadMessage(
            f"not a report: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        ) from None


@dataclass(frozen=True, slots=True)
class ReceivedReport:
    """A report with its sidecar and the time of its arrival (the link controller's clock)."""

    copy: CopyReport
    by: int
    at: float


#: Seconds; reports come several times in it.
_SILENT = 3.0


class ReportBook:
    """The newest report of each partition. `mirrored`: the partitions, each with its link, that reports may be of."""

    def __init__(self, mirrored: Callable[[], Container[tuple[str, TopicPartition]]] | None = None) -> None:
        self._mirrored = mirrored
        self._notes: dict[tuple[str, TopicPartition], ReceivedReport] = {}

    def note(self, by: int, copies: Iterable[CopyReport], now: float) -> None:
        """Keep the report. A higher leader epoch replaces a lower one, from whichever sidecar. A lower one replaces a
        higher one only if the sidecar of the higher one has been silent for long: a re-created topic begins at 0."""
        mirrored = None if self._mirrored is None else self._mirrored()
        for copy in copies:
            key = copy.link, copy.tp
            if mirrored is not None and key not in mirrored:
                continue  # made before its mirror was deleted
            known = self._notes.get(key)
            if known is None or copy.leader_epoch >= known.copy.leader_epoch or now - known.at > _SILENT:
                self._notes[key] = ReceivedReport(copy, by, now)

    def get(self, link: str, tp: TopicPartition) -> ReceivedReport | None:
        return self._notes.get((link, tp))

    def drop_deleted(self) -> None:
        """Forget deleted mirrors: their reports are not true of another mirror of the same name."""
        if self._mirrored is not None:
            mirrored = self._mirrored()
            self._notes = {key: noted for key, noted in self._notes.items() if key in mirrored}


class FollowerOffset(Protocol):
    @property
    def fetch_offset(self) -> int: ...


class CopiedPartition(Protocol):
    """The input of a lag: a report, or a copy in this very process."""

    @property
    def loaded(self) -> bool: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def end_known(self) -> bool: ...
    @property
    def followers(self) -> Mapping[int, FollowerOffset]: ...


def copy_lag(copy: CopiedPartition | None, targets: Collection[int]) -> int | None:
    """Offsets that the slowest target replica has yet to fetch; None: not known, as while the mirror is paused and until
    the source is heard afterwards."""
    if copy is None or not copy.loaded or not copy.end_known:
        return None
    offsets = [
        -1 if (follower := copy.followers.get(replica)) is None else follower.fetch_offset
        for replica in targets
    ]
    if not offsets or min(offsets) < 0:
        return None
    # A follower that has not begun stands below the log's start; offsets below it are not missing.
    return max(0, copy.high_watermark - max(min(offsets), copy.log_start_offset))


class AskProgress(Protocol):
    async def __call__(
        self, link: str, tps: Collection[TopicPartition], brokers: Collection[int], timeout: float
    ) -> None:
        """Have these sidecars report into the book. A sidecar without an answer in time is not waited for."""
        ...


class FleetProgress:
    """linker.promote.ports.ReplicaProgress over all sidecars of a link."""

    def __init__(
        self,
        link: str,
        book: ReportBook,
        ask: AskProgress,
        image: Callable[[], ImageView],
        targets: Callable[[TopicPartition], Collection[int]],
        *,
        poll: float = 0.003,
        sidecar_of: Callable[[int], int] = lambda broker: broker,
    ) -> None:
        """`sidecar_of`: the id of the sidecar that is this broker of the mirrors' cluster."""
        self._sidecar_of = sidecar_of
        self._link = link
        self._book = book
        self._ask = ask
        self._image = image
        self._targets = targets
        self._poll = poll

    def _noted(self, tp: TopicPartition) -> ReceivedReport | None:
        noted = self._book.get(self._link, tp)
        partition = find(self._image(), tp)
        if noted is None or partition is None or noted.by != self._sidecar_of(partition.leader):
            return None
        return noted if noted.copy.leader_epoch == partition.leader_epoch else None

    def _current(self, tp: TopicPartition) -> CopyReport | None:
        noted = self._noted(tp)
        return None if noted is None else noted.copy

    def lag(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        """As last reported."""
        return {tp: copy_lag(self._current(tp), self._targets(tp)) for tp in tps}

    def current(self, tp: TopicPartition) -> CopyReport | None:
        """The newest report of the partition's present leader."""
        return self._current(tp)

    def log_start(self, tp: TopicPartition) -> int | None:
        copy = self._current(tp)
        return None if copy is None or not copy.loaded else copy.log_start_offset

    def positions(
        self, tps: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Mapping[int, ReplicaPosition]]:
        """As last reported, under the present leader epoch."""
        found: dict[TopicPartition, Mapping[int, ReplicaPosition]] = {}
        for tp in tps:
            copy = self._current(tp)
            if copy is not None:
                found[tp] = {
                    broker: ReplicaPosition(follower.fetch_offset, follower.broker_epoch)
                    for broker, follower in copy.followers.items()
                    if follower.fetch_offset >= 0
                }
        return found

    async def ask(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        """Have the leaders report, as far as they can be asked."""
        leaders = {
            self._sidecar_of(partition.leader)
            for tp in tps
            if (partition := find(self._image(), tp)) is not None and partition.leader >= 0
        }
        with contextlib.suppress(LinkerError):
            await self._ask(self._link, tps, leaders, timeout)

    async def silent(self, tps: Collection[TopicPartition], *, timeout: float) -> dict[TopicPartition, int]:
        """Have the leaders report; returns the partitions without an answer, each with its leader."""
        before = {tp: self._noted(tp) for tp in tps}
        await self.ask(tps, timeout=timeout)
        found: dict[TopicPartition, int] = {}
        for tp in tps:
            noted, partition = self._noted(tp), find(self._image(), tp)
            if (noted is None or noted is before[tp]) and partition is not None and partition.leader >= 0:
                found[tp] = partition.leader
        return found

    async def wait_until(
        self, tps: Collection[TopicPartition], predicate: Callable[[], bool], *, timeout: float
    ) -> bool:
        """Ask the leaders again and again; the predicate reads the book."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            left = deadline - loop.time()
            if left <= 0:
                return predicate()
            # A leader that cannot be asked now is asked again, until the deadline.
            began = loop.time()
            await self.ask(tps, timeout=left)
            if predicate():
                return True
            # Of many partitions it takes a while to look, in which this process cannot serve the followers.
            pause = max(self._poll, min(2 * (loop.time() - began), _LONGEST_POLL))
            await asyncio.sleep(min(pause, max(deadline - loop.time(), 0)))
