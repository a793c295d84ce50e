"""Who has the validator: the urgent first, and nobody while producers are held."""

from __future__ import annotations

import asyncio

import pytest

from linker.validation.turns import Turns, Urgency


class Stage:
    def __init__(self) -> None:
        self.turns = Turns()
        self.log: list[str] = []

    async def work(self, name: str, urgency: Urgency, steps: int = 3) -> None:
        """Works in steps; gives way when it is asked to, and then goes on with what is left."""
        while steps:
            async with self.turns.turn(urgency) as turn:
                self.log.append(f"{name} begins")
                while steps and not turn.yield_asked.is_set():
                    await asyncio.sleep(0.01)
                    steps -= 1
                self.log.append(f"{name} ends")


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_one_after_the_other(stage: Stage) -> None:
    await asyncio.gather(*(stage.work(name, Urgency.ONCE) for name in "abc"))
    assert stage.log == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


async def test_the_urgent_go_first_and_others_make_room(stage: Stage) -> None:
    slow = asyncio.create_task(stage.work("slow", Urgency.CONTINUOUS, 5))
    await asyncio.sleep(0.015)
    await asyncio.gather(stage.work("once", Urgency.ONCE), stage.work("promote", Urgency.PROMOTE))
    await slow
    assert stage.log[:2] == ["slow begins", "slow ends"]
    assert stage.log[2:6] == ["promote begins", "promote ends", "once begins", "once ends"]
    assert stage.log[6:] == ["slow begins", "slow ends"]


async def test_silence(stage: Stage) -> None:
    slow = asyncio.create_task(stage.work("slow", Urgency.PROMOTE, 5))
    await asyncio.sleep(0.015)
    stage.turns.hush("east")
    stage.turns.hush("west")
    await asyncio.sleep(0.05)
    assert stage.log == ["slow begins", "slow ends"]
    stage.turns.speak_up("east")
    await asyncio.sleep(0.02)
    assert len(stage.log) == 2
    stage.turns.speak_up("west")
    await slow
    assert len(stage.log) == 4


@pytest.mark.parametrize("when", [0.0, 0.001, 0.011, 0.02])
async def test_who_gives_up_waiting_is_in_nobodys_way(stage: Stage, when: float) -> None:
    first = asyncio.create_task(stage.work("first", Urgency.ONCE, 1))
    await asyncio.sleep(0)
    second = asyncio.create_task(stage.work("second", Urgency.ONCE))
    await asyncio.sleep(when)
    second.cancel()
    await asyncio.wait([second])
    await asyncio.wait_for(stage.work("third", Urgency.CONTINUOUS), 1)
    await first
    assert stage.log[-2:] == ["third begins", "third ends"]
