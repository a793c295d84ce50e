"""ProducerIdGuard: keeps the producer ids of source and target apart for the life of a link.

Two producers with one id on one partition mean a record that is acknowledged and lost, so forwarding is off until the
guard has proven that every id the target hands out lies above all the source will hand out (controller.plan.producer_ids
has the arithmetic and the verdict; here it is only carried out):

1. ask every source broker for an id, which shows how far the source's allocator is;
2. take blocks from the target's allocator until it stands at the floor, and throw them away;
3. ask every real broker of the target for ids until it has used up what it held from before the floor;
4. look again now and then, and whenever a broker of the target appears.

A broker that restarts does not end forwarding. The controller gives blocks to registered brokers only
(ProducerIdControlManager.generateNextProducerId checks the broker epoch), and a process begins without one, so a process
that registered after the allocator stood at the floor cannot have an id from below it: the metadata log shows the order of
the two. It is asked all the same. Only a broker that is older, and appears unasked, closes forwarding until it was.

source_ids.py says which sidecar looks at the source, and when.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from controller.plan.producer_ids import (
    DEFAULT_MARGIN,
    MOST_BLOCKS,
    RESERVE,
    ForwardingVerdict,
    Runs,
    ceiling,
    judge,
    lasts,
    low,
    outgrown,
    plan,
    too_close,
)
from controller.state import ProducerIdFloor, Record
from fleet.link_controller import wall_clock_ms
from linker.links.link_part import LinkContext, LinkPart
from linker.links.source_ids import SourceIds, one_producer_id
from linker.links.source_sidecars import SourceSidecars
from wire.errors import LinkerError
from wire.metadata.image import BrokerImage
from wire.periodic_task import PeriodicTask
from wire.together import together

log = logging.getLogger(__name__)

INTERVAL = 30.0
_RETRY_FIRST, _RETRY_MAX = 0.5, 10.0
_CALL_TIMEOUT = 10.0
_ALLOCATE_TIMEOUT = 120.0
_ALLOCATE_CONNECTIONS = 16
# A broker holds at most the block in use and the one it fetched ahead (RPCProducerIdManager).
_MOST_DRAINED = 4000


class FloorNotSet(LinkerError):
    """The link controller has not put its first proof into the state yet."""


class ProducerIdGuard(LinkPart):
    """The guard of one link; `allowed` is what the router asks at every forwarded produce."""

    def __init__(
        self,
        context: LinkContext,
        margin: int = DEFAULT_MARGIN,
        most_blocks: int = MOST_BLOCKS,
        clock: Callable[[], float] = time.monotonic,
        on_allowed: Callable[[], None] = lambda: None,
    ) -> None:
        """on_allowed: writes that waited may go on."""
        super().__init__(context)
        self._margin = margin
        self._most_blocks = most_blocks
        self.source = SourceIds(context.source, one_producer_id, clock)
        self._sidecars = SourceSidecars(context.source)
        self.allowed = False
        self.reason: str | None = "producer ids were not looked at yet"
        #: Why forwarding is over, not only off for the moment: the source has come too close.
        self.ended: str | None = None
        self._on_allowed = on_allowed
        self.distance: int | None = None
        #: Whether half of the margin is used up.
        self.low = False
        #: Why the source could not be asked for longer than an answer of it holds, while forwarding is on.
        self.trouble: str | None = None
        # (broker id, broker epoch) -> an id it handed out at or above the floor: it only goes up from there.
        self._drained: dict[tuple[int, int], int] = {}
        # The metadata log's offset when the allocator was seen at the floor, and the processes that were registered then.
        self._floor_since: tuple[int, frozenset[bytes]] | None = None
        self.task = PeriodicTask("producer ids", self._once, INTERVAL, failed=self._failed, pause=self._pause)

    @property
    def target_next(self) -> int:
        """Where the target's allocator stands."""
        return max(0, self._target.image.next_producer_id)

    async def run(self) -> None:
        """Until cancelled."""
        unsubscribe = self._target.metadata.subscribe(lambda image, topics: self._on_target_change())
        self._controller.listeners.add(self._on_records)
        try:
            await self.task.run()
        finally:
            unsubscribe()
            self._controller.listeners.discard(self._on_records)

    async def _once(self) -> None:
        await self._look()
        self.trouble = None

    def _failed(self, error: Exception) -> None:
        if self.allowed:
            # Proofs stay valid: ids only go up, and the source is `distance` away from the floor.
            self._not_looked(error)
        elif self.reason != str(error):
            log.warning("link %s: producer ids cannot be kept apart yet: %s", self._link, error)
            self.reason = str(error)

    def _pause(self, task: PeriodicTask) -> float:
        if not task.failures:
            return self._next_look()
        return INTERVAL if self.allowed else task.backoff(_RETRY_FIRST, _RETRY_MAX)

    def _next_look(self) -> float:
        """Seconds. Most of them look at the state and the target only."""
        kept = self._controller.image.floors.get(self._link)
        due = 0.0 if kept is None else self.source.due_in(kept.floor, is_controller=self._decides)
        return min(max(due, _RETRY_FIRST), INTERVAL if self.allowed else _RETRY_MAX)

    def _not_looked(self, error: Exception) -> None:
        """Forwarding goes on, by a look at the source that gets older."""
        age = self.source.age
        if (
            self.trouble is None
            and age is not None
            and self.distance is not None
            and age > lasts(self.distance)
        ):
            self.trouble = f"the source's producer ids have not been looked at for {age:.0f} s: {error}"
            log.warning("link %s: %s", self._link, self.trouble)

    def _on_records(self, records: Sequence[Record]) -> None:
        """The link controller has looked: known from now on, not from when we would have read it."""
        if not self._decides and any(
            isinstance(one, ProducerIdFloor) and one.link == self._link for one in records
        ):
            self.task.wake()

    def _on_target_change(self) -> None:
        """A broker that appears may have a block from before: closed until it was asked, unless it is younger."""
        unasked = [b for b in self._real_brokers() if (b.id, b.epoch) not in self._drained]
        if self.allowed and unasked:
            if any(not self._registered_since(b) for b in unasked):
                self.allowed = False
                self.reason = "a broker of the target has appeared and was not asked for a producer id yet"
            self.task.wake()

    def _registered_since(self, broker: BrokerImage) -> bool:
        """Whether it is a process that registered when no block from below the floor could be had any more."""
        if self._floor_since is None:
            return False
        offset, older = self._floor_since
        # A broker's epoch is the offset of its registration's record.
        return broker.epoch > offset and broker.incarnation_id not in older

    def _real_brokers(self) -> list[BrokerImage]:
        return self._target.image.live_brokers(self._link_brokers())

    async def _look(self) -> None:
        kept = self._controller.image.floors.get(self._link)
        if not self._decides and (kept is None or self.target_next < kept.floor):
            raise FloorNotSet(f"link {self._link}: the link controller has not moved the producer ids yet")
        if kept is not None and kept.ceiling is not None:
            await self._look_below(kept, kept.ceiling)
            return
        looked = await self._look_at_source(kept)
        end = self.source.end or 0
        if kept is not None and (above := await self._above(kept, end)) is not None:
            await self._look_below(kept, above)
            return
        wanted = plan(
            end if kept is not None else max(end, await self._opposite_floor()),
            self.target_next,
            {},
            margin=self._margin,
            floor=None if kept is None else kept.floor,
            most_blocks=self._most_blocks,
        )
        runs = Runs()
        if kept is None:
            # Declared before the ids move: a link in the other direction may be made at this moment.
            await self._write_down(wanted.floor, end)
        if wanted.blocks and self._decides:
            log.info(
                "link %s: moving the target's producer ids from %d to %d (the source is at %d)",
                self._link,
                self.target_next,
                wanted.floor,
                end,
            )
            started = time.monotonic()
            await self._target.operations.allocate_producer_ids(
                wanted.blocks,
                connections=_ALLOCATE_CONNECTIONS,
                timeout=_ALLOCATE_TIMEOUT,
                until=wanted.floor,
                took=runs.add,
            )
            await self._target.metadata.wait_for(
                lambda image: True if image.next_producer_id >= wanted.floor else None, _CALL_TIMEOUT
            )
            log.info("link %s: producer ids moved in %.1f s", self._link, time.monotonic() - started)
        self._note_floor(wanted.floor)
        if self._decides and (looked or wanted.blocks):
            await self._write_down(wanted.floor, end, runs.longest() or (() if kept is None else kept.unused))
        target = await self._drained_to(wanted.floor)
        verdict = judge(end, self.target_next, target, wanted.floor)
        self._take(verdict, too_close(end, wanted.floor))

    async def _drained_to(self, floor: int) -> dict[int, int]:
        """An id at or above the floor of each real broker of the target, none of which hands out a lower one any more."""
        brokers = self._real_brokers()
        await together(
            self._drain(broker, floor) for broker in brokers if (broker.id, broker.epoch) not in self._drained
        )
        return {
            broker.id: self._drained[broker.id, broker.epoch]
            for broker in brokers
            if (broker.id, broker.epoch) in self._drained
        }

    def _take(self, verdict: ForwardingVerdict, ended: str | None) -> None:
        self._note_distance(verdict.distance)
        if verdict.allowed and any(
            (b.id, b.epoch) not in self._drained and not self._registered_since(b)
            for b in self._real_brokers()
        ):
            return  # one appeared meanwhile; we were woken
        was_allowed = self.allowed
        if not verdict.allowed:
            self._end_forwarding(verdict.reason)
        self.allowed, self.reason, self.ended = verdict.allowed, verdict.reason, ended
        if verdict.allowed and not was_allowed:
            log.info("link %s: forwarding of produces is on", self._link)
            self._on_allowed()

    # --- a link in the other direction -------------------------------------------------------------------------------

    async def _opposite_floor(self) -> int:
        """Where the source's ids begin, or will in a moment, for a link from this target to it; 0 without one."""
        own = self._target.cluster.cluster_id or ""
        opposite = [one for one in await self._sidecars.links() if one.source == own]
        floors = [one.floor for one in opposite if one.floor is not None]
        if len(floors) < len(opposite) and own > (self._source.cluster_id or ""):
            # Both are new: one of them has to go first.
            raise FloorNotSet(
                f"link {self._link}: the link from this cluster to its source has not moved the source's producer ids yet"
            )
        return max(floors, default=0)

    async def _above(self, kept: ProducerIdFloor, end: int) -> int | None:
        """From where the source's ids go on after a link in the other direction moved them past the target's; None if
        none did."""
        if too_close(end, kept.floor) is None:
            return None
        above = ceiling(await self._sidecars.links(), kept.floor, self.target_next)
        if above is not None and self._decides:
            await self._controller.set_producer_id_floor(replace(kept, ceiling=above))
            log.info("link %s: the source hands out producer ids from %d on", self._link, above)
        return above

    async def _look_below(self, kept: ProducerIdFloor, above: int) -> None:
        """The source is above the target, and only goes up: the target is looked at alone."""
        self._note_floor(kept.floor)
        target = await self._drained_to(kept.floor)
        verdict = judge(kept.floor - (above - self.target_next), self.target_next, target, kept.floor)
        reason = outgrown(self.target_next, above)
        if reason is not None:
            verdict = ForwardingVerdict(False, reason, above - self.target_next)
        self._take(verdict, reason)

    def _note_floor(self, floor: int) -> None:
        """The floor is fixed for the life of a link."""
        if self._floor_since is None and self.target_next >= floor:
            image = self._target.image
            self._floor_since = image.offset, frozenset(b.incarnation_id for b in image.brokers.values())

    async def _look_at_source(self, kept: ProducerIdFloor | None) -> bool:
        """Look at the source if that is due; returns whether it was. Forwarding ends, with any outcome, if the source is
        too close to the floor and has not been moved above it."""
        if kept is not None:
            self.source.hear(kept)
            if self.source.due_in(kept.floor, is_controller=self._decides) > 0:
                return False
        try:
            await self.source.look()
        finally:
            end = self.source.end
            if kept is not None and end is not None:
                reason = too_close(end, kept.floor)
                if reason is None or not await self._moved_above(kept, end):
                    self._note_distance(kept.floor - end)
                    if reason is not None:
                        self.ended = reason
                        self._end_forwarding(reason)
        return True

    async def _moved_above(self, kept: ProducerIdFloor, end: int) -> bool:
        try:
            return await self._above(kept, end) is not None
        except LinkerError as error:
            log.warning(
                "link %s: the source's sidecars do not tell their producer ids: %s", self._link, error
            )
            return False

    def _note_distance(self, distance: int) -> None:
        was_low = self.low
        self.distance, self.low = distance, low(distance, self._margin)
        if self.low and not was_low:
            log.warning(
                "link %s: the source's producer ids are %d away from the target's, forwarding ends at %d: promote soon",
                self._link,
                distance,
                RESERVE,
            )

    def _end_forwarding(self, reason: str | None) -> None:
        if self.allowed:
            log.error("link %s: forwarding of produces is off: %s", self._link, reason)
        self.allowed, self.reason = False, reason

    async def _write_down(self, floor: int, end: int, unused: tuple[tuple[int, int], ...] = ()) -> None:
        """Write the floor down for other sidecars. If that fails the look counts as not made, and is due again at once."""
        word = ProducerIdFloor(
            link=self._link,
            floor=floor,
            source_seen=end - 1,
            sampled_at=wall_clock_ms(),
            unused=unused,
        )
        try:
            await self._controller.set_producer_id_floor(word)
        except LinkerError:
            self.source.known_at = None
            raise
        self.source.written_down(word)

    async def _drain(self, broker: BrokerImage, floor: int) -> None:
        connection = await self._target.cluster.open_connection(broker.id)
        try:
            for _ in range(_MOST_DRAINED):
                producer_id = await one_producer_id(self._target.cluster.name, connection)
                if producer_id >= floor:
                    self._drained[broker.id, broker.epoch] = producer_id
                    return
                if self.allowed:  # taken for younger than the floor, which it is not
                    self._floor_since = None
                    self._end_forwarding(
                        f"broker {broker.id} of the target hands out producer id {producer_id}, below {floor}"
                    )
        finally:
            connection.close()
        raise LinkerError(
            f"broker {broker.id} of the target still hands out producer id {producer_id}, below {floor}"
        )
