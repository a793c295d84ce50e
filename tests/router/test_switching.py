"""Clients of partitions that a switch has: they wait, and are never told that the log is empty or ends elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fetcher.progress import UNKNOWN_OFFSET
from router.ports import RouterLimits
from tests.fakes.batches import parse_batches
from tests.router.rig import E0, LINK_BROKER, Log, Producer, Rig, eventually
from tests.router.test_consumer_fetch import fetch
from wire.frames.leader_epochs import LeaderEpochs
from wire.frames.types import TopicPartition
from wire.schema import codec

TP0 = TopicPartition("orders", 0)
HISTORY = LeaderEpochs.of(E0, 20, [(1, 0), (2, 10)])
LATEST, EARLIEST, NOT_LEADER, NOT_ENOUGH_REPLICAS = -1, -2, 6, 19


def taken_log(rig: Rig) -> Log:
    """The copy while TAKEN: it ends where the partition was taken over, and is not fed."""
    log = Log(topic_id=rig.directory.mirrors["orders"].topic_id)
    log.close()
    log.closed = False
    log.follower_fetched(1, 20, 6, 0.0)
    log.follower_fetched(2, 12, 0, 0.0)  # it has not come to the end
    log.follower_fetched(LINK_BROKER, 20, 0, 0.0)
    log.high_watermark, log.last_stable_offset, log.log_start_offset = 20, UNKNOWN_OFFSET, 4
    rig.logs[TP0] = log
    return log


def switch(rig: Rig, *, taken: bool = True, over: bool = False) -> Any:
    partition = rig.directory.mirrors["orders"].partitions[0]
    partition.switching = not over
    partition.taking = not taken
    partition.serving = taken
    partition.epochs = HISTORY if taken else None
    partition.start_offset = 4 if taken else 0
    return partition


def fill(rig: Rig, records: int = 30) -> None:
    for _ in range(records):
        rig.source.add("orders", 0, records=1)


async def list_offsets(connection: Any, timestamp: int, *, isolation: int = 0) -> tuple[int, int, int]:
    answer = await connection.call(
        "list_offsets",
        {
            "replica_id": -1,
            "isolation_level": isolation,
            "topics": [
                {
                    "name": "orders",
                    "partitions": [
                        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
                    ],
                }
            ],
        },
        timeout=5,
        max_version=7,
    )
    part = answer.topics[0].partitions[0]
    return int(part.error_code), int(part.offset), int(part.leader_epoch)


async def epoch_end(connection: Any, epoch: int) -> tuple[int, int, int]:
    answer = await connection.call(
        "offset_for_leader_epoch",
        {
            "replica_id": -1,
            "topics": [
                {
                    "topic": "orders",
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}],
                }
            ],
        },
        timeout=5,
        max_version=4,
    )
    part = answer.topics[0].partitions[0]
    return int(part.error_code), int(part.leader_epoch), int(part.end_offset)


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("offset", [0, 4, 20, 25])
@pytest.mark.parametrize("version", [12, 17])
async def test_a_fetch_waits_and_brings_what_there_is_when_the_switch_is_over(
    taken: bool, offset: int, version: int
) -> None:
    async with Rig() as rig:
        fill(rig)
        log = taken_log(rig) if taken else None
        switch(rig, taken=taken)
        client = await rig.client()
        rig.source.counts.clear()
        empty = await fetch(client, rig, {0: offset}, max_wait_ms=150, version=version)
        part = empty.partitions[0]
        assert (part.error, empty.records()) == (0, b"")
        assert part.high_watermark == (20 if taken else -1)
        waiting = fetch(client, rig, {0: offset}, max_wait_ms=60_000, version=version)
        await asyncio.sleep(0.2)
        assert not waiting.done()
        assert not rig.source.counts["fetch"] and not rig.source.counts["list_offsets"]
        partition = switch(rig, over=True)
        partition.start_offset = 0
        if log is not None:
            log.notify()
        answer = await asyncio.wait_for(waiting, 25)
        assert answer.values()[0][0] == offset
        # Each batch has the epoch that it had in this cluster.
        stamped = {info.base_offset: info.leader_epoch for info in parse_batches(answer.records())}
        assert stamped == {at: HISTORY.at(at) for at in stamped} and len(stamped) == 30 - offset


async def test_offsets_are_those_of_the_take_over() -> None:
    async with Rig() as rig:
        fill(rig)
        taken_log(rig)
        switch(rig)
        client = await rig.client()
        rig.source.counts.clear()
        assert await list_offsets(client, LATEST) == (0, 20, E0)
        assert await list_offsets(client, EARLIEST) == (0, 6, 1)
        assert await epoch_end(client, 1) == (0, 1, 10)
        assert await epoch_end(client, 2) == (0, 2, 20)
        assert await epoch_end(client, E0) == (0, E0, 20)
        assert not rig.source.counts["list_offsets"]


@pytest.mark.parametrize(("timestamp", "isolation"), [(LATEST, 1), (EARLIEST, 0), (1000, 0), (-3, 0)])
async def test_what_only_the_source_can_tell_is_waited_for(
    timestamp: int, isolation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.offsets.SWITCH_PATIENCE", 0.2)
    async with Rig() as rig:
        fill(rig)
        taken_log(rig).followers.clear()  # without one that follows the log's beginning is not known
        switch(rig)
        client = await rig.client()
        rig.source.counts.clear()
        assert await list_offsets(client, timestamp, isolation=isolation) == (NOT_LEADER, -1, -1)
        assert not rig.source.counts["list_offsets"]
        monkeypatch.setattr("router.offsets.SWITCH_PATIENCE", 5.0)
        asked = asyncio.ensure_future(list_offsets(client, timestamp, isolation=isolation))
        await asyncio.sleep(0.1)
        assert not asked.done()
        switch(rig, over=True)
        error, offset, _ = await asyncio.wait_for(asked, 25)
        assert (error, offset >= 0) == (0, True)


async def test_before_it_is_taken_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.offsets.SWITCH_PATIENCE", 0.1)
    async with Rig() as rig:
        switch(rig, taken=False)
        client = await rig.client()
        assert await list_offsets(client, LATEST) == (NOT_LEADER, -1, -1)
        assert (await epoch_end(client, 1))[0] == NOT_LEADER


async def test_epochs_of_the_time_before_are_known_afterwards_too() -> None:
    async with Rig() as rig:
        fill(rig)
        switch(rig, over=True)
        client = await rig.client()
        assert await epoch_end(client, 1) == (0, 1, 10)
        assert await epoch_end(client, E0 - 1) == (0, 2, 20)
        assert await epoch_end(client, E0) == (0, E0, 30)
        assert await list_offsets(client, LATEST) == (0, 30, E0)
        assert await list_offsets(client, EARLIEST) == (0, 4, 1)


async def test_a_real_broker_that_leads_before_the_take_over_was_handed_nothing() -> None:
    """Else what is held would be sent away before the link broker has led."""
    async with Rig() as rig:
        rig.router.hold([TP0])
        rig.elect("orders", 0, 1, E0 + 1)
        assert rig.router.fenced_for_hand_over(TP0)
        partition = switch(rig, taken=False)
        assert not rig.router.fenced_for_hand_over(TP0)
        partition.taking = False
        assert rig.router.fenced_for_hand_over(TP0)  # given back: what is held may be carried there


async def marked(client: Any, *indexes: int) -> list[int]:
    """The answers to a marker of these partitions of `orders`."""
    marker = {
        "producer_id": 7,
        "producer_epoch": 1,
        "transaction_result": True,
        "coordinator_epoch": 0,
        "topics": [{"name": "orders", "partition_indexes": list(indexes)}],
    }
    correlation_id = client.next_correlation_id()
    frame = codec.encode_request(
        "write_txn_markers", 1, {"markers": [marker]}, correlation_id=correlation_id, client_id="b"
    )
    got: list[Any] = []
    client.channel.send(correlation_id, [len(frame).to_bytes(4, "big") + frame], got.append)
    await eventually(lambda: bool(got))
    answer = codec.decode_response("write_txn_markers", 1, got[0])
    return [int(part.error_code) for part in answer.markers[0].topics[0].partitions]


async def test_markers_are_not_taken_for_written() -> None:
    async with Rig(limits=RouterLimits()) as rig:
        client = await rig.client()
        assert await marked(client, 0, 1) == [0, 0]
        switch(rig)
        started = asyncio.get_running_loop().time()
        assert await marked(client, 0, 1) == [NOT_ENOUGH_REPLICAS, 0]
        assert asyncio.get_running_loop().time() - started > 0.15, "the coordinator would ask without a pause"
        switch(rig, over=True)
        assert await marked(client, 0, 1) == [0, 0]


@pytest.mark.parametrize("mirrored", [True, False], ids=["promoted", "given back"])
async def test_markers_of_what_a_real_broker_leads_by_now_are_sent_again(mirrored: bool) -> None:
    """The coordinator's metadata may be behind, and a client's transaction at the new leader be over by then."""
    async with Rig(limits=RouterLimits()) as rig:
        client = await rig.client()
        rig.elect("orders", 0, 1, E0 + 1)
        if not mirrored:
            del rig.directory.mirrors["orders"]
        assert await marked(client, 0, 1) == [NOT_LEADER, 0]


async def test_markers_of_what_was_handed_over_are_sent_again() -> None:
    """The state may say so before the metadata log does."""
    async with Rig(limits=RouterLimits()) as rig:
        client = await rig.client()
        rig.router.hold([TP0])
        rig.router.led_elsewhere([TP0])
        assert await marked(client, 0, 1) == [NOT_LEADER, 0]


@pytest.mark.parametrize(("followed", "code"), [(True, NOT_ENOUGH_REPLICAS), (False, 0)])
async def test_markers_of_what_link_brokers_lead_since_all_others_died(followed: bool, code: int) -> None:
    """Nothing is written down of it yet, and its own brokers have the transaction in their logs. The partitions that a
    deleted mirror has left have none: there the coordinator would ask for ever."""
    async with Rig(limits=RouterLimits()) as rig:
        client = await rig.client()
        rig.followed = {"orders"} if followed else set()
        del rig.directory.mirrors["orders"]
        assert await marked(client, 0, 1) == [code, code]


@pytest.mark.parametrize("given_back", [False, True])
async def test_writes_are_held_in_order_and_go_nowhere_once_it_is_given_back(given_back: bool) -> None:
    async with Rig() as rig:
        partition = switch(rig)
        partition.forwarding = False  # as in every phase of a switch
        rig.router.hold([TP0])
        client = await rig.client()
        producer = Producer(client, rig, producer_id=5)
        sent = [producer.send(0) for _ in range(5)]
        await asyncio.sleep(0.2)
        assert not any(one.done() for one in sent)
        if given_back:
            del rig.directory.mirrors["orders"]
            rig.elect("orders", 0, 1, E0 + 1)
            rig.router.unfence([TP0])
            results = [one for (one,) in await asyncio.gather(*sent)]
            assert [one.error for one in results] == [NOT_LEADER] * 5
            assert rig.source.partition("orders", 0).log.log_end_offset == 0
            assert not rig.source.counts["produce"]
        else:
            switch(rig, over=True).forwarding = True
            rig.router.unfence([TP0])
            results = [one for (one,) in await asyncio.gather(*sent)]
            assert [(one.error, one.base_offset) for one in results] == [(0, n) for n in range(5)]
        await eventually(lambda: not rig.router.hub.budget.used)
