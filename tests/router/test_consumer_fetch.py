"""Fetch, ListOffsets and OffsetForLeaderEpoch of consumers: from memory, from the source, redirected,
refused.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.fetch.decision import Part
from router.ports import RouterLimits
from tests.fakes.batches import parse_batches, values_of
from tests.router.rig import E0, Log, Progress, Rig, eventually, session_of
from wire.client.connection import Connection
from wire.frames.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    encode_fetch_request,
    parse_fetch_response,
)
from wire.frames.request_header import RequestHeader
from wire.frames.types import TopicPartition

TP0 = TopicPartition("orders", 0)


class Answer:
    def __init__(self, partitions: list[FetchedPartition], frame: memoryview, error: int) -> None:
        self.partitions = {part.index: part for part in partitions}
        self.frame = frame
        self.error = error

    def values(self, index: int = 0) -> list[tuple[int, bytes | None]]:
        return values_of(self.records(index))

    def records(self, index: int = 0) -> bytes:
        part = self.partitions[index]
        return bytes(self.frame[part.records_start : part.records_end])


def fetch(
    connection: Connection,
    rig: Rig,
    offsets: dict[int, int],
    *,
    version: int = 17,
    max_wait_ms: int = 500,
    topic: str = "orders",
    current_leader_epoch: int = -1,
    **fields: Any,
) -> asyncio.Future[Answer]:
    done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    done.add_done_callback(lambda f: f.cancelled() or f.exception())
    parts = [
        FetchPartition(index, current_leader_epoch, offset, -1, -1, 1 << 20)
        for index, offset in offsets.items()
    ]
    mirror = rig.directory.mirrors.get(topic)
    topic_id = mirror.topic_id if mirror is not None else rig.image.topics_by_name[topic].id
    key: str | bytes = topic_id if version >= 13 else topic
    request = FetchRequest(
        version=version,
        max_wait_ms=max_wait_ms,
        min_bytes=fields.pop("min_bytes", 1),
        max_bytes=50 << 20,
        topics=[(key, parts)],
        **fields,
    )
    correlation_id = connection.next_correlation_id()

    def replied(reply: Any) -> None:
        if done.done():
            return
        if isinstance(reply, Exception):
            done.set_exception(reply)
            return
        response = parse_fetch_response(reply, version)
        done.set_result(Answer(response.partitions, reply, response.error))

    connection.channel.send(
        correlation_id,
        [encode_fetch_request(version, correlation_id, connection.client_id, request)],
        replied,
    )
    return done


def log_of(rig: Rig, index: int = 0) -> Log:
    tp = TopicPartition("orders", index)
    if tp not in rig.logs:
        rig.logs[tp] = Log(index)
    return rig.logs[tp]


@pytest.mark.parametrize("version", [12, 13, 17])
@pytest.mark.parametrize("source_high", [12, 17])
async def test_from_the_source_with_the_mirrors_epoch(version: int, source_high: int) -> None:
    async with Rig(source_versions={"fetch": (4, source_high)}) as rig:
        rig.source.move_leader("orders", 0, 2)
        for _ in range(5):
            rig.source.add("orders", 0, 3)
        answer = await fetch(await rig.client(), rig, {0: 4}, version=version)
        part = answer.partitions[0]
        assert (part.error, part.high_watermark) == (0, 15)
        assert {batch.leader_epoch for batch in parse_batches(answer.records())} == {E0}
        assert [offset for offset, _ in answer.values()][-1] == 14


@pytest.mark.parametrize("source_high", [12, 17])
async def test_under_a_prefix_the_source_is_asked_for_its_own_topic(source_high: int) -> None:
    async with Rig(source_versions={"fetch": (4, source_high)}, prefix="ord") as rig:
        rig.source.add("orders", 0, 1)
        rig.source.add("ers", 0, 3)
        part = (await fetch(await rig.client(), rig, {0: 1})).partitions[0]
        assert (part.error, part.high_watermark) == (0, 3)


async def test_from_memory_without_asking_the_source() -> None:
    async with Rig() as rig:
        log = log_of(rig)
        log.append(3)
        log.append(2)
        answer = await fetch(await rig.client(), rig, {0: 3})
        assert [offset for offset, _ in answer.values()] == [3, 4]
        assert rig.source.counts["fetch"] == 0


async def test_waits_at_the_tail_until_data_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.fetch.session._LOOK_AGAIN", 60.0)
    async with Rig() as rig:
        log = log_of(rig)
        log.append(3)
        client = await rig.client()
        await fetch(client, rig, {0: 0})
        waiting = fetch(client, rig, {0: 3}, max_wait_ms=60_000)
        await eventually(lambda: bool(log.listeners))
        log.append(1)
        answer = await asyncio.wait_for(waiting, 25)
        assert [offset for offset, _ in answer.values()] == [3]
        assert not log.listeners


async def test_empty_answer_when_the_wait_is_over() -> None:
    async with Rig() as rig:
        log_of(rig)
        answer = await asyncio.wait_for(fetch(await rig.client(), rig, {0: 0}, max_wait_ms=50), 25)
        assert (answer.partitions[0].error, answer.records()) == (0, b"")


async def test_min_bytes_waits_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.fetch.session._LOOK_AGAIN", 60.0)
    async with Rig() as rig:
        log = log_of(rig)
        log.append(1)
        waiting = fetch(await rig.client(), rig, {0: 0}, max_wait_ms=60_000, min_bytes=150)
        await eventually(lambda: bool(log.listeners))
        log.append(1)
        answer = await asyncio.wait_for(waiting, 25)
        assert [offset for offset, _ in answer.values()] == [0, 1]


async def test_memory_and_source_are_merged() -> None:
    async with Rig() as rig:
        log = log_of(rig)
        behind = log_of(rig, 1)
        behind.begin_at(100)
        client = await rig.client()
        await fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=10)
        rig.source.inject("fetch", delay=0.1)
        waiting = fetch(client, rig, {0: 0, 1: 0}, max_wait_ms=60_000, min_bytes=300)
        await eventually(lambda: bool(log.listeners))
        log.append(2)
        rig.source.add("orders", 1, 4)
        answer = await waiting
        assert [len(answer.values(index)) for index in (0, 1)] == [2, 4]


async def test_read_committed_comes_from_the_source_with_its_aborted_transactions() -> None:
    async with Rig() as rig:
        log_of(rig).append(5)
        rig.source.add("orders", 0, 2, producer_id=77, producer_epoch=0, base_sequence=0, transactional=True)
        rig.source.partition("orders", 0).log.end_transaction(77, 0, commit=False)
        rig.source.notify()
        answer = await fetch(await rig.client(), rig, {0: 0}, isolation_level=1)
        part = answer.partitions[0]
        assert part.aborted == [(77, 0)]
        assert part.last_stable_offset == 3


async def test_below_the_mirrors_start_is_out_of_range() -> None:
    async with Rig() as rig:
        rig.directory.mirrors["orders"].partitions[0].start_offset = 10
        answer = await fetch(await rig.client(), rig, {0: 4})
        assert answer.partitions[0].error == 1


async def test_past_the_end_is_out_of_range_in_the_sources_words() -> None:
    async with Rig() as rig:
        answer = await fetch(await rig.client(), rig, {0: 99})
        assert answer.partitions[0].error == 1


async def test_not_loaded_is_retriable_never_an_empty_log() -> None:
    async with Rig() as rig:
        rig.directory.mirrors["orders"].partitions[0].serving = False
        answer = await fetch(await rig.client(), rig, {0: 0, 1: 0}, max_wait_ms=50)
        assert answer.partitions[0].error == 6
        assert answer.partitions[1].error == 0


async def test_redirected_to_a_close_replica_in_the_consumers_rack() -> None:
    async with Rig() as rig:
        log = log_of(rig)
        log.append(5)
        now = asyncio.get_running_loop().time()
        log.followers = {1: Progress(5, now), 2: Progress(5, now - 60)}
        client = await rig.client()
        answer = await fetch(client, rig, {0: 5}, rack_id="r1")
        assert (answer.partitions[0].preferred_read_replica, answer.partitions[0].error) == (1, 0)
        too_slow = await fetch(client, rig, {0: 4}, rack_id="r2")
        assert too_slow.partitions[0].preferred_read_replica == -1
        assert too_slow.values()


async def test_no_replica_is_preferred_whose_own_retention_took_the_records() -> None:
    """It would say OFFSET_OUT_OF_RANGE, and the consumer would come back here, for ever."""
    async with Rig() as rig:
        log = log_of(rig)
        log.append(5)
        log.followers = {1: Progress(5, asyncio.get_running_loop().time(), log_start_offset=3)}
        client = await rig.client()
        gone = (await fetch(client, rig, {0: 2}, rack_id="r1")).partitions[0]
        assert (gone.preferred_read_replica, gone.error) == (-1, 0)
        assert (await fetch(client, rig, {0: 2}, rack_id="r1")).values()
        kept = (await fetch(client, rig, {0: 3}, rack_id="r1")).partitions[0]
        assert kept.preferred_read_replica == 1


async def test_leader_epochs_are_checked() -> None:
    async with Rig() as rig:
        client = await rig.client()
        assert (await fetch(client, rig, {0: 0}, current_leader_epoch=E0 - 1)).partitions[0].error == 74
        assert (await fetch(client, rig, {0: 0}, current_leader_epoch=E0 + 1)).partitions[0].error == 75


async def test_after_the_hand_over_the_new_leader_is_named() -> None:
    async with Rig() as rig:
        rig.elect("orders", 0, 2, E0 + 1)
        rig.router.handed_over([TP0])
        part = (await fetch(await rig.client(), rig, {0: 0})).partitions[0]
        assert (part.error, part.current_leader) == (6, (2, E0 + 1))


async def test_leader_move_at_the_source_is_no_error_for_the_consumer() -> None:
    async with Rig() as rig:
        rig.source.add("orders", 0, 3)
        client = await rig.client()
        await fetch(client, rig, {0: 0})
        rig.source.move_leader("orders", 0, 2)
        found: list[Any] = []
        for _ in range(20):
            answer = await fetch(client, rig, {0: 0})
            assert answer.partitions[0].error == 0
            found = answer.values()
            if found:
                break
            await asyncio.sleep(0.02)
        assert len(found) == 3


async def test_source_away_gives_empty_answers_and_then_data() -> None:
    async with Rig(source_nodes=1) as rig:
        rig.source.add("orders", 0, 3)
        client = await rig.client()
        await fetch(client, rig, {0: 0})
        await rig.source.brokers[1].stop()
        answer = await asyncio.wait_for(fetch(client, rig, {0: 0}, max_wait_ms=100), 25)
        assert (answer.partitions[0].error, answer.values()) == (0, [])
        await rig.source.brokers[1].start()
        for _ in range(50):
            answer = await fetch(client, rig, {0: 0}, max_wait_ms=100)
            if answer.values():
                break
        assert len(answer.values()) == 3


async def test_a_session_is_never_promised() -> None:
    async with Rig() as rig:
        answer = await fetch(await rig.client(), rig, {0: 0}, session_id=5, session_epoch=3)
        assert answer.error == 70


async def test_garbled_batches_of_the_source_do_not_reach_the_consumer() -> None:
    async with Rig() as rig:
        offset = rig.source.add("orders", 0, 1)
        stored = rig.source.partition("orders", 0).log.batches[-1]
        data = bytearray(stored.data)
        data[16] = 1  # magic
        stored.data = bytes(data)
        answer = await fetch(await rig.client(), rig, {0: offset}, max_wait_ms=50)
        assert (answer.partitions[0].error, answer.records()) == (0, b"")


async def test_consumer_that_goes_away_leaves_nothing_behind() -> None:
    async with Rig() as rig:
        log = log_of(rig)
        client = await rig.client()
        fetch(client, rig, {0: 0}, max_wait_ms=60_000)
        await eventually(lambda: bool(log.listeners))
        client.close()
        await eventually(lambda: not log.listeners)
        assert rig.router.hub.consumers == 0


async def test_followers_go_to_the_follower_api() -> None:
    async with Rig() as rig:
        client = await rig.client()
        correlation_id = client.next_correlation_id()
        request = FetchRequest(version=17, replica_id=1, replica_epoch=11, topics=[])
        client.channel.send(
            correlation_id, [encode_fetch_request(17, correlation_id, "b", request)], lambda _: None
        )
        await eventually(lambda: rig.followers.asked == ["fetch"])


async def test_what_the_source_answers_after_the_hand_over_is_of_another_log() -> None:
    """Somebody who was not moved writes there on, while the target's log goes on as well."""
    async with Rig() as rig:
        rig.source.add("orders", 0, 3)
        client = await rig.client()
        assert (await fetch(client, rig, {0: 0}, isolation_level=1)).values()
        rig.source.inject("fetch", delay=0.2)
        asked = rig.source.counts["fetch"]
        reading = fetch(client, rig, {0: 0}, isolation_level=1)
        await eventually(lambda: rig.source.counts["fetch"] > asked)
        await rig.router.fence([TP0], timeout=25)
        rig.hand_over("orders", 0, leader=2)
        rig.router.handed_over([TP0])
        answer = await reading
        assert (answer.partitions[0].error, answer.values()) == (6, [])


