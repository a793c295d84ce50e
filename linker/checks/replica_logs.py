"""Where single replicas' logs begin and end, as their brokers tell it, whoever leads; and where the source's do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from linker.links.replica_ends import list_at, of_replicas
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.frames.list_offsets import EARLIEST, LATEST
from wire.frames.types import TopicPartition
from wire.together import together


class Extent(NamedTuple):
    """Offsets from `start` up to, and not including, `end`."""

    start: int
    end: int

    @property
    def offsets(self) -> int:
        return max(0, self.end - self.start)


async def replica_extents(
    cluster: Cluster, replicas: Mapping[TopicPartition, Sequence[int]], *, timeout: float
) -> dict[TopicPartition, dict[int, Extent]]:
    """By partition and broker. A replica that is not told of (its broker is down, it has not begun) is left out."""

    async def ask(broker: int, tps: list[TopicPartition]) -> dict[TopicPartition, Extent]:
        try:
            starts = await list_at(cluster, broker, dict.fromkeys(tps, EARLIEST), timeout=timeout)
            ends = await list_at(cluster, broker, dict.fromkeys(tps, LATEST), timeout=timeout)
        except LinkerError:
            return {}
        return {tp: Extent(starts[tp], ends[tp]) for tp in tps if tp in starts and tp in ends}

    return await of_replicas(replicas, ask)


async def source_extents(
    source: Cluster, tps: Iterable[TopicPartition], *, timeout: float
) -> dict[TopicPartition, Extent]:
    """Of partitions whose leader tells; the rest is left out. LinkerError if the source cannot be asked at all."""
    asked = list(tps)
    if not asked:
        return {}
    starts, ends = await together(
        source.list_offsets(dict.fromkeys(asked, which), timeout=timeout) for which in (EARLIEST, LATEST)
    )
    return {
        tp: Extent(starts[tp].offset, ends[tp].offset)
        for tp in asked
        if not starts[tp].error and not ends[tp].error and starts[tp].offset >= 0
    }
