"""The topic store: what is in its topic, garbage and aborted transactions included, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from controller.errors import CorruptState
from controller.operations import Delete, Put, Versioned
from fleet.stores.base import StoreError, StoreTooNew
from fleet.stores.topic.admin import spread
from fleet.stores.topic.store import TopicStore
from tests.controller.topic_store_kit import TOPIC, OpenStore, cluster, eventually, me, open_store, store
from tests.fakes.batches import build_batch
from tests.fakes.cluster import FakeCluster
from tests.fakes.transactions import FakeCoordinator
from wire.client.security import ClientSecurity

__all__ = ["cluster", "open_store", "store"]  # fixtures


def committed(cluster: FakeCluster, *records: tuple[bytes, bytes | None]) -> int:
    """Somebody's transaction; the offset of its first record."""
    offset = cluster.add(TOPIC, records=list(records), producer_id=7, producer_epoch=0, transactional=True)
    log = cluster.partition(TOPIC).log
    log.end_transaction(7, 0, commit=True)
    cluster.notify()
    return offset


def envelope(value: object, **fields: object) -> bytes:
    return json.dumps({"format": 1, "version": 0, "value": value, **fields}).encode()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"/a", b"not json"),
        (b"/a", b"[]"),
        (b"/a", b"{}"),
        (b"/a", b'{"format":1,"version":-1,"value":1}'),
        (b"/a", b'{"format":1,"version":0}'),
        (b"/a", b'{"format":true,"version":0,"value":1}'),
        (b"no path", envelope(1)),
        (b"\xff\xfe", envelope(1)),
        (b"", envelope(1)),
        (b"/controller_epoch", envelope("high")),
        (b"/controller", envelope({"epoch": 1})),
        (b"/controller", envelope(5)),
        (b"/a", b"[" * 100_000),
    ],
)
async def test_garbage_is_named_and_can_be_mended(
    cluster: FakeCluster, open_store: OpenStore, key: bytes, value: bytes
) -> None:
    store = await open_store()
    epoch = await store.claim()
    await store.commit([Put("/b", 1, None)], controller_epoch=epoch)
    offset = committed(cluster, (key, value))
    await eventually(lambda: store._tail.replay.bad)
    for work in (store.get("/b"), store.claim(), store.commit([], controller_epoch=epoch)):
        with pytest.raises(CorruptState, match=f"offset {offset}"):
            await work
    with pytest.raises(CorruptState):
        await (await open_store()).tree("/")
    cluster.add(TOPIC, records=[(key, None)])  # a tombstone by kafka-console-producer
    await eventually(lambda: not store._tail.replay.bad)
    assert await store.get("/b") == Versioned(1, 0)


async def test_what_was_not_written_by_us(cluster: FakeCluster, open_store: OpenStore) -> None:
    store = await open_store()
    epoch = await store.claim()
    await store.commit([Put("/a", 1, None)], controller_epoch=epoch)
    cluster.add(TOPIC, records=[(b"/a", None)])  # plain, and not garbage: must not delete a node
    await eventually(lambda: store._tail.replay.bad)
    with pytest.raises(CorruptState, match="not written by a link controller"):
        await store.get("/a")


async def test_a_newer_format(cluster: FakeCluster, open_store: OpenStore) -> None:
    store = await open_store()
    committed(cluster, (b"/a", envelope(1, format=2)))
    await eventually(lambda: store._tail.replay.bad)
    with pytest.raises(StoreTooNew):
        await store.tree("/")


async def test_lost_records_are_not_survived(cluster: FakeCluster, open_store: OpenStore) -> None:
    store = await open_store()
    epoch = await store.claim()
    await store.commit([Put("/a", 1, None)], controller_epoch=epoch)
    await eventually(lambda: "/a" in store._tail.replay.nodes)
    cluster.recreate_topic(TOPIC)
    await eventually(lambda: store._tail.failed)
    with pytest.raises(CorruptState):
        await store.commit([Put("/b", 1, None)], controller_epoch=epoch)


