"""Copies from the longest replica while a partition is failed over.

The sidecar that leads the partition serves the rest of that replica's log to followers that have less, as it served the
source's batches before. It follows the state and nothing else (`PartitionCopy.failover`): a partition that is fenced
for a failover is no longer copied from the source, and once its end is chosen it is copied from the chosen replica up
to that end. So every sidecar does the same, whenever it hears of it, and a restart changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace

from controller.decide.failovers import Chosen
from controller.phases import HELD
from controller.state import MirrorPartition, Record
from fetcher.budget import MemoryBudget
from fetcher.directory import MirrorDirectory
from fetcher.link_fetcher import LinkFetcher
from fetcher.partition_copy import PartitionCopy
from fetcher.resolve import Resolver, SourceVerdict
from fetcher.spec import MirrorSpec
from linker.links.link_part import LinkContext, LinkPart
from linker.links.replica_ends import list_at
from linker.membership import TargetCluster
from wire.client.connection import Connection
from wire.errors import LinkerError, RequestTimedOut
from wire.frames.list_offsets import EARLIEST
from wire.frames.types import Node, TopicPartition
from wire.metadata.image import ClusterImage
from wire.shown_id import listed
from wire.task_group import TaskGroup
from wire.together import together_by_key

log = logging.getLogger(__name__)

_TIMEOUT = 5.0
_RETRY = 0.5
_CONNECT_TIMEOUT = 5.0

#: The specs for fetchers by partition, and by topic why some cannot be had now.
SpecsOf = Callable[
    [Sequence[MirrorPartition]], Awaitable[tuple[dict[TopicPartition, MirrorSpec], dict[str, LinkerError]]]
]


class _Quiet:
    """fetcher.FetcherEvents: a replica tells nothing about the source."""

    def failed(self, tp: TopicPartition, reason: str) -> None:
        log.error("failover of %s: the chosen replica cannot be read: %s", tp, reason)

    def source_epoch(self, tp: TopicPartition, epoch: int, start_offset: int) -> bool:
        return False  # of the mirror itself

    def source_damaged(self, tp: TopicPartition, reason: str) -> None:
        log.error("%s", reason)

    def source_truncated(self, tp: TopicPartition, offset: int, replicas: tuple[int, ...]) -> None: ...

    def truncation_seen(self, tp: TopicPartition, offset: int, replicas: tuple[int, ...]) -> None: ...

    def source_unavailable(self, tp: TopicPartition, since: float) -> None: ...

    def source_available(self, tp: TopicPartition) -> None: ...


class ReplicaResolver(Resolver):
    """Has each partition read from the chosen replica at the target, up to the chosen end."""

    def __init__(self, target: TargetCluster, chosen: Mapping[TopicPartition, Chosen]) -> None:
        super().__init__(target.cluster, rack=None, deleted_after=float("inf"))
        self._target = target
        self._chosen = chosen

    async def resolve(self, mirrors: Sequence[PartitionCopy]) -> dict[TopicPartition, SourceVerdict]:
        return {
            mirror.tp: SourceVerdict()
            if self.choose(mirror, leader_only=False) is not None
            else SourceVerdict(trouble=f"the replica of {mirror.tp} that has the most cannot be reached")
            for mirror in mirrors
        }

    async def offsets(
        self, tps: Collection[TopicPartition], followed: Collection[TopicPartition] = ()
    ) -> dict[TopicPartition, tuple[int, int] | str]:
        """One request to each replica: producers are held meanwhile."""
        found: dict[TopicPartition, tuple[int, int] | str] = {}
        by_replica: dict[int, dict[TopicPartition, Chosen]] = {}
        for tp in tps:
            chosen = self._chosen.get(tp)
            if chosen is None:
                found[tp] = f"{tp} is not failed over any more"
            else:
                by_replica.setdefault(chosen.replica, {})[tp] = chosen
        answers = await together_by_key(
            {replica: self._starts(replica, chosen) for replica, chosen in by_replica.items()}
        )
        for replica, starts in answers.items():
            for tp, chosen in by_replica[replica].items():
                start = starts if isinstance(starts, str) else starts.get(tp)
                if start is None:
                    found[tp] = f"broker {replica} does not say where its log of {tp} begins"
                elif isinstance(start, str):
                    found[tp] = start
                else:
                    self._ask_offsets.discard(tp)
                    found[tp] = (start, chosen.end)
        return found

    async def _starts(self, replica: int, tps: Collection[TopicPartition]) -> dict[TopicPartition, int] | str:
        """A replica that cannot be asked is in nobody else's way."""
        try:
            return await list_at(
                self._target.cluster, replica, dict.fromkeys(tps, EARLIEST), timeout=_TIMEOUT
            )
        except LinkerError as error:
            return f"broker {replica} does not say where its logs begin: {error}"

    def node(self, node_id: int) -> Node | None:
        return self._target.cluster.nodes.get(node_id)

    def is_leader(self, mirror: PartitionCopy, node_id: int) -> bool:
        return self.leader_of(mirror) == node_id

    def leader_of(self, mirror: PartitionCopy) -> int:
        chosen = self._chosen.get(mirror.tp)
        return -1 if chosen is None else chosen.replica

    def choose(self, mirror: PartitionCopy, *, leader_only: bool) -> Node | None:
        return self.node(self.leader_of(mirror))


