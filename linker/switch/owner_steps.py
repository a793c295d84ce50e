"""Requests to the cluster that is left and waits for its metadata log, for taking over and for giving back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from controller.alter_partition import AlterPartitionItem, alter_partition_item
from controller.cluster_view import ImageView
from controller.decide.mirrors import Leadership
from controller.decide.take_overs import OwnerTopic
from controller.judge.hand_over import find
from controller.judge.take_over import BackStep, NotNow, TakeStep
from controller.plan.replicas import ElectPreferred, Reassign
from linker.switch.owner import OwnerPorts
from linker.switch.records import TakeOverRecords
from wire.errors import BrokerError, LinkerError
from wire.frames.types import TopicPartition
from wire.shown_id import listed

log = logging.getLogger(__name__)

#: Seconds that one request may take.
CALL: Final = 5.0
#: Seconds after which all is looked at anew: the image may stand still although a position has moved.
SLICE: Final = 0.25
_POLL: Final = 0.005
_POLLED: Final = 100  # partitions that double it


class OwnerSteps:
    """Of one link: the topics that it mirrors, in the cluster that it mirrors them from."""

    def __init__(self, records: TakeOverRecords, owner: OwnerPorts) -> None:
        self.records = records
        self.owner = owner

    async def send(self, steps: Mapping[TopicPartition, TakeStep | BackStep], deadline: float) -> None:
        """The reassignment, and right behind it the election of those that had their order before."""
        turns = {tp: step.replicas for tp, step in steps.items() if isinstance(step, Reassign)}
        if turns:
            await self.attempt(self.owner.reassign(turns, timeout=min(CALL, time_left(deadline))))
        elected = [tp for tp, step in steps.items() if isinstance(step, ElectPreferred)]
        if elected:
            await self.attempt(self.owner.elect(elected, timeout=min(CALL, time_left(deadline))))

    @staticmethod
    async def attempt(request: Awaitable[None]) -> None:
        """Its outcome is read from the metadata log."""
        try:
            await request
        except (LinkerError, TimeoutError) as error:
            log.warning("%s; tried again if it is still needed", error)

    async def moved(
        self,
        judge: Callable[[TopicPartition], TakeStep | BackStep],
        steps: Mapping[TopicPartition, TakeStep | BackStep],
        deadline: float,
    ) -> None:
        """The image, or a follower's position, has brought another step."""

        def changed() -> bool:
            return not steps or any(judge(tp) != step for tp, step in steps.items())

        until = min(deadline, now() + SLICE)
        # A look at a thousand partitions takes longer than the pause between two of one would be.
        poll = _POLL * (1 + len(steps) / _POLLED)
        while not changed() and now() < until:
            await self.owner.wait_until(changed, timeout=min(poll, time_left(until)))

    def partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        image = self.records.image
        found = []
        for topic in sorted(topics):
            mirror = image.mirrors.get((self.records.link, topic)) or self.records.mirror(topic)
            found += [] if mirror is None else list(mirror.topic_partitions())
        return found

    def owned(self, topic: str) -> OwnerTopic:
        """The topic as its cluster has it now, to be put back later."""
        found, link = self.owner.image().topics_by_name[topic], self.owner.link_brokers()
        partitions = [found.partitions[index] for index in sorted(found.partitions)]
        return OwnerTopic(
            bytes(found.id),
            tuple(tuple(b for b in one.replicas if b not in link) for one in partitions),
            dict(self.owner.overrides(topic)),
            tuple(Leadership(one.leader, one.leader_epoch, tuple(one.isr)) for one in partitions),
        )

    def topic_id(self, topic: str) -> bytes:
        mirror = self.records.mirror(topic)
        if mirror is not None:
            return mirror.topic_id
        found = self.owner.image().topics_by_name.get(topic)
        return b"" if found is None else bytes(found.id)

    def leadership(self, tp: TopicPartition) -> Leadership:
        partition = find(self.owner.image(), tp)
        if partition is None:
            raise LinkerError(f"{tp} is gone")
        return Leadership(partition.leader, partition.leader_epoch, tuple(partition.isr))


def now() -> float:
    return asyncio.get_running_loop().time()


def time_left(deadline: float) -> float:
    return max(0.001, deadline - now())


def item_of(image: ImageView, tp: TopicPartition, new_isr: tuple[int, ...]) -> AlterPartitionItem | None:
    try:
        return alter_partition_item(image, tp, new_isr)
    except BrokerError:
        return None  # a broker has gone: the next look has another step


def isr_of(item: AlterPartitionItem) -> tuple[int, ...]:
    return tuple(member.broker_id for member in item.new_isr)


def reasons(steps: Mapping[TopicPartition, TakeStep | BackStep]) -> dict[TopicPartition, str]:
    return {
        tp: step.reason if isinstance(step, NotNow) else f"its next step is {type(step).__name__}"
        for tp, step in steps.items()
    }


def said(reasons: Mapping[TopicPartition, str]) -> str:
    return listed((f"{what}: {why}" for what, why in reasons.items()), apart="; ")
