"""The parts of the sidecar that the router needs, as Protocols; ``linker`` provides them. No behaviour
here, but for the lease of a sidecar that is alone (``EndlessLease``).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from wire.client.cluster import TopicMetadata
from wire.frames.control_requests import ControlRequest
from wire.frames.fetch import FetchRequest
from wire.frames.leader_epochs import LeaderEpochs
from wire.frames.offset_requests import OffsetsRequest
from wire.frames.types import Node, TopicPartition
from wire.histogram import LatencyHistogram
from wire.metadata.image import ClusterImage
from wire.server.listener import Exchange


class MirroredPartition(Protocol):
    """One partition of a mirror topic as this sidecar serves it."""

    @property
    def session_epoch(self) -> int:
        """E0: the one leader epoch that every batch of the mirror carries."""

    @property
    def start_offset(self) -> int:
        """Where the mirror begins; nothing below it exists at the target."""

    @property
    def leading(self) -> bool:
        """We lead it: produces are forwarded, whether or not anything was read of it yet. If not, everybody
        gets NOT_LEADER_OR_FOLLOWER.
        """

    @property
    def serving(self) -> bool:
        """We lead it and its state is loaded. If not, who reads gets NOT_LEADER_OR_FOLLOWER."""

    @property
    def switching(self) -> bool:
        """A switch has it: its log ends where it was taken over (once there is a `LocalLog`), and the source, which waits
        for the same switch, is not asked for anything. Clients wait."""

    @property
    def taking(self) -> bool:
        """A switch is about to take it over: a real broker that leads it has not been handed it."""

    @property
    def epochs(self) -> LeaderEpochs | None:
        """Of a partition that was taken over from real brokers, which led it under epochs of their own; else every batch is
        of the session's."""

    @property
    def forwarding(self) -> bool:
        """Produces may go to the source now. If not, they wait for it, unless it is `refusing`."""

    @property
    def refusing(self) -> str | None:
        """Why no produce goes to the source until a person does something, in words for the producer's log: it gets
        NOT_ENOUGH_REPLICAS at once. None: it is forwarding, or may be in a moment.
        """

    @property
    def read_only(self) -> str | None:
        """Why nothing is ever written here before the mirror's promote or failover, in words for the producer's log: it
        gets POLICY_VIOLATION, which no client tries again. None: it may be written."""


class Mirror(Protocol):
    """A mirror topic. An object never changes: after any change there is another one in its place."""

    @property
    def link(self) -> str: ...

    @property
    def topic(self) -> str: ...

    @property
    def topic_id(self) -> bytes:
        """The target's id of the topic."""

    @property
    def source_topic(self) -> str:
        """Its name at the source. Only requests to the source may use it."""

    @property
    def source_topic_id(self) -> bytes | None:
        """The source's id; None if the source is too old to have one."""

    def partition(self, index: int) -> MirroredPartition | None: ...


class MirrorLookup(Protocol):
    def by_name(self, name: str) -> Mirror | None: ...

    def by_id(self, topic_id: bytes) -> Mirror | None: ...


