"""Two clusters that mirror each other, each with a sidecar: both directions under load, and nothing goes in a ring."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from admin.models import LinkStatus, MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import CommandError, SidecarProcess
from wire.together import together_by_key

pytestmark = pytest.mark.timeout(420)
PATIENCE = 120.0

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


def make(cluster: KafkaCluster, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        made.result(60)


class Load:
    """An idempotent producer at a cluster that writes numbers to a topic until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.acknowledged: set[bytes] = set()
        self.errors: list[Any] = []
        self._name = f"{bootstrap}-{id(self)}"
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self._stopped = False
        self._task = asyncio.create_task(asyncio.to_thread(self._run))

    def _run(self) -> None:
        number = 0
        while not self._stopped:
            value = f"{self._name}-{number}".encode()
            self._producer.produce(self.topic, value, on_delivery=self._answered)
            number += 1
            self._producer.poll(0)
            time.sleep(0.001)
        self._producer.flush(60)

    def _answered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.add(bytes(message.value()))
        else:
            self.errors.append(error)

    async def stop(self) -> None:
        self._stopped = True
        await self._task
        assert self.errors == []


def values(bootstrap: str, topic: str) -> list[bytes]:
    """All of a topic's records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    found: list[bytes] = []
    ends = {}
    for index in range(2):
        tp = TopicPartition(topic, index, 0)
        ends[index] = consumer.get_watermark_offsets(tp, timeout=30)[1]
    for index, end in ends.items():
        consumer.assign([TopicPartition(topic, index, 0)])
        position, deadline = 0, time.monotonic() + 60
        while position < end:
            assert time.monotonic() < deadline, (topic, index, position, end)
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append(bytes(message.value()))
                position = message.offset() + 1
    consumer.close()
    return found


class Pair:
    """Clusters west and east; the sidecar of each mirrors from the other, by a link that has the other's name."""

    def __init__(self, clusters: dict[str, KafkaCluster], sidecars: dict[str, SidecarProcess]) -> None:
        self.clusters, self.sidecars = clusters, sidecars

    @staticmethod
    def other(at: str) -> str:
        return "west" if at == "east" else "east"

    async def link(self, at: str, *options: str) -> None:
        source = self.clusters[self.other(at)]
        await self.sidecars[at].linker(
            "link", "create", self.other(at), "--bootstrap-servers", source.bootstrap, *options
        )

    async def status(self, at: str) -> LinkStatus:
        def ask() -> LinkStatus:
            with self.sidecars[at].client() as client:
                return client.status().links[0]

        return await asyncio.to_thread(ask)

    async def left_out(self, at: str) -> set[str]:
        """Topics that a pattern takes and that are not mirrored."""
        return {one.topic for one in (await self.status(at)).not_mirrored}

    async def active(
        self, at: str, topics: Collection[str], *, lag: int | None = 0, forwards: bool = True
    ) -> LinkStatus:
        """Until exactly these are mirrored there, ACTIVE without lag (None: with any), and writes are forwarded."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = await self.status(at)
            done = {
                one.topic
                for one in found.mirror_list
                if one.state is MirrorState.ACTIVE and lag in (None, one.lag)
            }
            all_done = done == {one.topic for one in found.mirror_list} == set(topics)
            if all_done and found.forwarding.enabled is forwards:
                return found
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.3)


@pytest_asyncio.fixture(loop_scope="session")
async def pair(start_cluster: StartCluster, start_sidecar: StartSidecar) -> AsyncIterator[Pair]:
    clusters = await together_by_key({name: start_cluster(name=name, brokers=1) for name in ("west", "east")})
    sidecars = await together_by_key(
        {name: start_sidecar(cluster.bootstrap) for name, cluster in clusters.items()}
    )
    yield Pair(clusters, sidecars)


@pytest.mark.real
@pytest.mark.asyncio(loop_scope="session")
async def test_two_clusters_mirror_each_others_topics_under_load(pair: Pair) -> None:
    make(pair.clusters["west"], "from-west")
    make(pair.clusters["east"], "from-east")
    await pair.link("east")
    await pair.link("west")
    await pair.sidecars["east"].linker("mirror", "create", "--link", "west", "from-west")
    await pair.sidecars["west"].linker("mirror", "create", "--link", "east", "from-east")
    await pair.active("east", ["from-west"])
    await pair.active("west", ["from-east"])
    # Each topic is written at its own cluster, and through the other one's sidecar.
    loads = [
        Load(pair.clusters[at].bootstrap, topic)
        for topic in ("from-west", "from-east")
        for at in ("west", "east")
    ]
    await asyncio.sleep(1)

    # A mirror of the mirror is refused, as a topic and by pattern.
    await pair.sidecars["west"].linker(
        "link", "update", "east", "--option", "topics_refresh_interval_ms=1000"
    )
    for at in ("west", "east"):
        link = pair.other(at)
        await pair.sidecars[at].linker(
            *("link", "update", link, "--option", "topics_include=.*"),
            *("--option", "topics_refresh_interval_ms=1000"),
        )
        with pytest.raises(CommandError, match=r"exists at the target|comes from this cluster"):
            await pair.sidecars[at].linker("mirror", "create", "--link", link, f"from-{at}")
    make(pair.clusters["west"], "later")
    await pair.active("east", ["from-west", "later"])
    await asyncio.sleep(3)  # three looks of each side
    for load in loads:
        await load.stop()
    left_out = {"east": {"from-east"}, "west": {"from-west", "later"}}
    deadline = time.monotonic() + PATIENCE
    while (told := {at: await pair.left_out(at) for at in left_out}) != left_out:
        assert time.monotonic() < deadline, told
        await asyncio.sleep(1)
    await pair.active("east", ["from-west", "later"])
    await pair.active("west", ["from-east"])

    for topic in ("from-west", "from-east"):
        written = set.union(*(load.acknowledged for load in loads if load.topic == topic))
        assert all(load.acknowledged for load in loads)
        for cluster in pair.clusters.values():
            found = values(cluster.bootstrap, topic)
            assert len(found) == len(set(found)), f"{topic} has records twice"
            assert set(found) == written


@pytest.mark.real
@pytest.mark.asyncio(loop_scope="session")
async def test_everything_by_pattern_in_both_directions_ends_after_one_hop(pair: Pair) -> None:
    """Under prefixes each mirror has a name that is free on the other side, and takes no writes."""
    make(pair.clusters["west"], "orders")
    make(pair.clusters["east"], "orders")
    options = ("--option", "topics_include=.*", "--option", "topics_refresh_interval_ms=1000")
    await pair.link("east", *options, "--option", "prefix=w.")
    await pair.link("west", *options, "--option", "prefix=e.")
    await pair.active("east", ["w.orders"], forwards=False)
    await pair.active("west", ["e.orders"], forwards=False)
    for sidecar in pair.sidecars.values():
        await sidecar.restart()
    make(pair.clusters["west"], "later")
    await pair.active("east", ["w.orders", "w.later"], forwards=False)
    told: dict[str, str] = {}
    deadline = time.monotonic() + PATIENCE
    while told.keys() != {"e.orders", "w.orders", "w.later"}:
        assert time.monotonic() < deadline, told
        await asyncio.sleep(1)
        links = [await pair.status(at) for at in ("east", "west")]
        told = {one.topic: one.reason for link in links for one in link.not_mirrored}
    await pair.active("east", ["w.orders", "w.later"], forwards=False)
    await pair.active("west", ["e.orders"], forwards=False)
    assert all("comes from this cluster" in reason for reason in told.values())
    described = await pair.sidecars["east"].linker("mirror", "describe", "--link", "west", "w.orders")
    assert "came through clusters" in described.output
    with pytest.raises(CommandError, match="comes from this cluster"):
        await pair.sidecars["west"].linker("mirror", "create", "--link", "east", "w.orders")
    found = (await pair.sidecars["west"].linker("topology", "-o", "json")).json()
    (cluster,) = found["clusters"]
    assert (cluster["hops"], cluster["answers"], cluster["topics"], cluster["back"]) == (1, True, 1, 2)
    assert [way["clusters"] for way in found["ways"]] == [[cluster["cluster_id"], found["target_cluster_id"]]]
    assert "1 -> here" in (await pair.sidecars["west"].linker("topology")).output


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.asyncio(loop_scope="session")
async def test_one_source_that_is_down_does_not_touch_the_other_link(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    names = ("north", "south", "target")
    sources = await together_by_key({name: start_cluster(name=name, brokers=1) for name in names})
    target = sources.pop("target")
    sidecar = await start_sidecar(target.bootstrap)
    for name, cluster in sources.items():
        make(cluster, f"of-{name}")
        await sidecar.linker("link", "create", name, "--bootstrap-servers", cluster.bootstrap)
        await sidecar.linker("mirror", "create", "--link", name, f"of-{name}")

    async def until(done: Callable[[dict[str, LinkStatus]], bool]) -> dict[str, LinkStatus]:
        def ask() -> dict[str, LinkStatus]:
            with sidecar.client() as client:
                return {link.name: link for link in client.status().links}

        deadline = time.monotonic() + PATIENCE
        while not done(found := await asyncio.to_thread(ask)):
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.3)
        return found

    def well(link: LinkStatus) -> bool:
        return link.state is MirrorState.ACTIVE and link.lag == 0 and link.forwarding.enabled

    await until(lambda links: all(map(well, links.values())))
    through_target, at_source = (
        Load(target.bootstrap, "of-south"),
        Load(sources["south"].bootstrap, "of-south"),
    )
    await sources["north"].brokers[0].kill()
    await until(lambda links: links["north"].state is MirrorState.SOURCE_UNAVAILABLE)
    before = len(through_target.acknowledged)
    await asyncio.sleep(1.5)
    assert len(through_target.acknowledged) > before
    await through_target.stop()
    await at_source.stop()
    found = await until(lambda links: well(links["south"]))
    assert found["north"].state is MirrorState.SOURCE_UNAVAILABLE
    written = through_target.acknowledged | at_source.acknowledged
    copied = values(target.bootstrap, "of-south")
    assert len(copied) == len(written)
    assert set(copied) == written
    await sources["north"].brokers[0].start()
    await until(lambda links: all(map(well, links.values())))


@pytest.mark.real
@pytest.mark.asyncio(loop_scope="session")
async def test_a_topic_does_not_come_back_over_two_other_clusters(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """a -> b -> c, and c -> a is refused; once the topic is b's own, it may come to a."""
    clusters = await together_by_key({name: start_cluster(name=name, brokers=1) for name in "abc"})
    sidecars = await together_by_key(
        {name: start_sidecar(cluster.bootstrap) for name, cluster in clusters.items()}
    )
    make(clusters["a"], "orders")

    async def link(at: str, source: str, *options: str) -> None:
        bootstrap = clusters[source].bootstrap
        await sidecars[at].linker("link", "create", source, "--bootstrap-servers", bootstrap, *options)

    async def upstream(at: str, source: str, topic: str) -> list[str]:
        command = ("mirror", "describe", "--link", source, topic, "-o", "json")
        return list((await sidecars[at].linker(*command)).json()["upstream"])

    async def mirrored(at: str, source: str, topic: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            found = (await sidecars[at].linker("mirror", "list", "--link", source, "-o", "json")).json()
            if any(one["topic"] == topic and one["state"] == "ACTIVE" and one["lag"] == 0 for one in found):
                return
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.5)

    await link("b", "a")
    await sidecars["b"].linker("mirror", "create", "--link", "a", "orders")
    await mirrored("b", "a", "orders")
    await link("c", "b", "--option", "topics_refresh_interval_ms=1000")
    await sidecars["c"].linker("mirror", "create", "--link", "b", "orders")
    await mirrored("c", "b", "orders")
    (a, b) = await upstream("c", "b", "orders")
    assert await upstream("b", "a", "orders") == [a]
    await link("a", "c", "--option", "prefix=c.")
    with pytest.raises(CommandError, match=f"comes from this cluster \\({a} -> {b} -> "):
        await sidecars["a"].linker("mirror", "create", "--link", "c", "orders")

    await sidecars["b"].linker("mirror", "promote", "--link", "a", "orders", "--validation", "skip")
    deadline = time.monotonic() + PATIENCE
    while await upstream("c", "b", "orders") != [b]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.5)
    await sidecars["a"].linker("mirror", "create", "--link", "c", "orders")
    await mirrored("a", "c", "c.orders")
    assert (await upstream("a", "c", "c.orders"))[0] == b
