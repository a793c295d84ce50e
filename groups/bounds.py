"""Log start and end of each partition on the target; commits are kept inside them.

Before a topic's promote a consumer at the target reads the source's log through the link broker, so the target's end
is the source's high watermark. Afterwards it is the target's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from controller.image import ControllerImage
from controller.judge.group_offsets import Bounds
from controller.phases import ENDED
from fleet.link_controller import LinkController
from fleet.progress import CopiedPartition
from wire.client.cluster import Cluster
from wire.errors import BrokerError
from wire.frames.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from wire.frames.types import TopicPartition

_EARLIEST, _LATEST = -2, -1
_REFRESH = 5.0  # seconds: ends of promoted partitions only grow, starts follow retention
_REFRESH_REFUSED = 60.0  # for a partition without an answer: a deleted topic would delay all others each time
# A partition that metadata do not name is asked for all the same: brokers hear of new ones a moment later.
_ABSENT_TIMEOUT = 2.0


class GroupCopies(Protocol):
    def get(self, tp: TopicPartition) -> CopiedPartition | None: ...


class Exact(NamedTuple):
    """The bounds of one fresh query."""

    bounds: dict[TopicPartition, Bounds]
    #: Partitions that the cluster which has the log does not have.
    gone: frozenset[TopicPartition]


class TargetBounds:
    """Bounds of the partitions of one link."""

    def __init__(
        self,
        link: str,
        controller: LinkController,
        copies: GroupCopies,
        source: Cluster,
        target: Cluster,
    ) -> None:
        self._link = link
        self._controller = controller
        self._copies = copies
        self._source = source
        self._target = target
        self._promoted: dict[TopicPartition, Bounds] = {}
        self._asked_at = float("-inf")
        self._refused: dict[TopicPartition, float] = {}  # time of the last query without an answer

    @property
    def _image(self) -> ControllerImage:
        return self._controller.image

    def _ended(self, tp: TopicPartition) -> bool:
        state = self._image.partitions.get((self._link, tp))
        return state is not None and state.phase in ENDED

    def _start(self, tp: TopicPartition) -> int:
        """The start of the mirror; the target has nothing below it."""
        state = self._image.partitions.get((self._link, tp))
        return 0 if state is None or state.start_offset is None else state.start_offset

    def _there(self, cluster: Cluster, tp: TopicPartition) -> bool:
        """Whether the cluster has the very topic of the mirror, with that partition. A topic never loses partitions,
        so a broker that does not name one is behind."""
        mirror = self._image.mirrors.get((self._link, tp.topic))
        topic = cluster.topics.get(tp.topic)
        if mirror is None or topic is None or topic.error or topic.topic_id is None:
            return False
        ours = mirror.topic_id if cluster is self._target else mirror.source_topic_id
        return topic.topic_id == ours and tp.partition < mirror.partitions

    def known(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """The bounds known so far, without a request; unknown partitions are left out."""
        found: dict[TopicPartition, Bounds] = {}
        for tp in tps:
            if self._ended(tp):
                if tp in self._promoted:
                    found[tp] = self._promoted[tp]
                continue
            copy = self._copies.get(tp)
            if copy is not None and copy.loaded:
                found[tp] = Bounds(max(copy.log_start_offset, self._start(tp)), copy.high_watermark)
        return found

    async def refresh(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        """Query the promoted partitions now and then. Raises LinkerError. A partition without an answer delays no
        other one: its offsets are taken as they are."""
        now = time.monotonic()
        long_ago = now - _REFRESH_REFUSED
        promoted = [tp for tp in tps if self._ended(tp) and self._refused.get(tp, float("-inf")) < long_ago]
        if promoted and (
            now - self._asked_at >= _REFRESH or any(tp not in self._promoted for tp in promoted)
        ):
            self._asked_at = now
            found, refused = await _asked(self._target, promoted, timeout)
            self._promoted.update(found)
            self._refused.update(dict.fromkeys(refused, now))

    async def exact(
        self, tps: Collection[TopicPartition], *, timeout: float, ask_source: bool = True
    ) -> Exact:
        """Query the cluster that has the log. Raises LinkerError.

        Without `ask_source` the known bounds of the source's partitions are used, which may be none.
        """
        promoted = [tp for tp in tps if self._ended(tp)]
        mirrored = [tp for tp in tps if not self._ended(tp)]
        found, gone = await _known(self._target, promoted, timeout, self._there)
        if not ask_source:
            return Exact(found | self.known(mirrored), gone)
        at_source, no_more = await _known(self._source, mirrored, timeout, self._there)
        for tp, bounds in at_source.items():
            found[tp] = Bounds(max(bounds.start, self._start(tp)), bounds.end)
        return Exact(found, gone | no_more)


async def _known(
    cluster: Cluster,
    tps: Collection[TopicPartition],
    timeout: float,
    there: Callable[[Cluster, TopicPartition], bool],
) -> tuple[dict[TopicPartition, Bounds], frozenset[TopicPartition]]:
    """The bounds that the cluster reports, and the partitions that it does not have. LinkerError if it says nothing of
    a partition, or denies one that is known to be `there`."""
    found, refused = await _asked(cluster, tps, timeout)
    for tp, code in refused.items():
        if code != UNKNOWN_TOPIC_OR_PARTITION or there(cluster, tp):
            raise BrokerError(code, api="list_offsets", topic_partition=tp)
    return found, frozenset(refused)


async def _asked(
    cluster: Cluster, tps: Collection[TopicPartition], timeout: float
) -> tuple[dict[TopicPartition, Bounds], dict[TopicPartition, int]]:
    """The bounds that the cluster reports, and the error codes of the other partitions."""
    if not tps:
        return {}, {}
    await cluster.refresh({tp.topic for tp in tps}, timeout=timeout)
    named = [tp for tp in tps if (topic := cluster.topics.get(tp.topic)) and tp.partition in topic.partitions]
    absent = set(tps) - set(named)
    found: dict[TopicPartition, Bounds] = {}
    refused: dict[TopicPartition, int] = {}
    for some, patience in ((named, timeout), (absent, min(timeout, _ABSENT_TIMEOUT))):
        if not some:
            continue
        starts = await cluster.list_offsets(dict.fromkeys(some, _EARLIEST), timeout=patience)
        there = [tp for tp in some if not starts[tp].error]
        ends = await cluster.list_offsets(dict.fromkeys(there, _LATEST), timeout=patience) if there else {}
        for tp in some:
            answers = [starts[tp], *([ends[tp]] if tp in ends else ())]
            if error := next((one.error for one in answers if one.error), 0):
                refused[tp] = UNKNOWN_TOPIC_OR_PARTITION if _no_more(cluster, tp) else error
            else:
                found[tp] = Bounds(starts[tp].offset, ends[tp].offset)
    return found, refused


def _no_more(cluster: Cluster, tp: TopicPartition) -> bool:
    """The topic is there, and metadata do not name the partition."""
    topic = cluster.topics.get(tp.topic)
    return (
        topic is not None
        and not topic.error
        and bool(topic.partitions)
        and tp.partition not in topic.partitions
    )
