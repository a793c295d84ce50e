"""Without its lease the router tells consumers nothing of the log."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.router.rig import E0, Progress, Rig, ScriptedLease, eventually, session_of
from tests.router.test_consumer_fetch import fetch, log_of
from wire.frames.fetch import FetchRequest, encode_fetch_request
from wire.frames.types import TopicPartition

TP0 = TopicPartition("orders", 0)


def lapsed() -> ScriptedLease:
    lease = ScriptedLease()
    lease.lapse()
    return lease


def renew(rig: Rig, lease: ScriptedLease) -> None:
    lease.renew()
    rig.router.lease_renewed()


@pytest.mark.parametrize("in_memory", [True, False])
async def test_held_until_the_lease_is_back(in_memory: bool) -> None:
    lease = lapsed()
    async with Rig(lease=lease) as rig:
        if in_memory:
            log_of(rig).append(3)
        else:
            rig.source.add("orders", 0, 3)
        waiting = fetch(await rig.client(), rig, {0: 0}, max_wait_ms=60_000)
        await eventually(lambda: bool(rig.router.hub.without_lease))
        rig.router.lease_renewed()  # of a renewal that came too late: there is no lease still
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert rig.source.counts["fetch"] == 0
        renew(rig, lease)
        answer = await asyncio.wait_for(waiting, 25)
        assert [offset for offset, _ in answer.values()] == [0, 1, 2]
        assert answer.partitions[0].high_watermark == 3


@pytest.mark.parametrize("in_memory", [True, False])
async def test_at_the_end_of_the_wait_there_is_nothing_in_the_answer(in_memory: bool) -> None:
    async with Rig(lease=lapsed()) as rig:
        if in_memory:
            log_of(rig).append(3)
        else:
            rig.source.add("orders", 0, 3)
        began = time.monotonic()
        answer = await fetch(await rig.client(), rig, {0: 0, 1: 0}, max_wait_ms=200)
        assert 0.15 < time.monotonic() - began < 10
        for part in answer.partitions.values():
            assert (part.error, part.high_watermark, part.last_stable_offset) == (0, -1, -1)
            assert (part.log_start_offset, part.records_end - part.records_start) == (-1, 0)
        assert rig.router.hub.without_lease == set()


async def test_a_read_that_outlives_the_lease_is_not_answered() -> None:
    """The lease counts when the answer is made, not when the source or memory was read."""
    lease = ScriptedLease()
    async with Rig(lease=lease) as rig:
        rig.source.add("orders", 0, 3)
        client = await rig.client()
        await fetch(client, rig, {0: 0})
        rig.source.inject("fetch", delay=0.2)
        waiting = fetch(client, rig, {0: 0}, max_wait_ms=400)
        await eventually(lambda: rig.source.counts["fetch"] == 2)
        lease.lapse()
        answer = await waiting
        assert (answer.partitions[0].error, answer.records()) == (0, b"")
        assert answer.partitions[0].high_watermark == -1


async def test_a_wait_at_the_tail_that_outlives_the_lease() -> None:
    lease = ScriptedLease()
    async with Rig(lease=lease) as rig:
        log = log_of(rig)
        log.append(3)
        waiting = fetch(await rig.client(), rig, {0: 3}, max_wait_ms=60_000)
        await eventually(lambda: bool(log.listeners))
        lease.lapse()
        log.append(2)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert not log.listeners
        renew(rig, lease)
        assert [offset for offset, _ in (await asyncio.wait_for(waiting, 25)).values()] == [3, 4]


@pytest.mark.parametrize("below_start", [True, False])
async def test_out_of_range_would_reset_a_consumer(below_start: bool) -> None:
    lease = ScriptedLease()
    async with Rig(lease=lease) as rig:
        if below_start:
            rig.directory.mirrors["orders"].partitions[0].start_offset = 5
        offset = 1 if below_start else 77
        client = await rig.client()
        assert (await fetch(client, rig, {0: offset}, max_wait_ms=50)).partitions[0].error == 1
        lease.lapse()
        assert (await fetch(client, rig, {0: offset}, max_wait_ms=50)).partitions[0].error == 0


async def test_a_redirection_is_not_made() -> None:
    async with Rig(lease=lapsed()) as rig:
        log = log_of(rig)
        log.append(3)
        log.followers[1] = Progress(3, asyncio.get_running_loop().time())
        answer = await fetch(await rig.client(), rig, {0: 0}, max_wait_ms=50, rack_id="r1")
        assert answer.partitions[0].preferred_read_replica == -1


async def test_refusals_are_told_at_once() -> None:
    async with Rig(lease=lapsed()) as rig:
        rig.directory.mirrors["orders"].partitions[0].serving = False
        client = await rig.client()
        assert (await asyncio.wait_for(fetch(client, rig, {0: 0}, max_wait_ms=60_000), 25)).partitions[
            0
        ].error == 6
        both = await asyncio.wait_for(fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=60_000), 25)
        assert {index: part.error for index, part in both.partitions.items()} == {0: 6, 1: 0}
        assert both.partitions[1].high_watermark == -1


async def test_what_happened_meanwhile_counts_when_the_lease_is_back() -> None:
    lease = lapsed()
    async with Rig(lease=lease) as rig:
        log_of(rig).append(3)
        waiting = fetch(await rig.client(), rig, {0: 0}, max_wait_ms=60_000)
        await eventually(lambda: bool(rig.router.hub.without_lease))
        rig.elect("orders", 0, 2, E0 + 1)
        rig.router.handed_over([TP0])
        renew(rig, lease)
        part = (await asyncio.wait_for(waiting, 25)).partitions[0]
        assert (part.error, part.current_leader) == (6, (2, E0 + 1))


async def test_the_wait_does_not_begin_anew_with_the_lease() -> None:
    lease = lapsed()
    async with Rig(lease=lease) as rig:
        log = log_of(rig)
        waiting = fetch(await rig.client(), rig, {0: 0}, max_wait_ms=60_000)
        await eventually(lambda: bool(rig.router.hub.without_lease))
        (connection,) = rig.listener.connections
        session = session_of(connection).fetch
        held = session._fetch
        await asyncio.sleep(0.05)
        renew(rig, lease)
        await eventually(lambda: bool(log.listeners))
        assert session._fetch is not held
        assert session._fetch.deadline == held.deadline
        log.append(1)
        assert len((await asyncio.wait_for(waiting, 25)).values()) == 1


async def test_a_consumer_that_goes_away_while_held_leaves_nothing_behind() -> None:
    lease = lapsed()
    async with Rig(lease=lease) as rig:
        client = await rig.client()
        fetch(client, rig, {0: 0}, max_wait_ms=60_000)
        await eventually(lambda: bool(rig.router.hub.without_lease))
        client.close()
        await eventually(lambda: not rig.router.hub.without_lease)
        renew(rig, lease)
        assert rig.router.hub.consumers == 0


async def test_followers_are_not_gated() -> None:
    async with Rig(lease=lapsed()) as rig:
        client = await rig.client()
        correlation_id = client.next_correlation_id()
        request = FetchRequest(version=17, replica_id=1, replica_epoch=11, topics=[])
        client.channel.send(
            correlation_id, [encode_fetch_request(17, correlation_id, "b", request)], lambda _: None
        )
        await eventually(lambda: rig.followers.asked == ["fetch"])


@pytest.mark.parametrize("api", ["list_offsets", "offset_for_leader_epoch"])
async def test_offsets_are_not_told_either(api: str) -> None:
    lease = ScriptedLease()
    async with Rig(lease=lease) as rig:
        rig.source.add("orders", 0, 6)
        client = await rig.client()
        if api == "list_offsets":
            asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
            body = {
                "replica_id": -1,
                "isolation_level": 0,
                "topics": [{"name": "orders", "partitions": [asked]}],
            }
        else:
            asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 1}
            body = {"replica_id": -1, "topics": [{"topic": "orders", "partitions": [asked]}]}

        async def ask() -> Any:
            return (await client.call(api, body, timeout=5)).topics[0].partitions[0]

        assert int((await ask()).error_code) == 0
        rig.source.inject("list_offsets", delay=0.2)
        before = rig.source.counts["list_offsets"]
        asking = asyncio.create_task(ask())
        await eventually(lambda: rig.source.counts["list_offsets"] > before)
        lease.lapse()
        part = await asking
        assert int(part.error_code) == 6
        assert (part.offset if api == "list_offsets" else part.end_offset) == -1
