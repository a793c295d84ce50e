"""The cluster that is to be left: its metadata log, and the requests of one kind for many partitions.

A sidecar is a broker of it, with a membership of its own. A request that is refused for some partitions is no error here:
the metadata log shows what came of it, and the next step is made from that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from controller.alter_partition import AlterPartitionItem
from controller.cluster_view import ImageView
from controller.judge.alignment import ReplicaPosition
from linker.links.configs import topic_config_each
from linker.membership import OperationFailed, TargetCluster
from wire.errors import LinkerError
from wire.frames.error_codes import PREFERRED_LEADER_NOT_AVAILABLE
from wire.frames.types import TOPIC_RESOURCE, TopicId, TopicPartition

log = logging.getLogger(__name__)
_LOOK = 0.05

Tps = Collection[TopicPartition]


class SyncFollower(Protocol):
    """The link brokers of the cluster as followers of its leaders, whichever sidecar they are on."""

    async def stop(self, tps: Tps, *, timeout: float) -> Mapping[TopicPartition, int]:
        """Follow no more, and tell for each partition the end of what was followed, once the replicas at the other cluster
        have it. Stopped already: the same end."""
        ...

    def go_on(self, tps: Tps) -> None:
        """Their own brokers lead them again: follow as before. Not stopped: no change."""
        ...


class RealFollowers(Protocol):
    """The cluster's own brokers as followers of its link brokers."""

    def positions(self, tps: Tps) -> Mapping[TopicPartition, Mapping[int, ReplicaPosition]]:
        """The offset that each asked for last, under the present leader epoch."""
        ...


class OwnerPorts(Protocol):
    """The cluster. Requests may raise any LinkerError; a refusal of single partitions is none."""

    def image(self) -> ImageView: ...

    def overrides(self, topic: str) -> Mapping[str, str]:
        """The configs that are set on the topic itself."""
        ...

    def link_brokers(self) -> Collection[int]:
        """Ids of all sidecars there, those that are gone but may still be listed included."""
        ...

    async def caught_up(self, *, timeout: float) -> None:
        """Return when the image holds everything that was committed when this was called."""
        ...

    async def wait_until(self, predicate: Callable[[], bool], *, timeout: float) -> bool:
        """Evaluate the predicate now and after each replayed record batch; False when the time is over."""
        ...

    async def reassign(
        self, replicas: Mapping[TopicPartition, Sequence[int] | None], *, timeout: float
    ) -> None:
        """None cancels what is under way."""
        ...

    async def elect(self, tps: Tps, *, timeout: float) -> None: ...

    async def alter_partition(self, items: Sequence[AlterPartitionItem], *, timeout: float) -> None: ...

    async def set_configs(self, configs: Mapping[str, Mapping[str, str | None]], *, timeout: float) -> None:
        """By topic; None deletes an override. Returns when the metadata log has them."""
        ...


class ConfigNotSeen(LinkerError):
    """A broker does not go by a config yet."""


class OwnerCluster:
    """OwnerPorts, by a sidecar's membership."""

    def __init__(self, membership: TargetCluster, link_brokers: Callable[[], Collection[int]]) -> None:
        self._membership = membership
        self.link_brokers = link_brokers

    def image(self) -> ImageView:
        return self._membership.image

    def overrides(self, topic: str) -> Mapping[str, str]:
        return self._membership.image.configs.get((TOPIC_RESOURCE, topic), {})

    def overrides_of(self, topic: str, topic_id: TopicId | None) -> Mapping[str, str] | None:
        """None: there is none of that id. An id that is not known is any."""
        found = self._membership.image.topics_by_name.get(topic)
        return None if found is None or topic_id not in (None, bytes(found.id)) else self.overrides(topic)

    async def caught_up(self, *, timeout: float) -> None:
        await self._membership.metadata.caught_up(timeout)

    async def wait_until(self, predicate: Callable[[], bool], *, timeout: float) -> bool:
        return await self._membership.metadata.becomes(lambda _: predicate(), timeout)

    async def reassign(
        self, replicas: Mapping[TopicPartition, Sequence[int] | None], *, timeout: float
    ) -> None:
        try:
            await self._membership.operations.reassign(replicas, timeout=timeout)
        except OperationFailed as error:
            log.warning("%s; tried again if it is still needed", error)

    async def elect(self, tps: Tps, *, timeout: float) -> None:
        codes = await self._membership.operations.elect_preferred(tps, timeout=timeout)
        for tp, code in codes.items():
            # The first replica has left the ISR meanwhile, or the order was turned again.
            if code not in (0, PREFERRED_LEADER_NOT_AVAILABLE):
                log.warning(
                    "%s: the election was refused with error %d; tried again if it is still needed", tp, code
                )

    async def alter_partition(self, items: Sequence[AlterPartitionItem], *, timeout: float) -> None:
        codes = await self._membership.operations.alter_partition(items, timeout=timeout)
        for tp, code in codes.items():
            if code:
                log.info("%s: AlterPartition was answered with %d (the metadata log decides)", tp, code)

    async def set_configs(self, configs: Mapping[str, Mapping[str, str | None]], *, timeout: float) -> None:
        await self._membership.operations.set_configs_of_topics(configs, timeout=timeout)

    async def each_broker_goes_by(
        self, topics: Collection[str], name: str, value: str, *, timeout: float
    ) -> None:
        """Each broker that may lead is past the metadata in which the config was set; ConfigNotSeen if one is not in time.

        A broker answers from the newest metadata, before it has applied all of that: first its leaders, then its configs
        (`BrokerMetadataPublisher`). But it applies one publication after the other. So a broker that comes to lead after
        this has returned goes by the config. One that starts reads all configs before it leads anything.
        """
        cluster, deadline = self._membership.cluster, asyncio.get_running_loop().time() + timeout
        left = {b.id for b in self._membership.image.live_brokers(frozenset(self.link_brokers()))}
        while left:
            for broker in sorted(left):
                found, refused = await topic_config_each(
                    cluster,
                    topics,
                    name,
                    node_id=broker,
                    timeout=max(0.1, deadline - asyncio.get_running_loop().time()),
                )
                if not refused and set(found.values()) == {value}:
                    left.discard(broker)
            if left and asyncio.get_running_loop().time() > deadline:
                raise ConfigNotSeen(
                    f"brokers {sorted(left)} do not go by {name}={value} of {', '.join(topics)} yet"
                )
            await asyncio.sleep(_LOOK if left else 0)
