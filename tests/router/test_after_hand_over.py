"""After a hand-over, before every broker knows of it: produces go on to the new leader, whose words clients get."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from functools import partial

import pytest

from router.ports import RouterLimits
from tests.router.rig import E0, Producer, Rig, ScriptedLease, eventually, held_produce
from wire.frames.produce import ProduceResult
from wire.frames.types import TopicPartition

TP0, TP1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


async def handed_over(rig: Rig, tps: Iterable[TopicPartition] = (TP0,), *, leader: int = 1) -> None:
    """Fenced, and a real broker leads."""
    tps = list(tps)
    rig.router.expect_hand_over(tps)
    await rig.router.fence(tps, timeout=25)
    for tp in tps:
        rig.hand_over(tp.topic, tp.partition, leader)


@contextlib.asynccontextmanager
async def led_by_a_real_broker() -> AsyncIterator[tuple[Rig, Producer]]:
    """A producer that wrote one batch through the sidecar, and a partition that was handed over since."""
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        await handed_over(rig)
        yield rig, producer


@contextlib.asynccontextmanager
async def three_held() -> AsyncIterator[tuple[Rig, Producer, list[asyncio.Future[list[ProduceResult]]]]]:
    """The same before the hand-over, with three batches that wait for it."""
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        await rig.router.fence([TP0], timeout=25)
        held = [producer.send(0) for _ in range(3)]
        await eventually(lambda: rig.router.stats.produce_requests == 4)
        yield rig, producer, held


@pytest.fixture
def _no_last_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.produce.routes._LAST_WAIT", 60.0)


#: A connection that does not come is not what gives batches back.
waits_for_no_connection = pytest.mark.usefixtures("_no_last_wait")


def sent_to_source(rig: Rig) -> int:
    return rig.source.counts["produce"]


@pytest.mark.parametrize("version", [9, 12, 13])
async def test_what_was_held_is_acknowledged_by_the_new_leader(version: int) -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5, version=version)
        await producer.send(0)
        await rig.router.fence([TP0], timeout=25)
        held = [producer.send(0) for _ in range(3)]
        await asyncio.sleep(0.02)
        rig.hand_over("orders", 0, 1)
        rig.router.carry([TP0])
        assert [(r[0].error, r[0].base_offset) for r in await asyncio.gather(*held)] == [
            (0, 1),
            (0, 2),
            (0, 3),
        ]
        assert (await producer.send(0))[0].error == 0
        assert sent_to_source(rig) == 1
        assert {request.node for request in rig.target.received("produce")} == {1}
        assert rig.values() == [(5, n) for n in range(5)]
        assert rig.router.stats.links["east"].carried == 4
        assert rig.router.forwarded.get(TP0).offsets == 1  # what the source took, nothing else
        assert rig.router.hub.budget.used == 0


async def test_then_clients_are_told_who_leads() -> None:
    async with led_by_a_real_broker() as (rig, producer):
        rig.router.carry([TP0])
        assert (await producer.send(0))[0].error == 0
        rig.router.carried_enough([TP0])
        result = (await producer.send(0))[0]
        assert (result.error, result.current_leader) == (6, (1, E0 + 1))
        assert len(rig.values()) == 2


async def test_what_is_carried_when_clients_are_sent_away_is_answered_first() -> None:
    async with led_by_a_real_broker() as (rig, producer):
        rig.target.inject("produce", delay=0.2, times=None)
        rig.router.carry([TP0])
        under_way = [producer.send(0) for _ in range(3)]
        await eventually(lambda: rig.target.counts["produce"] == 1)
        rig.router.carried_enough([TP0])
        late = producer.send(0)
        codes = [r[0].error for r in await asyncio.gather(*under_way, late)]
        assert codes == [0, 0, 0, 6]
        assert rig.values() == [(5, n) for n in range(4)]


async def test_when_all_have_their_answers() -> None:
    async with three_held() as (rig, _producer, held):
        answer = held_produce(rig.target)
        rig.hand_over("orders", 0, 1)
        rig.router.carry([TP0])
        waiting = asyncio.create_task(rig.router.answered([TP0, TP1], timeout=60))
        await eventually(lambda: rig.target.counts["produce"] >= 1)
        assert not waiting.done()
        answer.set()
        await asyncio.wait_for(waiting, 25)
        assert all(one.done() for one in held)


async def test_who_has_no_answer_is_not_waited_for_longer_than_asked() -> None:
    async with three_held() as (rig, _producer, held):
        await asyncio.wait_for(rig.router.answered([TP1], timeout=60), 25)  # nobody waits there
        began = asyncio.get_running_loop().time()
        await rig.router.answered([TP0], timeout=0.2)
        assert 0.2 <= asyncio.get_running_loop().time() - began < 10
        assert not any(one.done() for one in held)
        rig.router.unfence([TP0])
        await asyncio.gather(*held)


async def test_a_new_leader_that_does_not_know_yet_is_asked_again_in_order() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        await rig.router.fence([TP0], timeout=25)
        held = [producer.send(0) for _ in range(3)]
        rig.hand_over("orders", 0, 1)
        rig.target.inject("produce", error=6, times=2)
        rig.router.carry([TP0])
        assert [r[0].error for r in await asyncio.gather(*held)] == [0] * 3
        assert rig.values() == [(5, n) for n in range(4)]


@waits_for_no_connection
async def test_what_would_have_to_be_sent_again_later_goes_back_to_its_client() -> None:
    async with led_by_a_real_broker() as (rig, producer):
        rig.router.carry([TP0])
        rig.target.inject("produce", error=6, delay=0.2)
        under_way = producer.send(0)
        await eventually(lambda: rig.target.counts["produce"] == 1)
        rig.router.carried_enough([TP0])
        assert (await asyncio.wait_for(under_way, 25))[0].error == 6
        assert rig.router.hub.budget.used == 0


async def test_what_was_held_is_brought_to_its_end_when_clients_are_sent_away_at_once() -> None:
    async with three_held() as (rig, producer, held):
        rig.hand_over("orders", 0, 2)
        rig.router.carry([TP0])
        rig.router.carried_enough([TP0])
        late = producer.send(0)
        assert [r[0].error for r in await asyncio.gather(*held, late)] == [0, 0, 0, 6]
        assert rig.router.hub.budget.used == 0


@waits_for_no_connection
async def test_a_new_leader_that_cannot_be_reached_is_for_clients_to_look_for() -> None:
    async with three_held() as (rig, _producer, held):
        rig.hand_over("orders", 0, 2)
        rig.target.inject("api_versions", node=2, close_after=0, process=False, times=None)
        rig.router.carry([TP0])
        await asyncio.sleep(0.05)
        assert not any(one.done() for one in held)
        rig.router.carried_enough([TP0])
        assert [r[0].error for r in await asyncio.wait_for(asyncio.gather(*held), 25)] == [6, 6, 6]


async def test_a_new_leader_that_does_not_accept_a_connection_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.produce.routes._LAST_WAIT", 0.2)
    async with Rig(limits=RouterLimits(settle_grace=0.3, backoff_min=0.01, connect_timeout=60.0)) as rig:
        monkeypatch.setattr(rig.target_cluster, "open_connection", partial(asyncio.sleep, 60))
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        await rig.router.fence([TP0], timeout=25)
        held = [producer.send(0) for _ in range(3)]
        await asyncio.sleep(0.02)
        rig.hand_over("orders", 0, 1)
        rig.router.carry([TP0])
        rig.router.carried_enough([TP0])
        assert [r[0].error for r in await asyncio.wait_for(asyncio.gather(*held), 25)] == [6, 6, 6]
        assert rig.router.hub.budget.used == 0


def open_at_target(rig: Rig) -> int:
    return sum(broker.connections for broker in rig.target.brokers.values())


async def test_ways_to_those_who_will_lead_are_open_before_the_hand_over() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        bystander = Producer(await rig.client(), rig, producer_id=6)
        await bystander.send(1)
        before = open_at_target(rig)
        rig.router.expect_hand_over([TP0])
        await rig.router.fence([TP0], timeout=25)
        await eventually(lambda: open_at_target(rig) == before + 1)
        rig.router.unfence([TP0])
        assert (await producer.send(0))[0].error == 0
        assert rig.target.counts["produce"] == 0


@waits_for_no_connection
async def test_the_same_after_the_state_has_told_of_it_again() -> None:
    async with led_by_a_real_broker() as (rig, producer):
        rig.router.carry([TP0])
        rig.target.inject("produce", error=6, delay=0.2)
        under_way = producer.send(0)
        await eventually(lambda: rig.target.counts["produce"] == 1)
        rig.router.carried_enough([TP0])
        rig.router.led_elsewhere([TP0])
        rig.router.handed_over([TP0])
        assert (await asyncio.wait_for(under_way, 25))[0].error == 6


async def test_a_source_that_is_given_up_takes_nothing_from_what_is_carried() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig)
        await producer.send(0)
        await handed_over(rig)
        rig.target.inject("produce", delay=0.2)
        rig.router.carry([TP0])
        under_way = producer.send(0)
        await eventually(lambda: rig.target.counts["produce"] == 1)
        await rig.router.fence([TP0], timeout=0.1)  # taken again: nothing of ours is on its way to the source
        rig.router.cut([TP0])
        assert (await under_way)[0].error == 0


async def test_producers_that_want_no_answer_are_cut_off_once_for_all_their_partitions() -> None:
    async with Rig() as rig:
        connection = await rig.client()
        producer = Producer(connection, rig)
        await producer.send(0, 1)
        await rig.router.fence([TP0, TP1], timeout=25)
        for index in (0, 1):
            producer.send(index, acks=0)
        await eventually(lambda: rig.router.hub.budget.used > 0)
        rig.target.inject("api_versions", close_after=0, process=False, times=None)
        for index in (0, 1):
            rig.hand_over("orders", index, 1)
        rig.router.carry([TP0, TP1])
        rig.router.carried_enough([TP0, TP1])
        await eventually(lambda: connection.closed)
        await eventually(lambda: rig.router.hub.budget.used == 0)


async def test_clients_at_work_come_before_those_that_only_were() -> None:
    async with Rig(limits=RouterLimits(carried_clients=1, settle_grace=0.3)) as rig:
        idle = Producer(await rig.client(), rig, producer_id=5)
        await idle.send(0)
        active = Producer(await rig.client(), rig, producer_id=6)
        await active.send(0)
        await handed_over(rig)
        rig.router.carry([TP0])
        assert (await active.send(0))[0].error == 0


async def test_a_cut_connection_to_the_new_leader_doubles_nothing() -> None:
    async with led_by_a_real_broker() as (rig, producer):
        rig.target.inject("produce", close_after=0)
        rig.router.carry([TP0])
        assert [r[0].error for r in await asyncio.gather(*[producer.send(0) for _ in range(5)])] == [0] * 5
        assert rig.values() == [(5, n) for n in range(6)]


async def test_partitions_of_one_request_with_several_new_leaders() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0, 1)
        await rig.router.fence([TP0, TP1], timeout=25)
        held = producer.send(1, 0)
        rig.hand_over("orders", 0, 1)
        rig.hand_over("orders", 1, 2)
        rig.router.carry([TP0])
        await asyncio.sleep(0.05)
        assert not held.done()
        rig.router.carry([TP1])
        assert [(r.index, r.error, r.base_offset) for r in await held] == [(1, 0, 1), (0, 0, 1)]


async def test_no_lease_is_needed_where_real_brokers_decide() -> None:
    lease = ScriptedLease()
    async with Rig(lease=lease) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        await rig.router.fence([TP0], timeout=25)
        held = producer.send(0)
        await asyncio.sleep(0.02)
        rig.hand_over("orders", 0, 1)
        lease.lapse()
        rig.router.carry([TP0])
        assert (await held)[0].error == 0
        assert (await producer.send(0))[0].error == 0


async def test_transactions_are_sent_away() -> None:
    """For whatever reason not every broker may name the new leader in time."""
    async with led_by_a_real_broker() as (rig, producer):
        rig.router.carry([TP0])
        assert (await producer.send(0, transactional=True))[0].error == 6
        assert rig.source.counts["produce"] == 1 and rig.target.counts["produce"] == 0


async def test_nothing_is_carried_while_a_write_may_be_on_its_way_to_the_source() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        rig.source.inject("produce", delay=0.5)
        unknown = producer.send(0)
        await eventually(lambda: sent_to_source(rig) == 2)
        rig.router.hold([TP0])
        held = producer.send(0)
        await asyncio.sleep(0.02)
        rig.elect("orders", 0, 1, E0 + 1)
        rig.router.carry([TP0])
        assert [r[0].error for r in await asyncio.gather(unknown, held)] == [7, 6]
        assert rig.target.counts["produce"] == 0


async def test_nothing_is_carried_to_a_link_broker() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        await rig.router.fence([TP0], timeout=25)
        held = producer.send(0)
        await asyncio.sleep(0.02)
        rig.router.carry([TP0])  # our own copy of the metadata log has us as its leader still
        assert (await asyncio.wait_for(held, 25))[0].error == 6
        assert rig.target.counts["produce"] == 0


async def test_a_target_that_refuses_the_sidecar_is_asked_once() -> None:
    async with Rig() as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0, 1)
        await rig.router.fence([TP0, TP1], timeout=25)
        held = [producer.send(0) for _ in range(3)]
        rig.hand_over("orders", 0, 1)
        rig.hand_over("orders", 1, 1)
        rig.target.inject("produce", error=29, times=None)
        rig.router.carry([TP0])
        for results in await asyncio.gather(*held):
            assert (results[0].error, results[0].current_leader) == (6, (1, E0 + 1))
        asked = rig.target.counts["produce"]
        other = producer.send(1)
        await asyncio.sleep(0.02)
        rig.router.carry([TP1])
        assert (await other)[0].error == 6
        assert rig.target.counts["produce"] == asked
        assert rig.router.hub.budget.used == 0
        assert rig.events.refused == []  # the source has nothing to do with it


async def test_clients_beyond_the_limit_find_the_new_leader_themselves() -> None:
    async with Rig(limits=RouterLimits(carried_clients=1, settle_grace=0.3)) as rig:
        one = Producer(await rig.client(), rig, producer_id=5)
        other = Producer(await rig.client(), rig, producer_id=6)
        for producer in (other, one):
            await producer.send(0)
        await handed_over(rig)
        rig.router.carry([TP0])
        assert (await one.send(0))[0].error == 0
        waiting = [other.send(0) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert not any(each.done() for each in waiting)  # not before it can be told who leads
        rig.router.carried_enough([TP0])
        assert [r[0].error for r in await asyncio.gather(*waiting)] == [6, 6]
        await other.send(1)
        await handed_over(rig, [TP1])
        rig.router.carry([TP1])
        assert (await other.send(1))[0].error == 0  # the next hand-over counts anew
        waiting = [one.send(1)]
        rig.router.carried_enough([TP1])
        assert [r[0].error for r in await asyncio.gather(*waiting)] == [6]


async def test_a_client_that_leaves_while_it_is_carried_leaves_nothing_behind() -> None:
    async with Rig() as rig:
        connection = await rig.client()
        producer = Producer(connection, rig, producer_id=5)
        await producer.send(0)
        await handed_over(rig)
        rig.target.inject("produce", delay=0.2)
        rig.router.carry([TP0])
        producer.send(0)
        await eventually(lambda: rig.target.counts["produce"] == 1)
        connection.close()
        await eventually(lambda: rig.router.hub.budget.used == 0)
        rig.router.carried_enough([TP0])
        await eventually(lambda: not rig.router.hub.fences.lanes(TP0))
        assert rig.values() == [(5, 0), (5, 1)]
        await eventually(lambda: not rig.source.connections_that_asked("produce"))
        await eventually(lambda: not rig.target.connections_that_asked("produce"))
        assert not rig.router.hub.carrying.clients


async def test_held_on_between_the_hand_over_and_the_new_leaders_knowing() -> None:
    async with led_by_a_real_broker() as (rig, producer):
        late = producer.send(0)
        await asyncio.sleep(0.05)
        assert not late.done()
        rig.router.carry([TP0])
        assert (await late)[0].error == 0


async def test_the_phases_of_the_state_do_not_end_it() -> None:
    async with led_by_a_real_broker() as (rig, producer):
        rig.router.carry([TP0])
        rig.router.hold([TP0])  # VALIDATED is still written there
        rig.router.led_elsewhere([TP0])  # HANDED_OVER
        assert (await producer.send(0))[0].error == 0


async def test_the_end_of_a_carry_does_not_touch_a_mirror_that_was_made_anew() -> None:
    async with led_by_a_real_broker() as (rig, producer):
        rig.router.carry([TP0])
        await producer.send(0)
        rig.router.unfence([TP0])
        rig.directory.mirrors["orders"].partitions[0].leading = True
        rig.elect("orders", 0, 900, E0 + 2)
        rig.router.carried_enough([TP0])
        assert (await producer.send(0))[0].error == 0
        assert sent_to_source(rig) == 2
