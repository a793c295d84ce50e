"""Makes partitions at the target that the source has added, and takes over those that somebody made there.

The controller gives a new partition as many replicas as the topic's first one has, and those of them that are alive
form its ISR. Where there are fewer sidecars than replicas, real brokers hold some for a moment. These replicas are
taken away before anything is copied, so that an added partition begins as those of a new mirror do: on link brokers
alone. Every step is decided by what is seen, so it goes on after a crash between any two.

A real broker that led meanwhile (the operator's own `--alter`, or an election in that moment) may have taken writes. So a
link broker is made the leader first, after which nobody takes any, and then the brokers are asked: with no record anywhere
the partition is taken over, else leadership goes back, and the reason is told.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from controller.errors import ControllerError
from controller.phases import Phase
from controller.state import MirrorPartition, MirrorTopic
from linker.links.link_part import LinkContext, LinkPart
from linker.links.replica_ends import BrokersLogEnds
from linker.links.topic_shape import reduced
from linker.membership.errors import OperationFailed
from wire.errors import LinkerError, error_name
from wire.frames.error_codes import INVALID_REPLICA_ASSIGNMENT, NEW_LEADER_ELECTED, NONE
from wire.frames.types import TopicPartition
from wire.metadata.image import PartitionImage, TopicImage

log = logging.getLogger(__name__)

_CALL_TIMEOUT = 15.0
_ENDS_TIMEOUT = 5.0


class AddedPartitions(LinkPart):
    """The added partitions of one link's mirrors; only the link controller looks after them."""

    def __init__(self, context: LinkContext, first_leaders: Callable[[int], Sequence[Sequence[int]]]) -> None:
        """`first_leaders`: the link brokers of so many new partitions, each one's leader first."""
        super().__init__(context)
        self._first_leaders = first_leaders

    def never_copied(self, state: MirrorPartition) -> bool:
        """Whether only the intent to mirror is stored so far: no leader of such a partition can have anything of its
        mirror."""
        mirror = self._controller.image.mirrors.get((self._link, state.topic))
        return mirror is not None and mirror.added(state.partition) and state.session_epoch < 0

    async def complete(
        self, mirrors: Iterable[MirrorTopic], topics: Mapping[str, TopicImage]
    ) -> tuple[set[TopicPartition], dict[str, LinkerError]]:
        """Bring added partitions into the shape in which copying may begin. Returns, by topic, why some are not in it
        yet."""
        unready: set[TopicPartition] = set()
        refused: dict[str, LinkerError] = {}
        for mirror in mirrors:
            if mirror.grown_from is None:
                continue
            topic = topics[mirror.topic]
            states = self._controller.image.topic_partitions(self._link, mirror.topic)
            try:
                # After a failover nothing can be copied any more, and nobody could lead what was made.
                if all(state.failover is None for state in states):
                    if len(topic.partitions) < mirror.partitions:
                        await self._make(mirror, topic)
                    await self._take_over(mirror, topic)
            except LinkerError as error:
                refused[mirror.topic] = error
            unready |= {tp for tp in self._waiting(mirror) if not self._ready(topic, tp)}
        return unready, refused

    def _waiting(self, mirror: MirrorTopic) -> list[TopicPartition]:
        return [
            state.tp
            for state in self._controller.image.topic_partitions(self._link, mirror.topic)
            if self.never_copied(state) and state.phase in (Phase.LINKING, Phase.PAUSED)
        ]

    def _ready(self, topic: TopicImage, tp: TopicPartition) -> bool:
        partition = topic.partitions.get(tp.partition)
        ours = self._link_brokers()
        return partition is not None and partition.leader in ours and ours.issuperset(partition.replicas)

    async def _make(self, mirror: MirrorTopic, topic: TopicImage) -> None:
        missing = mirror.partitions - len(topic.partitions)
        # Those of one topic may differ (one is begun again, say), and the controller looks at any of them.
        counts = Counter(len(partition.replicas) for partition in topic.partitions.values())
        error: LinkerError | None = None
        for count, _ in counts.most_common():
            replicas = [
                self._filled(leaders, mirror.replicas_of(len(topic.partitions) + index), count)
                for index, leaders in enumerate(self._first_leaders(missing))
            ]
            try:
                await self._target.operations.create_partitions(
                    mirror.topic, mirror.partitions, replicas, timeout=_CALL_TIMEOUT
                )
            except OperationFailed as refused:
                if refused.code != INVALID_REPLICA_ASSIGNMENT:
                    raise
                error = refused
            else:
                log.info(
                    "mirror %s of link %s: %d partitions added as at the source",
                    mirror.topic,
                    self._link,
                    missing,
                )
                return
        if error is not None:
            raise error

    def _filled(self, leaders: Sequence[int], wanted: Sequence[int], count: int) -> list[int]:
        """`count` replicas: link brokers first, and real ones only where there are too few."""
        ours = self._link_brokers()
        brokers = self._target.image.brokers
        spare = sorted(b for b in ours if b in brokers and not brokers[b].fenced)
        real = [b for b in (*wanted, *sorted(brokers)) if b in brokers and b not in ours]
        return list(dict.fromkeys([*leaders, *spare, *real]))[: max(count, 1)]

    async def _take_over(self, mirror: MirrorTopic, topic: TopicImage) -> None:
        """Take over what somebody made. A partition that cannot be taken holds up no other; the first reason is raised."""
        ours = self._link_brokers()
        alone: dict[TopicPartition, list[int]] = {}
        refused: list[LinkerError] = []
        for tp in self._waiting(mirror):
            if tp.partition not in topic.partitions or self._ready(topic, tp):
                continue
            try:
                if topic.partitions[tp.partition].leader not in ours:
                    await self._lead(tp, topic.partitions[tp.partition])
                if topic.partitions[tp.partition].leader_epoch > 0:  # else nobody else has led it
                    await self._require_empty(tp, topic.partitions[tp.partition], give_back=True)
            except LinkerError as error:
                refused.append(error)
                continue
            partition = topic.partitions[tp.partition]
            alone[tp] = [b for b in partition.replicas if b in ours and b in partition.isr]
        if alone:
            await self._target.operations.reassign(alone, timeout=_CALL_TIMEOUT)
            await self._target.metadata.wait_for(lambda image: reduced(image, alone), _CALL_TIMEOUT)
        for reason in refused:
            raise reason

    async def _lead(self, tp: TopicPartition, partition: PartitionImage) -> None:
        """Have a link broker lead what a real broker leads. It has no records, so it can join the ISR only where the
        log has none."""
        if partition.leader < 0:
            raise ControllerError(f"{tp} was added at the source, and nobody leads it at the target")
        await self._require_empty(tp, partition, give_back=False)
        [leaders] = self._first_leaders(1)
        own, operations = leaders[0], self._target.operations
        real = [b for b in partition.replicas if b not in self._link_brokers()]
        await operations.reassign({tp: [own, *real]}, timeout=_CALL_TIMEOUT)
        await self._seen(tp, lambda now: own in now.replicas)
        now = self._now(tp)
        if own not in now.isr:
            codes = await operations.alter_isr({tp: [*now.isr, own]}, timeout=_CALL_TIMEOUT)
            if codes.get(tp) not in (NONE, NEW_LEADER_ELECTED):
                raise ControllerError(
                    f"{tp}: link broker {own} is not in the ISR yet: {error_name(codes.get(tp, -1))}"
                )
            await self._seen(tp, lambda now: own in now.isr)
        await operations.elect_preferred([tp], timeout=_CALL_TIMEOUT)
        await self._seen(tp, lambda now: now.leader == own)

    def _now(self, tp: TopicPartition) -> PartitionImage:
        return self._target.image.topics_by_name[tp.topic].partitions[tp.partition]

    async def _seen(self, tp: TopicPartition, so: Callable[[PartitionImage], bool]) -> None:
        await self._target.metadata.wait_for(lambda _: so(self._now(tp)) or None, _CALL_TIMEOUT)

    async def _require_empty(self, tp: TopicPartition, partition: PartitionImage, *, give_back: bool) -> None:
        real = [b for b in partition.replicas if b not in self._link_brokers()]
        if not real:
            return
        ends = (await BrokersLogEnds(self._target.cluster).log_ends({tp: real}, timeout=_ENDS_TIMEOUT))[tp]
        silent = [b for b in real if b not in ends]
        if silent:
            raise ControllerError(
                f"{tp} was made at the target by somebody else; broker {silent[0]} does not say whether it is empty"
            )
        broker = max(real, key=lambda b: ends[b])
        if not ends[broker]:
            return
        if give_back:
            await self._target.operations.reassign({tp: real}, timeout=_CALL_TIMEOUT)
        raise ControllerError(
            f"{tp} was added at the source, but at the target it is somebody else's, with {ends[broker]} records on "
            f"broker {broker} that the source does not have. Write them to the source, then delete the mirror and create "
            "it again: see docs/following.md"
        )
