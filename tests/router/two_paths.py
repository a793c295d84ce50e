"""The world of test_two_paths: clients, a source and the state between them, without sockets and under a clock of its own.

Every event takes its choices from a generator that begins at the event's own seed, so two worlds with the same events make
the same choices for as long as they are in the same state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from router.ports import LinkStats, RouterLimits, RouterPorts, RouterStats
from router.produce.forwarding import ForwardingHub
from router.produce.session import ProduceSession
from router.tasks import TaskKeeper
from tests.fakes.batches import build_batch
from tests.router.rig import E0, LINK_BROKER, Directory, Events, MirrorTopic, Partition, Rig, ScriptedLease
from wire.client.cluster_metadata import PartitionMetadata, TopicMetadata
from wire.errors import ConnectionLost, RequestTimedOut, WireError
from wire.frames.produce import (
    ProduceResult,
    encode_produce_request,
    encode_produce_response,
    parse_produce_request,
)
from wire.frames.request_header import parse_request_header
from wire.frames.types import AclRight, Node, TopicPartition
from wire.metadata.image import BrokerImage, ClusterImage, Endpoint, TopicImage
from wire.schema import codec
from wire.server.listener import Exchange

LIMITS = RouterLimits(
    settle_grace=0.3,
    min_timeout=0.2,
    lease_patience=0.6,
    transaction_patience=0.6,
    backoff_min=0.01,
    backoff_max=0.05,
    held_bytes=2000,
)
NODES = {node: Node(node, f"source{node}", 9092, None) for node in (1, 2)}
REAL = {node: Node(node, f"target{node}", 9092, None) for node in (11, 12)}
PARTITIONS = {"orders": 3, "bills": 2}
TPS = [TopicPartition(topic, index) for topic, count in PARTITIONS.items() for index in range(count)]
# Of the source, as often as they stand here.
CODES = [0] * 14 + [6, 6, 3, 2, 87, 45, 45, 46, 29, 7, 19, 100, 35]


class Link:
    """A connection to a node of the source, or of the target (SourceConnectionLike and its channel)."""

    def __init__(self, world: World, node: Node, versions: tuple[int, int] | None) -> None:
        self.world = world
        self.node = node
        self.number = len(world.links)
        self.versions = versions
        self.closed = False
        self.expires_at: float | None = None
        self.renew_at: float | None = None
        self.owed: deque[tuple[bytes, Callable[[memoryview | WireError], None]]] = deque()
        self._correlation_id = 0
        self._on_close: list[Callable[[], None]] = []

    @property
    def channel(self) -> Link:
        return self

    def next_correlation_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    def api_range(self, api: str) -> tuple[int, int] | None:
        return self.versions

    def add_close_callback(self, callback: Callable[[], None]) -> None:
        self._on_close.append(callback)

    def send(self, correlation_id: int, buffers: Iterable[Any], on_reply: Callable[..., None]) -> None:
        if self.closed:
            raise ConnectionLost("closed", sent=False)
        frame = b"".join(buffers)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        self.world.note("sent", self.number, self.node.host, frame)
        self.owed.append((frame, on_reply))

    def close(self, reason: WireError | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        self.world.note("closed", self.number, type(reason).__name__)
        while self.owed:
            self.owed.popleft()[1](reason or ConnectionLost("closed", sent=True))
        for callback in self._on_close:
            callback()


class Cluster:
    """The source, or the target's real brokers (SourceCluster). What it knows changes with the next refresh."""

    def __init__(self, world: World, nodes: dict[int, Node]) -> None:
        self.world = world
        self.nodes = dict(nodes)
        self.leaders = {tp: min(nodes) + i % 2 for i, tp in enumerate(TPS)}
        self.ids = {topic: topic.encode().ljust(16, b"s") for topic in PARTITIONS}
        self.versions: dict[int, tuple[int, int] | None] = dict.fromkeys(nodes, (3, 13))
        self.topics: dict[str, TopicMetadata] = {}
        self.look()

    def look(self) -> None:
        for topic, count in PARTITIONS.items():
            parts = {
                i: PartitionMetadata(self.leaders[TopicPartition(topic, i)], 1, (1, 2), (1, 2))
                for i in range(count)
            }
            self.topics[topic] = TopicMetadata(topic, self.ids[topic], 0, parts)

    async def refresh(self, topics: Iterable[str] | None = None, *, timeout: float) -> None:
        self.look()

    async def open_connection(self, node: Node) -> Link:
        if self.versions[node.id] is None:
            raise RequestTimedOut("nobody is there", sent=False)
        link = Link(self.world, node, self.versions[node.id])
        self.world.links.append(link)
        return link