async def test_ends_that_the_source_tells_after_the_hand_over_are_of_another_log() -> None:
    async with Rig() as rig:
        client = await rig.client()
        rig.source.inject("list_offsets", delay=0.2)
        asking = asyncio.ensure_future(
            client.call(
                "list_offsets",
                {
                    "replica_id": -1,
                    "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
                },
                timeout=5,
            )
        )
        await eventually(lambda: rig.source.counts["list_offsets"] == 1)
        await rig.router.fence([TP0], timeout=25)
        rig.hand_over("orders", 0, leader=2)
        rig.router.handed_over([TP0])
        (topic,) = (await asking).topics
        assert (int(topic.partitions[0].error_code), topic.partitions[0].offset) == (6, -1)


@pytest.mark.parametrize("api", ["list_offsets", "offset_for_leader_epoch"])
async def test_a_source_that_does_not_answer_keeps_nobody_from_the_new_leader(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka reads a partition on when its position was judged: by the leader that it had asked, at a failover."""
    monkeypatch.setattr("router.offsets.TIMEOUT", 60.0)
    async with Rig() as rig:
        client = await rig.client()
        rig.source.inject("list_offsets", delay=60)
        if api == "list_offsets":
            asked = [{"partition_index": index, "timestamp": -1} for index in range(2)]
            topic = {"name": "orders", "partitions": asked}
        else:
            asked = [{"partition": index, "leader_epoch": 0} for index in range(2)]
            topic = {"topic": "orders", "partitions": asked}
        asking = asyncio.ensure_future(client.call(api, {"replica_id": -1, "topics": [topic]}, timeout=30))
        await eventually(lambda: rig.source.counts["list_offsets"] >= 1)
        for tp in (TP0, TopicPartition("orders", 1)):
            await asyncio.sleep(0.15)
            assert not asking.done(), "the source may still tell of the other partition"
            await rig.router.fence([tp], timeout=25)
            rig.hand_over("orders", tp.partition, leader=2)
            rig.router.handed_over([tp])
        async with asyncio.timeout(25):
            (told,) = (await asking).topics
        assert {int(one.error_code) for one in told.partitions} == {6}


async def test_fetches_of_a_connection_are_looked_at_one_after_the_other() -> None:
    """As by a broker. What is found for the later ones would wait in memory for the first one's answer."""
    async with Rig() as rig:
        log = log_of(rig)
        log_of(rig, 1).append(5)
        client = await rig.client()
        first = fetch(client, rig, {0: 0}, max_wait_ms=300)
        later = [fetch(client, rig, {1: 0}) for _ in range(3)]
        await eventually(lambda: len(log.listeners) == 1)
        await asyncio.sleep(0.05)
        assert not any(one.done() for one in later)
        assert (await first).values() == []
        assert [len((await one).values(1)) for one in later] == [5, 5, 5]


async def test_many_consumers_share_what_may_be_in_answers() -> None:
    async with Rig(limits=RouterLimits(read_bytes=1 << 20)) as rig:
        log = log_of(rig)
        for _ in range(12):
            log.append(4000)
        size = len(log.batches[0])
        clients = [await rig.client() for _ in range(4)]
        await asyncio.gather(
            *(fetch(client, rig, {0: log.high_watermark}, max_wait_ms=1) for client in clients)
        )
        share = (1 << 20) // 4
        answers = await asyncio.gather(*(fetch(client, rig, {0: 0}) for client in clients))
        assert all(0 < len(answer.records()) <= max(share, size) for answer in answers)
        assert sum(len(one) for one in log.batches) > share


@pytest.mark.parametrize(("timestamp", "expected"), [(-1, 6), (-2, 2), (-4, 2), (-5, -1)])
async def test_list_offsets_are_the_sources_under_the_mirrors_epoch(timestamp: int, expected: int) -> None:
    async with Rig() as rig:
        rig.source.add("orders", 0, 6)
        rig.directory.mirrors["orders"].partitions[0].start_offset = 2
        client = await rig.client()
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        answer = await client.call(
            "list_offsets",
            {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "orders", "partitions": [asked]}]},
            timeout=5,
        )
        part = answer.topics[0].partitions[0]
        assert (int(part.error_code), part.offset) == (0, expected)
        assert part.leader_epoch == (E0 if expected >= 0 else -1)


