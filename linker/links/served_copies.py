"""Gives each partition that this sidecar leads to the fetcher, and takes it back when that ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from controller.phases import ENDED, PROMOTING, SWITCHING, Phase
from controller.state import MirrorPartition, MirrorTopic
from fetcher.link_fetcher import LinkFetcher
from fetcher.spec import MirrorSpec
from linker.links.copy_specs import CopySpecs, spec_of, taken_history
from linker.links.link_part import LinkContext, LinkPart
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.metadata.image import TopicImage


class ServedCopies(LinkPart):
    """The copies of one link that this sidecar serves to followers."""

    def __init__(self, context: LinkContext, fetcher: LinkFetcher, specs: CopySpecs) -> None:
        super().__init__(context)
        self._fetcher = fetcher
        self._specs = specs

    def led_under(self, topic: TopicImage) -> None:
        """Tell the copies of a topic the target's leader epochs."""
        for index, partition in topic.partitions.items():
            copy = self._fetcher.partitions.get(TopicPartition(topic.name, index))
            if copy is not None:
                copy.led_under(partition.leader_epoch)

    async def follow(self, mirrors: Sequence[MirrorTopic]) -> dict[str, LinkerError]:
        """Give to the fetchers what they do not have yet, and take from them what is not theirs any more. By topic, why the
        fetchers cannot be told yet."""
        waiting = [(mirror, state) for mirror in mirrors for state in self._missing(mirror)]
        if not waiting:
            return {}
        sizes, refused = await self._specs.segment_bytes({mirror.topic for mirror, _ in waiting})
        for mirror, before in waiting:
            # Read anew: the leader before us may have noted something while the sizes were asked for.
            state = self._controller.image.partitions.get((self._link, before.tp))
            if mirror.topic not in sizes or state is None or state.session_epoch != before.session_epoch:
                continue
            (copy,) = self._fetcher.add([spec_of(mirror, state, sizes[mirror.topic])])
            partition = self._target.image.partition(mirror.topic_id, state.partition)
            if partition is not None:
                copy.led_under(partition.leader_epoch)
            if mirror.paused:
                self._fetcher.pause([state.tp])
        return refused

    def _missing(self, mirror: MirrorTopic) -> Iterator[MirrorPartition]:
        """Partitions that the fetchers are to have, and do not."""
        for state in self._controller.image.topic_partitions(self._link, mirror.topic):
            mine = (
                self._leads(mirror, state)
                and state.phase not in ENDED | {Phase.FAILED, Phase.HANDED_OVER}
                and (state.phase is not Phase.TAKING or state.taken is not None)
                and state.session_epoch >= 0
                and state.failover is None  # else a replica stands in for the source (replica_as_source.py)
            )
            copy = self._fetcher.partitions.get(state.tp)
            if copy is not None and not (mine and _same_session(copy.spec, state)):
                if state.phase in PROMOTING - {Phase.HANDED_OVER} and not self._led_by_link(mirror, state):
                    continue  # the promote decides what a new leader means
                self._fetcher.remove([state.tp])
                copy = None
            if copy is None:
                if mine:
                    yield state
                continue
            if copy.spec.held and state.phase not in SWITCHING:
                self._fetcher.release([state.tp])
            if copy.spec.target_replicas != mirror.replicas_of(state.partition):
                copy.spec = replace(copy.spec, target_replicas=mirror.replicas_of(state.partition))
            if copy.paused != mirror.paused:
                (self._fetcher.pause if mirror.paused else self._fetcher.resume)([state.tp])

    def _leads(self, mirror: MirrorTopic, state: MirrorPartition) -> bool:
        """Whether this sidecar leads the partition, or will if nobody else does when it is unfenced again."""
        partition = self._target.image.partition(mirror.topic_id, state.partition)
        own = self._target.broker_id
        if partition is None:
            return False
        return partition.leader == own or (partition.leader < 0 and own in partition.isr)

    def _led_by_link(self, mirror: MirrorTopic, state: MirrorPartition) -> bool:
        partition = self._target.image.partition(mirror.topic_id, state.partition)
        return partition is None or partition.leader in self._link_brokers()


def _same_session(spec: MirrorSpec, state: MirrorPartition) -> bool:
    """Whether a copy is of this mirror and not of one that was begun again since."""
    return (
        spec.session_epoch == state.session_epoch
        and spec.start_offset == (state.start_offset or 0)
        and spec.taken == taken_history(state)
    )
