"""The MirrorSpec of each partition that is copied, and the offset where a new copy begins."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from controller.errors import ControllerError
from controller.phases import SWITCHING
from controller.state import MirrorPartition, MirrorTopic
from fetcher.spec import MirrorSpec
from linker.links.configs import topic_configs_each
from linker.links.link_part import LinkContext, LinkPart
from wire.client.cluster import Cluster
from wire.errors import BrokerError, LinkerError
from wire.frames.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from wire.frames.leader_epochs import LeaderEpochs
from wire.frames.types import TopicPartition

_CALL_TIMEOUT = 15.0
#: Short, since a partition of the source may have no leader for long, and other mirrors wait meanwhile: it is asked again.
_OFFSETS_TIMEOUT = 2.0
_LATEST, _EARLIEST = -1, -2
_METADATA_PAUSE = 0.05
_SEGMENT = frozenset({"segment.bytes"})


class CopySpecs(LinkPart):
    """Makes the specs of one link's partitions, with the configs that the target's topics have now."""

    def __init__(self, context: LinkContext) -> None:
        super().__init__(context)

    async def of(
        self, states: Sequence[MirrorPartition]
    ) -> tuple[dict[TopicPartition, MirrorSpec], dict[str, LinkerError]]:
        """The specs of partitions that are being copied, for a fetcher; and by topic, why some are not known now."""
        sizes, trouble = await self.segment_bytes({state.topic for state in states})
        mirrors = self._controller.image.mirrors
        specs = {
            state.tp: spec_of(mirrors[self._link, state.topic], state, sizes[state.topic])
            for state in states
            if state.topic in sizes and (self._link, state.topic) in mirrors
        }
        return specs, trouble

    async def segment_bytes(self, topics: Collection[str]) -> tuple[dict[str, int], dict[str, LinkerError]]:
        """The effective segment.bytes of each topic: an answer with more bytes than that makes the follower fail the
        partition. And for topics where it cannot be had, the error."""
        deadline = asyncio.get_running_loop().time() + _CALL_TIMEOUT
        sizes: dict[str, int] = {}
        refused: dict[str, LinkerError] = {}
        left = sorted(topics)
        while left:
            found, refused_now = await topic_configs_each(
                self._target.cluster, left, timeout=_CALL_TIMEOUT, keys=_SEGMENT
            )
            for topic, configs in found.items():
                try:
                    sizes[topic] = _number(configs.effective["segment.bytes"])
                except ControllerError as error:
                    refused[topic] = error
            # A topic that was created just now; the broker that was asked has not heard of it yet.
            left = [topic for topic, error in refused_now.items() if _unknown(error)]
            if asyncio.get_running_loop().time() > deadline:
                left = []
            refused |= {topic: error for topic, error in refused_now.items() if topic not in left}
            if left:
                await asyncio.sleep(_METADATA_PAUSE)
        return sizes, refused


def _unknown(error: LinkerError) -> bool:
    return isinstance(error, BrokerError) and error.code == UNKNOWN_TOPIC_OR_PARTITION


def spec_of(mirror: MirrorTopic, state: MirrorPartition, segment_bytes: int) -> MirrorSpec:
    """The spec of a partition by its state; `segment_bytes` is the target topic's."""
    return MirrorSpec(
        link=mirror.link,
        topic=mirror.topic,
        partition=state.partition,
        topic_id=mirror.topic_id,
        source_topic_id=mirror.source_topic_id,
        source_name=mirror.source_name,
        session_epoch=state.session_epoch,
        start_offset=state.start_offset or 0,
        source_epochs=state.source_epochs,
        segment_bytes=segment_bytes,
        target_replicas=mirror.replicas_of(state.partition),
        untruncated=state.untruncated,
        taken=taken_history(state),
        held=state.phase in SWITCHING,
    )


def taken_history(state: MirrorPartition) -> LeaderEpochs | None:
    """The history of a partition that was taken over from its cluster's own brokers."""
    taken = state.taken
    return None if taken is None else LeaderEpochs.of(state.session_epoch, taken.end, taken.epochs)


async def start_offsets(
    source: Cluster, start: str, tps: list[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, BrokerError]]:
    """Where copies begin: by `start` at the source's earliest or latest offset, or at the first one that is not older than
    a time; and of which partitions the source does not tell it now (one without a leader, say), with its error."""
    timestamp = {"earliest": _EARLIEST, "latest": _LATEST}.get(start)
    if timestamp is not None:
        return await _list(source, tps, timestamp)
    asked = _number(start)
    # The search for a time may take long (tiered storage): begun only where a leader is known to answer.
    ends, refused = await _list(source, tps, _LATEST)
    offsets, more = await _list(source, list(ends), asked, timeout=_CALL_TIMEOUT)
    # No record is that young: the mirror begins with the next one.
    late = [tp for tp, offset in offsets.items() if offset < 0]
    if late:
        again, none = await _list(source, late, _LATEST)
        offsets = {tp: offset for tp, offset in offsets.items() if offset >= 0} | again
        more |= none
    return offsets, refused | more


async def _list(
    source: Cluster, tps: list[TopicPartition], timestamp: int, *, timeout: float = _OFFSETS_TIMEOUT
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, BrokerError]]:
    if not tps:
        return {}, {}
    results = await source.list_offsets(dict.fromkeys(tps, timestamp), timeout=timeout)
    refused = {
        tp: BrokerError(
            result.error,
            message=f"{source.name}: no start offset",
            api="list_offsets",
            topic_partition=tp,
        )
        for tp, result in results.items()
        if result.error
    }
    return {tp: result.offset for tp, result in results.items() if not result.error}, refused


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ControllerError(f"{text!r} is not a number") from None