@pytest.mark.parametrize("configs", [{"cleanup.policy": "delete"}, {"cleanup.policy": "compact,delete"}, {}])
async def test_a_topic_that_deletes_is_refused(
    cluster: FakeCluster, open_store: OpenStore, configs: dict[str, str]
) -> None:
    cluster.add_topic("other", configs=configs)
    with pytest.raises(StoreError, match=r"cleanup\.policy"):
        await open_store(topic="other")


async def test_a_topic_that_forgets_tombstones_early_is_refused(
    cluster: FakeCluster, open_store: OpenStore
) -> None:
    """A reader that was away goes on where it was for an hour: what it had must not have been deleted and forgotten."""
    cluster.add_topic("other", configs={"cleanup.policy": "compact", "delete.retention.ms": "60000"})
    with pytest.raises(
        StoreError, match=r"delete\.retention\.ms=60000: .* set it to 86400000 \(7200000 at least\)"
    ):
        await open_store(topic="other")
    cluster.topics["other"].configs["delete.retention.ms"] = "7200000"
    await open_store(topic="other")


@pytest.mark.parametrize(
    ("replicas", "least", "warned"), [(3, "1", True), (3, "2", False), (2, "1", False), (1, "1", False)]
)
async def test_a_topic_whose_commits_one_broker_may_have_alone_is_warned_of(
    cluster: FakeCluster,
    open_store: OpenStore,
    caplog: pytest.LogCaptureFixture,
    replicas: int,
    least: str,
    warned: bool,
) -> None:
    configs = {"cleanup.policy": "compact", "min.insync.replicas": least}
    cluster.add_topic("other", replication_factor=replicas, configs=configs)
    await open_store(topic="other")
    assert ("has 3 replicas and min.insync.replicas=1" in caplog.text) is warned


async def test_a_topic_with_two_partitions_is_refused(cluster: FakeCluster, open_store: OpenStore) -> None:
    cluster.add_topic("other", 2, configs={"cleanup.policy": "compact"})
    with pytest.raises(StoreError, match="2 partitions"):
        await open_store(topic="other")


async def test_nobody_answers(cluster: FakeCluster, open_store: OpenStore) -> None:
    for broker in cluster.brokers.values():
        await broker.stop()
    with pytest.raises(StoreError, match=r"no broker answers.*target.bootstrap.servers"):
        await open_store(timeout=0.5)


async def test_a_missing_right_is_named(cluster: FakeCluster, open_store: OpenStore) -> None:
    store = await open_store()
    cluster.inject("init_producer_id", error=53)
    with pytest.raises(StoreError, match="WRITE and DESCRIBE on transactional id kafka-linker-state"):
        await store.claim()
    cluster.inject("init_producer_id", error=53)
    with pytest.raises(StoreError, match="transactional id"):
        await store.take_seat(me())


async def test_aborted_transactions_are_not_seen(cluster: FakeCluster, open_store: OpenStore) -> None:
    log = cluster.partition(TOPIC).log
    committed(cluster, (b"/a", envelope("committed")))
    for value in ("aborted", "again"):
        cluster.add(
            TOPIC, records=[(b"/a", envelope(value))], producer_id=8, producer_epoch=0, transactional=True
        )
        log.end_transaction(8, 0, commit=False)
    store = await open_store()
    assert await store.get("/a") == Versioned("committed", 0)


def test_an_aborted_transaction_whose_marker_is_gone() -> None:
    from fleet.stores.topic.records import Aborted, Replay

    def data(name: bytes, producer_id: int, offset: int) -> bytes:
        return build_batch(
            [(name, envelope(1))],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            base_offset=offset,
            transactional=True,
        )

    replay = Replay("t")
    replay.feed(data(b"/a", 1, 5) + data(b"/b", 2, 6), [Aborted(1, 5)], 7)
    assert (set(replay.nodes), replay.position, replay.commits) == ({"/b"}, 7, 1)
    replay.feed(data(b"/c", 1, 7), [], 9)  # the rest of it, or its marker, is to come
    assert set(replay.nodes) == {"/b"}
    replay.feed(b"", [], 8)
    assert set(replay.nodes) == {"/b", "/c"}


