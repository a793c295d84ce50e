"""Checks whether a source still answers. A failover is wrong while it does."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.frames.list_offsets import LATEST
from wire.frames.types import TopicPartition
from wire.together import together

_TIMEOUT = 4.0


async def answers(source: Cluster, tps: Collection[TopicPartition]) -> list[TopicPartition]:
    """The partitions whose leader at the source tells its log end now. A leader that is only named in the metadata, or
    does not answer within some seconds, counts as dead."""
    by_leader: dict[int, list[TopicPartition]] = {}
    try:
        await source.refresh({tp.topic for tp in tps}, timeout=_TIMEOUT)
    except LinkerError:
        return []
    for tp in tps:
        leader = source.leader(tp)
        if leader is not None:
            by_leader.setdefault(leader.id, []).append(tp)

    async def ask(of: list[TopicPartition]) -> list[TopicPartition]:
        try:
            async with asyncio.timeout(_TIMEOUT):
                ends = await source.list_offsets(dict.fromkeys(of, LATEST), timeout=_TIMEOUT / 2)
        except (LinkerError, TimeoutError):
            return []
        return [tp for tp, end in ends.items() if not end.error]

    return sorted(tp for found in await together(ask(of) for of in by_leader.values()) for tp in found)
