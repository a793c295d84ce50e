"""Between the hand-over in the metadata log and the moment when every broker knows of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

import pytest

from controller.image import ControllerImage
from controller.phases import Phase
from controller.state import MirrorPartition
from linker.fleet import hand_overs
from linker.fleet.hand_overs import HandOvers, Leading
from linker.fleet.ports import StateFences
from linker.promote.new_leaders import wait_known
from tests.router.rig import E0, LINK_BROKER, Producer, Rig, eventually
from wire.frames.types import TopicPartition

TP0, TP1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def hand_overs_of(rig: Rig) -> HandOvers:
    async def known(tps: Collection[TopicPartition], leading: Leading, timeout: float) -> bool:
        return await wait_known(
            rig.target_cluster, rig.image, tps, {LINK_BROKER}, leading=leading, timeout=timeout
        )

    return HandOvers(rig.router, known)


@contextlib.asynccontextmanager
async def fenced() -> AsyncIterator[tuple[Rig, HandOvers, Producer, asyncio.Future[list[object]]]]:
    """Both partitions are fenced; a client's produce to each is held."""
    async with Rig() as rig:
        guide = hand_overs_of(rig)
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0, 1)
        await rig.router.fence([TP0, TP1], timeout=5)
        held = producer.send(0, 1)
        await asyncio.sleep(0.02)
        yield rig, guide, producer, held  # type: ignore[misc]


def hand_over(rig: Rig, *, known: bool) -> None:
    """In the metadata log; brokers know it at once, or not at all."""
    for index, leader in ((0, 1), (1, 2)):
        if known:
            rig.hand_over("orders", index, leader)
        else:
            at_target = rig.target.partition("orders", index)
            at_target.log = rig.source.partition("orders", index).log
            at_target.leader = -1
            rig.directory.mirrors["orders"].partitions[index].leading = False
            rig.elect("orders", index, leader, E0 + 1)


def brokers_know(rig: Rig, index: int, leader: int, *, publish: bool = True) -> None:
    rig.target.move_leader("orders", index, leader, publish=publish)
    rig.target.partition("orders", index).leader_epoch = E0 + 1


def codes(results: list[object]) -> list[int]:
    return [result.error for result in results]  # type: ignore[attr-defined]


async def test_what_was_held_is_released_when_the_new_leader_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_overs, "LEADS_WITHIN", 60.0)
    monkeypatch.setattr(hand_overs, "KNOWN_WITHIN", 60.0)
    async with fenced() as (rig, guide, producer, held):
        hand_over(rig, known=False)
        released = asyncio.create_task(guide.released([TP0, TP1], timeout=60))
        await asyncio.sleep(0.1)
        assert not held.done()
        brokers_know(rig, 0, 1, publish=False)
        await asyncio.sleep(0.1)
        assert not released.done()
        brokers_know(rig, 1, 2, publish=False)
        await asyncio.wait_for(released, 30)
        assert codes(await held) == [0, 0]
        # Brokers that are asked who leads do not know yet: clients are not sent away.
        assert codes(await producer.send(0, 1)) == [0, 0]
        for index in (0, 1):
            rig.target.publish("orders", index)
        await eventually(lambda: rig.router.hub.fences.state(TP0).value == "handed over")  # type: ignore[union-attr]
        assert codes(await producer.send(0, 1)) == [6, 6]
        assert rig.source.counts["produce"] == 2  # one to each leader, before the fence


async def test_the_metadata_log_is_enough_no_command_is_needed() -> None:
    async with fenced() as (rig, guide, _producer, held):
        hand_over(rig, known=True)
        guide.on_target_change(rig.image, [rig.directory.mirrors["orders"].topic_id, b"another topic's "])
        assert codes(await asyncio.wait_for(held, 30)) == [0, 0]


async def test_a_command_that_comes_after_everything_was_released_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hand_overs, "LEADS_WITHIN", 60.0)
    async with fenced() as (rig, guide, _producer, held):
        hand_over(rig, known=False)
        for index, leader in ((0, 1), (1, 2)):
            brokers_know(rig, index, leader, publish=False)  # they lead, and do not say so to clients
        guide.on_target_change(rig.image, [rig.directory.mirrors["orders"].topic_id])
        assert codes(await asyncio.wait_for(held, 30)) == [0, 0]
        await asyncio.wait_for(guide.released([TP0, TP1], timeout=60), 30)
        assert rig.router.hub.fences.state(TP0).value == "carried"  # type: ignore[union-attr]


async def test_what_is_fenced_after_its_hand_over_was_seen_is_released_too() -> None:
    """A sidecar that restarts in between: the state says that it is held, the metadata log that it is over."""
    async with Rig() as rig:
        guide = hand_overs_of(rig)
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        rig.hand_over("orders", 0, 1)
        state = MirrorPartition(link="east", topic=TP0.topic, partition=TP0.partition, phase=Phase.VALIDATED)
        image = ControllerImage()
        image.replay([state])
        StateFences(rig.router, lambda: image, guide.look).rebuild()
        assert codes(await asyncio.wait_for(producer.send(0), 30)) == [0]  # type: ignore[arg-type]


async def test_a_change_that_is_no_hand_over_releases_nothing() -> None:
    async with fenced() as (rig, guide, _producer, held):
        rig.elect("orders", 0, LINK_BROKER, E0 + 1)  # of another sidecar, or ours again
        guide.on_target_change(rig.image, [rig.directory.mirrors["orders"].topic_id])
        await asyncio.sleep(0.1)
        assert not held.done()
        rig.router.unfence([TP0, TP1])
        assert codes(await held) == [0, 0]


async def test_a_broker_that_never_knows_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_overs, "LEADS_WITHIN", 0.2)
    monkeypatch.setattr(hand_overs, "KNOWN_WITHIN", 0.5)
    async with fenced() as (rig, guide, _producer, held):
        hand_over(rig, known=False)
        await asyncio.wait_for(guide.released([TP0, TP1], timeout=60), 30)
        assert not held.done()  # sent on, refused, and tried again
        assert codes(await asyncio.wait_for(held, 30)) == [6, 6]
        assert rig.router.hub.budget.used == 0


async def test_without_clients_of_ours_no_broker_is_asked() -> None:
    async with Rig() as rig:
        guide = hand_overs_of(rig)
        await rig.router.fence([TP0, TP1], timeout=5)
        hand_over(rig, known=False)
        await asyncio.wait_for(guide.released([TP0, TP1], timeout=60), 30)
        assert rig.target.counts["list_offsets"] == 0
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert codes(await producer.send(0)) == [6]  # type: ignore[arg-type]


async def test_a_command_that_comes_before_the_metadata_ends_the_hold_all_the_same() -> None:
    """Then clients look for the new leader by themselves."""
    async with fenced() as (_rig, guide, _producer, held):
        await guide.released([TP0, TP1], timeout=0.2)
        assert codes(await asyncio.wait_for(held, 30)) == [6, 6]


async def test_a_sidecar_that_stops_meanwhile_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_overs, "LEADS_WITHIN", 60.0)
    monkeypatch.setattr(hand_overs, "KNOWN_WITHIN", 60.0)
    async with fenced() as (rig, guide, _producer, held):
        hand_over(rig, known=False)
        guide.on_target_change(rig.image, [rig.directory.mirrors["orders"].topic_id])
        await asyncio.sleep(0.05)
        await rig.router.close()
        assert codes(await asyncio.wait_for(held, 25)) == [6, 6]
