"""The topic store on real brokers: the contract of all stores, fencing, unknown outcomes, take-over, compaction."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

import tests.controller.test_store_contract as contract
from controller.operations import Delete, Put, Versioned
from fleet.stores.base import Candidate, ControllerFenced, Store, StoreError
from fleet.stores.topic.producer import CommitOutcomeUnknown
from fleet.stores.topic.records import Item, Replay
from fleet.stores.topic.store import TopicStore
from fleet.stores.topic.tail import TopicTail
from lab.clusters.kafka_cluster import KafkaCluster, KafkaClusterSpec
from linker.stores import Location
from linker.stores.copy import copy_store
from tests.real.conftest import QUICK_FENCING
from tests.real.kafka_admin import kafka_admin
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.errors import ConnectionLost
from wire.frames.types import TopicPartition

# Every case of the contract, with the `store` below.
globals().update({name: case for name, case in vars(contract).items() if name.startswith("test_")})

OpenStore = Callable[..., Awaitable[TopicStore]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KafkaCluster]:
    spec = KafkaClusterSpec(
        name="state",
        brokers=3,
        controllers=1,
        properties={**QUICK_FENCING, "log.cleaner.backoff.ms": "300"},
    )
    async with KafkaCluster(spec, tmp_path_factory.mktemp("state")) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="session")
async def open_store(cluster: KafkaCluster, unique_topic: Callable[[str], str]) -> AsyncIterator[OpenStore]:
    """`await open_store()`: another process' view of the test's own topic."""
    topic = unique_topic("state").translate({ord("["): "-", ord("]"): "-"})
    async with AsyncExitStack() as stack:

        async def open_one(**options: Any) -> TopicStore:
            bootstrap = parse_bootstrap_servers(options.pop("bootstrap", cluster.bootstrap))
            store = await TopicStore.open(
                bootstrap, ClientSecurity.plaintext(), **{"topic": topic, "seat_timeout": 2.0, **options}
            )
            stack.push_async_callback(store.close)
            return store

        yield open_one


@pytest_asyncio.fixture(loop_scope="session")
async def store(open_store: OpenStore) -> Store:
    return await open_store()


async def test_a_zombie_is_fenced(open_store: OpenStore) -> None:
    old, new = await open_store(), await open_store()
    first = await old.claim()
    await old.commit([Put("/a", 1, None)], controller_epoch=first)
    second = await new.claim()
    assert second > first
    assert (await new.get("/a")).value == 1
    with pytest.raises(ControllerFenced) as caught:
        await old.commit([Put("/b", "zombie", None)], controller_epoch=first)
    assert (caught.value.epoch, caught.value.current) == (first, second)
    with pytest.raises(ControllerFenced):
        await old.commit([], controller_epoch=first)
    await new.commit([Put("/c", 1, None)], controller_epoch=second)
    third = await open_store()
    assert set(await third.tree("/")) == {"/a", "/c", "/controller_epoch"}
    assert set(await new.tree("/")) == {"/a", "/c", "/controller_epoch"}


def me(number: int) -> Candidate:
    return Candidate(broker_id=number, session=f"s{number}", cluster_id="target")


async def eventually(condition: Callable[[], Any], timeout: float) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come"
        await asyncio.sleep(0.01)
    return found


async def test_another_process_sees_a_commit_soon(open_store: OpenStore) -> None:
    writer, reader = await open_store(), await open_store()
    epoch = await writer.claim()
    worst = 0.0
    for number in range(20):
        await writer.commit([Put(f"/n/{number}", number, None)], controller_epoch=epoch)
        began = time.monotonic()
        while await reader.get(f"/n/{number}") is None:
            assert time.monotonic() - began < 1
            await asyncio.sleep(0.002)
        worst = max(worst, time.monotonic() - began)
        await asyncio.sleep(0.05)
    print(f"seen by another after at most {worst * 1000:.0f} ms")


async def test_commit_latency(open_store: OpenStore, capsys: pytest.CaptureFixture[str]) -> None:
    store = await open_store()
    epoch = await store.claim()
    for what, pause in (("one after the other", 0.0), ("every 50 ms", 0.05)):
        took = []
        for number in range(100):
            began = time.monotonic()
            await store.commit(
                [] if number % 2 else [Put(f"/{pause:g}/{number}", "x" * 300, None)], controller_epoch=epoch
            )
            took.append((time.monotonic() - began) * 1000)
            await asyncio.sleep(pause)
        took.sort()
        with capsys.disabled():
            print(f"\ncommits {what}: p50 {took[50]:.1f} ms, p99 {took[98]:.1f} ms, max {took[-1]:.1f} ms")
        assert took[50] < 1000


async def test_two_candidates_race(open_store: OpenStore) -> None:
    """Every claim is above the one before, and whoever commits holds the newest one at that moment."""
    stores = [await open_store(), await open_store()]
    history: list[tuple[int, int]] = []
    claims: list[int] = []
    unknown: set[int] = set()
    writes = iter(range(10_000))

    async def candidate(index: int) -> None:
        store = stores[index]
        while len(claims) < 20:
            try:
                epoch = await store.claim()
            except StoreError:  # the other one was quicker, in the middle of ours
                await asyncio.sleep(random.random() * 0.1)
                continue
            claims.append(epoch)
            with contextlib.suppress(ControllerFenced):
                for _ in range(3):
                    number = next(writes)
                    try:
                        await store.commit([Put(f"/w/{number}", epoch, None)], controller_epoch=epoch)
                    except ControllerFenced:
                        raise
                    except StoreError:  # fenced, but perhaps after it was done
                        unknown.add(number)
                        break
                    history.append((number, epoch))
            await asyncio.sleep(random.random() * 0.05)

    await asyncio.gather(candidate(0), candidate(1))
    assert len(set(claims)) == len(claims) >= 20
    last = await open_store()
    written = {int(path.rpartition("/")[2]): node.value for path, node in (await last.tree("/w")).items()}
    sure = {number: epoch for number, epoch in written.items() if number not in unknown}
    assert sure == dict(history), "a refused commit is there, or an acknowledged one is not"
    # In the log's order epochs never go back: nobody wrote after a later claim.
    order = [epoch for _, epoch in await committed_order(last)]
    assert order == sorted(order)
    assert len(set(order)) > 2


async def committed_order(store: TopicStore) -> list[tuple[str, int]]:
    """(path, value) of the committed records below /w, as they stand in the log."""
    found: list[tuple[str, int]] = []

    class Recorder(Replay):
        def _apply(self, offset: int, item: Item) -> None:
            super()._apply(offset, item)
            path = item.key.decode()
            if path.startswith("/w/"):
                found.append((path, self.nodes[path].read().value))

    tail = TopicTail(store._brokers, store._tail._topic_id)
    tail.replay = Recorder(store.topic)
    reading = asyncio.create_task(tail.run())
    await tail.at_end(time.monotonic() + 10)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return found


HOLDER = """
import asyncio, sys
from controller.operations import Put
from fleet.stores.base import Candidate
from fleet.stores.topic.store import TopicStore
from fleet.stores.topic.records import Item, Replay
from fleet.stores.topic.tail import TopicTail
from wire.client.security import ClientSecurity
from wire.client.properties import parse_bootstrap_servers
from wire.frames.types import TopicPartition

