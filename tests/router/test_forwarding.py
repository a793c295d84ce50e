"""Produce through the router to a fake source that checks sequences."""

from __future__ import annotations

import asyncio
import gc

import pytest

from router.ports import RouterLimits
from router.produce.forwarding import FenceTimeout
from router.produce.session import ProduceJob
from tests.fakes.batches import build_batch, parse_batches
from tests.router.rig import E0, Producer, Rig, eventually, held_produce
from wire.errors import ConnectionLost
from wire.frames.types import TopicPartition

TP0, TP1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.mark.parametrize("version", [9, 11, 12, 13])
async def test_records_arrive_untouched_and_offsets_come_back(version: int) -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, version=version)
        batch = build_batch(3, value_size=500)
        results = await asyncio.gather(*[producer.send(0, records=batch) for _ in range(5)])
        assert [r[0].error for r in results] == [0] * 5
        assert [r[0].base_offset for r in results] == [0, 3, 6, 9, 12]
        stored = rig.source.partition("orders", 0).log.bytes()
        assert [info.crc for info in parse_batches(stored)] == [parse_batches(batch)[0].crc] * 5


@pytest.mark.parametrize("high", [9, 12, 13])
async def test_every_version_of_a_source(high: int) -> None:
    async with Rig(source_versions={"produce": (3, high)}) as rig:
        producer = Producer(await rig.client(), rig)
        assert [r.error for r in await producer.send(0, 1)] == [0, 0]
        assert {request.version for request in rig.source.received("produce")} == {high}


async def test_partitions_of_several_leaders_are_split_and_merged_in_order() -> None:
    async with Rig(source_nodes=3, partitions=6) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        results = await producer.send(5, 0, 3, 1, 4, 2)
        assert [(r.index, r.error, r.base_offset) for r in results] == [(i, 0, 0) for i in (5, 0, 3, 1, 4, 2)]
        assert len(rig.source.received("produce")) == 3


async def test_pipelined_produces_keep_their_order() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        results = await asyncio.gather(*[producer.send(0) for _ in range(100)])
        assert [r[0].base_offset for r in results] == list(range(100))
        assert rig.values() == [(5, n) for n in range(100)]


async def test_leader_moves_under_load_and_the_client_sees_no_error() -> None:
    async with Rig(source_nodes=3) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        pending = []
        for n in range(150):
            pending.append(producer.send(0, 1))
            if n in (30, 90):
                rig.source.move_leader("orders", 0, 2 if n == 30 else 3, publish=n != 90)
                asyncio.get_running_loop().call_later(0.1, rig.source.publish, "orders", 0)
            if n % 5 == 4:
                await asyncio.gather(*pending[-5:])
        results = await asyncio.gather(*pending)
        assert {r.error for rs in results for r in rs} == {0}
        assert rig.values() == [(5, n) for n in range(150)]
        assert rig.values(index=1) == [(5, n) for n in range(150)]
        requests = rig.source.received("produce")
        sent = sum(len(topic.partition_data) for one in requests for topic in one.entity.topic_data)
        assert sent > 2 * 150, "some had to be sent again"


async def test_connection_cut_after_the_write_is_not_doubled() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        rig.source.inject("produce", close_after=0)
        results = await asyncio.gather(*[producer.send(0) for _ in range(5)])
        assert [r[0].error for r in results] == [0] * 5
        assert rig.values() == [(5, n) for n in range(6)]
        assert rig.source.counts["produce"] > 6


async def test_connection_cut_before_the_write_is_sent_again_in_order() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        rig.source.inject("produce", close_after=0, process=False)
        results = await asyncio.gather(*[producer.send(0) for _ in range(5)])
        assert [r[0].error for r in results] == [0] * 5
        assert rig.values() == [(5, n) for n in range(5)]


