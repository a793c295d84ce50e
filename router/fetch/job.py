"""One fetch request of a consumer on both of its sides: what is owed to the client, and what a source node is
asked.

Not here: what each partition gets (``decision.py``), waiting and merging (``session.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from router.fetch.decision import Part
from router.ports import LocalLog
from router.produce.forwarding import ForwardingHub
from router.produce.source_route import Route
from wire.frames.fetch import FetchPartition, FetchRequest, TopicKey
from wire.server.listener import Exchange

SOURCE_VERSIONS: Final = (12, 17)
_FIRST_WITH_TOPIC_IDS: Final = 13
_SMALLEST_READ: Final = 256 << 10
#: Partitions of a fetch that its text names.
_TOLD: Final = 8


class PendingFetch:
    """One request until its answer."""

    __slots__ = (
        "deadline",
        "exchange",
        "late_at",
        "listening",
        "look_at",
        "moved",
        "parts",
        "poll_until",
        "quiet_until",
        "request",
        "timer",
    )

    def __init__(self, exchange: Exchange, request: FetchRequest, deadline: float) -> None:
        self.exchange = exchange
        self.request = request
        self.deadline = deadline
        self.parts = _parts(request)
        self.poll_until = deadline  # source nodes may look for records
        self.late_at = deadline  # what has not come from the source by then is not waited for
        self.quiet_until = 0.0  # a source node could not say; who is told "nothing" comes again at once
        self.look_at = 0.0  # it is looked at again by then, should nothing move; 0 before the first time
        self.moved = False  # a log that it listens to has, and it is looked at in a moment
        self.listening: list[LocalLog] = []
        self.timer: asyncio.TimerHandle | None = None

    @property
    def found(self) -> int:
        """Bytes of records."""
        return sum(part.result.size for part in self.parts if part.result is not None)

    @property
    def tells_an_error(self) -> bool:
        return any(part.result is not None and part.result.error for part in self.parts)

    def __str__(self) -> str:
        """For the log, with a few of its partitions; the times are those of the event loop."""
        some = ", ".join(
            f"{part.tp or repr(part.key)}@{part.asked.fetch_offset}"
            f"{' from the source' if part.from_source else ''}{'' if part.result is None else ' found'}"
            for part in self.parts[:_TOLD]
        )
        more = f" and {len(self.parts) - _TOLD} more" if len(self.parts) > _TOLD else ""
        return (
            f"{some}{more}; due at {self.deadline:.1f}, source's answer until {self.late_at:.1f}, next look at "
            f"{self.look_at:.1f}, listens to {len(self.listening)} logs, {'has' if self.timer else 'has no'} timer"
        )


def _parts(request: FetchRequest) -> list[Part]:
    """Of a partition that is named more than once the last one is meant, in the place of the first, as a broker takes it
    (FetchRequest.fetchData puts them into a map); no client library does that.
    """
    parts = [Part(key, asked) for key, partitions in request.topics for asked in partitions]
    return parts if len(parts) < 2 else list({(one.key, one.asked.index): one for one in parts}.values())


def most_bytes(hub: ForwardingHub, asked: FetchRequest) -> int:
    """Of records in one answer: a consumer that is slow to take it keeps them in memory, from wherever they are."""
    share = max(hub.limits.read_bytes // max(1, hub.consumers), _SMALLEST_READ)
    return min(max(asked.max_bytes, 1), hub.limits.fetch_max_bytes, share)


def enough_bytes(hub: ForwardingHub, asked: FetchRequest) -> int:
    """From how many bytes of records on a fetch is answered. A consumer may ask for at least as many as an answer may
    have, or more (`KafkaApis.handleFetchRequest` takes the lesser, too); and of whole batches an answer is full before
    that, but not before the half of it."""
    return max(1, min(asked.min_bytes, most_bytes(hub, asked) // 2))


Expected = dict[tuple[TopicKey, int], Part]
"""The parts by how a source node's answer names them."""


def source_key(version: int, part: Part) -> tuple[TopicKey, int] | None:
    """By what a source node knows the partition in this version of Fetch; None if it does not."""
    if part.mirror is None:
        return None
    if version < _FIRST_WITH_TOPIC_IDS:
        return part.mirror.source_topic, part.asked.index
    source_id = part.mirror.source_topic_id
    return None if source_id is None else (source_id, part.asked.index)


def source_fetch(
    hub: ForwardingHub, asked: FetchRequest, route: Route, parts: Sequence[Part], wait: float
) -> tuple[FetchRequest, Expected]:
    """In the newest version that the node and we speak, waiting `wait` seconds for data. LinkerError if there is no
    such version.
    """
    by_id = all(part.mirror is not None and part.mirror.source_topic_id is not None for part in parts)
    low, high = SOURCE_VERSIONS
    version = route.version("fetch", low, high if by_id else _FIRST_WITH_TOPIC_IDS - 1)
    expected: Expected = {}
    topics: dict[TopicKey, list[FetchPartition]] = {}
    for part in parts:
        key = source_key(version, part)
        if key is None or key in expected:
            continue  # of a partition that is named more than once the first is answered
        expected[key] = part
        size = min(part.asked.max_bytes, hub.limits.fetch_partition_bytes)
        topics.setdefault(key[0], []).append(
            FetchPartition(part.asked.index, -1, part.asked.fetch_offset, -1, -1, size)
        )
    request = FetchRequest(
        version=version,
        max_wait_ms=int(wait * 1000),
        min_bytes=max(asked.min_bytes, 0),
        max_bytes=most_bytes(hub, asked),
        isolation_level=asked.isolation_level,
        topics=list(topics.items()),
    )
    return request, expected