async def main():
    store = await TopicStore.open(
        parse_bootstrap_servers(sys.argv[1]), ClientSecurity.plaintext(), topic=sys.argv[2], seat_timeout=2.0
    )
    epoch = await store.take_seat(Candidate(broker_id=1, session="s1", cluster_id="target"))
    await store.commit([Put("/done", 1, None)], controller_epoch=epoch)
    async def hang(deadline):
        print("open", flush=True)
        await asyncio.sleep(60)
    store._producer._end = hang  # everything is written, nothing is committed
    await store.commit([Put("/open", 1, None), Put("/done", 2, 0)], controller_epoch=epoch)

asyncio.run(main())
"""


async def test_a_holder_that_is_killed_in_a_transaction(
    open_store: OpenStore, cluster: KafkaCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    heir = await open_store()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOLDER,
        cluster.bootstrap,
        heir.topic,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"open\n"
        seat = await heir.seat_changed(None, timeout=5)
        assert seat is not None
        assert seat.holder == me(1)
        taking = asyncio.create_task(heir.take_seat(me(2)))
        process.kill()
        killed = time.monotonic()
        async with asyncio.timeout(20):
            epoch = await taking
        took = time.monotonic() - killed
        with capsys.disabled():
            print(f"\nseat taken {took:.2f} s after the kill, with a seat timeout of 2 s")
        assert epoch > seat.epoch
        assert took < 2 * 1.2 + 2
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
    assert (await heir.get("/done")) == Versioned(1, 0)
    assert await heir.get("/open") is None
    await heir.commit([Put("/next", 1, None)], controller_epoch=epoch)
    assert "/open" not in await (await open_store()).tree("/")


async def test_a_resigned_seat_is_taken_at_once(open_store: OpenStore) -> None:
    one, two = await open_store(seat_timeout=6.0), await open_store(seat_timeout=6.0)
    await one.take_seat(me(1))
    await two.seat_changed(None, timeout=5)
    taking = asyncio.create_task(two.take_seat(me(2)))
    await asyncio.sleep(0.5)
    began = time.monotonic()
    await one.resign()
    await taking
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_lost_answer_to_the_commit(open_store: OpenStore, carried_out: bool) -> None:
    store = await open_store(commit_timeout=3.0)
    epoch = await store.claim()
    await store.commit([Put("/a", 1, None)], controller_epoch=epoch)
    ask = store._brokers.ask

    async def loses(address: Any, api: str, fields: Any, deadline: float, **rest: Any) -> Any:
        if api != "end_txn":
            return await ask(address, api, fields, deadline, **rest)
        if carried_out:
            await ask(address, api, fields, deadline, **rest)
        raise ConnectionLost("gone on the way", sent=True)

    store._brokers.ask = loses  # type: ignore[method-assign]
    # The time may also end while the coordinator is looked for once more, and the text tells of that then.
    with pytest.raises(CommitOutcomeUnknown, match="end_txn did not succeed in time"):
        await store.commit([Put("/a", 2, 0)], controller_epoch=epoch)
    store._brokers.ask = ask  # type: ignore[method-assign]
    assert await store.get("/a") == (Versioned(2, 1) if carried_out else Versioned(1, 0))
    await store.commit([Put("/b", 1, None)], controller_epoch=epoch)
    assert await (await open_store()).tree("/") == await store.tree("/")


async def test_brokers_restart_under_commits(
    cluster: KafkaCluster, open_store: OpenStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each broker is killed once, so also the topic's leader and the coordinator: what was acknowledged is there."""
    store = await open_store()
    epoch = await store.claim()
    acknowledged: dict[str, int] = {}
    slowest = 0.0
    unknown = 0
    stop = False

    async def write() -> None:
        nonlocal slowest, unknown
        number = 0
        while not stop:
            number += 1
            began = time.monotonic()
            try:
                await store.commit([Put(f"/n/{number}", number, None)], controller_epoch=epoch)
                acknowledged[f"/n/{number}"] = number
            except ControllerFenced:
                raise
            except StoreError:
                unknown += 1
            slowest = max(slowest, time.monotonic() - began)
            await asyncio.sleep(0.01)

    writing = asyncio.create_task(write())
    for node in cluster.brokers:
        await asyncio.sleep(0.5)
        await node.kill()
        await asyncio.sleep(1.0)
        await node.start()
    before = len(acknowledged)
    await eventually(lambda: len(acknowledged) > before + 5 or writing.done(), 40)
    stop = True
    await writing
    with capsys.disabled():
        print(f"\n{len(acknowledged)} commits, {unknown} unknown, the slowest took {slowest:.1f} s")
    found = await store.tree("/n")
    assert acknowledged.keys() <= found.keys()
    assert len(found) <= len(acknowledged) + unknown
    other = await open_store()
    await other.claim()
    assert await other.tree("/n") == found


