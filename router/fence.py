"""Fences: which partitions hold new produces, and what must still be waited for. Pure: the time is passed
in.

Lives here: the accounting behind ``Router.fence``. Not here: waiting (``forwarding.py``), lanes of one
connection (``lanes.py``).

A fence promises this: when ``pending()`` is empty for a fenced partition, every write that this router
ever sent for it has

- been answered by the source (written or refused: the source will not touch it again), or
- been sent again under the same producer id, epoch and sequence and answered with success (a late copy
  is a duplicate that the source drops), or
- been lost with its connection, or last answered with an error after that, at least ``settle_grace``
  seconds ago.

Only the third is not a proof: a broker may hold a request of a dead connection in its queue, and no
request of the protocol tells us when it is gone. Such a write was never acknowledged to anybody. If it
lands after the source's end was read but before the hand-over, the check that the end did not move
abandons the promote; if it lands later still, the source alone has a record that nobody was told about
and that the client, who was told to retry, wrote to the new owner. Nothing acknowledged can be lost or
doubled by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, Generic

from router.produce.batch import Answer, JobT
from router.produce.lane_states import LaneState
from router.produce.lanes import Lane
from wire.frames.types import TopicPartition


class FenceState(Enum):
    FENCED = "fenced"
    CARRIED = "carried"
    """Handed over, and not every broker knows it yet: what clients still send here goes on to the new leader."""
    HANDED_OVER = "handed over"


LED_ELSEWHERE: Final = frozenset({FenceState.CARRIED, FenceState.HANDED_OVER})
"""The source's log is not the partition's log any more."""


_OPEN: Final = frozenset({None, FenceState.CARRIED})


class FenceTable(Generic[JobT]):
    """All lanes by partition, and the fence state of each partition (absent: open)."""

    def __init__(self, clock: Callable[[], float], settle_grace: float) -> None:
        self._clock = clock
        self.settle_grace = settle_grace
        self._lanes: dict[TopicPartition, set[Lane[JobT]]] = {}
        self._state: dict[TopicPartition, FenceState] = {}
        self._settles_at: dict[TopicPartition, float] = {}
        #: Of a partition. The dict's own look-up: it is asked for twice for every forwarded produce.
        self.state: Callable[[TopicPartition], FenceState | None] = self._state.get

    @property
    def closed(self) -> dict[TopicPartition, FenceState]:
        return dict(self._state)

    def lanes(self, tp: TopicPartition) -> frozenset[Lane[JobT]]:
        return frozenset(self._lanes.get(tp, ()))

    # Lanes come and go

    def open_lane(self, tp: TopicPartition) -> Lane[JobT]:
        lane: Lane[JobT] = Lane(tp, held=self._state.get(tp) not in _OPEN)
        lane.on_settling = self._on_settling
        self._lanes.setdefault(tp, set()).add(lane)
        return lane

    def discard_lane(self, lane: Lane[JobT]) -> bool:
        """Forget a lane without work; False while it still has some."""
        if not lane.idle:
            return False
        lanes = self._lanes.get(lane.tp)
        if lanes is not None:
            lanes.discard(lane)
            if not lanes:
                del self._lanes[lane.tp]
        return True

    def _on_settling(self, tp: TopicPartition) -> None:
        self._settles_at[tp] = self._clock() + self.settle_grace

    # Fences

    def fence(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            if self._state.get(tp) in LED_ELSEWHERE:
                continue
            self._state[tp] = FenceState.FENCED
            for lane in self._lanes.get(tp, ()):
                lane.fence()

    def unfence(self, tps: Iterable[TopicPartition]) -> list[Lane[JobT]]:
        """Open again; the lanes that have something to send."""
        moved: list[Lane[JobT]] = []
        for tp in tps:
            if self._state.pop(tp, None) is None:
                continue
            for lane in self._lanes.get(tp, ()):
                if lane.state is LaneState.HELD:
                    lane.unfence()
                if lane.queue:
                    moved.append(lane)
        return moved

    def cut(self, tps: Iterable[TopicPartition]) -> list[Answer[JobT]]:
        """The source is given up: the answers for what was in flight there. The partitions are fenced already."""
        ours = [tp for tp in tps if self._state.get(tp) not in LED_ELSEWHERE]
        return [answer for tp in ours for lane in self._lanes.get(tp, ()) for answer in lane.cut()]

    def carry(self, tps: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Have lanes send to the new leader from now on; the caller wakes and pumps them. Returns the partitions it applies
        to: those whose fence stands, so that nothing of this router is on its way to the source in any lane.
        """
        carried = []
        for tp in tps:
            lanes = self._lanes.get(tp, ())
            if self._state.get(tp) is FenceState.FENCED and all(lane.settled for lane in lanes):
                self._state[tp] = FenceState.CARRIED
                carried.append(tp)
                for lane in lanes:
                    lane.unfence()
        return carried

    def hand_over(self, tps: Iterable[TopicPartition]) -> list[Answer[JobT]]:
        """From now on clients are told that somebody else leads: the answers for what was held. A lane that carries
        brings what it has to the new leader; it gets nothing more.
        """
        answers: list[Answer[JobT]] = []
        for tp in tps:
            carried = self._state.get(tp) in LED_ELSEWHERE
            self._state[tp] = FenceState.HANDED_OVER
            for lane in self._lanes.get(tp, ()):
                if carried and lane.state is not LaneState.HELD:
                    continue
                lane.fence()
                answers += lane.hand_over()
        return answers

    def pending(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """The reasons why fenced partitions still wait; empty when the fence stands."""
        now = self._clock()
        left: dict[TopicPartition, str] = {}
        for tp in tps:
            if self._state.get(tp) is FenceState.CARRIED:
                continue  # what is on its way goes to the target
            lanes = self._lanes.get(tp, ())
            in_flight = sum(len(lane.in_flight) for lane in lanes)
            unknown = sum(batch.unsettled for lane in lanes for batch in lane.queue)
            if in_flight or unknown:
                left[tp] = f"{in_flight} writes in flight, {unknown} of unknown outcome"
                continue
            settles_at = self._settles_at.get(tp)
            if settles_at is not None:
                if settles_at > now:
                    left[tp] = f"a write lost with its connection settles in {settles_at - now:.1f} s"
                else:
                    del self._settles_at[tp]
        return left

    def next_settling(self, tps: Iterable[TopicPartition]) -> float | None:
        """When the earliest of the lost writes counts as settled."""
        times = [self._settles_at[tp] for tp in tps if tp in self._settles_at]
        return min(times, default=None)
