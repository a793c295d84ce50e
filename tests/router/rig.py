"""A router between a fake source and a fake target, with a listener to connect clients to."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from fetcher.budget import Charge, MemoryBudget
from fetcher.cursor import Cursor
from fetcher.partition_copy import PartitionCopy
from fetcher.spec import MirrorSpec
from fetcher.window import WindowChunk
from fleet.lease import Lease
from linker.process.upstreams import Upstreams
from router.dispatch import Router
from router.ports import EndlessLease, LeasePort, RouterLimits, RouterPorts
from tests.fakes.batches import build_batch
from tests.fakes.cluster import FakeCluster
from tests.fetcher.pure import Host
from tests.fetcher.rig import Events as FetcherEvents
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.client.security import ClientSecurity, ListenerSecurity
from wire.frames.buffers import FramePool
from wire.frames.leader_epochs import LeaderEpochs
from wire.frames.produce import ProduceResult, encode_produce_request, parse_produce_response
from wire.frames.types import TopicPartition
from wire.metadata.image import BrokerImage, ClusterImage, Endpoint, PartitionImage, TopicImage
from wire.server.connection import ServerConnection
from wire.server.listener import Exchange, Listener, ListenerInfo, start_listener

LINK_BROKER = 900
E0 = 3


@dataclass
class Partition:
    session_epoch: int = E0
    start_offset: int = 0
    leading: bool = True
    serving: bool = True
    forwarding: bool = True
    refusing: str | None = None
    read_only: str | None = None
    switching: bool = False
    taking: bool = False
    epochs: LeaderEpochs | None = None


@dataclass
class MirrorTopic:
    topic: str
    topic_id: bytes
    source_topic_id: bytes | None
    partitions: dict[int, Partition]
    link: str = "east"
    prefix: str = ""

    @property
    def source_topic(self) -> str:
        return self.topic.removeprefix(self.prefix)

    def partition(self, index: int) -> Partition | None:
        return self.partitions.get(index)


class Directory:
    def __init__(self) -> None:
        self.mirrors: dict[str, MirrorTopic] = {}

    def by_name(self, name: str) -> MirrorTopic | None:
        return self.mirrors.get(name)

    def by_id(self, topic_id: bytes) -> MirrorTopic | None:
        return next((mirror for mirror in self.mirrors.values() if mirror.topic_id == topic_id), None)


@dataclass
class Progress:
    fetch_offset: int
    caught_up_monotonic: float
    log_start_offset: int = 0


class Source:
    """Who fetches for a log's lane, and whether it does."""

    def __init__(self) -> None:
        self.answers = True

    def follows(self, lane: Cursor) -> bool:
        return self.answers


class Log(PartitionCopy):
    """What the sidecar has in memory of a partition of "orders", from offset 0 on: a follower is there and takes nothing."""

    def __init__(self, index: int = 0, topic_id: bytes = b"t" * 16) -> None:
        spec = MirrorSpec(
            link="east",
            topic="orders",
            partition=index,
            topic_id=topic_id,
            source_topic_id=b"s" * 16,
            session_epoch=E0,
            start_offset=0,
            target_replicas=(1, 2),
        )
        super().__init__(spec, FetcherEvents(), Host(), window_bytes=64 << 20)
        now = asyncio.get_running_loop().time()
        self.load(0, 0, 0, now)
        self.follower_fetched(1, 0, 0, now)
        self.batches: list[bytes] = []
        self.fetcher = Source()
        (cursor,) = self.cursors
        cursor.fetcher = cast(Any, self.fetcher)

    def append(self, records: int | list[bytes]) -> None:
        """As the source's next answer."""
        (cursor,) = self.cursors
        base = cursor.position
        count = records if isinstance(records, int) else len(records)
        data = build_batch(records, base_offset=base, leader_epoch=E0)
        self.batches.append(data)
        self.note_answer(base + count, base + count, 0)
        charge = Charge(MemoryBudget(len(data)), len(data))
        self.add_chunks(
            cursor, [WindowChunk(base, base + count, memoryview(data), len(data), charge)], [], base + count
        )
        charge.drop()
        self.notify()

    def begin_at(self, offset: int) -> None:
        """What is in memory begins there."""
        (cursor,) = self.cursors
        cursor.restart(offset)


