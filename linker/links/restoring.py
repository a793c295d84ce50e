"""Restores sources of a link after a failover or a promote: what they have beyond is exported, and they follow the target.

The link controller does it for every topic that is marked (`controller.decide.restores`), until the source's brokers follow.
It waits for as long as one of them is missing. A process that begins in the middle goes on where the state says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from controller.decide import restores
from controller.phases import Phase
from controller.state import MirrorPartition, MirrorTopic, Record
from fleet.link_controller import LinkController
from linker.switch.exporter import Exporter, OwnPlace, ToExport
from linker.switch.owner import OwnerCluster, RealFollowers
from linker.switch.records import TakeOverRecords
from linker.switch.sync_replicas import OwnerMember
from linker.switch.take_over import TakeOver
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.periodic_task import PeriodicTask
from wire.task_group import TaskGroup

log = logging.getLogger(__name__)

_INTERVAL: Final = 2.0
_LOOK: Final = 0.2
_TAKE: Final = 60.0
_BACK: Final = 30.0


class Restores:
    """Of one link, on this sidecar."""

    def __init__(
        self,
        link: str,
        controller: LinkController,
        source: Cluster,
        own: OwnPlace,
        joined: Callable[[], OwnerMember | None],
        followers: RealFollowers,
        directory: Path,
    ) -> None:
        """`directory`: of the exports of all links."""
        self._link = link
        self._controller = controller
        self._source = source
        self._own = own
        self._joined = joined
        self._followers = followers
        self._directory = directory / link
        #: Why a topic is not restored yet.
        self.reasons: dict[str, str] = {}
        self.task = PeriodicTask("restored sources", self._once, _INTERVAL, failed=self._failed)

    def on_records(self, records: Sequence[Record]) -> None:
        """A listener of the controller."""
        if not records or any(isinstance(one, MirrorTopic) and one.link == self._link for one in records):
            self.task.wake()

    def _topics(self) -> list[str]:
        """Those that are not restored yet, and those of which a restore is to be given back."""
        image = self._controller.image
        mirrors = image.link_mirrors(self._link)
        return [one.topic for one in mirrors if restores.to_do(image, self._link, one.topic)]

    def _states(self, topic: str) -> list[MirrorPartition]:
        return self._controller.image.topic_partitions(self._link, topic)

    async def _once(self) -> str | None:
        if not self._topics():
            self.reasons.clear()
            return None
        member = self._joined()
        if member is None:
            return "the sidecar is no broker of the source"
        exporter = Exporter(self._source, member, self._own, self._directory)
        owner = OwnerCluster(member.membership, member.link_brokers)
        records = TakeOverRecords(self._controller, self._link)
        take_over = TakeOver(records, owner, exporter, self._followers, exported=exporter.exported)
        async with TaskGroup() as group:
            follow = group.create_task(exporter.run(), name=f"{self._link}: exports")
            try:
                while (topics := self._topics()) and self._joined() is member:
                    await self._advance(topics, member, exporter, take_over)
                    await asyncio.sleep(_LOOK)
            finally:
                follow.cancel()
        return None

    async def _advance(
        self, topics: Sequence[str], member: OwnerMember, exporter: Exporter, take_over: TakeOver
    ) -> None:
        image = self._controller.image
        mirrors = {topic: image.mirrors[self._link, topic] for topic in topics}
        exporter.given_back = [topic for topic, one in mirrors.items() if not one.restoring]
        await self._forget(topics, member)
        exporter.follow(
            {
                state.tp: ToExport(
                    mirror.source_topic_id or b"",
                    restores.source_history(state),
                    restores.exported(self._controller.image, self._link, state.tp),
                )
                for topic, mirror in mirrors.items()
                for state in self._states(topic)
            }
        )
        for topic, mirror in mirrors.items():
            if not mirror.restoring:
                await self._give_back(topic, take_over)
                continue
            waiting = self._waiting(topic, member, exporter)
            self.reasons[topic] = waiting or "it is taken over"
            if not waiting:
                await self._take(topic, take_over)

    async def _forget(self, topics: Sequence[str], member: OwnerMember) -> None:
        """A broker of the source leads again although it was written down that all is exported: this sidecar was cut off
        before it was alone in the ISR. That broker may take records that are not exported yet, and not to be truncated."""
        link, found = member.link_brokers(), member.membership.image.topics_by_name
        again = [
            state.tp
            for topic in topics
            for state in restores.back_states(self._controller.image, self._link, topic)
            if state.phase is Phase.TAKING
            and state.taken is not None
            and topic in found
            and (partition := found[topic].partitions.get(state.partition)) is not None
            and partition.leader >= 0
            and partition.leader not in link
        ]
        if again:
            log.warning("link %s: %s is led by a broker of the source again", self._link, again[0])
            await self._controller.decide(lambda image: (restores.led_again(image, self._link, again), None))

    def _waiting(self, topic: str, member: OwnerMember, exporter: Exporter) -> str | None:
        """Why the topic cannot be taken over yet; nobody is held until then."""
        link, image = member.link_brokers(), member.membership.image
        mirror = self._controller.image.mirrors[self._link, topic]
        found = image.topics_by_name.get(topic)
        if found is None or found.id != mirror.source_topic_id:
            return "the source has no such topic, or another one of its name"
        for tp in mirror.topic_partitions():
            partition = found.partitions.get(tp.partition)
            if partition is None or partition.leader < 0:
                return f"{tp} has no leader at the source"
            for broker in (one for one in partition.replicas if one not in link):
                known = image.brokers.get(broker)
                if known is None or known.fenced:
                    return (
                        f"{tp}: broker {broker} of the source is down, and may have records that no other has"
                    )
                if broker not in partition.isr and partition.leader not in link:
                    return f"{tp}: broker {broker} of the source is not in the ISR"
            if link.isdisjoint(partition.isr):
                return f"{tp}: {exporter.reason(tp) or 'the link broker is not in the ISR at the source yet'}"
        return None

    async def _take(self, topic: str, take_over: TakeOver) -> None:
        try:
            await take_over.take([topic], timeout=_TAKE)
        except (LinkerError, TimeoutError) as error:
            why = str(error) or "it took too long"
            log.warning("link %s: the source of %s is not restored: %s", self._link, topic, why)
            self.reasons[topic] = why
            image = self._controller.image
            if restores.under_way(image, self._link, topic) and not restores.for_good(
                image, self._link, topic
            ):
                await self._controller.decide(
                    lambda image: (restores.end(image, self._link, [topic], why), None)
                )

    async def _give_back(self, topic: str, take_over: TakeOver) -> None:
        try:
            await take_over.give_back([topic], timeout=_BACK)
        except (LinkerError, TimeoutError) as error:
            self.reasons[topic] = str(error)

    def _failed(self, error: Exception) -> None:
        log.warning("link %s: looking after restored sources failed: %s; tried again", self._link, error)
