"""What a consumer's fetch waits for: the end of a log in memory, and source nodes of which some have nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from router.ports import RouterLimits
from tests.fakes.batches import build_batch
from tests.router.rig import E0, Log, Rig, eventually, session_of
from tests.router.test_consumer_fetch import TP0, fetch, log_of
from wire.client.connection import Connection
from wire.frames.leader_epochs import LeaderEpochs


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[Rig, Connection]]:
    """Partition 0 at node 1, partition 1 at node 2; a client that has its connections and rights."""
    async with Rig(source_nodes=2) as rig:
        rig.source.move_leader("orders", 0, 1)
        rig.source.move_leader("orders", 1, 2)
        await rig.cluster.refresh(["orders"], timeout=5)
        client = await rig.client()
        for _ in range(2):
            await fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=10)
        await eventually(lambda: rig.source.connections_that_asked("fetch") == 2)
        (connection,) = rig.listener.connections
        await eventually(lambda: not session_of(connection).fetch._source._polls)
        rig.source.counts.clear()
        rig.source.requests.clear()
        yield rig, client


@pytest.fixture
def _nodes_have_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source nodes may look for records for longer than a test waits, and nobody looks again meanwhile."""
    give_nodes_long(monkeypatch)


def give_nodes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the questions that are asked from now on."""
    monkeypatch.setattr("router.fetch.source.SOURCE_WAIT", 60.0)
    monkeypatch.setattr("router.fetch.session.SOURCE_WAIT", 60.0)
    monkeypatch.setattr("router.fetch.session._LOOK_AGAIN", 60.0)


nodes_have_long = pytest.mark.usefixtures("_nodes_have_long")


def asked(rig: Rig, node: int) -> int:
    return sum(request.node == node for request in rig.source.received("fetch"))


# The source


@nodes_have_long
async def test_records_of_one_node_do_not_wait_for_another_that_has_none() -> None:
    async with two_nodes() as (rig, client):
        waiting = fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=60_000)
        await eventually(lambda: rig.source.counts["fetch"] == 2)
        rig.source.add("orders", 0, 1)
        answer = await asyncio.wait_for(waiting, 25)
        assert len(answer.values(0)) == 1


@nodes_have_long
async def test_a_node_that_does_not_answer_holds_up_nobody() -> None:
    async with two_nodes() as (rig, client):
        rig.source.inject("fetch", drop=True, times=None, node=2)
        offset = 0
        for _ in range(5):
            rig.source.add("orders", 0, 1)
            answer = await asyncio.wait_for(fetch(client, rig, {0: offset, 1: 0}, max_wait_ms=60_000), 25)
            assert len(answer.values(0)) == 1
            offset += 1
        began = time.monotonic()
        answer = await asyncio.wait_for(fetch(client, rig, {0: offset, 1: 0}, max_wait_ms=200), 25)
        assert (answer.values(0), answer.values(1)) == ([], [])
        assert 0.15 < time.monotonic() - began < 10
        assert asked(rig, 2) == 1, "it is not asked again while it owes an answer"


async def test_a_node_that_has_just_been_asked_is_waited_for_a_little_longer_than_it_may_take() -> None:
    async with two_nodes() as (rig, client):
        rig.source.inject("fetch", drop=True, times=None, node=2)
        began = time.monotonic()
        answer = await asyncio.wait_for(fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=200), 25)
        assert (answer.values(0), answer.values(1)) == ([], [])
        assert 0.5 < time.monotonic() - began < 10


@nodes_have_long
async def test_what_a_quiet_node_was_asked_stays_asked() -> None:
    """Else requests would pile up there, and a record be read as often as they are."""
    async with two_nodes() as (rig, client):
        for offset in range(20):
            rig.source.add("orders", 0, 1)
            answer = await fetch(client, rig, {0: offset, 1: 0}, max_wait_ms=60_000)
            assert len(answer.values(0)) == 1
        assert asked(rig, 2) == 1
        before = asked(rig, 1)
        waiting = fetch(client, rig, {0: 20, 1: 0}, max_wait_ms=60_000)
        await eventually(lambda: asked(rig, 1) > before)
        rig.source.add("orders", 1, 1)
        answer = await asyncio.wait_for(waiting, 25)
        assert len(answer.values(1)) == 1
        assert asked(rig, 2) == 1


async def test_a_node_that_is_always_a_little_later_is_not_left_out_for_ever() -> None:
    async with two_nodes() as (rig, client):
        rig.source.inject("fetch", delay=0.03, times=None, node=2)
        rig.source.add("orders", 1, 1)
        for offset in range(4):
            rig.source.add("orders", 0, 1)
            answer = await fetch(client, rig, {0: offset, 1: 0}, max_wait_ms=500)
            if answer.values(1):
                break
            await asyncio.sleep(
                0.06
            )  # works at what it got: the other node's answer comes now, and nobody waits
        assert len(answer.values(1)) == 1
        assert offset <= 2


async def test_a_node_that_is_known_to_have_more_is_waited_for() -> None:
    """Who is behind at one node and at the end at another gets on at both."""
    async with two_nodes() as (rig, client):
        for _ in range(6):
            rig.source.add("orders", 1, 5, value_size=400_000)  # more than one answer takes
        rig.source.inject("fetch", delay=0.02, times=None, node=2)
        got = [0, 0]
        for _ in range(14):
            rig.source.add("orders", 0, 1)
            answer = await fetch(client, rig, dict(enumerate(got)), max_wait_ms=500)
            got = [so_far + len(answer.values(index)) for index, so_far in enumerate(got)]
            await asyncio.sleep(0.005)
        assert got[1] == 30
        assert got[0] >= 12


@nodes_have_long
async def test_another_offset_is_asked_for_when_the_node_has_answered_the_last_one() -> None:
    """A seek back, while the node is asked for what comes next."""
    async with two_nodes() as (rig, client):
        rig.source.add("orders", 1, 3)
        rig.source.add("orders", 0, 1)
        await fetch(client, rig, {0: 0, 1: 3}, max_wait_ms=500)
        assert asked(rig, 2) == 1
        waiting = fetch(client, rig, {0: 1, 1: 0}, max_wait_ms=60_000)
        await eventually(lambda: asked(rig, 1) == 2)
        rig.source.add("orders", 1, 1)
        answer = await asyncio.wait_for(waiting, 25)
        assert [offset for offset, _ in answer.values(1)] == [0, 1, 2, 3]


async def test_another_offset_has_its_time_when_the_node_has_nothing_for_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_nodes() as (rig, client):
        rig.source.add("orders", 1, 3)
        rig.source.add("orders", 0, 1)
        await fetch(client, rig, {0: 0, 1: 3}, max_wait_ms=500)
        give_nodes_long(monkeypatch)
        answer = await asyncio.wait_for(fetch(client, rig, {0: 1, 1: 0}, max_wait_ms=60_000), 25)
        assert [offset for offset, _ in answer.values(1)] == [0, 1, 2]


async def test_read_committed_does_not_take_up_what_was_asked_without() -> None:
    async with two_nodes() as (rig, client):
        rig.source.add("orders", 0, 1)
        await fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=500)
        assert asked(rig, 2) == 1
        waiting = fetch(client, rig, {0: 1, 1: 0}, max_wait_ms=500, isolation_level=1)
        await eventually(lambda: asked(rig, 1) == 2)
        rig.source.add("orders", 1, 2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        answer = await waiting
        assert answer.values(1) == [], "of an open transaction"
        assert answer.partitions[1].last_stable_offset == 0


async def test_the_rest_of_its_time_is_used_when_an_earlier_question_ends_without_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_nodes() as (rig, client):
        rig.source.add("orders", 0, 1)
        await fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=500)
        give_nodes_long(monkeypatch)
        waiting = fetch(client, rig, {0: 1, 1: 0}, max_wait_ms=60_000)
        await eventually(lambda: asked(rig, 2) == 2)
        rig.source.add("orders", 1, 1)
        assert len((await asyncio.wait_for(waiting, 25)).values(1)) == 1


@pytest.mark.parametrize(("code", "most"), [(29, 5), (3, 40)], ids=["for an operator", "passing"])
async def test_a_node_that_refuses_is_not_asked_as_fast_as_it_answers(code: int, most: int) -> None:
    async with two_nodes() as (rig, client):
        rig.source.inject("fetch", node=1, error=code, times=None)
        until = time.monotonic() + 1
        while time.monotonic() < until:
            answer = await fetch(client, rig, {0: 0}, max_wait_ms=500)
            assert (answer.partitions[0].error, answer.values(0)) == (0, [])
        assert 0 < asked(rig, 1) <= most


@nodes_have_long
async def test_records_of_another_partition_do_not_wait_for_one_that_is_refused() -> None:
    async with two_nodes() as (rig, client):
        rig.source.inject("fetch", node=1, error=29, times=None)
        waiting = fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=60_000)
        await eventually(lambda: bool(rig.events.refused))
        rig.source.add("orders", 1, 1)
        answer = await asyncio.wait_for(waiting, 25)
        assert len(answer.values(1)) == 1


@nodes_have_long
async def test_who_does_not_wait_is_told_nothing_at_once() -> None:
    async with two_nodes() as (rig, client):
        rig.source.inject("fetch", node=1, error=29, times=None)
        answer = await asyncio.wait_for(fetch(client, rig, {0: 0}, max_wait_ms=0), 25)
        assert answer.values(0) == []


async def test_min_bytes_is_the_nodes_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_nodes() as (rig, client):
        began = time.monotonic()
        waiting = fetch(client, rig, {0: 0}, max_wait_ms=400, min_bytes=100_000)
        await eventually(lambda: rig.source.counts["fetch"] == 1)
        rig.source.add("orders", 0, 1)
        answer = await waiting
        assert len(answer.values()) == 1
        assert time.monotonic() - began > 0.35
        give_nodes_long(monkeypatch)
        waiting = fetch(client, rig, {0: 1}, max_wait_ms=60_000, min_bytes=2000)
        await eventually(lambda: rig.source.counts["fetch"] == 2)
        rig.source.add("orders", 0, 1, value_size=3000)
        assert len((await asyncio.wait_for(waiting, 25)).values()) == 1


async def test_a_consumer_that_leaves_with_a_question_open_leaves_nothing_behind() -> None:
    async with two_nodes() as (rig, client):
        rig.source.add("orders", 0, 1)
        await fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=500)
        fetch(client, rig, {0: 1, 1: 0}, max_wait_ms=60_000)
        await eventually(lambda: asked(rig, 1) == 2)
        client.close()
        await eventually(lambda: rig.router.hub.consumers == 0)
        await eventually(lambda: rig.source.connections_that_asked("fetch") == 0)


# The end of a log in memory


@nodes_have_long
async def test_records_in_memory_do_not_wait_for_a_node_that_has_none() -> None:
    async with two_nodes() as (rig, client):
        log = log_of(rig)
        waiting = fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=60_000)
        await eventually(lambda: bool(log.listeners) and asked(rig, 2) == 1)
        log.append(1)
        answer = await asyncio.wait_for(waiting, 25)
        assert len(answer.values(0)) == 1
        assert asked(rig, 1) == 0
        rig.source.add("orders", 1, 1)
        answer = await asyncio.wait_for(fetch(client, rig, {0: 1, 1: 0}, max_wait_ms=60_000), 25)
        assert len(answer.values(1)) == 1


async def test_whoever_moves_a_log_does_nothing_for_its_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fetcher's connection to the source, for one: an error of a consumer must not end that."""
    monkeypatch.setattr("router.fetch.session._LOOK_AGAIN", 60.0)
    async with Rig() as rig:
        log = log_of(rig)
        client = await rig.client()
        waiting = fetch(client, rig, {0: 0}, max_wait_ms=60_000)
        await eventually(lambda: bool(log.listeners))
        (connection,) = rig.listener.connections
        log.append(1)
        log.append(1)
        assert connection.open_exchanges == 1
        assert len((await asyncio.wait_for(waiting, 25)).values()) == 2
        assert not log.listeners