UNSUPPORTED = 35


@pytest.mark.parametrize(
    ("source", "asked_in", "timestamp", "expected"),
    [
        ((1, 11), 11, -3, (0, 0)),  # all have one timestamp
        (
            (1, 6),
            11,
            -3,
            (UNSUPPORTED, -1),
        ),  # Kafka 2.8: it would take it for a time, and answer with the first offset
        ((1, 11), 6, -3, (UNSUPPORTED, -1)),  # as every broker to a request of that version
        ((1, 6), 11, -4, (0, 0)),  # all that a mirror has is local, wherever it is at the source
        ((1, 6), 7, -4, (UNSUPPORTED, -1)),
        ((1, 6), 9, -5, (0, -1)),
        ((1, 6), 8, -5, (UNSUPPORTED, -1)),
        ((1, 6), 11, -6, (0, -1)),
        ((1, 6), 10, -6, (UNSUPPORTED, -1)),
        ((1, 11), 11, -7, (UNSUPPORTED, -1)),
        ((1, 6), 11, -86_400_000, (UNSUPPORTED, -1)),  # a user's own, of 1969
        ((1, 6), 1, -2, (0, 0)),
    ],
)
async def test_timestamps_that_are_none_have_the_answer_of_a_broker_or_none(
    source: tuple[int, int], asked_in: int, timestamp: int, expected: tuple[int, int]
) -> None:
    async with Rig(source_versions={"list_offsets": source}) as rig:
        rig.source.add("orders", 0, 6)
        client = await rig.client()
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        answer = await client.call(
            "list_offsets",
            {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "orders", "partitions": [asked]}]},
            timeout=5,
            version=asked_in,
        )
        part = answer.topics[0].partitions[0]
        assert (int(part.error_code), part.offset) == expected
        assert rig.source.counts["list_offsets"] == (1 if expected[0] == 0 and timestamp > -5 else 0), (
            "an old source is not asked what it does not know"
        )