async def test_cut_connection_of_a_plain_producer_is_an_honest_unknown() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig)
        await producer.send(0)
        rig.source.inject("produce", close_after=0)
        assert (await producer.send(0))[0].error == 7
        assert (await producer.send(0))[0].error == 0


async def test_source_away_and_back(caplog: pytest.LogCaptureFixture) -> None:
    async with Rig(source_nodes=1) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        await rig.source.brokers[1].stop()
        pending = [producer.send(0) for _ in range(5)]
        await asyncio.sleep(0.3)
        assert not any(p.done() for p in pending)
        told = [one.getMessage() for one in caplog.records if one.name == "router.produce.source_route"]
        assert len(told) == 1, "once, however often it is tried"
        assert told[0].startswith("the source of link east cannot be asked who leads: ")
        await rig.source.brokers[1].start()
        assert [r[0].error for r in await asyncio.gather(*pending)] == [0] * 5
        assert rig.values() == [(5, n) for n in range(6)]


async def test_a_client_that_fails_when_leaders_are_known_fails_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Rig() as rig:
        told: list[str] = []

        def fails(link: str) -> None:
            raise RuntimeError("a bug")

        rig.router.hub.recover("east", "orders", fails)
        rig.router.hub.recover("east", "orders", told.append)
        await eventually(lambda: told == ["east"])
        assert "a client that waited for a leader" in caplog.text


async def test_time_over_is_told_by_whether_it_was_sent() -> None:
    limits = RouterLimits(min_timeout=0.2, settle_grace=0.1)
    async with Rig(source_nodes=1, limits=limits) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        rig.source.inject("produce", drop=True, process=False)
        assert (await producer.send(0, timeout_ms=200))[0].error == 7
        await rig.source.brokers[1].stop()
        # The first one is unknown, so whatever comes behind it waits, and was not sent.
        assert (await producer.send(1, timeout_ms=200))[0].error in (6, 7)


async def test_codes_about_the_clients_data_pass() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig)
        for code in (10, 87, 19, 20, 7, 47, 59):
            rig.source.inject("produce", error=code)
            assert (await producer.send(0))[0].error == code


async def test_refusal_of_the_links_principal_is_retriable_and_reported() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig)
        rig.source.inject("produce", error=29)
        assert (await producer.send(0))[0].error == 19
        rig.source.inject("produce", error=29)
        assert (await producer.send(0))[0].error == 19
        assert len(rig.events.refused) == 1
        assert rig.events.refused[0][0] == "east"
        assert "TOPIC_AUTHORIZATION_FAILED" in rig.events.refused[0][1]


async def test_acks_0_is_forwarded_without_an_answer_and_in_order() -> None:
    async with Rig() as rig:
        connection = await rig.client()
        producer = Producer(connection, rig)
        for _ in range(20):
            producer.send(0, acks=0)
        assert (await producer.send(0))[0].base_offset == 20
        assert connection.channel.in_flight == 0


async def test_acks_0_with_an_error_closes_the_connection() -> None:
    async with Rig() as rig:
        connection = await rig.client()
        Producer(connection, rig).send(0, acks=0, transactional=True)
        await asyncio.wait_for(connection.closed_event.wait(), 25)


async def test_transactional_batch_waits_for_promote_at_the_client() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=9)
        assert (await producer.send(0, transactional=True))[0].error == 19
        assert rig.source.counts["produce"] == 0


async def test_a_failed_mirror_is_told_at_once_and_in_words() -> None:
    async with Rig() as rig:
        partition = rig.directory.mirrors["orders"].partitions[0]
        partition.forwarding, partition.refusing = False, "the mirror of orders-0 has failed"
        producer = Producer(await rig.client(), rig)
        first, second = await asyncio.wait_for(producer.send(0, 1), 25)
        assert (first.error, first.error_message) == (19, "the mirror of orders-0 has failed")
        assert (second.error, second.error_message) == (0, None)


