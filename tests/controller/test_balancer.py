"""The balancer against the model of KRaft: fences, re-adds, joins, drains and moves in small steps, leaves alone
what a promote owns, and releases whatever it holds.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from controller.alter_partition import alter_partition_item
from controller.cluster_view import ImageView
from controller.plan.elections import SidecarBroker
from controller.plan.replicas import copies_asked_for, is_open
from fleet.balancer import Balancer
from fleet.balancer_ports import BalancerSettings, Mirrored
from tests.controller.kraft_model import Image, Kraft
from tests.controller.virtual_loop import run_virtual
from wire.errors import ConnectionLost
from wire.frames.types import TopicPartition

T = TypeVar("T")
ID = b"\x01" * 16
REAL = (1, 2, 3)
TARGETS = (1, 2)


class Fleet:
    """Sidecars, their brokers in the model, and the ports. The metadata log is read a little late."""

    def __init__(self, *ids: int, partitions: int = 6, created: Sequence[int] | None = None) -> None:
        self.kraft = Kraft()
        for broker in (*REAL, *ids):
            self.kraft.register(broker)
        self.tps = [TopicPartition("t", index) for index in range(partitions)]
        hosts = list(created or ids)
        self.kraft.create("t", ID, {tp.partition: hosts for tp in self.tps})
        for tp in self.tps:
            self.kraft.reassign(tp, TARGETS)
        self.members = {broker: SidecarBroker(id=broker) for broker in ids}
        self.mirrored = {tp: Mirrored(targets=TARGETS) for tp in self.tps}
        self.known = set(ids)
        self.visible: Image = self.kraft.image()
        self.changed = asyncio.Event()
        self.calls: list[tuple[str, Any]] = []
        self.adopted: list[TopicPartition] = []
        self.held: set[TopicPartition] = set()
        self.most_held = 0
        self.failing: dict[str, int] = {}
        self.written = self.published = 0
        self.kraft.changed = self.publish

    def publish(self) -> None:
        snapshot = self.kraft.image()
        self.written += 1
        number = self.written

        def show() -> None:
            if number > self.published:  # timers of one moment come in any order
                self.published = number
                self.visible = snapshot
                self.changed.set()

        asyncio.get_running_loop().call_later(0.01, show)

    async def call(self, name: str, what: Any) -> None:
        self.calls.append((name, what))
        await asyncio.sleep(0.001)
        if self.failing.get(name, 0):
            self.failing[name] -= 1
            raise ConnectionLost(f"simulated at {name}", sent=True)

    # The ports.

    def image(self) -> ImageView:
        return self.visible

    def partitions(self) -> Mapping[TopicPartition, Mirrored]:
        return dict(self.mirrored)

    def sidecars(self) -> Sequence[SidecarBroker]:
        return list(self.members.values())

    def link_brokers(self) -> Collection[int]:
        return self.known

    async def wait_changed(self, *, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self.changed.wait()
        except TimeoutError:
            return
        self.changed.clear()

    async def wait_until(self, predicate: Callable[[ImageView], bool], *, timeout: float) -> bool:
        deadline = asyncio.get_running_loop().time() + timeout
        while not predicate(self.visible):
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(0.002)
        return True

    async def reassign(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, timeout: float
    ) -> None:
        await self.call("reassign", dict(wanted))
        for tp, replicas in wanted.items():
            assert self.mirrored[tp].movable
            assert self.kraft.reassign(tp, replicas) in (0, 85)

    async def alter_isr(
        self, wanted: Mapping[TopicPartition, Sequence[int]], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        await self.call("alter_isr", dict(wanted))
        codes: dict[TopicPartition, int] = {}
        for tp, isr in wanted.items():
            item = alter_partition_item(self.visible, tp, isr)
            found = self.kraft.alter_partition(item.leader, [item])
            codes |= found if isinstance(found, dict) else {tp: found}
        return codes

    async def elect_preferred(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        await self.call("elect", sorted(tps))
        assert set(tps) <= self.held or self.failing.get("undrained"), "moved without a hold"
        return self.kraft.elect_preferred(tps)

    async def fence_broker(self, broker_id: int, broker_epoch: int, *, timeout: float) -> bool:
        await self.call("fence", broker_id)
        return self.kraft.fence(broker_id, broker_epoch) == 0

    async def move_fence(self, tps: Collection[TopicPartition], origin: int, *, timeout: float) -> None:
        await self.call("hold", (sorted(tps), origin))
        self.held |= set(tps)
        self.most_held = max(self.most_held, len(self.held))

    async def move_done(self, tps: Collection[TopicPartition], origin: int, *, timeout: float) -> None:
        await self.call("release", (sorted(tps), origin))
        self.held -= set(tps)

    async def adopt(self, tps: Collection[TopicPartition]) -> None:
        await self.call("adopt", sorted(tps))
        self.adopted += tps

    # What the tests do and look at.

    def leads(self) -> Counter[int]:
        return Counter(state.leader for state in self.kraft.partitions.values())

    def isrs(self) -> set[tuple[int, ...]]:
        return {tuple(sorted(state.isr)) for state in self.kraft.partitions.values()}

    def join(self, broker: int) -> None:
        self.kraft.register(broker)
        self.known.add(broker)
        self.members[broker] = SidecarBroker(id=broker)

    def member(self, broker: int, **changes: Any) -> None:
        self.members[broker] = replace(self.members[broker], **changes)
        self.changed.set()

    def check(self) -> None:
        for tp, state in self.kraft.partitions.items():
            assert set(state.isr) <= self.known, (tp, state)
            assert copies_asked_for(state, TARGETS), (tp, state)


async def until_quiet(fleet: Fleet, balancer: Balancer, most: int = 60) -> int:
    """Rounds until nothing is to be done; how many did something."""
    for number in range(most):
        await asyncio.sleep(0.05)
        stepped = await balancer.round()
        fleet.check()
        if not stepped and not balancer.trouble:
            await asyncio.sleep(0.05)
            return number
    raise AssertionError(f"never quiet: {balancer.trouble}, {fleet.calls[-5:]}")


def scene(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return run_virtual(main())


def test_one_sidecar_is_left_as_it_is() -> None:
    async def main() -> None:
        fleet = Fleet(900)
        await until_quiet(fleet, Balancer(fleet))
        assert [name for name, _ in fleet.calls] == ["adopt"]
        assert all(is_open(state, TARGETS, (900,)) for state in fleet.kraft.partitions.values())

    scene(main)


def test_leadership_is_spread_by_small_steps_and_only_while_held() -> None:
    async def main() -> None:
        fleet = Fleet(900, 901, 902, partitions=12)
        await until_quiet(fleet, Balancer(fleet, BalancerSettings(most_moves=3)))
        assert fleet.leads() == {900: 4, 901: 4, 902: 4}
        assert fleet.most_held <= 3
        assert not fleet.held
        assert set(fleet.adopted) == set(fleet.tps)
        assert all(is_open(s, TARGETS, fleet.known) for s in fleet.kraft.partitions.values()), "copies stay D"

    scene(main)


def test_one_that_joins_is_added_and_gets_its_share() -> None:
    async def main() -> None:
        fleet = Fleet(900)
        fleet.join(901)
        await until_quiet(fleet, Balancer(fleet))
        assert fleet.isrs() == {(900, 901)}
        assert fleet.leads() == {900: 3, 901: 3}

    scene(main)


def test_a_dead_one_is_fenced_at_once_and_comes_back_into_the_isr() -> None:
    async def main() -> None:
        fleet = Fleet(900, 901)
        balancer = Balancer(fleet)
        await until_quiet(fleet, balancer)
        fleet.calls.clear()
        fleet.member(901, alive=False)
        assert await balancer.round()
        assert fleet.calls[0] == ("fence", 901)
        assert fleet.leads() == {900: 6}
        await until_quiet(fleet, balancer)
        assert fleet.isrs() == {(900,)}
        assert fleet.calls.count(("fence", 901)) == 1
        # Unfenced, but not heard of: nothing is given to it, and it is fenced again.
        fleet.kraft.unfence(901)
        await until_quiet(fleet, balancer)
        assert fleet.isrs() == {(900,)}
        fleet.kraft.unfence(901)
        fleet.member(901, alive=True)
        await until_quiet(fleet, balancer)
        assert fleet.isrs() == {(900, 901)}
        assert fleet.leads() == {900: 3, 901: 3}

    scene(main)


def test_draining() -> None:
    async def main() -> None:
        fleet = Fleet(900, 901)
        balancer = Balancer(fleet)
        running = asyncio.ensure_future(balancer.run())
        await asyncio.sleep(1)
        fleet.member(900, draining=True)
        await asyncio.sleep(20)
        assert fleet.leads() == {901: 6}
        assert fleet.isrs() == {(900, 901)}
        fleet.kraft.fence(900)
        fleet.members.pop(900)
        fleet.member(901, draining=True)
        await asyncio.sleep(1)
        assert fleet.leads() == {901: 6}
        stuck = balancer.why_led(901)
        assert len(stuck) == 6
        assert all(stuck.values()), "each with the reason"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    scene(main)


def test_what_a_promote_owns_is_not_touched() -> None:
    async def main() -> None:
        fleet = Fleet(900, 901)
        fleet.join(902)
        owned = fleet.tps[:2]
        for tp in owned:
            fleet.mirrored[tp] = replace(fleet.mirrored[tp], movable=False)
        before = {tp: fleet.kraft.partitions[tp] for tp in owned}
        await until_quiet(fleet, Balancer(fleet))
        assert {tp: fleet.kraft.partitions[tp] for tp in owned} == before
        assert max(fleet.leads().values()) - min(fleet.leads().values()) <= 1

    scene(main)


def test_one_taken_by_a_promote_in_the_middle_of_its_move_is_left_there() -> None:
    async def main() -> None:
        fleet = Fleet(900, 901, partitions=2)
        hold = fleet.move_fence

        async def taken(tps: Collection[TopicPartition], origin: int, *, timeout: float) -> None:
            await hold(tps, origin, timeout=timeout)
            for tp in tps:
                fleet.mirrored[tp] = replace(fleet.mirrored[tp], movable=False)

        fleet.move_fence = taken  # type: ignore[method-assign]
        await until_quiet(fleet, Balancer(fleet))
        assert fleet.leads() == {900: 2}
        assert not fleet.held

    scene(main)


def test_nothing_is_asked_of_a_partition_whose_copies_were_not_asked_for() -> None:
    async def main() -> None:
        fleet = Fleet(900, 901)
        for tp in fleet.tps:
            fleet.kraft.reassign(tp, None)
        fleet.visible = fleet.kraft.image()
        balancer = Balancer(fleet)
        assert not await balancer.round()
        assert {name for name, _ in fleet.calls} == {"adopt"}

    scene(main)


@pytest.mark.parametrize("what", ["reassign", "alter_isr", "elect", "fence", "hold", "release", "adopt"])
def test_a_call_that_fails_is_told_and_made_again(what: str) -> None:
    async def main() -> None:
        fleet = Fleet(900, 901, 902)
        fleet.failing = {what: 2, "undrained": 1}
        balancer = Balancer(fleet)
        fleet.join(903)
        dead = 900 if what == "fence" else 902  # only one that leads is fenced
        fleet.member(dead, alive=False)
        await until_quiet(fleet, balancer)
        assert fleet.failing[what] == 0
        assert max(fleet.leads().values()) - min(fleet.leads().values()) <= 1
        assert set(fleet.leads()) == {900, 901, 902, 903} - {dead}

    scene(main)


def test_what_is_held_is_released_when_the_balancer_is_cancelled() -> None:
    async def main() -> None:
        fleet = Fleet(900, 901)
        balancer = Balancer(fleet)
        running = asyncio.ensure_future(balancer.run())
        while not fleet.held:
            await asyncio.sleep(0.0005)
        assert "leader 900 -> 901 (balance)" in balancer.moving.values()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not fleet.held

    scene(main)


@pytest.mark.parametrize("seed", range(12))
def test_through_any_trouble_to_an_even_load(seed: int) -> None:
    """Sidecars die, return, join and leave, somebody cancels or rebalances, calls fail."""

    async def main() -> None:
        rng = random.Random(seed)
        fleet = Fleet(900, 901, partitions=8)
        balancer = Balancer(fleet, BalancerSettings(most_moves=4, retry_max=0.5, look_again=0.5))
        running = asyncio.ensure_future(balancer.run())
        names = ("reassign", "alter_isr", "elect", "fence", "hold", "release", "adopt")
        fleet.failing["undrained"] = 1
        for _ in range(25):
            await asyncio.sleep(rng.choice([0.0, 0.02, 0.3, 2.0]))
            broker = rng.choice(sorted(fleet.members))
            match rng.randint(0, 5):
                case 0 if sum(s.alive for s in fleet.members.values()) > 1 and fleet.members[broker].alive:
                    fleet.member(broker, alive=False)
                case 1:
                    fleet.kraft.unfence(broker)
                    fleet.member(broker, alive=True)
                case 2 if len(fleet.members) < 4:
                    fleet.join(max(fleet.known) + 1)
                case 3:
                    fleet.kraft.rebalance()
                case 4:
                    fleet.failing[rng.choice(names)] = 1
                case 5:
                    fleet.member(broker, draining=rng.random() < 0.5)
            fleet.check()
        for broker in fleet.members:
            fleet.kraft.unfence(broker)
            fleet.member(broker, alive=True, draining=False)
        await asyncio.sleep(60)
        fleet.check()
        led = [fleet.leads()[broker] for broker in fleet.members]
        assert max(led) - min(led) <= 1, (led, balancer.trouble)
        assert all(len(state.isr) == min(3, len(fleet.members)) for state in fleet.kraft.partitions.values())
        assert not fleet.held
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    scene(main)


def test_a_silent_one_that_nobody_can_stand_in_for_is_left_alone() -> None:
    """It may be silent to the link controller only."""

    async def main() -> None:
        fleet = Fleet(900)
        fleet.member(900, alive=False)
        balancer = Balancer(fleet)
        await balancer.round()
        assert "fence" not in {name for name, _ in fleet.calls}

    scene(main)