async def test_offset_for_leader_epoch_is_the_one_epoch_and_the_end() -> None:
    async with Rig() as rig:
        rig.source.add("orders", 0, 6)
        client = await rig.client()
        asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 1}
        answer = await client.call(
            "offset_for_leader_epoch",
            {"replica_id": -1, "topics": [{"topic": "orders", "partitions": [asked]}]},
            timeout=5,
        )
        part = answer.topics[0].partitions[0]
        assert (int(part.error_code), part.leader_epoch, part.end_offset) == (0, E0, 6)


async def test_offsets_of_a_partition_that_is_not_ours() -> None:
    async with Rig() as rig:
        rig.directory.mirrors.clear()
        client = await rig.client()
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
        answer = await client.call(
            "list_offsets",
            {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "orders", "partitions": [asked]}]},
            timeout=5,
        )
        assert int(answer.topics[0].partitions[0].error_code) == 6


async def test_end_of_memory_that_is_not_the_end_of_the_log_is_read_from_the_source() -> None:
    async with Rig() as rig:
        log = log_of(rig)
        log.append(2)
        rig.source.add("orders", 0, 2)
        rig.source.add("orders", 0, 3)
        log.high_watermark = 5
        answer = await asyncio.wait_for(fetch(await rig.client(), rig, {0: 2}, max_wait_ms=60_000), 25)
        assert [offset for offset, _ in answer.values()] == [2, 3, 4]


