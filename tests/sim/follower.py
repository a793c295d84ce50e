"""A link broker as an in-sync follower of the cluster that its link mirrors: the rules of `fetcher.in_sync`, on records of
the simulation. Around it is the product's own SourceSync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, cast

from fetcher.followed import InSyncState
from fetcher.in_sync import InSyncFollower
from linker.links.source_sync import SourceSync
from tests.sim.replicas import common
from wire.errors import LinkerError, LocalProtocolError
from wire.frames.types import TopicPartition

if TYPE_CHECKING:
    from tests.sim.place import Copy, Place

_PAUSE = 0.02
_TIMEOUT = 0.5


class _Followed:
    def __init__(self) -> None:
        self.copy: Copy | None = None
        self.fed: list[str] | None = None
        self.told = -1
        self.end: int | None = None
        self.stopped = False


class Follower:
    """fetcher.in_sync.InSyncFollower, of one link."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._followed: dict[TopicPartition, _Followed] = {}

    @property
    def followed(self) -> Collection[TopicPartition]:
        return self._followed.keys()

    def wake(self) -> None:
        """It looks often enough."""

    def follow(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._followed.setdefault(tp, _Followed())

    def begin(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            if tp in self._followed:
                self._followed[tp].stopped = False

    def end(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._followed.pop(tp, None)

    def stop(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        for tp in tps:
            found = self._followed.get(tp)
            if found is None or (found.end is None and found.fed is None):
                raise LocalProtocolError(f"not followed at the source now: {tp}")
        ends = {}
        for tp in tps:
            found = self._followed[tp]
            found.stopped = True
            ends[tp] = self._freeze(tp, found)
        return ends

    def find_end(self, tp: TopicPartition) -> None:
        copy = self._place.copies.get(tp)
        if copy is not None:
            found = self._followed.setdefault(tp, _Followed())
            if found.end is None and found.fed is None:
                found.copy = copy
                self._find_end(tp, found, list(self._place.sync.must_tell(copy)))  # type: ignore[arg-type]

    def state(self, tp: TopicPartition) -> InSyncState:
        found = self._followed.get(tp)
        if found is None:
            return InSyncState(False, False, -1, -1, "it is not followed")
        leader = self._place.sync.leader_of(tp)
        end = -1 if found.fed is None else len(found.fed)
        return InSyncState(found.fed is not None, leader is not None and leader.in_sync, found.told, end, "")

    def fed(self, tp: TopicPartition) -> list[str] | None:
        """What was read, of a partition that is followed."""
        found = self._followed.get(tp)
        return None if found is None or found.copy is not self._place.copies.get(tp) else found.fed

    def _freeze(self, tp: TopicPartition, found: _Followed) -> int:
        if found.end is None:
            assert found.fed is not None
            found.end = len(found.fed)
            if found.told >= found.end:
                self._place.world.frozen(tp, found.end, found.fed)
        return found.end

    async def run(self) -> None:
        while True:
            news = False
            for tp, found in list(self._followed.items()):
                try:
                    news |= await self._tend(tp, found)
                except LinkerError:
                    continue
            await asyncio.sleep(0.001 if news else _PAUSE)

    async def _tend(self, tp: TopicPartition, found: _Followed) -> bool:
        place = self._place
        copy = place.copies.get(tp)
        if copy is not found.copy:
            if found.copy is not None and found.end is not None and found.told < found.end:
                found.end = None
            found.copy, found.fed, found.told = copy, None, -1
        if copy is None:
            return False
        must = list(place.sync.must_hold(copy))  # type: ignore[arg-type]
        if found.end is not None and self._safe(copy, found.end):
            found.told = found.end
            place.world.frozen(tp, found.end, found.fed)
        if place.sync.led_by_us(tp):
            if found.fed is not None:
                self._freeze(tp, found)
            elif found.end is None:
                self._find_end(tp, found, list(place.sync.must_tell(copy)))  # type: ignore[arg-type]
            return False
        if found.stopped:
            return False
        found.end = None
        leader = place.sync.leader_of(tp)
        if leader is None:
            found.fed = None
            return False
        if found.fed is None and not self._begin(tp, found, must):
            return False
        assert found.fed is not None
        if not self._safe(copy, len(found.fed)):
            return False  # not told, and so not asked either
        found.told = len(found.fed)
        return await self._fetch(tp, found, copy, int(leader.node))  # type: ignore[call-overload]

    @property
    def _ports(self) -> SourceSync:
        return self._place.sync

    def _safe(self, copy: Copy, offset: int) -> bool:
        """The product's rule."""
        return InSyncFollower._safe(cast(Any, self), cast(Any, copy), offset)

    def _begin(self, tp: TopicPartition, found: _Followed, must: list[int]) -> bool:
        """Where the slowest replica is."""
        place = self._place
        offsets = [place.position(tp, broker) for broker in must]
        if not offsets or min(offsets) < 0:
            return False
        slowest = min(must, key=lambda broker: place.position(tp, broker))
        found.fed = list(place.cluster.replicas.logs[tp][slowest][: min(offsets)])
        assert found.copy is not None
        found.copy.took(found.fed, 0)
        # Those that are ahead may have records of a leader before, which another one has not got: the product's cursors are
        # checked by the leader, each by itself.
        place.forget_positions(tp)
        return True

    def _find_end(self, tp: TopicPartition, found: _Followed, must: list[int]) -> None:
        """A new process leads it there: nothing was told beyond the replica that has most."""
        offsets = {broker: self._place.position(tp, broker) for broker in must}
        if not offsets or min(offsets.values()) < 0:
            return
        most = max(offsets, key=lambda broker: offsets[broker])
        found.end = offsets[most]
        found.fed = list(self._place.cluster.replicas.logs[tp][most][: found.end])

    async def _fetch(self, tp: TopicPartition, found: _Followed, copy: Copy, leader: int) -> bool:
        place, fed = self._place, found.fed
        owner, network = place.owner, place.world.network
        assert fed is not None
        offset, asked = len(fed), list(fed)
        place.world.told(place, tp, asked)

        def carry_out() -> tuple[int, list[str]]:
            if owner.kraft.partitions[tp].leader != leader or leader not in owner.real:
                raise LinkerError("it does not lead, or has no log")
            if leader in owner.replicas.down:
                raise LinkerError("it is down")
            there = owner.replicas.logs[tp][leader]
            same = common(asked, there)
            if same == offset:
                owner.replicas.heard(tp, place.there.broker_id, offset)
            return same, there[same:]

        same, news = await network.request(place.process.name, owner.name, carry_out, _TIMEOUT)
        if found.fed is not fed or len(fed) != offset or found.stopped or found.end is not None:
            return False
        if same < offset:
            del fed[same:]
            copy.truncate(same)
            place.forget_positions(tp)  # until each was seen below that place
        copy.took(news, len(fed))
        fed += news
        if news:
            place.cluster.replicas.news(tp)
        return bool(news) or same < offset