async def test_a_read_only_mirror_refuses_for_good_and_in_words() -> None:
    async with Rig() as rig:
        partition = rig.directory.mirrors["orders"].partitions[0]
        partition.forwarding, partition.read_only = False, "write to the source"
        producer = Producer(await rig.client(), rig)
        first, second = await asyncio.wait_for(producer.send(0, 1), 25)
        assert (first.error, first.error_message) == (44, "write to the source")
        assert (second.error, second.error_message) == (0, None)
        told = (await Producer(await rig.client(), rig, producer_id=9).send(0, transactional=True))[0]
        assert told.error == 44
        assert rig.source.counts["produce"] == 1


async def test_a_transaction_is_told_in_words_when_it_may_write() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=9)
        told = (await producer.send(0, transactional=True))[0]
        assert (
            told.error_message == "topic orders is a mirror: transactions can write to it once it is promoted"
        )


async def test_not_ours_names_the_leader() -> None:
    async with Rig() as rig:
        rig.directory.mirrors.clear()
        rig.elect("orders", 0, 2, 7)
        producer = Producer(await rig.client(), rig)
        result = (await producer.send(0))[0]
        assert (result.error, result.current_leader) == (6, (2, 7))


async def test_unknown_partition_and_garbled_records() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig)
        assert (await producer.send(17))[0].error == 3
        assert (await producer.send(0, records=b"x" * 70))[0].error == 87
        assert (await producer.send(0, records=b"x"))[0].error == 87


async def test_client_without_the_right_to_write() -> None:
    async with Rig() as rig:
        real = rig.target.handlers["metadata"]

        async def denied(broker, request):  # type: ignore[no-untyped-def]
            answer = dict(await real(broker, request))
            answer["topics"] = [
                {**topic, "topic_authorized_operations": 1 << 3} for topic in answer["topics"]
            ]
            return answer

        rig.target.handlers["metadata"] = denied
        producer = Producer(await rig.client(), rig)
        assert (await producer.send(0))[0].error == 29


async def test_fence_holds_and_unfence_forwards_in_order() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        await rig.router.fence([TP0], timeout=25)
        held = [producer.send(0) for _ in range(5)]
        other = await producer_on_other_partition(rig)
        assert other == 0
        await asyncio.sleep(0.05)
        assert not any(h.done() for h in held)
        assert len(rig.values()) == 1
        rig.router.unfence([TP0])
        assert [r[0].error for r in await asyncio.gather(*held)] == [0] * 5
        assert rig.values() == [(5, n) for n in range(6)]


async def producer_on_other_partition(rig: Rig) -> int:
    return (await Producer(await rig.client(), rig).send(1))[0].error


async def test_hand_over_answers_what_was_held_with_the_new_leader() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        await rig.router.fence([TP0], timeout=25)
        held = [producer.send(0) for _ in range(3)]
        await asyncio.sleep(0.02)
        rig.elect("orders", 0, 1, E0 + 1)
        rig.router.handed_over([TP0])
        for results in await asyncio.gather(*held):
            assert (results[0].error, results[0].current_leader) == (6, (1, E0 + 1))
        assert (await producer.send(0))[0].error == 6
        assert len(rig.values()) == 1
        assert rig.router.hub.budget.used == 0


async def test_fence_waits_for_the_sources_answer() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        answer = held_produce(rig.source)
        late = producer.send(0)
        await eventually(lambda: rig.source.counts["produce"] == 2)
        fence = asyncio.create_task(rig.router.fence([TP0], timeout=25))
        await asyncio.sleep(0.1)
        assert not fence.done()
        answer.set()
        await fence
        assert rig.values() == [(5, 0), (5, 1)]
        assert (await late)[0].error == 0


