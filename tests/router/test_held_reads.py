"""Consumers that no gate holds get no records of a mirror before its promote, and are asked to be patient, not refused."""

from __future__ import annotations

import asyncio

from router.fetch.held_readers import MOST, MOST_OF_A_NAME, SILENT, HeldConsumer, HeldReaders
from tests.router.rig import Progress, Rig
from tests.router.test_consumer_fetch import TP0, fetch, log_of


async def test_a_held_consumer_waits_as_long_as_it_said_and_gets_nothing() -> None:
    async with Rig() as rig:
        log_of(rig).append(5)
        rig.held_clients.add(("east", "spark"))
        loop = asyncio.get_running_loop()
        client, other = await rig.client("spark"), await rig.client("app")
        began = loop.time()
        answer = await fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=200)
        assert loop.time() - began >= 0.19
        assert [(p.error, p.preferred_read_replica) for p in answer.partitions.values()] == [(0, -1)] * 2
        assert answer.values() == []
        assert rig.router.stats.links["east"].held == 2
        assert len((await fetch(other, rig, {0: 0}, max_wait_ms=60_000)).values()) == 5


async def test_no_offset_makes_a_held_consumer_reset() -> None:
    async with Rig() as rig:
        log_of(rig).append(5)
        rig.directory.mirrors["orders"].partitions[0].start_offset = 3
        rig.held_clients.add(("east", "spark"))
        client = await rig.client("spark")
        for offset in (0, 4, 99):
            answer = await fetch(client, rig, {0: offset}, max_wait_ms=20)
            assert (answer.partitions[0].error, answer.values()) == (0, [])


async def test_a_held_consumer_is_not_sent_to_a_replica_unless_it_names_one() -> None:
    async with Rig() as rig:
        log = log_of(rig)
        log.append(5)
        now = asyncio.get_running_loop().time()
        log.followers = {1: Progress(5, now), 2: Progress(5, now)}
        rig.held_clients.add(("east", "spark"))
        client = await rig.client("spark")
        near = await fetch(client, rig, {0: 5}, max_wait_ms=20, rack_id="r1")
        assert near.partitions[0].preferred_read_replica == -1
        named = await fetch(client, rig, {0: 5}, max_wait_ms=20, rack_id="linker.replica=2")
        assert named.partitions[0].preferred_read_replica == 2
        nobody = await fetch(client, rig, {0: 0}, max_wait_ms=20, rack_id="linker.replica=77")
        assert (nobody.partitions[0].preferred_read_replica, nobody.values()) == (-1, [])


async def test_refusals_and_the_promote_reach_a_held_consumer() -> None:
    async with Rig() as rig:
        log_of(rig).append(5)
        rig.held_clients.add(("east", "spark"))
        client = await rig.client("spark")
        loop = asyncio.get_running_loop()
        waiting = fetch(client, rig, {0: 0}, max_wait_ms=400)
        async with asyncio.timeout(25):
            while not rig.router.stats.links["east"].held:
                await asyncio.sleep(0.001)
        assert not waiting.done(), "it waits, and is in the router while the mirror is handed over"
        await rig.router.fence([TP0], timeout=25)
        rig.router.handed_over([TP0])
        answer = await waiting
        assert (answer.partitions[0].error, answer.values()) == (6, []), (
            "nothing of a log that may be behind by now, and it may go to the new leader at once"
        )
        began = loop.time()
        answer = await fetch(client, rig, {0: 0}, max_wait_ms=60_000)
        assert answer.partitions[0].error == 6  # NOT_LEADER_OR_FOLLOWER
        assert loop.time() - began < 10, "refusals do not wait"


async def test_what_may_be_read_does_not_wait_for_what_is_held() -> None:
    async with Rig() as rig:
        log_of(rig).append(5)
        rig.held_clients.add(("west", "app"))
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert len((await fetch(await rig.client(), rig, {0: 0}, max_wait_ms=60_000)).values()) == 5
        assert loop.time() - began < 10


async def test_first_fetches_are_noted_while_somebody_watches() -> None:
    async with Rig() as rig:
        log_of(rig).append(5)
        rig.held_clients.add(("east", "spark"))
        client, held = await rig.client("app"), await rig.client("spark")
        watch = rig.router.hub.first_fetches
        await fetch(client, rig, {0: 1}, max_wait_ms=20)
        with watch.watch([TP0]) as seen:
            await fetch(client, rig, {0: 2, 1: 0}, max_wait_ms=20)
            await fetch(client, rig, {0: 4}, max_wait_ms=20)
            await fetch(held, rig, {0: 0}, max_wait_ms=20)
            assert seen == {TP0: {"app": 2}}
        assert not watch
        await fetch(client, rig, {0: 3}, max_wait_ms=20)
        assert seen == {TP0: {"app": 2}}


async def test_who_is_held_is_told_once_and_shown_while_it_asks() -> None:
    async with Rig() as rig:
        log_of(rig).append(5)
        rig.mirror("bills", 1)
        rig.held_clients.add(("east", "spark"))
        client = await rig.client("spark")
        for _ in range(3):
            await fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=20)
        hub = rig.router.hub
        now = hub.loop.time()
        [(reader, age)] = hub.held_readers.held("east", now)
        assert reader == HeldConsumer("east", "orders", "spark", "127.0.0.1")
        assert 0 <= age < 30
        assert rig.events.readers == [("east", "orders", "spark", "127.0.0.1")]
        assert hub.held_readers.held("east", now, "bills") == []
        assert hub.held_readers.held("west", now) == []
        assert hub.held_readers.held("east", now + SILENT + 30) == [], "it has gone, or was let in"


def test_the_book_of_held_readers_is_bounded() -> None:
    book = HeldReaders()
    told = [book.note("east", "t", f"{number}" + "x" * 30_000, "h", 0.0) for number in range(3 * MOST)]
    assert all(told)
    held = book.held("east", 1.0)
    assert len(held) == MOST
    assert max(len(reader.client_id) for reader, _ in held) <= MOST_OF_A_NAME
    assert book.note("east", "t", "later", "h", 2 * SILENT) is not None
    assert [reader.client_id for reader, _ in book.held("east", 2 * SILENT)] == ["later"]
    assert book.note("east", "other", "later", "h", 2 * SILENT) is None, (
        "the same client, of which people know"
    )