async def test_compaction(cluster: KafkaCluster, open_store: OpenStore) -> None:
    store = await open_store()
    epoch = await store.claim()
    await alter_topic(
        cluster,
        store.topic,
        {
            "segment.bytes": "1048576",
            "segment.ms": "500",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "0",
        },
    )
    await store.commit([Put("/kept", "once", None), Put("/gone", 1, None)], controller_epoch=epoch)
    await store.commit([Delete("/gone", 0)], controller_epoch=epoch)
    value = os.urandom(50_000).hex()
    for number in range(120):
        await store.commit(
            [Put("/big", f"{value}{number}", number - 1 if number else None)], controller_epoch=epoch
        )
        await asyncio.sleep(0.02)
    partition = TopicPartition(store.topic, 0)
    leader = (await store._brokers.metadata(time.monotonic() + 5)).leader
    node = next(one for one in cluster.brokers if one.port() == leader[1])
    directory = cluster.partition_dir(node.node_id, partition)

    def size() -> int:
        return sum(file.stat().st_size for file in directory.glob("*.log"))

    full = 120 * 100_000
    deadline = time.monotonic() + 60
    while size() > full // 3:
        assert time.monotonic() < deadline, f"the cleaner did not come: {size()} bytes"
        await store.commit([], controller_epoch=epoch)  # rolls the segment
        await asyncio.sleep(0.5)
    await alter_topic(cluster, store.topic, {"delete.retention.ms": "86400000"})
    deadline = time.monotonic() + 30
    while True:
        try:
            again = await open_store()
            break
        except StoreError as error:  # 0 is refused, and the broker that is asked may not know better yet
            assert "delete.retention.ms" in str(error) and time.monotonic() < deadline
            await asyncio.sleep(0.2)
    assert await again.tree("/") == await store.tree("/")
    assert await again.claim() > epoch
    assert (await again.get("/big")) == Versioned(f"{value}119", 119)
    assert (await again.get("/kept")) == Versioned("once", 0)
    assert await again.get("/gone") is None


