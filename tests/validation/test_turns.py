"""Who has the validator: the urgent first, and nobody while producers are held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from linker.validation.turns import Urgency, ValidatorQueue


class Stage:
    def __init__(self) -> None:
        self.turns = ValidatorQueue()
        self.log: list[str] = []
        self._done: set[str] = set()

    def done(self, name: str) -> None:
        self._done.add(name)

    async def until_done(self, name: str, urgency: Urgency) -> None:
        """Works until it is told that it is done; gives way when it is asked to, and then comes back."""
        while name not in self._done:
            async with self.turns.turn(urgency) as turn:
                self.log.append(f"{name} begins")
                while name not in self._done and not turn.yield_asked.is_set():
                    await asyncio.sleep(0)
                self.log.append(f"{name} ends")

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


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0)


async def settled() -> None:
    """Everybody who could go on without being told anything new has."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_the_urgent_go_first_and_others_make_room(stage: Stage) -> None:
    slow = asyncio.create_task(stage.until_done("slow", Urgency.CONTINUOUS))
    await until(lambda: stage.log == ["slow begins"])
    once = asyncio.create_task(stage.until_done("once", Urgency.ONCE))
    promote = asyncio.create_task(stage.until_done("promote", Urgency.PROMOTE))
    await until(lambda: stage.log[1:] == ["slow ends", "promote begins"])
    await settled()
    assert len(stage.log) == 3, "nobody else has it meanwhile"
    stage.done("promote")
    await until(lambda: stage.log[3:] == ["promote ends", "once begins"])
    stage.done("once")
    await until(lambda: stage.log[5:] == ["once ends", "slow begins"])
    await settled()
    assert not slow.done(), "it goes on with what is left"
    stage.done("slow")
    await asyncio.gather(slow, once, promote)
    assert stage.log[7:] == ["slow ends"]


async def test_silence(stage: Stage) -> None:
    slow = asyncio.create_task(stage.until_done("slow", Urgency.PROMOTE))
    await until(lambda: stage.log == ["slow begins"])
    stage.turns.hush("east")
    stage.turns.hush("west")
    await until(lambda: stage.log == ["slow begins", "slow ends"])
    await settled()
    assert len(stage.log) == 2, "behind the fence nobody has it"
    stage.turns.speak_up("east")
    await settled()
    assert len(stage.log) == 2, "the other link's fence still holds"
    stage.turns.speak_up("west")
    await until(lambda: stage.log[2:] == ["slow begins"])
    stage.done("slow")
    await slow


@pytest.mark.parametrize("when", [0.0, 0.001, 0.011, 0.02])
async def test_who_gives_up_waiting_is_in_nobodys_way(stage: Stage, when: float) -> None:
    first = asyncio.create_task(stage.work("first", Urgency.ONCE, 1))
    await asyncio.sleep(0)
    second = asyncio.create_task(stage.work("second", Urgency.ONCE))
    await asyncio.sleep(when)
    second.cancel()
    await asyncio.wait([second])
    await asyncio.wait_for(stage.work("third", Urgency.CONTINUOUS), 25)
    await first
    assert stage.log[-2:] == ["third begins", "third ends"]