async def test_a_first_fetch_of_many_entries_takes_time_in_proportion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them wait for the first connection to the source."""
    compared = 0

    def compare(one: Part, other: object) -> bool:
        nonlocal compared
        compared += 1
        return one is other

    count = 1000
    async with Rig(source_nodes=1, partitions=count) as rig:
        rig.source.add("orders", 0, 3)
        client = await rig.client()
        topics: list[tuple[str | bytes, list[FetchPartition]]] = [
            (
                rig.directory.mirrors["orders"].topic_id,
                [FetchPartition(index, -1, 0, -1, -1, 1 << 20) for index in range(count)],
            )
        ]
        request = FetchRequest(version=17, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, topics=topics)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(Part, "__eq__", compare)
        number = client.next_correlation_id()
        client.channel.send(number, [encode_fetch_request(17, number, "app", request)], done.set_result)
        answer = parse_fetch_response(await asyncio.wait_for(done, 25), 17)
        assert len(answer.partitions) == count
        assert compared < 10 * count


class Asked:
    """An exchange of a client that takes its answer at once."""

    def __init__(self, number: int) -> None:
        self.header = RequestHeader(1, 17, number, "app")
        self.answered: list[int] = []

    def reply(self, buffers: Any) -> None:
        self.answered.append(int.from_bytes(buffers[0][4:8], "big"))


async def test_thousands_of_fetches_behind_one_that_waits() -> None:
    """They came in one piece, and are answered in one go as soon as the first one is."""
    async with Rig() as rig:
        log_of(rig)
        client = await rig.client()
        await fetch(client, rig, {0: 0}, max_wait_ms=1)
        (connection,) = rig.listener.connections
        session = session_of(connection).fetch
        key = rig.directory.mirrors["orders"].topic_id
        parts = [FetchPartition(0, -1, 0, -1, -1, 1 << 20)]
        waits = FetchRequest(
            version=17, max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=[(key, parts)]
        )
        refused = FetchRequest(version=17, session_id=77, session_epoch=1, topics=[])
        asked = [Asked(number) for number in range(5000)]
        for one in asked:
            session.handle(one, refused if one.header.correlation_id else waits)
        await eventually(lambda: bool(asked[-1].answered))
        assert [one.answered for one in asked] == [[number] for number in range(5000)]