@pytest.mark.parametrize("why", ["paused", "silent", "let go"])
async def test_who_waits_where_nothing_comes_any_more_asks_the_source(why: str) -> None:
    async with Rig() as rig:
        log = log_of(rig)
        waiting = fetch(await rig.client(), rig, {0: 0}, max_wait_ms=60_000)
        await eventually(lambda: bool(log.listeners))
        if why == "paused":
            log.pause()
        elif why == "silent":
            log.fetcher.answers = False
        else:
            log.follower_gone(1)
        rig.source.add("orders", 0, 2)
        assert len((await asyncio.wait_for(waiting, 25)).values()) == 2
        assert not log.listeners


@pytest.mark.parametrize("closed", [True, False])
async def test_who_waits_at_the_end_of_a_log_hears_of_the_hand_over(
    closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if closed:
        monkeypatch.setattr("router.fetch.session._LOOK_AGAIN", 60.0)
    async with Rig() as rig:
        log = log_of(rig)
        waiting = fetch(await rig.client(), rig, {0: 0}, max_wait_ms=60_000)
        await eventually(lambda: bool(log.listeners))
        await rig.router.fence([TP0], timeout=25)
        rig.hand_over("orders", 0, leader=2)
        rig.router.handed_over([TP0])
        if closed:
            log.close()
        part = (await asyncio.wait_for(waiting, 25)).partitions[0]
        assert (part.error, part.current_leader) == (6, (2, 4))
        assert rig.source.counts["fetch"] == 0, "what the source has is of another log"


async def test_a_mirror_that_stops_does_not_keep_its_readers_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.fetch.session._LOOK_AGAIN", 60.0)
    async with Rig() as rig:
        log = log_of(rig)
        waiting = fetch(await rig.client(), rig, {0: 0}, max_wait_ms=60_000)
        await eventually(lambda: bool(log.listeners))
        rig.source.add("orders", 0, 1)
        log.fail("for a test")
        assert len((await asyncio.wait_for(waiting, 25)).values()) == 1


async def test_a_log_that_was_cut_at_the_source_is_asked_for_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.fetch.session._LOOK_AGAIN", 60.0)
    async with Rig() as rig:
        log = log_of(rig)
        log.append(5)
        for _ in range(3):
            rig.source.add("orders", 0, 1)
        waiting = fetch(await rig.client(), rig, {0: 5}, max_wait_ms=60_000)
        await eventually(lambda: bool(log.listeners))
        log.truncate(3)
        assert (await asyncio.wait_for(waiting, 25)).partitions[0].error == 1


async def test_who_wants_many_bytes_is_not_woken_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    real = Log.read

    def read(log: Log, offset: int, max_bytes: int) -> object:
        nonlocal reads
        reads += 1
        return real(log, offset, max_bytes)

    monkeypatch.setattr("router.fetch.session._BATCHING", 0.1)
    async with Rig() as rig:
        log = log_of(rig)
        monkeypatch.setattr(Log, "read", read)
        wanted = 60 * len(build_batch(1))
        waiting = fetch(await rig.client(), rig, {0: 0}, max_wait_ms=60_000, min_bytes=wanted)
        await eventually(lambda: bool(log.listeners))
        for _ in range(60):
            log.append(1)
            await asyncio.sleep(0.002)
        answer = await asyncio.wait_for(waiting, 25)
        assert len(answer.values()) == 60
        assert reads < 40


async def test_read_committed_is_the_sources_to_answer() -> None:
    async with Rig() as rig:
        log = log_of(rig)
        waiting = fetch(await rig.client(), rig, {0: 0}, max_wait_ms=400, isolation_level=1)
        await eventually(lambda: rig.source.counts["fetch"] == 1)
        assert not log.listeners
        log.append(1)
        assert (await waiting).values() == []


async def test_answers_that_nobody_waits_for_are_not_kept() -> None:
    async with two_nodes() as (rig, client):
        rig.source.add("orders", 0, 1)
        await fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=500)
        (connection,) = rig.listener.connections
        reads = session_of(connection).fetch._source
        rig.source.add("orders", 1, 1)
        await eventually(lambda: not reads._polls)
        assert rig.source.connections_that_asked("fetch") == 2
        assert len((await fetch(client, rig, {0: 1, 1: 0}, max_wait_ms=500)).values(1)) == 1


