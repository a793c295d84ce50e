"""Opens the reassignments to the real brokers, and drops the copies of failed mirrors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from controller.phases import ENDED, PROMOTING, Phase
from controller.plan.replicas import copies_asked_for
from controller.state import MirrorTopic
from fetcher.link_fetcher import LinkFetcher
from fleet.link_controller import LinkController
from linker.links.topic_shape import all_asked_for, cancelled, plain_copies, reduced, undone_late
from linker.membership import TargetCluster
from linker.membership.errors import OperationFailed
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.metadata.image import PartitionImage, TopicImage

log = logging.getLogger(__name__)

_CALL_TIMEOUT = 15.0


class Reassignments:
    """The reassignments of one link's mirrors, made by the link controller alone."""

    def __init__(
        self,
        link: str,
        target: TargetCluster,
        controller: LinkController,
        fetcher: LinkFetcher,
        link_brokers: Callable[[], frozenset[int]],
    ) -> None:
        self._link = link
        self._target = target
        self._controller = controller
        self._fetcher = fetcher
        self._link_brokers = link_brokers
        #: How often a mirror's reassignment was cancelled, by topic.
        self.cancelled: dict[str, int] = {}

    async def tidy(self, mirrors: Iterable[MirrorTopic]) -> None:
        """After a promote: a request that was to make the hand-over stale may have come later than everybody thought."""
        late: list[TopicPartition] = []
        for mirror in mirrors:
            found = self._target.image.topics_by_id.get(mirror.topic_id)
            if found is not None:
                states = self._controller.image.topic_partitions(self._link, mirror.topic)
                late += undone_late(states, found, self._link_brokers())
        if late:
            log.warning(
                "the link broker is taken out of the replicas of %s again", ", ".join(map(str, late[:5]))
            )
            await self._target.operations.reassign(dict.fromkeys(late), timeout=_CALL_TIMEOUT)

    async def open(
        self, mirrors: Sequence[MirrorTopic], topics: Mapping[str, TopicImage]
    ) -> dict[str, LinkerError]:
        """Open the reassignments to the real brokers; again, if somebody cancelled one. All in one request. By topic, why
        it is not open."""
        wanted: dict[TopicPartition, list[int]] = {}
        for mirror in mirrors:
            of_mirror = self._wanted(mirror, topics[mirror.topic])
            opened = [
                tp
                for tp in of_mirror
                if self._was_cancelled(topics[mirror.topic].partitions[tp.partition], tp)
            ]
            if opened:
                self.cancelled[mirror.topic] = self.cancelled.get(mirror.topic, 0) + 1
                log.warning(
                    "somebody cancelled the reassignment of %s (link %s): asked for again, the copies start from nothing",
                    ", ".join(str(tp) for tp in opened[:5]),
                    self._link,
                )
            wanted |= of_mirror
        if not wanted:
            return {}
        # No proof of copies before counts: these begin from nothing.
        await self._controller.forget_validation(self._link, wanted)
        refused: dict[str, LinkerError] = {}
        try:
            await self._target.operations.reassign(wanted, timeout=_CALL_TIMEOUT)
        except OperationFailed as error:
            refused = {tp.topic: error for tp in wanted if str(tp) in error.failed}
            if not refused:
                raise
            wanted = {tp: replicas for tp, replicas in wanted.items() if tp.topic not in refused}
        try:
            await self._target.metadata.wait_for(lambda image: all_asked_for(image, wanted), _CALL_TIMEOUT)
        except LinkerError as error:
            for tp, replicas in wanted.items():
                if all_asked_for(self._target.image, {tp: replicas}) is None:
                    refused.setdefault(tp.topic, error)
        return refused

    def _wanted(self, mirror: MirrorTopic, topic: TopicImage) -> dict[TopicPartition, list[int]]:
        """The partitions of a mirror whose reassignment is not open, with the replicas to ask for."""
        wanted: dict[TopicPartition, list[int]] = {}
        for state in self._controller.image.topic_partitions(self._link, mirror.topic):
            partition = topic.partitions.get(state.partition)
            if (
                partition is None
                or state.session_epoch < 0
                or state.phase in ENDED | PROMOTING | {Phase.FAILED}
            ):
                continue
            replicas = mirror.replicas_of(state.partition)
            if (
                replicas
                and partition.leader in self._link_brokers()
                and not copies_asked_for(partition, replicas)
            ):
                wanted[state.tp] = list(replicas)
        return wanted

    def _was_cancelled(self, partition: PartitionImage, tp: TopicPartition) -> bool:
        copy = self._fetcher.partitions.get(tp)
        return not partition.adding and copy is not None and copy.bytes_served > 0

    async def drop_copies(self, tps: list[TopicPartition]) -> None:
        """A cancel takes out what is being added. Copies that became plain replicas, since link brokers joined or left,
        are no part of any reassignment, and go with one to the link brokers alone."""
        await self._target.operations.reassign(dict.fromkeys(tps), timeout=_CALL_TIMEOUT)
        await self._target.metadata.wait_for(lambda image: cancelled(image, tps), _CALL_TIMEOUT)
        ours = self._link_brokers()
        plain = plain_copies(self._target.image, tps, ours)
        if plain:
            await self._target.operations.reassign(plain, timeout=_CALL_TIMEOUT)
            await self._target.metadata.wait_for(lambda image: reduced(image, plain), _CALL_TIMEOUT)
