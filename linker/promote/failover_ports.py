"""The ports of a failover (linker.promote.failover), which never ask the source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from controller.decide.failovers import KnownEnds
from fleet.fleet_controller import FleetController
from fleet.progress import FleetProgress
from linker.links.replica_ends import BrokersLogEnds
from linker.membership import TargetCluster
from linker.promote.failover import FailoverPorts
from linker.promote.fleet_ports import FleetFence, fleet_progress
from linker.promote.ports import PromotePorts, Tps
from linker.promote.producer_states import TargetTransactions
from validator.compare.tail import TailBatch, compare_tails, read_tails
from wire.frames.types import TopicPartition
from wire.together import together_by_key

Targets = Callable[[TopicPartition], Sequence[int]]


class LastReports:
    """linker.promote.failover.GivenUpSource: what the sidecars that lead have last seen of the source.

    `away`: sidecars of the fleet that are not connected. One that led until a moment ago may have passed on an
    acknowledgement that no fetch of the next leader has seen the record of. One that is connected and does not answer
    counts as away for what it leads.
    """

    def __init__(self, progress: FleetProgress, away: Callable[[], Iterable[int]]) -> None:
        self._progress = progress
        self._away = away

    async def known_ends(self, tps: Tps, *, timeout: float) -> Mapping[TopicPartition, KnownEnds]:
        silent = await self._progress.silent(tps, timeout=timeout)
        found: dict[TopicPartition, KnownEnds] = {}
        away = set(self._away())
        for tp in tps:
            unasked = tuple(sorted(away | {silent[tp]} if tp in silent else away))
            copy = self._progress.current(tp)
            if copy is None:
                found[tp] = KnownEnds(None, None, unasked)
                continue
            # If it is not heard, the known end is older than the last acknowledgements that the leader before may have
            # passed on, and that one is not asked any more.
            seen = copy.loaded and copy.heard and copy.high_watermark >= 0
            found[tp] = KnownEnds(copy.high_watermark if seen else None, copy.acked_end or None, unasked)
        return found


class ReplicaTails:
    """linker.promote.ports.TailCheck: the last batch of each replica against the first one's."""

    def __init__(self, target: TargetCluster, targets: Targets) -> None:
        self._target = target
        self._targets = targets

    async def check(
        self, ends: Mapping[TopicPartition, int], *, timeout: float
    ) -> Mapping[TopicPartition, str]:
        asked: dict[int, dict[TopicPartition, int]] = {}
        for tp, end in ends.items():
            for broker in self._targets(tp):
                asked.setdefault(broker, {})[tp] = end
        tails = await together_by_key(
            {
                broker: read_tails(self._target.cluster, broker, of, timeout=timeout)
                for broker, of in asked.items()
            }
        )
        first: dict[TopicPartition, TailBatch | None] = {}
        for tp in ends:
            found = next((tails[b][tp] for b in self._targets(tp) if tp in tails[b]), None)
            if found is not None:
                first[tp] = found
        differing: dict[TopicPartition, str] = {}
        for broker, read in tails.items():
            for mismatch in compare_tails(first, read, broker):
                differing[mismatch.topic_partition] = (
                    f"one replica ends with {mismatch.source}, broker {broker} with {mismatch.replica}"
                )
        return differing


def make_failover_ports(
    link: str,
    fleet_controller: FleetController,
    promote: PromotePorts,
    target: TargetCluster,
    link_brokers: Callable[[], frozenset[int]],
) -> FailoverPorts:
    """The ports of a failover; those that do not differ are taken from the ports of promotes."""
    progress, targets = fleet_progress(link, fleet_controller, target)
    return FailoverPorts(
        ports=replace(
            promote,
            fencer=FleetFence(link, fleet_controller, None, target, link_brokers),
            tail_check=ReplicaTails(target, targets),
            growth=None,
            source_topics=None,
            replica_starts=None,
        ),
        source=LastReports(
            progress,
            lambda: fleet_controller.controller.image.identities.keys() - fleet_controller.members.keys(),
        ),
        replicas=BrokersLogEnds(target.cluster),
        transactions=TargetTransactions(target),
    )