def test_batches_are_as_kafka_wants_them() -> None:
    from fleet.stores.topic.records import Item
    from fleet.stores.topic.records import build_batch as ours

    items = [Item(b"/a", b"v" * 300), Item(b"/b", None)]
    made = ours(items, producer_id=7, producer_epoch=3, base_sequence=9, timestamp=1_700_000_000_000)
    plain = bytearray(
        build_batch(items, producer_id=7, producer_epoch=3, base_sequence=9, transactional=True)
    )
    plain[12:16] = b"\xff\xff\xff\xff"  # the leader epoch: outside the CRC, and the broker's business
    assert made == bytes(plain)


async def test_versions_and_deletes_survive(open_store: OpenStore) -> None:
    store = await open_store()
    epoch = await store.claim()
    await store.commit([Put("/a", 1, None), Put("/b", 1, None)], controller_epoch=epoch)
    await store.commit([Put("/a", 2, 0), Delete("/b", 0)], controller_epoch=epoch)
    again = await open_store()
    await again.claim()
    assert set(await again.tree("/")) == {"/a", "/controller_epoch"}
    assert await again.get("/a") == Versioned(2, 1)


async def test_sasl() -> None:
    async with FakeCluster(nodes=2, sasl_users={"linker": "secret"}) as cluster:
        cluster.add_topic(TOPIC, configs={"cleanup.policy": "compact"})
        FakeCoordinator(cluster)
        properties = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "linker",
            "sasl.password": "secret",
        }
        security = ClientSecurity.from_properties(properties)
        store = await TopicStore.open(cluster.bootstrap, security, topic=TOPIC)
        epoch = await store.claim()
        await store.commit([Put("/a", 1, None)], controller_epoch=epoch)
        await store.close()
        wrong = ClientSecurity.from_properties({**properties, "sasl.password": "wrong"})
        began = time.monotonic()
        with pytest.raises(StoreError, match=r"state topic state: .*SASL"):
            await TopicStore.open(cluster.bootstrap, wrong, topic=TOPIC)
        assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("racks", "order"),
    [
        ({3: None, 1: None, 2: None}, [1, 2, 3]),
        ({1: "a", 2: "a", 3: "b", 4: "c", 5: "c"}, [1, 3, 4, 2, 5]),
        ({1: "a", 2: "a", 3: None}, [1, 3, 2]),
        ({}, []),
    ],
)
def test_replicas_of_a_copied_state_are_spread_over_the_racks(
    racks: dict[int, str | None], order: list[int]
) -> None:
    assert spread(racks) == order


async def test_the_topic_is_read_anew_after_a_long_absence(
    cluster: FakeCluster, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tombstones that came and went meanwhile are missed otherwise."""
    monkeypatch.setattr("fleet.stores.topic.tail.START_AGAIN_AFTER", 0.4)
    store = await open_store()
    epoch = await store.claim()
    await store.commit([Put("/a", 1, None), Put("/b", "x" * 10_000, None)], controller_epoch=epoch)
    other = await open_store()
    for broker in cluster.brokers.values():
        await broker.stop()
    log = cluster.partition(TOPIC).log
    await asyncio.sleep(0.6)
    # /a was deleted, and the cleaner has taken its records and the tombstone.
    for stored in log.batches:
        if b"/a" in stored.data and not stored.info.is_control:
            log.batches.remove(stored)
            break
    committed(cluster, (b"/b", envelope("again")))
    for broker in cluster.brokers.values():
        await broker.start()
    seen: set[object] = set()

    async def moved_on() -> bool:
        tree = await other.tree("/")
        seen.add("/b" in tree)
        return "/a" not in tree

    deadline = time.monotonic() + 30
    while not await moved_on():
        assert time.monotonic() < deadline
        await asyncio.sleep(0)
    assert seen == {True}, "half of the topic was shown"
    assert await other.get("/b") == Versioned("again", 0)