async def test_a_partition_whose_answer_cannot_be_read_keeps_nothing_from_the_others() -> None:
    async with Rig(source_nodes=1) as rig:
        client = await rig.client()
        rig.source.add("orders", 0, 3)
        rig.source.add("orders", 1, 3)
        await fetch(client, rig, {0: 0}, max_wait_ms=10)
        # Of a leader epoch that begins in the middle of a batch: no such batch can be stamped.
        rig.directory.mirrors["orders"].partitions[0].epochs = LeaderEpochs.of(E0, 1, [(1, 0)])
        began = time.monotonic()
        answer = await fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=100, isolation_level=1)
        assert (answer.values(0), len(answer.values(1))) == ([], 3)
        for _ in range(3):  # and nothing is asked without a pause
            answer = await fetch(client, rig, {0: 0, 1: 3}, max_wait_ms=100, isolation_level=1)
            assert (answer.values(0), answer.values(1)) == ([], [])
        assert time.monotonic() - began > 0.25
        assert rig.source.connections_that_asked("fetch") == 1
        assert any("orders-0 cannot be read" in reason for _, reason in rig.events.refused)


@pytest.mark.parametrize("batch", [50_000, 100_000, 200_000])
async def test_a_consumer_that_wants_more_at_least_than_its_share_is_not_kept_waiting(batch: int) -> None:
    """Its answer is as full as it can be: it would be so at the deadline, too."""
    async with Rig(limits=RouterLimits(read_bytes=256 << 10)) as rig:
        log = rig.logs[TP0] = Log(topic_id=rig.directory.mirrors["orders"].topic_id)
        for _ in range(2_000_000 // batch):
            log.append([b"x" * batch])
        client = await rig.client()
        async with asyncio.timeout(25):
            await fetch(client, rig, {0: 0}, max_wait_ms=60_000, min_bytes=1 << 20)
