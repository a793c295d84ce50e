"""The state all nodes of a fake cluster share: topics, leadership, injected faults, what was asked."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.fakes.faults import Fault
from tests.fakes.log import FakeLog
from wire.frames.types import TopicPartition
from wire.schema import codec

if TYPE_CHECKING:
    import ssl

    from tests.fakes.broker import FakeBroker, Request

Handler = Callable[["FakeBroker", "Request"], Awaitable[Mapping[str, object] | None]]


@dataclass
class FakePartition:
    """One partition; every replica shares `log`, except those with a log of their own in `replica_logs`."""

    topic: str
    index: int
    leader: int
    replicas: list[int]
    isr: list[int]
    leader_epoch: int = 0
    #: What Metadata shows, when a leader has moved but nobody has heard yet.
    published: tuple[int, int] | None = None
    log: FakeLog = field(default_factory=FakeLog)
    replica_logs: dict[int, FakeLog] = field(default_factory=dict)

    def log_at(self, node: int) -> FakeLog:
        return self.replica_logs.get(node, self.log)

    def add(self, records: object = 1, **batch: object) -> int:
        """Append a batch with the current leader epoch; its base offset."""
        return self.log.add(records, leader_epoch=self.leader_epoch, **batch)  # type: ignore[arg-type]


@dataclass
class FakeTopic:
    name: str
    topic_id: bytes
    partitions: dict[int, FakePartition]
    configs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    node: int
    api: str
    version: int
    client_id: str | None
    entity: Any


class FakeCluster:
    """`async with FakeCluster(nodes=3) as cluster:` starts the nodes on ephemeral loopback ports.

    api_versions narrows what ApiVersions offers, e.g. {"fetch": (4, 12)}; None removes an api.
    """

    def __init__(
        self,
        nodes: int | Sequence[int] = 1,
        *,
        cluster_id: str | None = None,
        racks: Mapping[int, str] | None = None,
        api_versions: Mapping[str, tuple[int, int] | None] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        sasl_users: Mapping[str, str] | None = None,
        sasl_mechanisms: Sequence[str] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    ) -> None:
        from tests.fakes.broker import FakeBroker
        from tests.fakes.registry import HANDLERS

        ids = list(range(1, nodes + 1)) if isinstance(nodes, int) else list(nodes)
        self.cluster_id = cluster_id or uuid.uuid4().hex[:22]
        self.racks = dict(racks or {})
        self.handlers: dict[str, Handler] = dict(HANDLERS)
        self.api_versions = dict(api_versions or {})
        self.ssl_context = ssl_context
        self.sasl_users = dict(sasl_users) if sasl_users is not None else None
        self.sasl_mechanisms = list(sasl_mechanisms)
        self.session_lifetime_ms = 0
        #: Connections that were ended because their login was over.
        self.expired = 0
        self.supported_features: dict[str, tuple[int, int]] = {}
        self.finalized_features: dict[str, tuple[int, int]] = {}
        self.topics: dict[str, FakeTopic] = {}
        self.broker_configs: dict[int, dict[str, str]] = {}
        self.faults: list[Fault] = []
        self.requests: deque[Received] = deque(maxlen=20_000)
        self.counts: Counter[str] = Counter()
        self.controller_id = ids[0]
        #: Redirect consumers with a rack to an in-sync replica there (RackAwareReplicaSelector).
        self.follower_fetching = False
        #: What everybody may do with the cluster, as bits; None: everything, as without an authorizer.
        self.cluster_operations: int | None = None
        self.producer_ids = itertools.count(1000)
        self.brokers: dict[int, FakeBroker] = {i: FakeBroker(self, i) for i in ids}
        self._changed = asyncio.Event()

    # --- life -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> FakeCluster:
        for broker in self.brokers.values():
            await broker.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for broker in self.brokers.values():
            await broker.close()

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        return [(broker.host, broker.port) for broker in self.brokers.values()]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.bootstrap)

    # --- topics ---------------------------------------------------------------------------------------------

    def add_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        topic_id: bytes | None = None,
        replication_factor: int | None = None,
        leader_epoch: int = 0,
        configs: Mapping[str, str] | None = None,
    ) -> FakeTopic:
        ids = list(self.brokers)
        factor = replication_factor or min(3, len(ids))
        topic = FakeTopic(name, topic_id or uuid.uuid4().bytes, {}, dict(configs or {}))
        for index in range(partitions):
            replicas = [ids[(index + i) % len(ids)] for i in range(factor)]
            topic.partitions[index] = FakePartition(
                name, index, replicas[0], replicas, list(replicas), leader_epoch
            )
        self.topics[name] = topic
        self.notify()
        return topic

    def delete_topic(self, name: str) -> FakeTopic:
        topic = self.topics.pop(name)
        self.notify()
        return topic

    def recreate_topic(self, name: str) -> FakeTopic:
        """Same name, same number of partitions, another id, empty logs."""
        old = self.delete_topic(name)
        return self.add_topic(name, len(old.partitions), configs=old.configs)

    def topic_by_id(self, topic_id: bytes) -> FakeTopic | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def partition(self, topic: str | TopicPartition, index: int = 0) -> FakePartition:
        if isinstance(topic, TopicPartition):
            topic, index = topic
        return self.topics[topic].partitions[index]

    def find(self, topic: FakeTopic | None, index: int) -> FakePartition | None:
        return topic.partitions.get(index) if topic is not None else None

    def add(self, topic: str, partition: int = 0, records: object = 1, **batch: object) -> int:
        """Append a batch to a partition and wake who waits for data; its base offset."""
        offset = self.partition(topic, partition).add(records, **batch)
        self.notify()
        return offset

    def move_leader(
        self, topic: str, partition: int, node: int, *, publish: bool = True, bump_epoch: bool = True
    ) -> None:
        """Another node leads from now on; with publish=False Metadata keeps showing the old one."""
        moved = self.partition(topic, partition)
        moved.published = None if publish else moved.published or (moved.leader, moved.leader_epoch)
        moved.leader = node
        if node >= 0 and node not in moved.replicas:
            moved.replicas.append(node)
        if node >= 0 and node not in moved.isr:
            moved.isr.append(node)
        if bump_epoch:
            moved.leader_epoch += 1
        self.notify()

    def publish(self, topic: str, partition: int) -> None:
        self.partition(topic, partition).published = None

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Lose the end of a log, as an unclean election does: leader epoch + 1."""
        lost = self.partition(topic, partition)
        lost.log.truncate(offset)
        lost.leader_epoch += 1
        self.notify()

    # --- faults and observation -----------------------------------------------------------------------------

    def inject(self, api: str, **fault: Any) -> Fault:
        """Make the next requests of `api` go wrong; see Fault."""
        codec.api_key(api)
        made = Fault(api, **fault)
        self.faults.append(made)
        return made

    def clear_faults(self) -> None:
        self.faults.clear()

    def take_fault(self, api: str, node: int, entity: Any) -> Fault | None:
        for fault in self.faults:
            if fault.api != api or fault.node not in (None, node):
                continue
            if fault.match is not None and not fault.match(entity):
                continue
            fault.hits += 1
            if fault.times is not None and fault.hits >= fault.times:
                self.faults.remove(fault)
            return fault
        return None

    def received(self, api: str) -> list[Received]:
        return [request for request in self.requests if request.api == api]

    def connections_that_asked(self, api: str) -> int:
        """Connections that are open and have sent such a request."""
        return sum(one.connections_that_asked(api) for one in self.brokers.values())

    def notify(self) -> None:
        """Wake everybody who waits in wait_changed."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_changed(self, timeout: float) -> bool:
        """Whether something changed within `timeout` seconds."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    def api_range(self, api: str) -> tuple[int, int] | None:
        """What ApiVersions offers of an api."""
        if api not in self.handlers:
            return None
        known = (codec.min_version(api), codec.max_version(api))
        narrowed = self.api_versions.get(api, known)
        if narrowed is None:
            return None
        return max(known[0], narrowed[0]), min(known[1], narrowed[1])
