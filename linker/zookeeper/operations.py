"""Requests of a link broker to the controller of a ZooKeeper cluster, where they are not those of KRaft."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from controller.alter_partition import AlterPartitionItem, IsrMember, alter_partition_request
from linker.membership.operations import TargetOperations
from linker.membership.topic_operations import DEFAULT_TIMEOUT
from wire.frames.alter_isr import FIRST_WITH_IDS
from wire.frames.types import TopicId, TopicPartition

_WITHOUT_ID: Final = bytes(16)


class ZooKeeperOperations(TargetOperations):
    """Before Kafka 3.3 a leader names the topics whose ISR it changes (AlterIsr)."""

    _by_name = False
    _ids = False  # before Kafka 2.8 the image makes some up

    async def _alter_partition_of(
        self, leader: IsrMember, items: Sequence[AlterPartitionItem], timeout: float
    ) -> dict[TopicPartition, int]:
        started = time.monotonic()
        _, connection = await self._channel.connection("admin", timeout=timeout)
        offered = connection.api_range("alter_partition")
        self._by_name = offered is not None and offered[1] < FIRST_WITH_IDS
        left = max(0.001, timeout - (time.monotonic() - started))
        return await super()._alter_partition_of(leader, items, left)

    def _alter_partition_request(
        self, leader: IsrMember, items: Iterable[AlterPartitionItem]
    ) -> Mapping[str, object]:
        if not self._by_name:
            return super()._alter_partition_request(leader, items)
        topics: dict[str, list[AlterPartitionItem]] = {}
        for item in items:
            topics.setdefault(item.tp.topic, []).append(item)
        named: list[object] = []
        for name, some in topics.items():
            request: Any = alter_partition_request(leader, some)
            named.append({"topic_name": name, "partitions": request["topics"][0]["partitions"]})
        return {**leader._asdict(), "topics": named}

    def _altered_topic(self, topic: Any) -> TopicId:
        if not self._by_name:
            return super()._altered_topic(topic)
        found = self._metadata.image.topics_by_name.get(topic.topic_name)
        return _WITHOUT_ID if found is None else found.id

    async def fence_broker(
        self, broker_id: int, broker_epoch: int, *, timeout: float = DEFAULT_TIMEOUT
    ) -> bool:
        """Never possible with ZooKeeper: a broker's znode ends with its session."""
        return False

    async def unregister_broker(self, broker_id: int, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Returns once the znode of a broker that is gone is gone, too."""
        await self._metadata.wait_for(lambda image: True if broker_id not in image.brokers else None, timeout)