async def alter_topic(cluster: KafkaCluster, topic: str, configs: dict[str, str]) -> None:
    admin = await asyncio.to_thread(kafka_admin, cluster.bootstrap)
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    futures = admin.incremental_alter_configs([resource])
    await asyncio.to_thread(futures[resource].result, 10)


async def test_the_topic_that_is_made(cluster: KafkaCluster, open_store: OpenStore) -> None:
    store = await open_store(link_brokers=[2])
    admin = await asyncio.to_thread(kafka_admin, cluster.bootstrap)
    metadata = await asyncio.to_thread(admin.list_topics, store.topic, timeout=10)
    (partition,) = metadata.topics[store.topic].partitions.values()
    assert list(partition.replicas) == [1, 3]
    futures = admin.describe_configs([ConfigResource(ResourceType.TOPIC, store.topic)])
    (future,) = futures.values()
    configs = await asyncio.to_thread(future.result, 10)
    assert (configs["cleanup.policy"].value, configs["min.insync.replicas"].value) == ("compact", "1")


async def test_copy_to_the_topic_and_back(cluster: KafkaCluster, tmp_path: Path, unique_topic: Any) -> None:
    state: dict[str, Any] = {f"/links/a/mirrors/t{i}": {"x": "y" * 500} for i in range(500)}
    state["/sidecars/identities/2"] = {"incarnation_id": "x"}
    name = unique_topic("copy")
    sqlite, topic = (
        Location.parse(f"sqlite:{tmp_path}/a.db"),
        Location.parse(f"topic:{cluster.bootstrap}/{name}"),
    )
    store = await sqlite.open()
    epoch = await store.claim()
    await store.commit([Put(path, value, None) for path, value in state.items()], controller_epoch=epoch)
    await store.close()
    assert (await copy_store(sqlite, topic)).nodes == len(state)
    admin = await asyncio.to_thread(kafka_admin, cluster.bootstrap)
    metadata = await asyncio.to_thread(admin.list_topics, name, timeout=10)
    (partition,) = metadata.topics[name].partitions.values()
    assert sorted(partition.replicas) == [1, 3], "the broker of a sidecar that has just ended gets none"
    result = await copy_store(topic, Location.parse(f"sqlite:{tmp_path}/b.db"))
    assert (result.nodes, result.controller_epoch > epoch) == (len(state), True)


async def test_an_older_target(start_cluster: Callable[..., Awaitable[KafkaCluster]]) -> None:
    """Kafka 3.9 knows transactions V1 only."""
    cluster = await start_cluster(name="old", version="3.9.1")
    bootstrap = parse_bootstrap_servers(cluster.bootstrap)
    one, two = [await TopicStore.open(bootstrap, ClientSecurity.plaintext()) for _ in range(2)]
    try:
        first = await one.claim()
        for number in range(5):
            await one.commit([Put(f"/{number}", number, None)], controller_epoch=first)
        second = await two.claim()
        with pytest.raises(ControllerFenced):
            await one.commit([], controller_epoch=first)
        await two.commit([Put("/5", 5, None)], controller_epoch=second)
        assert len(await two.tree("/")) == 7
    finally:
        await one.close()
        await two.close()
