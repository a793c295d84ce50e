"""ProducerIdGuard: keeps the producer ids of source and target apart for the life of a link.

Two producers with one id on one partition mean a record that is acknowledged and lost, so forwarding is off until the
guard has proven that every id the target hands out lies above all the source will hand out (controller.producer_ids
has the arithmetic and the verdict; here it is only carried out):

1. ask every source broker for an id, which shows how far the source's allocator is;
2. take blocks from the target's allocator until it stands at the floor, and throw them away;
3. ask every real broker of the target for ids until it has used up what it held from before the floor;
4. look again now and then, and whenever a broker of the target appears.

Each look at the source costs an id of each of its brokers, out of the distance that it is to watch. So it is the link
controller that looks, and the others go by what it wrote down; one that has not heard of a look for too long looks itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from controller.manager import LinkController, wall_clock_ms
from controller.producer_ids import DEFAULT_MARGIN, RESERVE, block_end, judge, lasts, pause, plan, source_end
from controller.state import ProducerIdFloor
from linker.target import TargetCluster
from linker.tasks import together, together_by_key
from wire.cluster import Cluster
from wire.connection import Connection
from wire.errors import BrokerError, ClusterUnreachable, LinkerError
from wire.metadata.image import BrokerImage

log = logging.getLogger(__name__)

INTERVAL = 30.0
_RETRY_FIRST, _RETRY_MAX = 0.5, 10.0
_CALL_TIMEOUT = 10.0
_ALLOCATE_TIMEOUT = 120.0
_ALLOCATE_CONNECTIONS = 16
# A broker holds at most the block in use and the one it fetched ahead (RPCProducerIdManager).
_MOST_DRAINED = 4000


class FloorNotSet(LinkerError):
    """What the link controller proves first is not in the state yet."""


class ProducerIdGuard:
    """The guard of one link; `allowed` is what the router asks at every forwarded produce."""

    def __init__(
        self,
        link: str,
        source: Cluster,
        target: TargetCluster,
        controller: LinkController,
        link_brokers: Callable[[], frozenset[int]],
        *,
        margin: int = DEFAULT_MARGIN,
        is_head: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._source = source
        self._target = target
        self._controller = controller
        self._link_brokers = link_brokers
        self._margin = margin
        self._is_head = is_head
        self._clock = clock
        #: When the source's allocator was last known to be no further than source_highest, by a look of ours or by word of
        #: the link controller's; that word.
        self._looked_at: float | None = None
        self._heard: ProducerIdFloor | None = None
        self.allowed = False
        self.reason: str | None = "producer ids were not looked at yet"
        self.distance: int | None = None
        #: Whether half of the margin is used up.
        self.low = False
        #: Why the source could not be asked for longer than an answer of it holds, while forwarding is on.
        self.trouble: str | None = None
        #: What the source may have handed out, as far as is known.
        self.source_highest: int | None = None
        # (broker id, broker epoch) -> an id it handed out at or above the floor: it only goes up from there.
        self._drained: dict[tuple[int, int], int] = {}
        self._hurry = asyncio.Event()

    @property
    def target_next(self) -> int:
        """Where the target's allocator stands."""
        return max(0, self._target.image.next_producer_id)

    async def run(self) -> None:
        """Until cancelled."""
        unsubscribe = self._target.metadata.subscribe(lambda image, topics: self._on_target_change())
        try:
            retry = _RETRY_FIRST
            while True:
                self._hurry.clear()
                try:
                    await self._look()
                    self.trouble = None
                    wait, retry = (INTERVAL if self.allowed else _RETRY_MAX), _RETRY_FIRST
                except LinkerError as error:
                    if self.allowed:
                        # What was proven stays proven: ids only go up, and the source is `distance` away from the floor.
                        self._not_looked(error)
                        wait = INTERVAL
                    else:
                        if self.reason != str(error):
                            log.warning(
                                "link %s: producer ids cannot be kept apart yet: %s", self._link, error
                            )
                            self.reason = str(error)
                        wait, retry = retry, min(retry * 2, _RETRY_MAX)
                try:
                    async with asyncio.timeout(wait):
                        await self._hurry.wait()
                except TimeoutError:
                    continue
        finally:
            unsubscribe()

    def _not_looked(self, error: LinkerError) -> None:
        """Forwarding goes on, by a look at the source that gets older."""
        if self.trouble is None and self._looked_at is not None and self.distance is not None:
            age = self._clock() - self._looked_at
            if age > lasts(self.distance):
                self.trouble = f"the source was not asked for a producer id for {age:.0f} s: {error}"
                log.warning("link %s: %s", self._link, self.trouble)

    def _on_target_change(self) -> None:
        """A broker that (re)appears has a block of its own: closed until it was asked."""
        if self.allowed and any((b.id, b.epoch) not in self._drained for b in self._real_brokers()):
            self.allowed = False
            self.reason = "a broker of the target has appeared and was not asked for a producer id yet"
            self._hurry.set()

    def _real_brokers(self) -> list[BrokerImage]:
        links = self._link_brokers()
        return [b for b in self._target.image.brokers.values() if b.id not in links and not b.fenced]

    async def _look(self) -> None:
        kept = self._controller.image.floors.get(self._link)
        if not self._is_head() and (kept is None or self.target_next < kept.floor):
            raise FloorNotSet(f"link {self._link}: the link controller has not moved the producer ids yet")
        highest, looked = await self._source_highest(kept)
        source = block_end(highest)
        wanted = plan(
            source, self.target_next, {}, margin=self._margin, floor=None if kept is None else kept.floor
        )
        if wanted.blocks and self._is_head():
            log.info(
                "link %s: moving the target's producer ids from %d to %d (the source is at %d)",
                self._link,
                self.target_next,
                wanted.floor,
                source,
            )
            started = time.monotonic()
            await self._target.operations.allocate_producer_ids(
                wanted.blocks,
                connections=_ALLOCATE_CONNECTIONS,
                timeout=_ALLOCATE_TIMEOUT,
                until=wanted.floor,
            )
            await self._target.metadata.wait_for(
                lambda image: True if image.next_producer_id >= wanted.floor else None, _CALL_TIMEOUT
            )
            log.info("link %s: producer ids moved in %.1f s", self._link, time.monotonic() - started)
        if self._is_head() and (looked or kept is None or kept.source_seen < highest):
            found = ProducerIdFloor(
                link=self._link, floor=wanted.floor, source_seen=highest, sampled_at=wall_clock_ms()
            )
            await self._controller.set_producer_id_floor(found)
            self._heard = found
        brokers = self._real_brokers()
        await together(
            self._drain(broker, wanted.floor)
            for broker in brokers
            if (broker.id, broker.epoch) not in self._drained
        )
        target = {
            broker.id: self._drained[broker.id, broker.epoch]
            for broker in brokers
            if (broker.id, broker.epoch) in self._drained
        }
        verdict = judge(source, self.target_next, target, wanted.floor, margin=self._margin)
        self.distance, self.low = verdict.distance, verdict.low
        if verdict.allowed and any((b.id, b.epoch) not in self._drained for b in self._real_brokers()):
            return  # one appeared meanwhile; we were woken
        if verdict.allowed != self.allowed:
            log.log(
                logging.INFO if verdict.allowed else logging.ERROR,
                "link %s: forwarding of produces is %s%s",
                self._link,
                "on" if verdict.allowed else "off",
                f": {verdict.reason}" if verdict.reason else "",
            )
        if verdict.low and looked:
            log.warning(
                "link %s: the source's producer ids are %d away from the target's, forwarding ends at %d: promote soon",
                self._link,
                verdict.distance,
                RESERVE,
            )
        self.allowed, self.reason = verdict.allowed, verdict.reason

    async def _source_highest(self, kept: ProducerIdFloor | None) -> tuple[int, bool]:
        """The highest id the source is known to have handed out, and whether by a look at it just now."""
        now, head = self._clock(), self._is_head()
        highest = self.source_highest
        if kept != self._heard and kept is not None:
            # How old the first word is nobody knows.
            if highest is not None:
                self.source_highest = highest = max(highest, kept.source_seen)
                self._looked_at = now
            self._heard = kept
        if kept is not None and highest is not None and self._looked_at is not None:
            distance = kept.floor - block_end(highest)
            if now - self._looked_at < (pause(distance) if head else lasts(distance) - INTERVAL):
                return highest, False
        await self._source.refresh((), timeout=_CALL_TIMEOUT)
        # All of them: the one that is left out may hold the highest block.
        found = await together_by_key({node: self._sample(node) for node in list(self._source.nodes)})
        if not found:
            # A broker that has just started may name nobody, itself included.
            raise ClusterUnreachable(f"{self._source.name} names no live broker yet")
        self.source_highest = highest = source_end(found) - 1
        self._looked_at = now
        return highest, True

    async def _sample(self, node: int) -> int:
        return await self._one_id(self._source.name, await self._source.connection(node))

    async def _drain(self, broker: BrokerImage, floor: int) -> None:
        connection = await self._target.cluster.open_connection(broker.id)
        try:
            for _ in range(_MOST_DRAINED):
                producer_id = await self._one_id(self._target.cluster.name, connection)
                if producer_id >= floor:
                    self._drained[broker.id, broker.epoch] = producer_id
                    return
        finally:
            connection.close()
        raise LinkerError(
            f"broker {broker.id} of the target still hands out producer id {producer_id}, below {floor}"
        )

    @staticmethod
    async def _one_id(cluster: str, connection: Connection) -> int:
        """InitProducerId without a transactional id; waits out a broker that is fetching its next block."""
        deadline = time.monotonic() + _CALL_TIMEOUT
        while True:
            response = await connection.call(
                "init_producer_id",
                {
                    "transactional_id": None,
                    "transaction_timeout_ms": 60_000,
                    "producer_id": -1,
                    "producer_epoch": -1,
                },
                timeout=_CALL_TIMEOUT,
                max_version=4,
            )
            code = int(response.error_code)
            if code == 0:
                return int(response.producer_id)
            error = BrokerError(
                code,
                message=f"{cluster} gives no producer id (WRITE on any topic, or IDEMPOTENT_WRITE on Cluster, is needed)",
                api="init_producer_id",
                peer=connection.peer,
            )
            if not error.retriable or time.monotonic() > deadline:
                raise error
            await asyncio.sleep(0.05)