async def test_fence_waits_for_the_write_of_a_vanished_client() -> None:
    async with Rig() as rig:
        connection = await rig.client()
        producer = Producer(connection, rig, producer_id=5)
        await producer.send(0)
        rig.source.inject("produce", delay=0.3)
        producer.send(0)
        await eventually(lambda: rig.source.counts["produce"] == 2)
        connection.close()
        await eventually(lambda: len(rig.listener.connections) == 0)
        await rig.router.fence([TP0], timeout=25)
        assert rig.values() == [(5, 0), (5, 1)]
        assert rig.router.hub.budget.used == 0
        assert rig.router.hub.fences.lanes(TP0) == frozenset()


async def test_fence_that_cannot_stand_names_what_is_left_and_keeps_holding() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        answer = held_produce(rig.source)
        late = producer.send(0)
        await eventually(lambda: rig.source.counts["produce"] == 2)
        with pytest.raises(FenceTimeout, match="orders-0: 1 writes in flight"):
            await rig.router.fence([TP0, TP1], timeout=0.1)
        answer.set()
        held = producer.send(0)
        assert (await late)[0].error == 0
        await asyncio.sleep(0.05)
        assert not held.done()
        rig.router.unfence([TP0, TP1])
        assert (await held)[0].error == 0


async def test_fence_settles_a_cut_connection_by_sending_again() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        rig.source.inject("produce", close_after=0, delay=0.1)
        late = producer.send(0)
        await eventually(lambda: rig.source.counts["produce"] == 2)
        await rig.router.fence([TP0], timeout=25)
        assert (await late)[0].error == 0
        assert rig.values() == [(5, 0), (5, 1)]


async def test_cancelled_fence_leaves_the_partitions_held() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        rig.source.inject("produce", delay=0.5)
        late = producer.send(0)
        await eventually(lambda: rig.source.counts["produce"] == 1)
        fence = asyncio.create_task(rig.router.fence([TP0], timeout=25))
        await asyncio.sleep(0.02)
        fence.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fence
        held = producer.send(0)
        await late
        await asyncio.sleep(0.05)
        assert not held.done()
        rig.router.unfence([TP0])
        assert (await held)[0].error == 0


async def test_held_bytes_pause_the_client_and_go_on() -> None:
    limits = RouterLimits(held_bytes=200_000)
    async with Rig(limits=limits) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        await rig.router.fence([TP0], timeout=25)
        records = [
            build_batch(1, value_size=50_000, producer_id=5, producer_epoch=0, base_sequence=n)
            for n in range(1, 21)
        ]
        held = [producer.send(0, records=r) for r in records]
        await eventually(lambda: rig.router.hub.budget.paused == 1)
        await asyncio.sleep(0.05)
        assert rig.router.hub.budget.used < 300_000
        rig.router.unfence([TP0])
        assert [r[0].error for r in await asyncio.gather(*held)] == [0] * 20
        assert rig.router.hub.budget.used == 0
        assert rig.values() == [(5, n) for n in range(21)]


async def test_answers_leave_in_request_order_when_kinds_mix() -> None:
    async with Rig() as rig:
        connection = await rig.client()
        producer = Producer(connection, rig, producer_id=5)
        order: list[str] = []
        rig.source.inject("produce", delay=0.2)
        slow = producer.send(0)
        slow.add_done_callback(lambda _: order.append("forwarded"))
        local = producer.send(1, transactional=True)
        local.add_done_callback(lambda _: order.append("local"))
        passed = asyncio.create_task(connection.call("metadata", {"topics": None}, timeout=5))
        passed.add_done_callback(lambda _: order.append("passed through"))
        await asyncio.gather(slow, local, passed)
        assert order == ["forwarded", "local", "passed through"]


async def test_garbled_produce_closes_only_that_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with Rig() as rig:
        good, bad = await rig.client(), await rig.client()
        correlation_id = bad.next_correlation_id()
        body = b"\0\0\0\x0d" + correlation_id.to_bytes(4, "big") + b"\0\x03app\0" + b"\xff" * 40
        bad.channel.send(correlation_id, [len(body).to_bytes(4, "big") + body], lambda _: None)
        await asyncio.wait_for(bad.closed_event.wait(), 25)
        assert (await Producer(good, rig).send(0))[0].error == 0
        assert rig.listener.protocol_errors == 1
        assert [one for one in caplog.messages if "the connection of 127.0.0.1:" in one]