class Followers:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def _note(self, what: str, exchange: Exchange) -> None:
        self.asked.append(what)
        exchange.reply([struct.pack(">ii", 4, exchange.header.correlation_id)])

    def handle_fetch(self, exchange: Exchange, request: Any) -> None:
        self._note("fetch", exchange)

    def handle_list_offsets(self, exchange: Exchange, request: Any) -> None:
        self._note("list_offsets", exchange)

    def handle_offset_for_leader_epoch(self, exchange: Exchange, request: Any) -> None:
        self._note("offset_for_leader_epoch", exchange)


@dataclass
class Events:
    refused: list[tuple[str, str]] = field(default_factory=list)
    readers: list[tuple[str, str, str, str]] = field(default_factory=list)

    def reader_held(self, link: str, topic: str, client_id: str, host: str) -> None:
        self.readers.append((link, topic, client_id, host))

    def forwarding_refused(self, link: str, reason: str) -> None:
        self.refused.append((link, reason))


class ScriptedLease:
    """A member's lease of 10 s under a clock of the test's own (router.ports.LeasePort); held from the start."""

    DURATION = 10.0

    def __init__(self) -> None:
        self.lease = Lease()
        self.clock = 100.0
        self.renew()

    @property
    def term(self) -> int:
        return self.lease.term

    def valid(self) -> bool:
        return self.lease.valid(self.clock)

    def covers(self, term: int) -> bool:
        return self.lease.covers(term, self.clock)

    def proven_since(self, moment: float) -> bool:
        return self.lease.proven_since(moment)

    def now(self) -> float:
        return self.clock

    def renew(self, sent_at: float | None = None) -> None:
        """Sent then (or just now), answered now."""
        if sent_at is None:
            self.clock += 0.001
            sent_at = self.clock
        self.lease.renewed(sent_at, self.clock, self.DURATION)

    def lapse(self) -> None:
        self.clock = self.lease.until + 1


def session_of(connection: ServerConnection) -> Any:
    """The router's state of a connection."""
    return connection.local.get("router")