class CopyProgress(Protocol):
    @property
    def fetch_offset(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def caught_up_monotonic(self) -> float: ...


class LocalLog(Protocol):
    """The part of a source partition that is in memory (``fetcher.partition_copy.PartitionCopy`` satisfies it)."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    loaded: bool
    listeners: set[Callable[[Any], None]]

    @property
    def followers(self) -> Mapping[int, CopyProgress]: ...

    def read(self, offset: int, max_bytes: int) -> tuple[list[memoryview], int] | None:
        """Whole batches from the one that holds ``offset``. ([], 0): it is where the source ends, and listeners will be
        told when it goes on. None: it is not in memory, or nobody here follows the source just now.
        """


class FollowerApi(Protocol):
    """Serves replica fetchers (``fetcher.FollowerServer``)."""

    def handle_fetch(self, exchange: Exchange, request: FetchRequest) -> None: ...

    def handle_list_offsets(self, exchange: Exchange, request: OffsetsRequest) -> None: ...

    def handle_offset_for_leader_epoch(self, exchange: Exchange, request: OffsetsRequest) -> None: ...


class SourceConnectionLike(Protocol):
    """``wire.client.connection.Connection``, as far as the router uses it."""

    @property
    def channel(self) -> Any: ...

    @property
    def closed(self) -> bool: ...

    @property
    def expires_at(self) -> float | None:
        """time.monotonic() from which the peer answers nothing that is sent on it; None for never."""

    @property
    def renew_at(self) -> float | None:
        """From when another one should take its place."""

    def next_correlation_id(self) -> int: ...

    def api_range(self, api: str) -> tuple[int, int] | None: ...

    def close(self) -> None: ...


class SourceCluster(Protocol):
    """``wire.client.cluster.Cluster``, as far as the router uses it."""

    @property
    def topics(self) -> Mapping[str, TopicMetadata]: ...

    @property
    def nodes(self) -> Mapping[int, Node]: ...

    async def refresh(self, topics: Iterable[str] | None = None, *, timeout: float) -> None: ...

    async def open_connection(self, node: Node) -> Any: ...

    async def list_offsets(
        self, tps: Mapping[TopicPartition, int], *, isolation_level: int = 0, timeout: float
    ) -> Mapping[TopicPartition, Any]: ...


class RouterEvents(Protocol):
    def forwarding_refused(self, link: str, reason: str) -> None:
        """The source refuses the link's own principal or setup: an operator must act."""

    def reader_held(self, link: str, topic: str, client_id: str, host: str) -> None:
        """A consumer finds a topic empty until its promote (`holds_reads`). Told once of each client."""


class OpenUpstream(Protocol):
    """Opens a raw channel (no handshake, no authentication of ours) to a real broker's listener."""

    async def __call__(self, node: Node, security_protocol: str) -> Any: ...


class LeasePort(Protocol):
    """This sidecar's lease with the link controller: whether it may acknowledge writes and answer reads.

    Every method reads the clock when it is called, one that goes on while the process is stopped and the
    machine suspended. Never the event loop's cached time: a process that was stopped in the middle of an
    iteration would take a lease for valid that ended long ago. Called on the hot path.
    """

    @property
    def term(self) -> int:
        """Another one after each lapse: the same term, valid, means that the lease never lapsed."""

    def valid(self) -> bool:
        """Whether it is held now."""

    def covers(self, term: int) -> bool:
        """Whether it is held now and has been, without a gap, since ``term`` was read."""

    def proven_since(self, moment: float) -> bool:
        """Whether a renewal that was sent after ``moment``, as ``now()`` told it, has been answered."""

    def now(self) -> float:
        """Seconds on the lease's clock."""


class EndlessLease:
    """The lease of a sidecar that shares its store with nobody (a LeasePort)."""

    term = 0

    def valid(self) -> bool:
        return True

    def covers(self, term: int) -> bool:
        return True

    def proven_since(self, moment: float) -> bool:
        return True

    def now(self) -> float:
        return time.monotonic()


@dataclass(slots=True)
class RouterPorts:
    """Everything the router asks of others."""

    broker_id: int
    mirrors: MirrorLookup
    image: Callable[[], ClusterImage]
    source: Callable[[str], SourceCluster]
    local_log: Callable[[TopicPartition], LocalLog | None]
    followers: FollowerApi
    open_upstream: OpenUpstream
    events: RouterEvents
    target: Callable[[], SourceCluster]
    """The real brokers of the target, with the sidecar's own credentials."""
    link_brokers: Callable[[], frozenset[int]]
    """Broker ids of all sidecars: never chosen as an upstream."""
    lease: LeasePort = field(default_factory=EndlessLease)
    inter_broker_listeners: Callable[[], frozenset[str]] = frozenset
    """Names of the listeners on which the target's brokers talk to each other: followers come in there and nowhere else.
    Empty: not known, or there is one listener only."""
    control_listeners: Callable[[], frozenset[str]] = frozenset
    """Those on which a controller from before KRaft comes in."""
    producer_ids: Callable[[], str] = lambda: ""
    """The producer ids of the sidecar's links, in words for other sidecars."""
    upstream: Callable[[str], str | None] = lambda _topic: None
    """The clusters that a mirror came through, in words for other sidecars; None: the topic is no mirror."""
    followed: Callable[[str], bool] = lambda _topic: False
    """Whether link brokers are among the replicas of a topic on purpose, as followers of the cluster's own brokers."""
    holds_reads: Callable[[str, str | None, str], bool] = lambda _link, _client_id, _topic: False
    """Whether a consumer of this client id must not read mirrors of the link before their promote. Called per partition
    of each fetch."""
    control: Callable[[ControlRequest], None] | None = None
    """Told of the requests of a controller from before KRaft, before they are answered; None: the cluster has none."""


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """Budgets and deadlines; the defaults fit a sidecar of 128 MiB."""

    held_bytes: int = 48 << 20
    read_bytes: int = 32 << 20
    fetch_max_bytes: int = 8 << 20
    fetch_partition_bytes: int = 1 << 20
    min_timeout: float = 1.0
    max_timeout: float = 60.0
    connect_timeout: float = 10.0
    source_silence: float = 10.0
    """A source connection that owes an answer this long beyond the request's own timeout is closed."""
    settle_grace: float = 3.0
    source_idle: float = 300.0
    carried_clients: int = 16
    """Client connections whose produces go on to the new leaders for the moment after a hand-over. Each costs connections
    of ours, which are opened while a fence is taken: a millisecond of the loop each, more with TLS."""
    lease_patience: float = 10.0
    """A produce waits this long for a lapsed lease, then its client looks for another leader: there may be one."""
    transaction_patience: float = 5.0
    """A write of a transaction waits this long for the promote: six tries of it and the pauses between them (kafkajs) end
    before the 60 s that most transactions have, 50 s after the first one at most."""
    transactions_waiting: int = 1000
    """Batches of transactions that wait, of all clients; together they have a quarter of held_bytes."""
    backoff_min: float = 0.02
    backoff_max: float = 0.5
    authorization_ttl: float = 30.0
    upstream_timeout: float = 30.0


@dataclass(slots=True)
class LinkStats:
    """Counters of one link."""

    produces: int = 0
    """Requests sent to the source, those that had to be sent again included."""
    bytes: int = 0
    errors: dict[int, int] = field(default_factory=dict)
    """Batches that a client got an error for."""
    deferred: int = 0
    """Successes of the source that waited for the lease."""
    carried: int = 0
    """Batches that a new leader of the target acknowledged for clients who had not found it yet."""
    held: int = 0
    """Partitions of fetches that were held until their promote, and so answered without records."""


@dataclass(slots=True)
class RouterStats:
    """Plain counters; linker reads them for its metrics."""

    links: defaultdict[str, LinkStats] = field(default_factory=lambda: defaultdict(LinkStats))

    produce_requests: int = 0
    produce_answered: int = 0
    produce_latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    produce_slowest: float = 0.0

    def forwarded_produces(self) -> int:
        """Of all links."""
        return sum(link.produces for link in self.links.values())