class ReplicaAsSource(LinkPart):
    """The partitions of one link that are failed over just now."""

    def __init__(
        self,
        context: LinkContext,
        fetcher: LinkFetcher,
        budget: MemoryBudget,
        copies: MirrorDirectory,
        specs_of: SpecsOf,
        ended: Callable[[str], None],
    ) -> None:
        """`fetcher` copies from the source; `ended` is told a topic whose failover was abandoned."""
        super().__init__(context)
        self._source_fetcher = fetcher
        self._specs_of = specs_of
        self._ended = ended
        self._wanted: dict[TopicPartition, MirrorPartition] = {}
        self._chosen: dict[TopicPartition, Chosen] = {}
        self._wake = asyncio.Event()
        self.fetcher = LinkFetcher(
            self._link,
            self._target.cluster,
            budget,
            copies,
            _Quiet(),
            open_connection=self._open,
            client_id=f"kafka-linker-{self._link}",
            resolver=ReplicaResolver(self._target, self._chosen),
        )

    @property
    def partitions(self) -> dict[TopicPartition, PartitionCopy]:
        return self.fetcher.partitions

    def on_records(self, records: Sequence[Record]) -> None:
        """A listener of the controller. Copying from the source ends here, at once; the rest follows."""
        if records:
            states = [r for r in records if isinstance(r, MirrorPartition) and r.link == self._link]
        else:
            states = self._controller.image.link_partitions(self._link)
        for state in states:
            if state.failover is not None and state.phase in HELD:
                if state.tp not in self._wanted:
                    self._source_fetcher.remove([state.tp])
                self._wanted[state.tp] = state
                self._wake.set()
            elif self._wanted.pop(state.tp, None) is not None:
                self._chosen.pop(state.tp, None)
                self.fetcher.remove([state.tp])
                self._ended(state.topic)

    def close(self) -> None:
        """Serve nothing any more."""
        self.fetcher.remove(list(self.fetcher.partitions))
        self._wanted.clear()

    def on_target_change(self, image: ClusterImage) -> None:
        for tp, copy in self.fetcher.partitions.items():
            partition = image.partition(copy.spec.topic_id, tp.partition)
            if partition is not None:
                copy.led_under(partition.leader_epoch)

    async def run(self) -> None:
        """Until cancelled."""
        self.on_records(())
        async with TaskGroup() as group:
            group.create_task(self.fetcher.run())
            while True:
                await self._wake.wait()
                self._wake.clear()
                ready = [
                    state
                    for state in self._wanted.values()
                    if state.failover is not None
                    and state.failover.end is not None
                    and state.tp not in self.fetcher.partitions
                ]
                if ready and not await self._serve(ready):
                    # The others are served by now; nobody waits for those that are in trouble.
                    asyncio.get_running_loop().call_later(_RETRY, self._wake.set)

    async def _serve(self, ready: Sequence[MirrorPartition]) -> bool:
        """All of them at once: producers are held. False if some have to be tried again."""
        try:
            specs, trouble = await self._specs_of(ready)
        except LinkerError as error:
            log.warning("failover of %s: %s; tried again", _some(ready), error)
            return False
        for topic, why in trouble.items():
            log.warning("failover of topic %s: %s; tried again", topic, why)
        found: list[MirrorSpec] = []
        for state in ready:
            tp, failover, spec = state.tp, state.failover, specs.get(state.tp)
            if spec is None or failover is None or failover.end is None:
                continue
            if tp not in self._wanted or tp in self.fetcher.partitions:
                continue  # abandoned meanwhile
            self._chosen[tp] = Chosen(failover.end, failover.replica)
            # By name: the target's own topic id would be asked for where followers are meant. Epochs are E0, all of them.
            found.append(replace(spec, source_topic_id=None, source_name=None, source_epochs=()))
        if found:
            self.fetcher.add(found)
            self.on_target_change(self._target.image)
        return not trouble

    async def _open(self, node: Node) -> Connection:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                return await self._target.cluster.open_connection(node)
        except TimeoutError:
            raise RequestTimedOut(
                f"no connection within {_CONNECT_TIMEOUT:g} s", sent=False, peer=node.address
            ) from None


def _some(states: Sequence[MirrorPartition]) -> str:
    return listed((str(state.tp) for state in states), 3)