class Rights:
    """The authorizer of one client: a right that is not known is known with the next answer."""

    def __init__(self) -> None:
        self.known: dict[str, bool] = dict.fromkeys(PARTITIONS, True)
        self.waiting: list[Callable[[], None]] = []

    def allowed(self, topic: str, operation: AclRight) -> bool | None:
        return self.known.get(topic)

    def ask(self, topic: str, callback: Callable[[], None] | None = None) -> None:
        if callback is not None and callback not in self.waiting:
            self.waiting.append(callback)

    def strange_known(self, topics: Iterable[str], callback: Callable[[], None]) -> bool:
        return True

    def may_hear_of(self, topic: str, operation: AclRight) -> bool | None:
        return True

    def answer(self, allowed: bool) -> None:
        self.known = dict.fromkeys(PARTITIONS, allowed) | {k: v for k, v in self.known.items() if v}
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class Client:
    """One client connection, as the router sees it (ServerConnection), and its producer."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.peer = f"client {number}"
        self.listener = SimpleNamespace(name="CLIENTS")
        self.closed = False
        self.producer = (-1, -1) if number % 3 == 2 else (100 + number, 0)
        self.sequences = dict.fromkeys(TPS, 0)
        self.client_id: str | None = "app"
        self.version = 13
        self.correlation_id = 0
        self.open: deque[Exchange] = deque()
        self.rights = Rights()
        self.session = ProduceSession(world.hub, cast(Any, self), cast(Any, self.rights))

    def __hash__(self) -> int:
        return self.number  # not the address: the order of a set is to be the same in both worlds

    def pause_reading(self) -> None:
        self.world.note("paused", self.number)

    def resume_reading(self) -> None:
        self.world.note("resumed", self.number)

    def _flush(self) -> None:
        while self.open and self.open[0].done:
            exchange = self.open.popleft()
            self.world.note("told", self.number, b"".join(exchange._answer))

    def abort(self, error: WireError) -> None:
        self.world.note("aborted", self.number, str(error))
        self.leave()

    def leave(self) -> None:
        self.closed = True
        self.world.clients = [one for one in self.world.clients if one is not self]
        self.session.closed()

    def request(self, rng: Random) -> bytes:
        world, self.correlation_id = self.world, self.correlation_id + 1
        tps = sorted(rng.sample(TPS, rng.choice([1, 1, 1, 2, 3])), key=lambda tp: tp.topic)
        transactional = rng.random() < 0.03
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for tp in tps:
            sequence = self.sequences[tp]
            if rng.random() < 0.15:
                sequence = max(0, sequence + rng.choice([-2, -1, 1]))
            self.sequences[tp] = max(self.sequences[tp], sequence + 1)
            batch = build_batch(
                rng.choice([1, 1, 3]),
                producer_id=self.producer[0],
                producer_epoch=self.producer[1],
                base_sequence=sequence if self.producer[0] >= 0 else -1,
                transactional=transactional,
                value_size=rng.choice([1, 10, 300]),
            )
            if rng.random() < 0.02:
                batch = rng.choice([b"x", batch[:16] + b"\1" + batch[17:]])
            topics.setdefault(tp.topic, []).append((tp.partition, batch))
        if rng.random() < 0.02:  # one is named twice
            next(iter(topics.values())).append(next(iter(topics.values()))[0])
        if rng.random() < 0.02:  # a partition that there is not
            next(iter(topics.values())).append((9, b"x" * 70))
        acks = rng.choice([-1] * 12 + [1, 1, 0])
        timeout = rng.choice([100, 400, 30_000, 30_000])
        if self.version < 9:
            data = [
                {"name": name, "partition_data": [{"index": i, "records": r} for i, r in parts]}
                for name, parts in topics.items()
            ]
            fields = {"transactional_id": None, "acks": acks, "timeout_ms": timeout, "topic_data": data}
            return codec.encode_request(
                "produce", 8, fields, correlation_id=self.correlation_id, client_id=self.client_id
            )
        keyed = [
            (world.topic_ids[name] if self.version >= 13 else name, parts) for name, parts in topics.items()
        ]
        buffers = encode_produce_request(
            self.version, self.correlation_id, self.client_id, None, acks, timeout, keyed
        )
        return b"".join(buffers)[4:]


class World:
    """Everything that the decision to forward depends on, and what came of it, event by event (`trace`)."""

    def __init__(self) -> None:
        self.trace: list[Any] = []
        self.links: list[Link] = []
        self.lease = ScriptedLease()
        self.directory = Directory()
        self.events = Events()
        self.source, self.target = Cluster(self, NODES), Cluster(self, REAL)
        self.topic_ids = {topic: topic.encode().ljust(16, b"t") for topic in PARTITIONS}
        self.image = ClusterImage()
        for topic, count in PARTITIONS.items():
            self.bind(topic)
            images = {i: Rig.partition_image(i, LINK_BROKER, E0) for i in range(count)}
            made = TopicImage(self.topic_ids[topic], topic, images)
            self.image.topics_by_id[made.id] = self.image.topics_by_name[topic] = made
        for node in REAL.values():
            at = {"CLIENTS": Endpoint(node.host, node.port, 0)}
            self.image.brokers[node.id] = BrokerImage(node.id, 1, bytes(16), None, at, False, False, ())
        ports = RouterPorts(
            broker_id=LINK_BROKER,
            mirrors=cast(Any, self.directory),
            image=lambda: self.image,
            source=lambda link: cast(Any, self.source),
            target=lambda: cast(Any, self.target),
            local_log=lambda tp: None,
            followers=cast(Any, None),
            open_upstream=cast(Any, None),
            events=self.events,
            link_brokers=lambda: frozenset({LINK_BROKER}),
            lease=self.lease,
        )
        self.stats = RouterStats()
        self.tasks = TaskKeeper()
        self.hub = ForwardingHub(ports, LIMITS, self.stats, self.tasks)
        self.clients: list[Client] = []
        self.joined = 0
        for _ in range(3):
            self.join()
        self.offset = 0

    def note(self, *what: object) -> None:
        self.trace.append(what)

    def join(self) -> None:
        self.clients.append(Client(self, self.joined))
        self.joined += 1

    def bind(self, topic: str) -> None:
        self.directory.mirrors[topic] = MirrorTopic(
            topic,
            self.topic_ids[topic],
            self.source.ids[topic],
            {i: Partition() for i in range(PARTITIONS[topic])},
        )

    def state(self) -> object:
        hub = self.hub
        return {
            "lanes": {
                tp: sorted(
                    f"{lane.state} {lane.stale} {list(lane.queue)} {list(lane.in_flight)}"
                    for lane in hub.fences.lanes(tp)
                )
                for tp in TPS
            },
            "pending": hub.fences.pending(TPS),
            "forwarded": [str(hub.forwarded.get(tp)) for tp in TPS],
            "waits for the lease": (len(hub.gate), hub.gate.unknown),
            "held": hub.budget.used,
            "not answered": [len(one.session.answers.jobs) for one in self.clients],
            "stats": str(
                replace(self.stats, links=None, produce_latency=sum(self.stats.produce_latency.counts))
            ),
            "of links": {name: str(one) for name, one in self.stats.links.items() if one != LinkStats()},
            "refused": list(self.events.refused),
        }

    # What can happen

    def produce(self, rng: Random) -> None:
        client = rng.choice(self.clients)
        for _ in range(rng.choice([1, 1, 2, 4])):
            if client.closed:
                return
            frame = memoryview(client.request(rng))
            header, at = parse_request_header(frame)
            exchange = Exchange(cast(Any, client), header, frame, at)
            client.open.append(exchange)
            client.session.handle(exchange)

    def answer(self, rng: Random) -> None:
        """One request of a connection, or all that it owes."""
        if busy := [link for link in self.links if link.owed]:
            link = rng.choice(busy)
            for _ in range(rng.choice([1, 1, len(link.owed)])):
                if link.owed:
                    self._answer(link, rng)

    def _answer(self, link: Link, rng: Random) -> None:
        frame, on_reply = link.owed.popleft()
        header, at = parse_request_header(memoryview(frame)[4:])
        request = parse_produce_request(memoryview(frame)[4:], at, header.api_version)
        usual = rng.random() < 0.7
        topics = []
        for key, parts in request.topics:
            results = []
            for index, _ in parts:
                self.offset += 1
                code = 0 if usual else rng.choice(CODES)
                told = ProduceResult(index, code, self.offset if code == 0 else -1, -1, rng.choice([0, 0, 5]))
                if not usual and rng.random() < 0.3:
                    told.current_leader = (2, 7)
                if code and rng.random() < 0.3:
                    told.error_message, told.record_errors = "no", [(0, "bad")]
                results.append(told)
            topics.append((key, results))
        if not usual and rng.random() < 0.5:
            topics.reverse()
        if not usual and rng.random() < 0.1:
            topics = topics[1:]
        throttle = rng.choice([0, 0, 0, 30])
        reply = b"".join(
            encode_produce_response(header.api_version, header.correlation_id, topics, throttle_ms=throttle)
        )[4:]
        if rng.random() < 0.01:
            reply = reply[:-3]
        on_reply(memoryview(reply))

    def answer_all(self, rng: Random) -> None:
        for link in list(self.links):
            while link.owed:
                self._answer(link, rng)

    def cut_connection(self, rng: Random) -> None:
        if found := [link for link in self.links if not link.closed]:
            rng.choice(found).close(rng.choice([None, ConnectionLost("reset", sent=True)]))

    def login_ends(self, rng: Random) -> None:
        """And the sweep that opens another connection runs: the fast path leaves that to it, the other one does not wait."""
        served = self.source.versions
        if found := [link for link in self.links if not link.closed and served.get(link.node.id)]:
            link, now = rng.choice(found), self.hub.loop.time()
            link.renew_at, link.expires_at = now, now + rng.choice([-1, 0.3, 5])
            for client in list(self.clients):
                client.session.sweep(now)

    def versions(self, rng: Random) -> None:
        """Of a node, by its next connection."""
        self.source.versions[rng.choice(list(NODES))] = rng.choice(
            [(3, 13), (3, 13), (3, 12), (0, 9), (0, 8), None]
        )

    def leader(self, rng: Random) -> None:
        self.source.leaders[rng.choice(TPS)] = rng.choice([1, 2, 1, 2, -1])
        if rng.random() < 0.5:
            self.source.look()

    def partition(self, rng: Random) -> None:
        tp = rng.choice(TPS)
        if mirror := self.directory.mirrors.get(tp.topic):
            state = mirror.partitions[tp.partition]
            state.leading = rng.random() < 0.8
            state.forwarding = rng.random() < 0.6
            state.refusing = None if state.forwarding or rng.random() < 0.5 else "the mirror has failed"

    def mirror(self, rng: Random) -> None:
        """Another object in its place."""
        topic = rng.choice(list(PARTITIONS))
        mirrors = self.directory.mirrors
        what = rng.choice(["gone", "another id", "no id", "another link", "same"])
        if topic not in mirrors:
            self.bind(topic)
        elif what == "gone":
            del mirrors[topic]
        elif what == "another link":
            mirrors[topic] = replace(mirrors[topic], link=rng.choice(["east", "west"]))
        else:
            ids = {"another id": bytes(16), "no id": None}
            mirrors[topic] = replace(
                mirrors[topic], source_topic_id=ids.get(what, mirrors[topic].source_topic_id)
            )

    def heal(self, rng: Random) -> None:
        """As it is most of the time."""
        for topic, count in PARTITIONS.items():
            found = self.directory.mirrors.get(topic)
            if found is None or (found.link, found.source_topic_id) != ("east", self.source.ids[topic]):
                self.bind(topic)  # else what is known of the partitions stays known
            self.directory.mirrors[topic].partitions.update({i: Partition() for i in range(count)})
        self.source.leaders = {tp: 1 + i % 2 for i, tp in enumerate(TPS)}
        self.source.versions = dict.fromkeys(NODES, (3, 13))
        self.source.look()
        for i, tp in enumerate(TPS):
            self.image.topics_by_name[tp.topic].partitions[tp.partition] = Rig.partition_image(
                tp.partition, LINK_BROKER, E0 + i
            )
        for client in list(self.clients):
            client.rights.answer(True)
        self.lease.renew()
        self.hub.lease_renewed()
        self.hub.unfence(TPS)

    def lapse(self, rng: Random) -> None:
        self.lease.lapse()

    def renew(self, rng: Random) -> None:
        self.lease.renew()
        self.hub.lease_renewed()

    def fence(self, rng: Random) -> None:
        self.hub.hold(rng.sample(TPS, rng.choice([1, 2, 5])))

    def give_source_up(self, rng: Random) -> None:
        self.hub.cut(rng.sample(TPS, 2))

    def unfence(self, rng: Random) -> None:
        self.hub.unfence([tp for tp in TPS if rng.random() < 0.7])

    def hand_over(self, rng: Random) -> None:
        tps = rng.sample(TPS, rng.choice([1, 2]))
        self.hub.expect_hand_over(tps)
        self.hub.hold(tps)
        for tp in tps:
            self.image.topics_by_name[tp.topic].partitions[tp.partition] = Rig.partition_image(
                tp.partition, rng.choice(list(REAL)), E0 + 1
            )
        rng.choice([self.hub.carry, self.hub.carry, self.hub.handed_over])(tps)

    def rights(self, rng: Random) -> None:
        client = rng.choice(self.clients)
        if client.rights.waiting:
            client.rights.answer(rng.random() < 0.7)
        else:
            client.rights.known.pop(rng.choice(list(PARTITIONS)), None)

    def client_changes(self, rng: Random) -> None:
        client = rng.choice(self.clients)
        client.version = rng.choice([13, 13, 12, 9, 8])
        client.client_id = rng.choice(["app", "app", "other", None, "c" * 300])
        if client.producer[0] >= 0 and rng.random() < 0.3:
            client.producer = (client.producer[0], client.producer[1] + 1)
            client.sequences = dict.fromkeys(TPS, 0)

    def client_goes(self, rng: Random) -> None:
        rng.choice(self.clients).leave()

    def end(self) -> None:
        for client in list(self.clients):
            client.leave()
        for link in self.links:
            link.close()
        self.hub.close()


#: Seconds behind each event: connections open, leaders are found, deadlines pass.
TIMES = [0.0] * 6 + [0.02, 0.02, 0.15, 0.5, 1.5]
EVENTS = {
    World.produce: 50,
    World.answer: 25,
    World.answer_all: 30,
    World.heal: 15,
    World.cut_connection: 1,
    World.login_ends: 1,
    World.versions: 1,
    World.leader: 2,
    World.partition: 4,
    World.mirror: 1,
    World.lapse: 1,
    World.renew: 1,
    World.fence: 2,
    World.give_source_up: 1,
    World.unfence: 1,
    World.hand_over: 3,
    World.rights: 2,
    World.client_changes: 2,
    World.client_goes: 1,
}


async def story(seed: int, steps: int) -> list[Any]:
    """What was sent and told, and the state, behind each event: [(event, notes, state)]."""
    rng = Random(seed)
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    world = World()
    told: list[Any] = []
    for event in rng.choices(list(EVENTS), list(EVENTS.values()), k=steps):
        own, pause = Random(rng.random()), rng.choice(TIMES)
        while len(world.clients) < 3:
            world.join()
        event(world, own)
        now, world.trace = world.trace, []
        for _ in range(6):
            await asyncio.sleep(0)
        if pause:
            await asyncio.sleep(pause)
        later, world.trace = world.trace, []
        told.append((event.__name__, now, later, world.state()))
    world.end()
    await world.tasks.close()
    told.append(("end", world.trace, [], world.state()))
    assert not errors, errors
    return told
