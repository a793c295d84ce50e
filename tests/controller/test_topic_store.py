"""The topic store on a fake cluster: the contract, lost answers at every step, fencing, the seat."""

from __future__ import annotations

import asyncio
import time

import pytest

import tests.controller.test_store_contract as contract
from controller.operations import Put, Versioned
from fleet.stores.base import ControllerFenced, Seat, Store, StoreError, VersionConflict
from fleet.stores.topic.producer import CommitOutcomeUnknown, NotCommitted, _Attempts
from tests.controller.topic_store_kit import OpenStore, cluster, eventually, me, open_store, store
from tests.fakes.cluster import FakeCluster
from wire.errors import ConnectionLost

__all__ = ["cluster", "open_store", "store"]  # fixtures

globals().update({name: case for name, case in vars(contract).items() if name.startswith("test_")})


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
    async with asyncio.timeout(30):
        await watching
    assert seen == {0, 100}


# --- the seat ---------------------------------------------------------------------------------------------------------


async def test_signs_of_life_keep_the_seat(open_store: OpenStore) -> None:
    # Longer than a machine that stands still may hold them up.
    one, two = await open_store(seat_timeout=3.0), await open_store(seat_timeout=3.0)
    await one.take_seat(me(1))
    await two.seat_changed(None, timeout=25)
    taking = asyncio.create_task(two.take_seat(me(2)))
    await asyncio.sleep(4.5)  # half as long again, and more than a claim needs
    assert not taking.done()
    taking.cancel()


async def test_the_seat_goes_from_one_to_the_next(open_store: OpenStore) -> None:
    one, two = await open_store(seat_timeout=60.0), await open_store(seat_timeout=60.0)
    assert one.seat is None
    first = await one.take_seat(me(1, cluster_id="t"))
    seat = Seat(holder=me(1, cluster_id="t"), epoch=first)
    assert one.seat == seat
    assert await two.seat_changed(None, timeout=25) == seat
    taking = asyncio.create_task(two.take_seat(me(2, cluster_id="t")))
    await asyncio.sleep(0.1)
    assert not taking.done()
    await one.resign()
    second = await asyncio.wait_for(taking, 25)
    assert second > first
    assert "given back" in await one.seat_lost()
    now = await one.seat_changed(seat, timeout=25)
    if now is None:  # the moment between the two
        now = await one.seat_changed(None, timeout=25)
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
    await two.seat_changed(None, timeout=25)
    stuck = cluster.inject("add_partitions_to_txn", drop=True, times=None)
    await eventually(lambda: stuck.hits)  # a sign of life has its turn
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await one.resign()
    async with asyncio.timeout(10):
        assert "given back" in await one.seat_lost()
    cluster.clear_faults()
    async with asyncio.timeout(30):
        second = await two.take_seat(me(2))
        await eventually(lambda: one.seat == Seat(holder=me(2), epoch=second))
        await two.resign()
        assert await one.take_seat(me(1)) > second


async def test_a_silent_holder_loses_the_seat(cluster: FakeCluster, open_store: OpenStore) -> None:
    # A busy machine may hold the second one up for as long as a shorter time.
    one, two = await open_store(seat_timeout=1.5), await open_store(seat_timeout=1.5)
    first = await one.take_seat(me(1))
    await two.seat_changed(None, timeout=25)
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
    assert 1.0 < time.monotonic() - began < 20
    cluster.clear_faults()
    with pytest.raises(StoreError):
        await one.commit([Put("/a", 1, None)], controller_epoch=first)
    async with asyncio.timeout(30):
        assert "another sidecar" in await lost
    await two.commit([Put("/b", 1, None)], controller_epoch=second)


async def test_an_outage_is_not_the_death_of_the_holder(cluster: FakeCluster, open_store: OpenStore) -> None:
    one, two = await open_store(seat_timeout=3.0), await open_store(seat_timeout=3.0)
    first = await one.take_seat(me(1))
    seat = await two.seat_changed(None, timeout=25)
    taking = asyncio.create_task(two.take_seat(me(2)))
    for broker in cluster.brokers.values():
        await broker.stop()
    await asyncio.sleep(4.0)  # longer than a living holder may be silent
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
    await two.seat_changed(None, timeout=25)
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
    assert 1.2 < time.monotonic() - began < 20


async def test_two_fleets_do_not_share_a_topic(open_store: OpenStore) -> None:
    one, two = await open_store(), await open_store()
    await one.take_seat(me(1, cluster_id="t"))
    await one.announce(me(1, cluster_id="t"))
    await two.seat_changed(None, timeout=25)
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
