"""One produce request on both of its sides: as the client sent and is answered, as the source is sent and
answers.

Not here: which batch goes when and where (``session.py``, ``lanes.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from router.leadership import current_leader, endpoints_of
from router.ports import MirrorLookup, RouterLimits
from router.produce.batch import Batch
from router.produce.forwarding import Client, ForwardingHub
from router.produce.lanes import Lane
from router.produce.source_route import TARGET, Route
from wire.errors import LinkerError, MalformedFrame, WireError, error_name
from wire.frames.error_codes import NONE, NOT_LEADER_OR_FOLLOWER
from wire.frames.produce import (
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    TopicKey,
    encode_produce_response,
)
from wire.frames.types import TopicPartition
from wire.server.listener import Exchange

SOURCE_VERSIONS: Final = (9, 13)
_FIRST_WITH_TOPIC_IDS: Final = 13

Pair = tuple[Lane["ProduceJob"], Batch["ProduceJob"]]


class ProduceJob:
    """One client request until its answer, and its records until the source let go of them."""

    __slots__ = (
        "admitted",
        "batches",
        "deadline",
        "exchange",
        "in_lanes",
        "remaining",
        "request",
        "results",
        "session",
        "size",
        "started",
        "throttle_ms",
    )

    def __init__(
        self, session: Client, exchange: Exchange, request: ProduceRequest, limits: RouterLimits, now: float
    ) -> None:
        self.session = session
        self.exchange = exchange
        self.request = request
        self.size = len(exchange.frame)
        self.started = now
        # A little less than what the client gave, so that our answer comes before it hangs up.
        timeout = min(max(request.timeout_ms / 1000, limits.min_timeout), limits.max_timeout)
        self.deadline = now + timeout * 0.9
        self.remaining = 0  # batches without an answer
        for _, parts in request.topics:
            self.remaining += len(parts)
        self.results: list[ProduceResult | None] = [None] * self.remaining
        self.batches: list[Pair] = []
        self.in_lanes = 0  # batches that are queued or in flight: they keep the request's bytes in memory
        self.admitted = False  # until then the request itself is counted in in_lanes
        self.throttle_ms = 0


class SourceRequest(NamedTuple):
    """The part of a client's request that one source node is sent."""

    version: int
    topics: list[tuple[TopicKey, list[tuple[int, memoryview]]]]
    keys: list[tuple[TopicKey, int]]  # in the order of the batches it was made of

    def match(self, response: ProduceResponse) -> list[ProduceResult]:
        """Put the results into the order of the batches; brokers group and order partitions as they like."""
        if len(self.keys) == len(response.topics) == 1:
            (topic, results) = response.topics[0]
            if len(results) == 1 and self.keys[0] == (topic, results[0].index):
                return results
        found = {(key, result.index): result for key, results in response.topics for result in results}
        try:
            return [found[key] for key in self.keys]
        except KeyError as error:
            raise MalformedFrame(
                f"no result for {error.args[0]}", api="produce", version=self.version
            ) from None


def source_request(
    route: Route, parts: Sequence[tuple[TopicPartition, memoryview]], mirrors: MirrorLookup
) -> SourceRequest:
    """In the newest version that node and we speak; with the topic ids of the node's own cluster if that version has
    them.
    """
    ids: dict[str, bytes] = {}
    for tp, _ in parts:
        if tp.topic not in ids and (topic_id := _topic_id(route, tp.topic, mirrors)) is not None:
            ids[tp.topic] = topic_id
    version = _version(route, with_ids=all(tp.topic in ids for tp, _ in parts))
    topics: dict[TopicKey, list[tuple[int, memoryview]]] = {}
    keys = []
    for tp, records in parts:
        key: TopicKey = ids[tp.topic] if version >= _FIRST_WITH_TOPIC_IDS else tp.topic
        topics.setdefault(key, []).append((tp.partition, records))
        keys.append((key, tp.partition))
    return SourceRequest(version, list(topics.items()), keys)


def _topic_id(route: Route, topic: str, mirrors: MirrorLookup) -> bytes | None:
    mirror = mirrors.by_name(topic)
    if mirror is None:
        return None
    return mirror.topic_id if route.link == TARGET else mirror.source_topic_id


def _version(route: Route, *, with_ids: bool) -> int:
    low, high = SOURCE_VERSIONS
    return route.version("produce", low, high if with_ids else _FIRST_WITH_TOPIC_IDS - 1)


def note_answered(job: ProduceJob, hub: ForwardingHub) -> None:
    """Count it, and how long it took."""
    stats = hub.stats
    stats.produce_answered += 1
    seconds = hub.loop.time() - job.started
    stats.produce_latency.observe(seconds)
    if seconds > stats.produce_slowest:
        stats.produce_slowest = seconds


def answer(job: ProduceJob, hub: ForwardingHub, listener: str) -> None:
    """Send the merged answer to the client."""
    stats = hub.stats
    note_answered(job, hub)
    leaders: set[int] = set()
    topics: list[tuple[TopicKey, list[ProduceResult]]] = []
    slot = 0
    failed = 0
    for key, partitions in job.request.topics:
        results = []
        for _ in partitions:
            result = job.results[slot]
            slot += 1
            if result is None:
                raise LinkerError(
                    f"produce of {job.exchange.connection.peer} answered before it was finished"
                )
            if result.error != NONE:
                failed = result.error
                mirrors = hub.ports.mirrors
                mirror = mirrors.by_name(key) if isinstance(key, str) else mirrors.by_id(key)
                if mirror is not None:
                    errors = stats.links[mirror.link].errors
                    errors[failed] = errors.get(failed, 0) + 1
                if failed == NOT_LEADER_OR_FOLLOWER:
                    _add_leader(hub, key, result, leaders)
            results.append(result)
        topics.append((key, results))
    exchange = job.exchange
    if job.request.acks == 0:
        if failed:
            # As a broker does it: a closed connection is the only way to tell, and makes the client
            # refresh.
            exchange.fail(WireError(f"produce with acks=0 failed: {error_name(failed)}", api="produce"))
        else:
            exchange.no_reply()
        return
    nodes = endpoints_of(hub.ports.image(), leaders, listener) if leaders else ()
    exchange.reply(
        encode_produce_response(
            job.request.version,
            exchange.header.correlation_id,
            topics,
            throttle_ms=job.throttle_ms,
            node_endpoints=nodes,
        )
    )


def _add_leader(hub: ForwardingHub, key: TopicKey, result: ProduceResult, leaders: set[int]) -> None:
    image = hub.ports.image()
    topic = key if isinstance(key, str) else getattr(image.topics_by_id.get(key), "name", None)
    leader = current_leader(image, TopicPartition(topic, result.index)) if topic is not None else None
    # Naming ourselves would only send the client back at once.
    if leader is not None and leader[0] >= 0 and leader[0] != hub.ports.broker_id:
        result.current_leader = leader
        leaders.add(leader[0])
