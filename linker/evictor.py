"""Takes partitions back to real brokers that a source without cordons placed on its link brokers.

Of several sidecars the one with the least broker id there does it. Mirrors are none of its business, nor are topics that
link brokers follow in sync.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from controller.errors import Refused
from controller.plan.evictions import Elect, NewIsr, NewReplicas, names, next_step
from linker.link_broker import LinkBroker
from linker.links.new_mirrors import real_brokers, replica_load
from wire.errors import error_name
from wire.frames.error_codes import NEW_LEADER_ELECTED
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage, TopicImage
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_INTERVAL: Final = 30.0
_STEP: Final = 0.2
#: A mirror may be seen in the source's metadata log before the link controller's commit arrives here.
_GRACE: Final = 1.0


class Evictor:
    """Of one link broker; runs beside it."""

    def __init__(self, broker: LinkBroker) -> None:
        self._broker = broker
        self._touched = set(broker.membership.image.topics_by_id)
        self._since: dict[TopicPartition, float] = {}
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
        return _STEP if self._since else _INTERVAL

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
            self._since.clear()
            return None
        image, ours, now = self._broker.membership.image, self._ours(), asyncio.get_running_loop().time()
        touched, self._touched = self._touched, set()
        strangers = {tp for topic_id in touched for tp in self._strangers(topic_id)}
        for tp in strangers:
            self._since.setdefault(tp, now)
        isrs: dict[TopicPartition, tuple[int, ...]] = {}
        replicas: dict[TopicPartition, tuple[int, ...]] = {}
        elected: list[TopicPartition] = []
        brokers, load = None, None
        trouble: str | None = None
        for tp, since in list(self._since.items()):
            topic = image.topics_by_name.get(tp.topic)
            partition = None if topic is None else topic.partitions.get(tp.partition)
            if topic is None or partition is None or not names(partition, ours) or self._kept(topic):
                del self._since[tp]
                continue
            if now - since < _GRACE:
                continue
            if brokers is None or load is None:
                brokers = real_brokers(self._broker.membership, ours)
                load = replica_load(self._broker.membership, ours)
            try:
                step = next_step(partition, ours, brokers, load)
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

    def _kept(self, topic: TopicImage) -> bool:
        """A mirror lies there, or link brokers are to be among its replicas."""
        return self._broker.mirrors.by_id(topic.id) is not None or self._broker.keeps_in_sync(topic.name)

    def _strangers(self, topic_id: bytes) -> list[TopicPartition]:
        topic, ours = self._broker.membership.image.topics_by_id.get(topic_id), self._ours()
        if topic is None or self._kept(topic):
            return []
        return [
            TopicPartition(topic.name, one.index) for one in topic.partitions.values() if names(one, ours)
        ]

    async def run(self) -> None:
        """Until cancelled."""
        unsubscribe = self._broker.membership.metadata.subscribe(self.on_change)
        try:
            await self.task.run()
        finally:
            unsubscribe()