class Rig:
    """`async with Rig() as rig:`; topic "orders" is mirrored with two partitions."""

    def __init__(
        self,
        *,
        source_nodes: int = 2,
        limits: RouterLimits | None = None,
        partitions: int = 2,
        protocol: str = "PLAINTEXT",
        source_versions: dict[str, tuple[int, int] | None] | None = None,
        sasl_users: dict[str, str] | None = None,
        lease: LeasePort | None = None,
        source_users: dict[str, str] | None = None,
        prefix: str = "",
    ) -> None:
        """`prefix`: of the mirrors' names; the source has a topic of that name, too."""
        self.prefix = prefix
        self.lease = lease or EndlessLease()
        self.sasl_users = sasl_users
        self.source_users = source_users
        self.source = FakeCluster(source_nodes, api_versions=source_versions, sasl_users=source_users)
        self.target = FakeCluster([1, 2], sasl_users=sasl_users)
        self.limits = limits or RouterLimits(settle_grace=0.3, backoff_min=0.01, transaction_patience=0.1)
        self.directory = Directory()
        self.image = ClusterImage()
        self.logs: dict[TopicPartition, Log] = {}
        self.followers = Followers()
        self.inter_broker: frozenset[str] = frozenset()
        self.held_clients: set[tuple[str, str | None]] = set()
        self.followed: set[str] = set()  # topics that link brokers follow
        self.events = Events()
        self.partitions = partitions
        self.protocol = protocol
        self.clients: list[Connection] = []
        self.loop_errors: list[dict[str, Any]] = []
        self.router: Router
        self.listener: Listener
        self.cluster: Cluster
        self.target_cluster: Cluster

    async def __aenter__(self) -> Rig:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.loop_errors.append(context))
        await self.source.__aenter__()
        await self.target.__aenter__()
        self.cluster = Cluster(
            "east",
            self.source.bootstrap,
            _credentials(self.source_users),
            "linker",
            topic_prefix=self.prefix,
        )
        await self.cluster.connect(timeout=25)
        self.target_cluster = Cluster(
            "target", self.target.bootstrap, _credentials(self.sasl_users), "linker"
        )
        await self.target_cluster.connect(timeout=25)
        self.target.requests.clear()
        self.target.counts.clear()
        ports = RouterPorts(
            broker_id=LINK_BROKER,
            mirrors=self.directory,
            image=lambda: self.image,
            source=lambda link: self.cluster,
            target=lambda: self.target_cluster,
            local_log=self.logs.get,
            followers=self.followers,
            open_upstream=Upstreams(ClientSecurity.plaintext()),
            events=self.events,
            link_brokers=lambda: frozenset({LINK_BROKER}),
            lease=self.lease,
            inter_broker_listeners=lambda: self.inter_broker,
            followed=lambda topic: topic in self.followed,
            holds_reads=lambda link, client_id, _topic: (link, client_id) in self.held_clients,
        )
        self.router = Router(ports, self.limits)
        self.listener = await start_listener(
            "127.0.0.1",
            0,
            ListenerInfo("CLIENTS", self.protocol),
            ListenerSecurity(),
            self.router,
            alloc=FramePool(4 << 20).take,
        )
        for broker in self.target.brokers.values():
            self.image.brokers[broker.id] = self._broker(
                broker.id, broker.port, "r1" if broker.id == 1 else "r2"
            )
        self.image.brokers[LINK_BROKER] = self._broker(LINK_BROKER, self.listener.port, "r9")
        self.mirror("orders", self.partitions)
        return self

    @staticmethod
    def _broker(broker_id: int, port: int, rack: str) -> BrokerImage:
        endpoints = {"CLIENTS": Endpoint("127.0.0.1", port, 0)}
        return BrokerImage(broker_id, 10 + broker_id, bytes(16), rack, endpoints, False, False, ())

    def mirror(self, name: str, partitions: int) -> MirrorTopic:
        at_source = self.source.add_topic(name, partitions)
        if self.prefix:
            at_source = self.source.add_topic(name.removeprefix(self.prefix), partitions)
        at_target = self.target.add_topic(name, partitions)
        made = MirrorTopic(
            name,
            at_target.topic_id,
            at_source.topic_id,
            {index: Partition() for index in range(partitions)},
            prefix=self.prefix,
        )
        self.directory.mirrors[name] = made
        topic = TopicImage(
            made.topic_id,
            name,
            {index: self.partition_image(index, LINK_BROKER, E0) for index in range(partitions)},
        )
        self.image.topics_by_id[made.topic_id] = topic
        self.image.topics_by_name[name] = topic
        return made

    @staticmethod
    def partition_image(index: int, leader: int, epoch: int) -> PartitionImage:
        return PartitionImage(
            index, (LINK_BROKER, 1, 2), (LINK_BROKER,), (1, 2), (LINK_BROKER,), leader, epoch, 0
        )

    def elect(self, name: str, index: int, leader: int, epoch: int) -> None:
        """The target's controller moved leadership."""
        self.image.topics_by_name[name].partitions[index] = self.partition_image(index, leader, epoch)

    def hand_over(self, name: str, index: int, leader: int) -> None:
        """The target's replica has everything, producers' state included, and a real broker leads it from now on."""
        at_target = self.target.partition(name, index)
        at_target.log = self.source.partition(name, index).log
        self.target.move_leader(name, index, leader)
        self.directory.mirrors[name].partitions[index].leading = False
        self.elect(name, index, leader, E0 + 1)

    async def client(self, client_id: str = "app") -> Connection:
        connection = await Connection.open(
            "127.0.0.1", self.listener.port, ClientSecurity.plaintext(), client_id=client_id, timeout=25
        )
        self.clients.append(connection)
        return connection

    async def __aexit__(self, *exc: object) -> None:
        for client in self.clients:
            client.close()
        await self.listener.close()
        await self.router.close()
        await self.cluster.close()
        await self.target_cluster.close()
        await self.source.__aexit__()
        await self.target.__aexit__()
        assert self.loop_errors == [], self.loop_errors
        assert self.router.hub.budget.used >= 0

    def values(self, name: str = "orders", index: int = 0) -> list[tuple[int, int]]:
        """(producer id, base sequence) of every batch in the source's log."""
        infos = [stored.info for stored in self.source.partition(name, index).log.batches]
        return [(info.producer_id, info.base_sequence) for info in infos]


