"""ListOffsets and OffsetForLeaderEpoch for consumers: the source's offsets, under the mirror's one leader
epoch.

Off the hot path: one short task per request. A large request is looked at in slices, and nothing further is read from
its client meanwhile. Like fetches (``fetch/session.py``), answers need the lease at the moment of answering: an end
from before a hand-over would look like a truncated log. NOT_LEADER_OR_FOLLOWER else, which every client takes for "ask
again".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final

from router.authorize import Authorizer
from router.fence import LED_ELSEWHERE
from router.fetch.decision import may_answer
from router.ports import Mirror, MirroredPartition
from router.produce.admission import not_mirrored
from router.produce.forwarding import ForwardingHub
from router.produce.lane_states import ErrorMeaning, verdict
from router.turns import SLICE
from wire.errors import LinkerError, WireError
from wire.frames.error_codes import (
    INVALID_REQUEST,
    NOT_LEADER_OR_FOLLOWER,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
)
from wire.frames.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    OffsetResult,
    unsupported,
)
from wire.frames.offset_requests import (
    AskedPartition,
    OffsetAnswer,
    OffsetsRequest,
    encode_list_offsets,
    encode_offset_for_leader_epoch,
)
from wire.frames.types import AclRight, TopicPartition
from wire.server.listener import Exchange, ServerConnection

TIMEOUT: Final = 10.0
#: Seconds for a switch to end, before a client is told to look again.
SWITCH_PATIENCE: Final = 2.0
_LOOK_AGAIN: Final = 0.05

Offsets = dict[TopicPartition, tuple[int, int, int]]  # error, timestamp, offset


class OffsetSession:
    """The offset lookups of one client connection."""

    def __init__(self, hub: ForwardingHub, connection: ServerConnection, authorizer: Authorizer) -> None:
        self.hub = hub
        self._connection = connection
        self._authorizer = authorizer
        self._closed = False

    def list_offsets(self, exchange: Exchange, request: OffsetsRequest) -> None:
        self._begin(exchange, request, partial(self._list_offsets, exchange, request))

    def offset_for_leader_epoch(self, exchange: Exchange, request: OffsetsRequest) -> None:
        self._begin(exchange, request, partial(self._offset_for_leader_epoch, exchange, request))

    def closed(self) -> None:
        self._closed = True

    def _begin(
        self, exchange: Exchange, request: OffsetsRequest, then: Callable[[], Awaitable[None]]
    ) -> None:
        if request.entries > SLICE:
            self._connection.pause_reading()
            then = partial(self._alone, then)
        self._when_authorized(exchange, [name for name, _ in request.topics], then)

    async def _alone(self, then: Callable[[], Awaitable[None]]) -> None:
        """One request of a client at a time: each takes memory of the sidecar for as long as it is worked on."""
        try:
            await then()
        finally:
            if not self._closed:
                self._connection.resume_reading()

    def _when_authorized(
        self, exchange: Exchange, topics: list[str], then: Callable[[], Awaitable[None]]
    ) -> None:
        if self._closed:
            return
        ours = [topic for topic in topics if self.hub.ports.mirrors.by_name(topic) is not None]
        again = partial(self._when_authorized, exchange, topics, then)
        if not self._authorizer.all_known(ours, AclRight.DESCRIBE, again):
            return
        if len(ours) < len(topics):
            mirrors = self.hub.ports.mirrors
            if not self._authorizer.strange_known((t for t in topics if mirrors.by_name(t) is None), again):
                return
        self.hub.tasks.spawn(self._run(exchange, then), f"offsets for {self._connection.peer}")

    async def _run(self, exchange: Exchange, then: Callable[[], Awaitable[None]]) -> None:
        try:
            await then()
        except Exception:
            # Answers leave in order: one that never comes would hold up everything behind it on the connection.
            exchange.fail(WireError("offsets could not be looked up", peer=self._connection.peer))
            raise

    async def _list_offsets(self, exchange: Exchange, request: OffsetsRequest) -> None:
        version = exchange.header.api_version
        found = await self._look_up(request, request.isolation_level, None, version)
        topics = [
            (
                name,
                [
                    OffsetAnswer(
                        one.index,
                        error,
                        timestamp,
                        offset,
                        self._epoch_at(name, one.index, offset) if offset >= 0 else -1,
                    )
                    for one in partitions
                    for error, timestamp, offset in (found[TopicPartition(name, one.index)],)
                ],
            )
            for name, partitions in request.topics
        ]
        header = exchange.header
        exchange.reply([encode_list_offsets(header.api_version, header.correlation_id, topics)])

    async def _offset_for_leader_epoch(self, exchange: Exchange, request: OffsetsRequest) -> None:
        found = await self._look_up(request, 0, LATEST)
        topics = [
            (
                name,
                [
                    OffsetAnswer(one.index, error)
                    if error
                    else OffsetAnswer(one.index, 0, -1, *self._end_of(name, one, offset))
                    for one in partitions
                    for error, _, offset in (found[TopicPartition(name, one.index)],)
                ],
            )
            for name, partitions in request.topics
        ]
        header = exchange.header
        exchange.reply([encode_offset_for_leader_epoch(header.api_version, header.correlation_id, topics)])

    async def _look_up(
        self, request: OffsetsRequest, isolation_level: int, timestamp: int | None, version: int = -1
    ) -> Offsets:
        """From the source's leaders; whatever goes wrong there is retriable for the client. A timestamp that is none may be
        unknown in a request of this `version`, or to so old a source. timestamp: instead of the request's own.
        """
        found: Offsets = {}
        by_link: dict[str, dict[TopicPartition, int]] = {}
        switching: dict[TopicPartition, int] = {}
        of_the_log: list[TopicPartition] = []
        # As a broker says to each partition that is named more than once (KafkaApis.handleListOffsetRequest).
        twice = request.named_twice()
        looked_at = 0
        for name, partitions in request.topics:
            mirror = self.hub.ports.mirrors.by_name(name)
            for one in partitions:
                looked_at += 1
                if looked_at % SLICE == 0:
                    await self.hub.turns.next()
                    mirror = self.hub.ports.mirrors.by_name(name)
                tp = TopicPartition(name, one.index)
                wanted = one.wanted if timestamp is None else timestamp
                error = INVALID_REQUEST if (name, one.index) in twice else self._refusal(mirror, tp)
                if error or mirror is None:
                    found[tp] = (error, -1, -1)
                elif timestamp is None and unsupported(wanted, version):
                    found[tp] = (UNSUPPORTED_VERSION, -1, -1)
                elif wanted <= LATEST_TIERED:
                    found[tp] = (0, -1, -1)  # nothing of ours is tiered
                elif (partition := mirror.partition(one.index)) is not None and partition.switching:
                    of_the_log.append(tp)
                    known = self._while_switched(partition, tp, wanted, isolation_level)
                    if known is None:
                        switching[tp] = wanted
                    else:
                        found[tp] = (0, -1, known)
                else:
                    by_link.setdefault(mirror.link, {})[tp] = EARLIEST if wanted == EARLIEST_LOCAL else wanted
        if looked_at >= SLICE:
            await self.hub.turns.next()
        if switching:
            await self._wait_for_switch(switching)
            for tp, wanted in switching.items():
                mirror = self.hub.ports.mirrors.by_name(tp.topic)
                if mirror is None or self._refusal(mirror, tp) or self._is_switching(tp):
                    found[tp] = (NOT_LEADER_OR_FOLLOWER, -1, -1)
                else:
                    wanted = EARLIEST if wanted == EARLIEST_LOCAL else wanted
                    by_link.setdefault(mirror.link, {})[tp] = wanted
        for link, asked in by_link.items():
            results = await self._told_by_source(link, asked, isolation_level)
            if (
                looked_at >= SLICE
            ):  # one answer of the source may be for several clients: not all in the same turn
                await self.hub.turns.next()
            for tp in asked:
                result = results.get(tp)
                if gone := self._refusal(self.hub.ports.mirrors.by_name(tp.topic), tp):
                    found[tp] = (gone, -1, -1)  # handed over meanwhile: these are the ends of another log
                elif result is not None and int(result.error) == UNSUPPORTED_VERSION:
                    found[tp] = (UNSUPPORTED_VERSION, -1, -1)  # the source is too old to know
                elif result is None or verdict(int(result.error)) is not ErrorMeaning.PASS:
                    found[tp] = (NOT_LEADER_OR_FOLLOWER, -1, -1)
                else:
                    found[tp] = (int(result.error), result.timestamp, self._lifted(tp, result.offset))
        if not self.hub.ports.lease.valid():
            for tps in (of_the_log, *by_link.values()):
                found.update((tp, (NOT_LEADER_OR_FOLLOWER, -1, -1)) for tp in tps)
        return found

    async def _told_by_source(
        self, link: str, asked: Mapping[TopicPartition, int], isolation_level: int
    ) -> Mapping[TopicPartition, OffsetResult]:
        """The source's answers. Once all were handed over nothing is waited for: a source that is dead does not answer,
        and their clients read nothing before they are sent to the new leader."""
        asking = asyncio.ensure_future(
            self.hub.ports.source(link).list_offsets(asked, isolation_level=isolation_level, timeout=TIMEOUT)
        )
        ours = list(asked)
        try:
            while not asking.done():
                await asyncio.wait([asking], timeout=_LOOK_AGAIN)
                for tp in ours[: -SLICE - 1 : -1]:  # from the end on, and no more in one turn
                    if not self._refusal(self.hub.ports.mirrors.by_name(tp.topic), tp):
                        break
                    ours.pop()
                if not ours:
                    return {}
            return asking.result()
        except LinkerError:
            # The source's state is link status already; the client asks again.
            return {}
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    # --- partitions that a switch has

    def _while_switched(
        self, partition: MirroredPartition, tp: TopicPartition, wanted: int, isolation_level: int
    ) -> int | None:
        """The offset, if it is known without the source: where the log was taken over, and where it begins. Unknown are
        the start of the oldest open transaction and the ages of records."""
        log = self.hub.ports.local_log(tp)
        if partition.epochs is None or log is None or not log.loaded:
            return None
        if wanted in (EARLIEST, EARLIEST_LOCAL):
            # As the real brokers that have all of it say themselves; their own leader raised it until then.
            ours = self.hub.ports.link_brokers()
            starts = [
                one.log_start_offset
                for broker, one in log.followers.items()
                if broker not in ours and one.fetch_offset >= partition.epochs.end
            ]
            return max(partition.start_offset, min(starts)) if starts else None
        return partition.epochs.end if wanted == LATEST and isolation_level == 0 else None

    def _is_switching(self, tp: TopicPartition) -> bool:
        mirror = self.hub.ports.mirrors.by_name(tp.topic)
        partition = None if mirror is None else mirror.partition(tp.partition)
        return partition is not None and partition.switching

    async def _wait_for_switch(self, tps: Iterable[TopicPartition]) -> None:
        """Until it is over, or for a while: a client that is told to look again comes back at once."""
        for _ in range(round(SWITCH_PATIENCE / _LOOK_AGAIN)):
            if not any(self._is_switching(tp) for tp in tps):
                return
            await asyncio.sleep(_LOOK_AGAIN)

    def _refusal(self, mirror: Mirror | None, tp: TopicPartition) -> int:
        if mirror is None:
            return not_mirrored(self.hub, self._authorizer, tp.topic, AclRight.DESCRIBE)
        allowed = self._authorizer.allowed(tp.topic, AclRight.DESCRIBE)
        if not allowed:
            # Not known any more, or a mirror only since the request began: the client asks again.
            return NOT_LEADER_OR_FOLLOWER if allowed is None else TOPIC_AUTHORIZATION_FAILED
        partition = mirror.partition(tp.partition)
        if partition is None:
            return UNKNOWN_TOPIC_OR_PARTITION
        if not may_answer(partition) or self.hub.fences.state(tp) in LED_ELSEWHERE:
            return NOT_LEADER_OR_FOLLOWER
        return 0

    def _lifted(self, tp: TopicPartition, offset: int) -> int:
        """Nothing below the mirror's start exists here."""
        mirror = self.hub.ports.mirrors.by_name(tp.topic)
        partition = mirror.partition(tp.partition) if mirror is not None else None
        return max(offset, partition.start_offset) if offset >= 0 and partition is not None else offset

    def _epoch_at(self, topic: str, index: int, offset: int) -> int:
        mirror = self.hub.ports.mirrors.by_name(topic)
        partition = mirror.partition(index) if mirror is not None else None
        if partition is None:
            return -1
        return partition.session_epoch if partition.epochs is None else partition.epochs.at(offset)

    def _end_of(self, topic: str, asked: AskedPartition, log_end: int) -> tuple[int, int]:
        """The end of a leader epoch, and the largest epoch up to it that there was. Real brokers that led the partition
        before may have told clients of theirs; else all is of one epoch."""
        mirror = self.hub.ports.mirrors.by_name(topic)
        partition = mirror.partition(asked.index) if mirror is not None else None
        if partition is None:
            return log_end, -1
        known = None if partition.epochs is None else partition.epochs.end_of(asked.wanted, log_end)
        return (log_end, partition.session_epoch) if known is None else (known[1], known[0])
