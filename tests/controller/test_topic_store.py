"""The topic store on a fake cluster: the contract, lost answers at every step, fencing, the seat, bad records."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import tests.controller.test_store_contract as contract
from controller.errors import CorruptState
from controller.operations import Delete, Put, Versioned
from fleet.stores import ControllerFenced, Store, StoreError, StoreTooNew, VersionConflict
from fleet.stores.base import Candidate, Seat
from fleet.stores.topic.admin import spread
from fleet.stores.topic.producer import CommitOutcomeUnknown, NotCommitted, _Attempts
from fleet.stores.topic.store import TopicStore
from tests.fakes.batches import build_batch
from tests.fakes.cluster import FakeCluster
from tests.fakes.transactions import FakeCoordinator
from wire.client.security import ClientSecurity
from wire.errors import ConnectionLost

globals().update({name: case for name, case in vars(contract).items() if name.startswith("test_")})

TOPIC = "state"
OpenStore = Callable[..., Awaitable[TopicStore]]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=3) as cluster:
        cluster.add_topic(TOPIC, configs={"cleanup.policy": "compact"})
        FakeCoordinator(cluster)
        yield cluster
        assert not [error for broker in cluster.brokers.values() for error in broker.errors]


@pytest.fixture
async def open_store(cluster: FakeCluster) -> AsyncIterator[OpenStore]:
    async with AsyncExitStack() as stack:

        async def open_one(**options: Any) -> TopicStore:
            options = {"topic": TOPIC, "seat_timeout": 0.5, "commit_timeout": 3.0, "timeout": 5.0, **options}
            store = await TopicStore.open(cluster.bootstrap, ClientSecurity.plaintext(), **options)
            stack.push_async_callback(store.close)
            return store

        yield open_one


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return await open_store()


def me(number: int = 900, **fields: str) -> Candidate:
    return Candidate(broker_id=number, session=f"s{number}", control=f"h{number}:1", **fields)


async def eventually(condition: Callable[[], Any], timeout: float = 3.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return found


# --- unknown outcomes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["add_partitions_to_txn", "produce", "end_txn"])
@pytest.mark.parametrize("process", [True, False], ids=["answer lost", "request lost"])
async def test_one_lost_message_does_no_harm(
    cluster: FakeCluster, open_store: OpenStore, api: str, process: bool
) -> None:
    store = await open_store()
    epoch = await store.claim()
    cluster.inject(api, close_after=0, process=process)
    await store.commit([Put("/a", 1, None)], controller_epoch=epoch)
    await store.commit([Put("/a", 2, 0), Put("/b", 1, None)], controller_epoch=epoch)
    other = await open_store()
    assert await other.tree("/") == await store.tree("/")
    assert await store.get("/a") == Versioned(2, 1)


@pytest.mark.parametrize("code", [-1, 15, 16, 51])
@pytest.mark.parametrize("api", ["init_producer_id", "add_partitions_to_txn", "end_txn"])
@pytest.mark.parametrize("apply", [True, False], ids=["carried out", "not carried out"])
async def test_a_coordinator_in_trouble(
    cluster: FakeCluster, open_store: OpenStore, api: str, code: int, apply: bool
) -> None:
    """Also when it lies: NOT_COORDINATOR may follow a commit that was written."""
    store = await open_store()
    cluster.inject(api, error=code, apply=apply and code != 51)
    epoch = await store.claim()
    cluster.inject(api, error=code, apply=apply and code != 51)
    await store.commit([Put("/a", 1, None)], controller_epoch=epoch)
    await store.commit([Put("/a", 2, 0)], controller_epoch=epoch)
    assert await (await open_store()).tree("/") == await store.tree("/")


@pytest.mark.parametrize("committed", [True, False])
async def test_an_unknown_outcome_is_settled(
    cluster: FakeCluster, open_store: OpenStore, committed: bool
) -> None:
    store = await open_store(commit_timeout=1.5)
    epoch = await store.claim()
    await store.commit([Put("/a", 1, None)], controller_epoch=epoch)
    cluster.inject("end_txn", close_after=0, process=committed, times=None)
    with pytest.raises(StoreError) as caught:
        await store.commit([Put("/a", 2, 0)], controller_epoch=epoch)
    assert not isinstance(caught.value, (ControllerFenced, VersionConflict))
    cluster.clear_faults()
    # The next operation knows: by a read, and by the versions that a commit meets.
    assert await store.get("/a") == (Versioned(2, 1) if committed else Versioned(1, 0))
    await store.commit([Put("/a", 3, 1 if committed else 0)], controller_epoch=epoch)
    assert await (await open_store()).get("/a") == await store.get("/a")


async def test_a_last_attempt_that_had_no_time_does_not_hide_the_cause() -> None:
    attempts = _Attempts("end_txn", time.monotonic() + 0.03)
    await attempts.pause(ConnectionLost("b:9092 closed the connection", sent=True), CommitOutcomeUnknown)
    with pytest.raises(CommitOutcomeUnknown) as caught:
        await attempts.pause(ConnectionLost("no time left", sent=False), CommitOutcomeUnknown)
    assert str(caught.value) == (
        "end_txn did not succeed in time: no time left (and before that: b:9092 closed the connection)"
    )
    attempts = _Attempts("end_txn", time.monotonic())
    with pytest.raises(NotCommitted, match=r"^end_txn did not succeed in time: no time left$"):
        await attempts.pause(ConnectionLost("no time left", sent=False), NotCommitted)


async def test_a_late_commit_request_meets_a_new_epoch(cluster: FakeCluster, open_store: OpenStore) -> None:
    """The duplicate of an EndTxn must not commit half of the next transaction."""
    store = await open_store()
    epoch = await store.claim()
    cluster.inject("end_txn", close_after=0)
    await store.commit([Put("/a", 1, None)], controller_epoch=epoch)
    late = cluster.received("end_txn")[-1].entity
    await store.commit([Put("/a", 2, 0)], controller_epoch=epoch)
    sent = cluster.received("end_txn")[-1].entity
    assert sent.producer_epoch > late.producer_epoch


async def test_a_cancelled_commit_is_settled(cluster: FakeCluster, open_store: OpenStore) -> None:
    store = await open_store()
    epoch = await store.claim()
    for api in ("add_partitions_to_txn", "produce", "end_txn"):
        before = await store.get("/a")
        cluster.inject(api, delay_answer=0.3)
        work = asyncio.create_task(
            store.commit([Put("/a", api, None if before is None else before.version)], controller_epoch=epoch)
        )
        await asyncio.sleep(0.15)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        found = await store.get("/a")
        assert (found is not None and found.value == api) == (api == "end_txn")
        assert await (await open_store()).get("/a") == found


async def test_fenced_after_a_lost_answer_is_unknown_not_refused(
    cluster: FakeCluster, open_store: OpenStore
) -> None:
    """ControllerFenced says that nothing was written: here something was."""
    old, new = await open_store(), await open_store()
    first = await old.claim()
    lost = cluster.inject("end_txn", close_after=0)
    epoch = cluster.received("end_txn")[-1].entity.producer_epoch
    cluster.inject("end_txn", delay=0.8, match=lambda entity: entity.producer_epoch == epoch)
    work = asyncio.create_task(old.commit([Put("/a", 1, None)], controller_epoch=first))
    await eventually(lambda: lost.hits)
    await new.claim()
    assert not work.done()
    with pytest.raises(StoreError) as caught:
        await work
    assert not isinstance(caught.value, ControllerFenced)
    assert await new.get("/a") == Versioned(1, 0)
    with pytest.raises(ControllerFenced):
        await old.commit([], controller_epoch=first)


async def test_the_seat_is_claimed_again_after_a_loss(open_store: OpenStore) -> None:
    one, two = await open_store(), await open_store()
    epochs = [await store.claim() for store in (one, two, one, two, two, one)]
    assert epochs == [1, 2, 3, 4, 5, 6]
    await one.commit([Put("/a", 1, None)], controller_epoch=6)


async def test_a_claim_reads_to_the_end(cluster: FakeCluster, open_store: OpenStore) -> None:
    old, new = await open_store(), await open_store()
    first = await old.claim()
    cluster.inject("fetch", delay=1.0, times=None)
    await asyncio.sleep(0.4)  # the readers wait in that delay now
    await old.commit([Put("/a", 1, None)], controller_epoch=first)
    second = await new.claim()
    assert second == first + 1
    assert await new.get("/a") == Versioned(1, 0)


# --- fencing ----------------------------------------------------------------------------------------------------------


async def test_a_claim_waits_for_the_markers_of_the_last_commit(
    cluster: FakeCluster, open_store: OpenStore
) -> None:
    coordinator = cluster.handlers["end_txn"].__self__  # type: ignore[attr-defined]
    old, new = await open_store(), await open_store()
    first = await old.claim()
    coordinator.marker_delay = 0.4
    await old.commit([Put("/a", 1, None)], controller_epoch=first)
    assert await new.get("/a") is None
    await new.claim()
    assert await new.get("/a") == Versioned(1, 0)


async def test_a_zombie_that_settles_does_not_disturb(cluster: FakeCluster, open_store: OpenStore) -> None:
    old, new = await open_store(commit_timeout=1.5), await open_store()
    first = await old.claim()
    cluster.inject("end_txn", close_after=0, process=False, times=None)
    with pytest.raises(StoreError):
        await old.commit([Put("/a", "zombie", None)], controller_epoch=first)
    cluster.clear_faults()
    second = await new.claim()
    asked = cluster.counts["init_producer_id"]
    with pytest.raises(ControllerFenced):
        await old.commit([Put("/a", "zombie", None)], controller_epoch=first)
    assert cluster.counts["init_producer_id"] == asked
    await new.commit([Put("/b", 1, None)], controller_epoch=second)
    assert set(await new.tree("/")) == {"/b", "/controller_epoch"}


async def test_empty_commits_share_a_transaction(cluster: FakeCluster, open_store: OpenStore) -> None:
    store = await open_store()
    epoch = await store.claim()
    cluster.inject("produce", delay=0.1)
    before = cluster.counts["end_txn"]
    await asyncio.gather(*(store.commit([], controller_epoch=epoch) for _ in range(20)))
    assert cluster.counts["end_txn"] - before <= 2
    # One that is called while a proof is under way may not use it.
    cluster.inject("end_txn", delay_answer=0.2)
    first = asyncio.create_task(store.commit([], controller_epoch=epoch))
    await asyncio.sleep(0.1)
    before = cluster.counts["end_txn"]
    await store.commit([], controller_epoch=epoch)
    assert cluster.counts["end_txn"] > before
    await first


async def test_a_commit_before_a_claim(store: Store) -> None:
    with pytest.raises(StoreError, match="claim"):
        await store.commit([], controller_epoch=1)


@pytest.mark.parametrize("path", ["/controller", "/fleet", "/beat"])
async def test_the_stores_own_nodes(store: Store, path: str) -> None:
    epoch = await store.claim()
    with pytest.raises(StoreError, match="the store's own"):
        await store.commit([Put(path, {}, None)], controller_epoch=epoch)


async def test_a_large_commit_is_one_transaction(cluster: FakeCluster, open_store: OpenStore) -> None:
    store, other = await open_store(), await open_store()
    epoch = await store.claim()
    seen: set[int] = set()

    async def watch() -> None:
        while len(seen) < 2:
            seen.add(len(await other.tree("/n")))
            await asyncio.sleep(0)

    before = cluster.counts["produce"]
    watching = asyncio.create_task(watch())
    await store.commit([Put(f"/n/{i}", "x" * 20_000, None) for i in range(100)], controller_epoch=epoch)
    assert cluster.counts["produce"] - before > 3
    async with asyncio.timeout(3):
        await watching
    assert seen == {0, 100}


# --- the seat ---------------------------------------------------------------------------------------------------------


async def test_the_seat_goes_from_one_to_the_next(open_store: OpenStore) -> None:
    one, two = await open_store(), await open_store()
    assert one.seat is None
    first = await one.take_seat(me(1, cluster_id="t"))
    seat = Seat(holder=me(1, cluster_id="t"), epoch=first)
    assert one.seat == seat
    assert await two.seat_changed(None, timeout=3) == seat
    taking = asyncio.create_task(two.take_seat(me(2, cluster_id="t")))
    await asyncio.sleep(1.2)  # twice the timeout: signs of life keep it
    assert not taking.done()
    began = time.monotonic()
    await one.resign()
    second = await taking
    assert time.monotonic() - began < 1
    assert second > first
    assert "given back" in await one.seat_lost()
    now = await one.seat_changed(seat, timeout=3)
    if now is None:  # the moment between the two
        now = await one.seat_changed(None, timeout=3)
    assert now == Seat(holder=me(2, cluster_id="t"), epoch=second)
    with pytest.raises(ControllerFenced):
        await one.commit([Put("/a", 1, None)], controller_epoch=first)
    await one.resign()


async def test_a_seat_that_could_not_be_given_back_in_time_is_not_kept(
    cluster: FakeCluster, open_store: OpenStore
) -> None:
    """The cluster is away just then: whoever gave up waiting does not decide any more, and shall not seem to."""
    one, two = await open_store(commit_timeout=1.5), await open_store()
    await one.take_seat(me(1))
    await two.seat_changed(None, timeout=3)
    stuck = cluster.inject("add_partitions_to_txn", drop=True, times=None)
    await eventually(lambda: stuck.hits)  # a sign of life has its turn
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await one.resign()
    async with asyncio.timeout(1):
        assert "given back" in await one.seat_lost()
    cluster.clear_faults()
    async with asyncio.timeout(5):
        second = await two.take_seat(me(2))
        await eventually(lambda: one.seat == Seat(holder=me(2), epoch=second))
        await two.resign()
        assert await one.take_seat(me(1)) > second


async def test_a_silent_holder_loses_the_seat(cluster: FakeCluster, open_store: OpenStore) -> None:
    # A busy machine may hold the second one up for as long as a shorter time.
    one, two = await open_store(seat_timeout=1.5), await open_store(seat_timeout=1.5)
    first = await one.take_seat(me(1))
    await two.seat_changed(None, timeout=3)
    lost = asyncio.create_task(one.seat_lost())
    # It can neither commit nor beat, and does not know it yet.
    identity = cluster.received("end_txn")[-1].entity.producer_epoch
    cluster.inject(
        "add_partitions_to_txn",
        drop=True,
        times=None,
        match=lambda entity: entity.v3_and_below_producer_epoch <= identity,
    )
    began = time.monotonic()
    second = await two.take_seat(me(2))
    assert second > first
    assert 1.0 < time.monotonic() - began < 5
    cluster.clear_faults()
    with pytest.raises(StoreError):
        await one.commit([Put("/a", 1, None)], controller_epoch=first)
    async with asyncio.timeout(5):
        assert "another sidecar" in await lost
    await two.commit([Put("/b", 1, None)], controller_epoch=second)


async def test_an_outage_is_not_the_death_of_the_holder(cluster: FakeCluster, open_store: OpenStore) -> None:
    one, two = await open_store(seat_timeout=1.5), await open_store(seat_timeout=1.5)
    first = await one.take_seat(me(1))
    seat = await two.seat_changed(None, timeout=3)
    taking = asyncio.create_task(two.take_seat(me(2)))
    for broker in cluster.brokers.values():
        await broker.stop()
    await asyncio.sleep(3.0)
    assert two.seat == seat
    for broker in cluster.brokers.values():
        await broker.start()
    await asyncio.sleep(2.0)
    assert not taking.done()
    await one.commit([], controller_epoch=first)
    taking.cancel()


async def test_silence_is_counted_anew_after_an_outage(cluster: FakeCluster, open_store: OpenStore) -> None:
    """The holder may need a moment longer than we do."""
    one, two = await open_store(seat_timeout=1.5), await open_store(seat_timeout=1.5)
    await one.take_seat(me(1))
    await two.seat_changed(None, timeout=3)
    taking = asyncio.create_task(two.take_seat(me(2)))
    assert one._beating is not None
    one._beating.cancel()
    for broker in cluster.brokers.values():
        await broker.stop()
    await asyncio.sleep(3.0)
    for broker in cluster.brokers.values():
        await broker.start()
    await eventually(lambda: not two._tail.trouble)
    began = time.monotonic()
    await taking
    assert 1.2 < time.monotonic() - began < 4


async def test_two_fleets_do_not_share_a_topic(open_store: OpenStore) -> None:
    one, two = await open_store(), await open_store()
    await one.take_seat(me(1, cluster_id="t"))
    await one.announce(me(1, cluster_id="t"))
    await two.seat_changed(None, timeout=3)
    with pytest.raises(StoreError, match="fleet of cluster t"):
        await two.announce(me(2, cluster_id="other"))
    await one.resign()
    with pytest.raises(StoreError, match="fleet of cluster t"):
        await two.take_seat(me(2, cluster_id="other"))


async def test_a_cancelled_take_seat(open_store: OpenStore) -> None:
    one, two = await open_store(), await open_store()
    await one.take_seat(me(1))
    taking = asyncio.create_task(two.take_seat(me(2)))
    await asyncio.sleep(0.2)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await one.close()
    three = await open_store()
    assert await three.take_seat(me(3)) == 2


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

    deadline = time.monotonic() + 5
    while not await moved_on():
        assert time.monotonic() < deadline
        await asyncio.sleep(0)
    assert seen == {True}, "half of the topic was shown"
    assert await other.get("/b") == Versioned("again", 0)


# --- what is in the topic ---------------------------------------------------------------------------------------------


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
        assert time.monotonic() - began < 5


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
