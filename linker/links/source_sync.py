"""The sidecar as an in-sync follower of a link's source: it follows what names it there, as every broker does.

It follows a mirrored partition as soon as somebody puts it among the replicas (AlterPartitionReassignments), until somebody
takes it out. A sidecar follows what it leads at the target; no other one does, although several may be among the replicas.
The part in `fetcher` decides when the source is told; here is who its leaders are, by the source's metadata log,
and which replicas at the target have to have a record: all that the target's controller does not hold for gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from controller.decide.reverse import at_source
from controller.decide.take_overs import link_against
from controller.errors import NotFound
from controller.image import ControllerImage, Stamp
from controller.judge.hand_over import find
from controller.phases import SWITCHING
from fetcher.followed import SourceLeader
from fetcher.in_sync import InSyncFollower
from fetcher.link_fetcher import LinkFetcher
from fetcher.partition_copy import PartitionCopy
from fetcher.source_log import MAX_OFFSET
from fetcher.source_ports import FetchLimits
from linker.membership import TargetCluster
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.errors import LinkerError
from wire.frames.buffers import FramePool
from wire.frames.types import Node, TopicPartition
from wire.metadata.image import ClusterImage, TopicImage
from wire.task_group import TaskGroup

_LOOK: Final = 0.005
_JOINED: Final = 0.5


class SourceSync:
    """Of one link, on this sidecar."""

    def __init__(
        self,
        link: str,
        source: Cluster,
        target: TargetCluster,
        fetcher: LinkFetcher,
        frames: FramePool,
        joined: Callable[[], TargetCluster | None],
        limits: FetchLimits,
        image: Callable[[], ControllerImage],
    ) -> None:
        """`joined`: the sidecar's membership of the source; None while it is not registered there. `image`: the link
        state."""
        self._link = link
        self._source = source
        self._target = target
        self._fetcher = fetcher
        self._frames = frames
        self._joined = joined
        self._image = image
        self._ours: tuple[tuple[Stamp, tuple[int, ...]] | None, frozenset[int | None]] = None, frozenset()
        self._subscribed: tuple[TargetCluster, Callable[[], None]] | None = None
        #: Partitions of the source that name us as a replica.
        self._named: set[TopicPartition] = set()
        self.follower = InSyncFollower(fetcher, self, client_id=source.client_id, limits=limits)

    async def run(self) -> None:
        """Until cancelled."""
        self._fetcher.directory.listeners.append(self._copy_added)
        try:
            async with TaskGroup() as group:
                group.create_task(self.follower.run())
                while True:
                    self._subscribe(self._joined())
                    await asyncio.sleep(_JOINED)
        finally:
            self._fetcher.directory.listeners.remove(self._copy_added)
            self._subscribe(None)

    # --- for a switch

    @property
    def followed(self) -> Collection[TopicPartition]:
        """Those that are followed, or were, and are to be again: whether this sidecar leads their mirrors now or not."""
        return self.follower.followed

    def begin(self, tps: Collection[TopicPartition]) -> None:
        """Go on with these after `stop`."""
        self.follower.begin(tps)

    async def stop(self, tps: Collection[TopicPartition], *, timeout: float) -> Mapping[TopicPartition, int]:
        """Follow no more, and tell for each partition the end of what was followed, once the replicas at the target have it.
        Stopped already: the same end. LinkerError if one is not followed now, or they do not have it in time: nothing more
        is read then until `begin`, and `stop` may be called again."""
        for tp in tps:
            if self._led_by_another(tp):
                self.follower.find_end(tp)
        ends = self.follower.stop(tps)
        deadline = time.monotonic() + timeout
        while behind := [tp for tp, end in ends.items() if self.follower.state(tp).told < end]:
            if time.monotonic() > deadline:
                tp = behind[0]
                raise LinkerError(
                    f"link {self._link}: replicas at the target do not have all of {tp} (up to offset {ends[tp]}) within "
                    f"{timeout:g} s"
                )
            await asyncio.sleep(_LOOK)
        return ends

    # --- fetcher.in_sync.InSyncPorts

    def leader_of(self, tp: TopicPartition) -> SourceLeader | None:
        joined = self._joined()
        if joined is None:
            return None
        partition, own = find(joined.image, tp), joined.broker_id
        if partition is None or own not in partition.replicas or partition.leader in (own, -1):
            return None
        if self._ends_there(tp):
            return None
        node = self._source.nodes.get(partition.leader) or joined.cluster.nodes.get(partition.leader)
        if node is None:
            return None
        return SourceLeader(node, partition.leader_epoch, own in partition.isr)

    def _ends_there(self, tp: TopicPartition) -> bool:
        """Where the log ends for link brokers is written down, and holds until that is taken back: one that followed further
        meanwhile, and was elected, would serve the log without what it has told. A new process knows it by this alone."""
        image = self._image()
        try:
            back = link_against(image, self._link).name
        except NotFound:
            return False
        state = image.partitions.get((back, tp))
        return state is not None and state.phase in SWITCHING and state.taken is not None

    def led_by_us(self, tp: TopicPartition) -> bool:
        joined = self._joined()
        partition = None if joined is None else find(joined.image, tp)
        return joined is not None and partition is not None and partition.leader == joined.broker_id

    def _led_by_another(self, tp: TopicPartition) -> bool:
        """A link broker that is not this one."""
        joined, image = self._joined(), self._image()
        partition = None if joined is None else find(joined.image, tp)
        if joined is None or partition is None or partition.leader == joined.broker_id:
            return False
        return image.sidecar_at(at_source(image, self._link), partition.leader) in image.identities

    def identity(self) -> tuple[int, int] | None:
        joined = self._joined()
        if joined is None or joined.registration.broker_epoch < 0:
            return None
        return joined.broker_id, joined.registration.broker_epoch

    async def open_connection(self, node: Node) -> Connection:
        return await self._source.open_connection(node, alloc=self._frames.take)

    def must_hold(self, copy: PartitionCopy) -> Collection[int]:
        """Those that a reassignment takes out count until they are out: one that comes in their place may have nothing yet,
        and they alone have what the source was told of."""
        brokers = self._target.image.brokers
        return [
            replica
            for replica in dict.fromkeys([*copy.spec.target_replicas, *self._taken_out(copy)])
            if (broker := brokers.get(replica)) is not None
            and not broker.fenced
            and not broker.in_controlled_shutdown
        ]

    def must_tell(self, copy: PartitionCopy) -> Collection[int]:
        """Those that a reassignment takes out have to be heard of, away or not: whoever comes in their place cannot tell."""
        return tuple(dict.fromkeys([*self.must_hold(copy), *self._taken_out(copy)]))

    def _taken_out(self, copy: PartitionCopy) -> Collection[int]:
        """Real brokers of the target that a reassignment of the mirror takes out."""
        partition = self._target.image.partition(copy.spec.topic_id, copy.spec.partition)
        if partition is None or not partition.removing:
            return ()
        ours = self._link_brokers_at_target()
        return [broker for broker in partition.removing if broker not in ours]

    def _link_brokers_at_target(self) -> Collection[int | None]:
        """Asked for each fetch of a replica, because a mirror's link brokers are always on their way out."""
        image = self._image()
        known = image.stamp, tuple(image.identities)
        if self._ours[0] != known:
            at = image.at(self._link)
            self._ours = known, frozenset(image.broker_at(at, sidecar) for sidecar in image.identities)
        return self._ours[1]

    def _subscribe(self, joined: TargetCluster | None) -> None:
        """Hear of what changes at the source."""
        if self._subscribed is not None and self._subscribed[0] is not joined:
            self._subscribed[1]()
            self._subscribed = None
            self.follower.end(self._named)
            self._named.clear()
        if self._subscribed is None and joined is not None:
            self._subscribed = joined, joined.metadata.subscribe(self._source_changed)
            self._source_changed(joined.image, frozenset(joined.image.topics_by_id))

    def _source_changed(self, image: ClusterImage, topics: frozenset[bytes]) -> None:
        if not topics or self._subscribed is None:
            return
        own = self._subscribed[0].broker_id
        found = [image.topics_by_id[topic] for topic in topics if topic in image.topics_by_id]
        named = {
            TopicPartition(topic.name, index)
            for topic in found
            for index, partition in topic.partitions.items()
            if own in partition.replicas
        }
        touched = {topic.name for topic in found}
        gone = {
            tp
            for tp in self._named
            if tp not in named and (tp.topic in touched or tp.topic not in image.topics_by_name)
        }
        self._named = (self._named - gone) | named
        self.follower.end(gone)
        self.follower.follow(tp for tp in named if tp in self._fetcher.partitions)
        self._learn_leaders(found)

    def _learn_leaders(self, topics: Iterable[TopicImage]) -> None:
        """Writes that a switch has held would else be sent to who led before, and be refused."""
        for topic in topics:
            known = self._source.topics.get(topic.name)
            if known is None or known.topic_id not in (None, bytes(topic.id)):
                continue
            for index, partition in topic.partitions.items():
                self._source.learn_leader(
                    TopicPartition(topic.name, index), partition.leader, partition.leader_epoch
                )

    def _copy_added(self, copy: PartitionCopy) -> None:
        """A listener of the directory. No link that joins its source has a prefix: the names are the same."""
        if copy.spec.link != self._link:
            return
        mirror = self._image().mirrors.get((self._link, copy.tp.topic))
        if mirror is not None and mirror.sync:
            copy.fed_to = MAX_OFFSET  # by an earlier process, up to nobody knows where
        if copy.tp in self._named:
            self.follower.follow([copy.tp])