async def test_garbled_answer_of_the_source_is_sent_again() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        rig.source.inject("produce", raw=b"\0\0\0\x09" + (2**31 - 1).to_bytes(4, "big") + b"nonsense!"[:5])
        assert (await producer.send(0))[0].error == 0
        assert rig.values() == [(5, 0), (5, 1)]


async def test_two_clients_do_not_wait_for_each_other() -> None:
    async with Rig() as rig:
        slow, quick = Producer(await rig.client(), rig), Producer(await rig.client(), rig)
        await asyncio.gather(slow.send(0), quick.send(0))
        rig.source.inject("produce", delay=2)
        waiting = slow.send(0)
        await eventually(lambda: rig.source.counts["produce"] == 3)
        assert (await asyncio.wait_for(quick.send(0), 25))[0].error == 0
        assert not waiting.done()
        await waiting


async def test_lost_client_drops_what_was_not_sent() -> None:
    async with Rig() as rig:
        connection = await rig.client()
        producer = Producer(connection, rig, producer_id=5)
        await producer.send(0)
        await rig.router.fence([TP0], timeout=25)
        held = [producer.send(0) for _ in range(3)]
        await eventually(lambda: rig.router.hub.budget.used > 0)
        connection.close()
        await eventually(lambda: rig.router.hub.budget.used == 0)
        for one in held:
            with pytest.raises(ConnectionLost):
                await one
        rig.router.unfence([TP0])
        await asyncio.sleep(0.05)
        assert len(rig.values()) == 1


async def test_records_are_let_go_at_once() -> None:
    """Without the cycle collector: a request's bytes must not wait for it."""
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0, 1)
        gc.collect()
        gc.disable()
        try:
            await asyncio.gather(*[producer.send(0, 1) for _ in range(20)])
            rig.source.move_leader("orders", 0, 2)
            rig.source.inject("produce", close_after=0)
            await asyncio.gather(*[producer.send(0, 1) for _ in range(20)])
            await rig.router.fence([TP0, TP1], timeout=25)
            held = [producer.send(0, 1) for _ in range(5)]
            await asyncio.sleep(0.05)
            rig.router.handed_over([TP0, TP1])
            await asyncio.gather(*held)
            del held
            assert rig.router.hub.budget.used == 0
            assert not [one for one in gc.get_objects() if isinstance(one, ProduceJob)]
        finally:
            gc.enable()


@pytest.mark.parametrize("high", [12, 13])
async def test_nothing_is_written_to_a_topic_that_was_created_again(high: int) -> None:
    limits = RouterLimits(min_timeout=0.3)
    async with Rig(source_versions={"produce": (3, high)}, limits=limits) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        await rig.cluster.refresh(["orders"])
        rig.source.recreate_topic("orders")
        await rig.cluster.refresh(["orders"])
        assert (await producer.send(0, timeout_ms=300))[0].error == 6
        assert rig.values() == []


async def test_each_link_has_its_own_counts() -> None:
    async with Rig() as rig:
        other = rig.mirror("audit", 1)
        other.link = "west"
        producer = Producer(await rig.client(), rig)
        for _ in range(3):
            assert (await producer.send(0))[0].error == 0
        assert (await producer.send(0, 1))[0].error == 0
        other.partitions[0].forwarding = False
        assert (await producer.send(0, topic="audit", timeout_ms=500))[0].error != 0
        east, west = (rig.router.stats.links[name] for name in ("east", "west"))
        assert east.produces >= 4, "a request for two leaders is two"
        assert east.bytes == 5 * len(build_batch(1))
        assert (east.errors, west.produces, west.bytes) == ({}, 0, 0)
        assert sum(west.errors.values()) == 1
