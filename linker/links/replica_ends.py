"""Offsets from single brokers, leader or not; the latest is the broker's own log end offset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from fetcher.doubts import LogEnds
from linker.promote.ports import Tps
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.frames import list_offsets
from wire.frames.list_offsets import EARLIEST, LATEST
from wire.frames.types import TopicPartition
from wire.together import together_by_key

T = TypeVar("T")


async def list_at(
    cluster: Cluster, node_id: int, asked: Mapping[TopicPartition, int], *, timeout: float
) -> dict[TopicPartition, int]:
    """Offsets by timestamp as this broker has them; what it refuses is left out. LinkerError if it cannot be asked."""
    answers = await list_offsets.list_at(cluster, node_id, asked, timeout=timeout)
    return {tp: answer.offset for tp, answer in answers.items() if not answer.error}


async def replica_logs(
    cluster: Cluster, tp: TopicPartition, brokers: Sequence[int], *, timeout: float
) -> Mapping[int, LogEnds]:
    """Where the log of each of these replicas begins and ends (fetcher.doubts.AskEnds); who does not say is left out."""

    async def ask(broker: int, timestamp: int) -> int | None:
        try:
            return (await list_at(cluster, broker, {tp: timestamp}, timeout=timeout)).get(tp)
        except LinkerError:
            return None

    starts = await together_by_key({broker: ask(broker, EARLIEST) for broker in brokers})
    ends = await together_by_key({broker: ask(broker, LATEST) for broker in brokers})
    return {
        broker: LogEnds(start, end)
        for broker in brokers
        if (start := starts[broker]) is not None and (end := ends[broker]) is not None
    }


async def of_replicas(
    replicas: Mapping[TopicPartition, Collection[int]],
    ask: Callable[[int, list[TopicPartition]], Coroutine[Any, Any, Mapping[TopicPartition, T]]],
) -> dict[TopicPartition, dict[int, T]]:
    """By partition and broker, as each broker answers for all of its replicas at once; who does not say is left out."""
    by_broker: dict[int, list[TopicPartition]] = {}
    for tp, brokers in replicas.items():
        for broker in brokers:
            by_broker.setdefault(broker, []).append(tp)
    answers = await together_by_key({broker: ask(broker, tps) for broker, tps in by_broker.items()})
    return {
        tp: {broker: answers[broker][tp] for broker in brokers if tp in answers[broker]}
        for tp, brokers in replicas.items()
    }


class BrokersLogEnds:
    """linker.promote.failover.ReplicaEnds"""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def log_ends(
        self, targets: Mapping[TopicPartition, Sequence[int]], *, timeout: float
    ) -> Mapping[TopicPartition, Mapping[int, int]]:
        async def ask(broker: int, tps: Tps) -> Mapping[TopicPartition, int]:
            try:
                return await list_at(self._cluster, broker, dict.fromkeys(tps, LATEST), timeout=timeout * 0.8)
            except LinkerError:
                return {}  # it is named by its absence

        return await of_replicas(targets, ask)