def _credentials(users: dict[str, str] | None) -> ClientSecurity:
    """The sidecar's own: the first user."""
    if users is None:
        return ClientSecurity.plaintext()
    user, password = next(iter(users.items()))
    return ClientSecurity.from_properties(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="{user}" password="{password}";',
        }
    )


class Producer:
    """Sends produce requests over a connection without waiting; collects the answers."""

    def __init__(self, connection: Connection, rig: Rig, *, version: int = 13, producer_id: int = -1) -> None:
        self.connection = connection
        self.rig = rig
        self.version = version
        self.producer_id = producer_id
        self.client_id = "app"
        self.sequences: dict[int, int] = {}

    def send(
        self,
        *partitions: int,
        topic: str = "orders",
        acks: int = -1,
        timeout_ms: int = 60_000,
        sequence: int | None = None,
        transactional: bool = False,
        records: bytes | None = None,
    ) -> asyncio.Future[list[ProduceResult]]:
        done: asyncio.Future[list[ProduceResult]] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda f: f.cancelled() or f.exception())
        parts = []
        for index in partitions:
            if sequence is None:
                base = self.sequences.get(index, 0)
                self.sequences[index] = base + 1
            else:
                base = sequence
            batch = records or build_batch(
                1,
                producer_id=self.producer_id,
                producer_epoch=0 if self.producer_id >= 0 else -1,
                base_sequence=base if self.producer_id >= 0 else -1,
                transactional=transactional,
            )
            parts.append((index, memoryview(batch)))
        mirror = self.rig.directory.mirrors.get(topic)
        key: str | bytes = topic
        if self.version >= 13:
            key = mirror.topic_id if mirror is not None else self.rig.image.topics_by_name[topic].id
        correlation_id = self.connection.next_correlation_id()
        buffers = encode_produce_request(
            self.version, correlation_id, self.client_id, None, acks, timeout_ms, [(key, parts)]
        )

        def replied(reply: Any) -> None:
            if done.done():
                return
            if isinstance(reply, Exception):
                done.set_exception(reply)
            else:
                done.set_result(
                    [r for _, rs in parse_produce_response(reply, self.version).topics for r in rs]
                )

        self.connection.channel.send(correlation_id, buffers, None if acks == 0 else replied)
        return done


def held_produce(cluster: FakeCluster) -> asyncio.Event:
    """The cluster begins with the next Produce once this is set."""
    go_on, handle = asyncio.Event(), cluster.handlers["produce"]

    async def held(broker: Any, request: Any) -> Any:
        cluster.handlers["produce"] = handle
        await go_on.wait()
        return await handle(broker, request)

    cluster.handlers["produce"] = held
    return go_on


async def eventually(condition: Callable[[], bool], timeout: float = 25) -> None:
    deadline = asyncio.get_running_loop().time() + timeout
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError("it did not happen in time")
        await asyncio.sleep(0.005)
