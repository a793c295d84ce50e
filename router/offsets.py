"""ListOffsets and OffsetForLeaderEpoch for consumers: the source's offsets, under the mirror's one leader
epoch.

Off the hot path: one short task per request. As fetches (``consumer_fetch.py``) they need the lease at the moment of
answering: an end from before a hand-over would look like a truncated log. NOT_LEADER_OR_FOLLOWER else, which every
client takes for "ask again".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from router.authorize import Authorizer, Operation
from router.fence import LED_ELSEWHERE
from router.hub import ForwardingHub
from router.lane_states import Verdict, verdict
from router.ports import Mirror
from wire import codec
from wire.error_codes import NOT_LEADER_OR_FOLLOWER, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from wire.errors import LinkerError, WireError
from wire.list_offsets import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED
from wire.server import Exchange, ServerConnection
from wire.types import TopicPartition

TIMEOUT: Final = 10.0

Offsets = dict[TopicPartition, tuple[int, int, int]]  # error, timestamp, offset


class OffsetSession:
    """The offset lookups of one client connection."""

    def __init__(self, hub: ForwardingHub, connection: ServerConnection, authorizer: Authorizer) -> None:
        self.hub = hub
        self._connection = connection
        self._authorizer = authorizer
        self._closed = False

    def list_offsets(self, exchange: Exchange, request: Any) -> None:
        names = [topic.name for topic in request.topics]
        self._when_authorized(exchange, names, partial(self._list_offsets, exchange, request))

    def offset_for_leader_epoch(self, exchange: Exchange, request: Any) -> None:
        names = [topic.topic for topic in request.topics]
        self._when_authorized(exchange, names, partial(self._offset_for_leader_epoch, exchange, request))

    def closed(self) -> None:
        self._closed = True

    def _when_authorized(
        self, exchange: Exchange, topics: list[str], then: Callable[[], Awaitable[None]]
    ) -> None:
        if self._closed:
            return
        ours = [topic for topic in topics if self.hub.ports.mirrors.by_name(topic) is not None]
        again = partial(self._when_authorized, exchange, topics, then)
        if not self._authorizer.all_known(ours, Operation.DESCRIBE, again):
            return
        self.hub.tasks.spawn(self._run(exchange, then), f"offsets for {self._connection.peer}")

    async def _run(self, exchange: Exchange, then: Callable[[], Awaitable[None]]) -> None:
        try:
            await then()
        except Exception:
            # Answers leave in order: one that never comes would hold up everything behind it on the connection.
            exchange.fail(WireError("offsets could not be looked up", peer=self._connection.peer))
            raise

    async def _list_offsets(self, exchange: Exchange, request: Any) -> None:
        wanted = {
            TopicPartition(topic.name, ask.partition_index): _as_int(ask.timestamp)
            for topic in request.topics
            for ask in topic.partitions
        }
        found = await self._look_up(wanted, int(getattr(request, "isolation_level", 0)))
        topics = []
        for topic in request.topics:
            partitions = []
            for ask in topic.partitions:
                tp = TopicPartition(topic.name, ask.partition_index)
                error, timestamp, offset = found[tp]
                partitions.append(
                    {
                        "partition_index": ask.partition_index,
                        "error_code": error,
                        "timestamp": timestamp,
                        "offset": offset,
                        "leader_epoch": self._session_epoch(tp) if offset >= 0 else -1,
                    }
                )
            topics.append({"name": topic.name, "partitions": partitions})
        self._reply(exchange, "list_offsets", {"topics": topics})

    async def _offset_for_leader_epoch(self, exchange: Exchange, request: Any) -> None:
        wanted = {
            TopicPartition(topic.topic, ask.partition): LATEST
            for topic in request.topics
            for ask in topic.partitions
        }
        found = await self._look_up(wanted, 0)
        topics = []
        for topic in request.topics:
            partitions = []
            for ask in topic.partitions:
                tp = TopicPartition(topic.topic, ask.partition)
                error, _, offset = found[tp]
                partitions.append(
                    {
                        "error_code": error,
                        "partition": ask.partition,
                        "leader_epoch": self._session_epoch(tp) if error == 0 else -1,
                        "end_offset": offset,
                    }
                )
            topics.append({"topic": topic.topic, "partitions": partitions})
        self._reply(exchange, "offset_for_leader_epoch", {"topics": topics})

    async def _look_up(self, wanted: dict[TopicPartition, int], isolation_level: int) -> Offsets:
        """From the source's leaders; whatever goes wrong there is retriable for the client."""
        found: Offsets = {}
        by_link: dict[str, dict[TopicPartition, int]] = {}
        for tp, timestamp in wanted.items():
            mirror = self.hub.ports.mirrors.by_name(tp.topic)
            error = self._refusal(mirror, tp)
            if error or mirror is None:
                found[tp] = (error, -1, -1)
            elif timestamp <= LATEST_TIERED:
                found[tp] = (0, -1, -1)  # nothing of ours is tiered
            else:
                by_link.setdefault(mirror.link, {})[tp] = (
                    EARLIEST if timestamp == EARLIEST_LOCAL else timestamp
                )
        for link, asked in by_link.items():
            try:
                results = await self.hub.ports.source(link).list_offsets(
                    asked, isolation_level=isolation_level, timeout=TIMEOUT
                )
            except LinkerError:
                # The source's state is link status already; the client asks again.
                results = {}
            for tp in asked:
                result = results.get(tp)
                if gone := self._refusal(self.hub.ports.mirrors.by_name(tp.topic), tp):
                    found[tp] = (gone, -1, -1)  # handed over meanwhile: these are the ends of another log
                elif result is None or verdict(int(result.error)) is not Verdict.PASS:
                    found[tp] = (NOT_LEADER_OR_FOLLOWER, -1, -1)
                else:
                    found[tp] = (int(result.error), result.timestamp, self._lifted(tp, result.offset))
        if not self.hub.ports.lease.valid():
            for asked in by_link.values():
                found.update((tp, (NOT_LEADER_OR_FOLLOWER, -1, -1)) for tp in asked)
        return found

    def _refusal(self, mirror: Mirror | None, tp: TopicPartition) -> int:
        if mirror is None:
            known = tp.topic in self.hub.ports.image().topics_by_name
            return NOT_LEADER_OR_FOLLOWER if known else UNKNOWN_TOPIC_OR_PARTITION
        if not self._authorizer.allowed(tp.topic, Operation.DESCRIBE):
            return TOPIC_AUTHORIZATION_FAILED
        partition = mirror.partition(tp.partition)
        if partition is None:
            return UNKNOWN_TOPIC_OR_PARTITION
        if not partition.serving or self.hub.fences.state(tp) in LED_ELSEWHERE:
            return NOT_LEADER_OR_FOLLOWER
        return 0

    def _lifted(self, tp: TopicPartition, offset: int) -> int:
        """Nothing below the mirror's start exists here."""
        mirror = self.hub.ports.mirrors.by_name(tp.topic)
        partition = mirror.partition(tp.partition) if mirror is not None else None
        return max(offset, partition.start_offset) if offset >= 0 and partition is not None else offset

    def _session_epoch(self, tp: TopicPartition) -> int:
        mirror = self.hub.ports.mirrors.by_name(tp.topic)
        partition = mirror.partition(tp.partition) if mirror is not None else None
        return partition.session_epoch if partition is not None else -1

    @staticmethod
    def _reply(exchange: Exchange, api: str, fields: dict[str, Any]) -> None:
        header = exchange.header
        frame = codec.encode_response(api, header.api_version, header.correlation_id, fields)
        exchange.reply([len(frame).to_bytes(4, "big"), frame])


def _as_int(timestamp: Any) -> int:
    """The codec gives timestamps as datetime, except the negative ones with a meaning of their own."""
    if timestamp is None:
        return LATEST
    if isinstance(timestamp, int):
        return timestamp
    return int(timestamp.timestamp() * 1000)
