"""Takes partitions back to real brokers that a source without cordons placed on its link brokers.

Of several sidecars the one with the least broker id there does it. Mirrored partitions are none of its business, nor are
those that link brokers follow in sync. A partition that somebody added to such a topic was placed like any other: it gets
its real replicas, though link brokers follow it by then.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from controller.errors import Refused
from controller.plan.evictions import Elect, NewIsr, NewReplicas, names, next_step
from linker.link_broker import LinkBroker
from linker.links.new_mirrors import real_brokers, replica_load
from wire.errors import error_name
from wire.frames.error_codes import NEW_LEADER_ELECTED
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage, PartitionImage, TopicImage
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_INTERVAL: Final = 30.0
_STEP: Final = 0.2
#: A mirror may be seen in the source's metadata log before the link controller's commit arrives here.
_GRACE: Final = 1.0


class _Stranger(NamedTuple):
    """A partition that was placed on a link broker."""

    since: float
    replicas: int  # that it is to have on real brokers


def _never_led(partition: PartitionImage, ours: frozenset[int]) -> bool:
    """Whether only link brokers have ever held the partition. One that was reassigned to them had another leader before, and
    records: real brokers would begin with empty logs."""
    return ours.issuperset(partition.replicas) and partition.leader_epoch == 0


class Evictor:
    """Of one link broker; runs beside it."""

    def __init__(self, broker: LinkBroker) -> None:
        self._broker = broker
        self._touched = set(broker.membership.image.topics_by_id)
        self._found: dict[TopicPartition, _Stranger] = {}
        self.task = PeriodicTask(
            "evictor",
            self._look,
            _INTERVAL,
            failed=lambda error: log.warning("partitions on link brokers: %s", error),
            pause=self._pause,
        )

    def _pause(self, task: PeriodicTask) -> float:
        if task.failures:
            return task.backoff(_STEP, _INTERVAL)
        return _STEP if self._found else _INTERVAL

    def on_change(self, _image: ClusterImage, topics: frozenset[bytes]) -> None:
        """A subscriber of the metadata log."""
        if topics and not self._broker.cordoned:
            self._touched |= topics
            self.task.wake()

    def _ours(self) -> frozenset[int]:
        return self._broker.link_brokers()

    def _is_mine(self) -> bool:
        """Whether this sidecar does it."""
        brokers = self._broker.membership.image.brokers
        alive = [one for one in self._ours() if one in brokers and not brokers[one].fenced]
        return not self._broker.cordoned and self._broker.membership.broker_id == min(alive, default=None)

    async def _look(self) -> str | None:
        """One step of each partition that is on the way."""
        if not self._is_mine():
            self._found.clear()
            return None
        image, ours, now = self._broker.membership.image, self._ours(), asyncio.get_running_loop().time()
        touched, self._touched = self._touched, set()
        for topic_id in touched:
            for tp, count in self._strangers(topic_id):
                self._found.setdefault(tp, _Stranger(now, count))
        isrs: dict[TopicPartition, tuple[int, ...]] = {}
        replicas: dict[TopicPartition, tuple[int, ...]] = {}
        elected: list[TopicPartition] = []
        brokers, load = None, None
        trouble: str | None = None
        for tp, stranger in list(self._found.items()):
            topic = image.topics_by_name.get(tp.topic)
            partition = None if topic is None else topic.partitions.get(tp.partition)
            if topic is None or partition is None or self._is_over(topic, partition, stranger):
                del self._found[tp]
                continue
            if now - stranger.since < _GRACE:
                continue
            if brokers is None or load is None:
                brokers = real_brokers(self._broker.membership, ours)
                load = replica_load(self._broker.membership, ours)
            try:
                follows = tp.partition < self._broker.kept_in_sync(tp.topic)
                step = next_step(partition, ours, brokers, load, follows=follows)
            except Refused as error:
                trouble = f"{tp}: {error}"
                continue
            match step:
                case NewIsr(isr):
                    isrs[tp] = isr
                case Elect():
                    elected.append(tp)
                case NewReplicas(chosen):
                    log.warning(
                        "%s was placed on a link broker of the source; its replicas: %s", tp, list(chosen)
                    )
                    replicas[tp] = chosen
        if elected:
            await self._broker.membership.operations.elect_preferred(elected)
        if isrs:
            codes = await self._broker.membership.operations.alter_isr(isrs)
            refused = {tp: code for tp, code in codes.items() if code not in (0, NEW_LEADER_ELECTED)}
            if refused:
                tp, code = next(iter(refused.items()))
                trouble = f"{tp}: the controller does not take another ISR: {error_name(code)}"
        if replicas:
            await self._broker.membership.operations.reassign(replicas)
        if trouble is not None and self.task.reason != trouble:
            log.warning("partitions on link brokers: %s", trouble)
        return trouble

    def _is_over(self, topic: TopicImage, partition: PartitionImage, stranger: _Stranger) -> bool:
        """Real brokers have it, whether or not link brokers follow by now; or it is a mirror's."""
        ours = self._ours()
        if not names(partition, ours) or self._mirrored(topic, partition.index):
            return True
        real = [one for one in partition.replicas if one not in ours and one not in partition.adding]
        return partition.index < self._broker.kept_in_sync(topic.name) and len(real) >= stranger.replicas

    def _mirrored(self, topic: TopicImage, index: int) -> bool:
        mirror = self._broker.mirrors.by_id(topic.id)
        return mirror is not None and mirror.partition(index) is not None

    def _strangers(self, topic_id: bytes) -> list[tuple[TopicPartition, int]]:
        """With the number of replicas that each was made with."""
        topic, ours = self._broker.membership.image.topics_by_id.get(topic_id), self._ours()
        if topic is None:
            return []
        kept = self._broker.kept_in_sync(topic.name)
        return [
            (TopicPartition(topic.name, one.index), len(one.replicas) - len(one.adding))
            for one in topic.partitions.values()
            if names(one, ours)
            and not self._mirrored(topic, one.index)
            and (one.index >= kept or _never_led(one, ours))
        ]

    async def run(self) -> None:
        """Until cancelled."""
        unsubscribe = self._broker.membership.metadata.subscribe(self.on_change)
        try:
            await self.task.run()
        finally:
            unsubscribe()
