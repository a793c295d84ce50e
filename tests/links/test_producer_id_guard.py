"""The guard keeps going, and forwarding off, whatever the source says of itself; and it hardly uses the source's ids up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container
from types import SimpleNamespace
from typing import Any

import pytest

from controller.errors import Refused
from controller.plan.producer_ids import (
    BLOCK,
    DEFAULT_MARGIN,
    IDS_PER_SECOND,
    RESERVE,
    IdsTold,
    lasts,
    pause,
)
from controller.state import ProducerIdFloor
from fleet.stored_controller import StoredController
from fleet.stores.base import StoreError
from linker.links.producer_ids import INTERVAL, FloorNotSet, ProducerIdGuard
from tests.controller.memory_store import MemoryStore
from tests.links.link_context import context
from tests.membership.conftest import eventually
from wire.errors import ConnectionLost, LinkerError


class EmptySource:
    """A source whose only broker has just started: it does not know itself yet."""

    name = "source east"

    def __init__(self) -> None:
        self.nodes: dict[int, Any] = {}
        self.asked = asyncio.Event()

    async def refresh(self, topics: Any, *, timeout: float) -> None:
        self.asked.set()


async def test_a_source_that_names_no_broker_is_asked_again() -> None:
    source: Any = EmptySource()
    target: Any = SimpleNamespace(metadata=SimpleNamespace(subscribe=lambda callback: lambda: None))
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    guard = ProducerIdGuard(context("east", source, target, controller, brokers=frozenset()))
    task = asyncio.create_task(guard.run())
    try:
        await source.asked.wait()
        await asyncio.sleep(0.05)
        assert not task.done()
        assert not guard.allowed
        assert guard.reason is not None
        assert "no live broker" in guard.reason
    finally:
        task.cancel()
        await asyncio.wait([task])


class Allocator:
    """Of a cluster: blocks to brokers, single ids of them to whoever asks."""

    def __init__(self, name: str, brokers: int, start: int = 0) -> None:
        self.name = self.cluster_id = name
        self.next_producer_id = start
        self.nodes: dict[int, Any] = dict.fromkeys(range(brokers))
        self.left: dict[int, list[int]] = {}
        self.offset = 100  # of the metadata log
        self.brokers: dict[int, Any] = {
            node: SimpleNamespace(id=node, epoch=1 + node, incarnation_id=bytes([node]), fenced=False)
            for node in self.nodes
        }
        self.asked: Counter[int] = Counter()
        self.deaf: set[int] = set()

    async def refresh(self, topics: Any, *, timeout: float) -> None:
        pass

    async def connection(self, node: int) -> Any:
        return SimpleNamespace(
            call=lambda api, fields, **rest: self.answer(node), peer=f"node {node}", close=lambda: None
        )

    open_connection = connection

    async def answer(self, node: int) -> Any:
        self.asked[node] += 1
        if node in self.deaf:
            raise ConnectionLost("it does not answer", sent=True)
        return SimpleNamespace(error_code=0, producer_id=self.hand_out(node))

    def appears(self, node: int, epoch: int, incarnation: bytes) -> None:
        self.offset = max(self.offset, epoch)
        self.nodes[node] = None
        self.brokers[node] = SimpleNamespace(id=node, epoch=epoch, incarnation_id=incarnation, fenced=False)

    def live_brokers(self, but: Container[int]) -> list[Any]:
        return [one for one in self.brokers.values() if one.id not in but and not one.fenced]

    def hand_out(self, node: int) -> int:
        if not self.left.get(node):
            self.left[node] = list(range(self.next_producer_id, self.next_producer_id + BLOCK))
            self.next_producer_id += BLOCK
        return self.left[node].pop(0)

    def hand_out_many(self, count: int) -> None:
        """To producers, by the first broker."""
        for _ in range(count // BLOCK):
            self.left[0] = []
            self.hand_out(0)


class NoSidecars:
    """Of a source that has none."""

    async def links(self) -> list[IdsTold]:
        return []


class Scene:
    """A source of three brokers, a target of two, and guards of one link; time goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.source = Allocator("source east", 3, 50_000)
        self.target = Allocator("target", 2)
        self.store = MemoryStore()
        self.rate = 0  # ids that the source hands out in a second
        self.hearing = 1.0  # seconds
        self._due: dict[ProducerIdGuard, float] = {}
        self._handed_out = 0.0

    async def open(self) -> Scene:
        self.controller = await StoredController.open(self.store, now=lambda: 7)
        await self.controller.create_link("east", "source", {})
        return self

    def guard(self, *, head: bool = True, margin: int = DEFAULT_MARGIN) -> ProducerIdGuard:
        async def allocate(blocks: int, *, until: int, **rest: Any) -> None:
            self.target.next_producer_id = max(until, self.target.next_producer_id)

        async def wait_for(condition: Any, timeout: float) -> None:
            assert condition(target.image)

        target: Any = SimpleNamespace(
            image=self.target,
            cluster=self.target,
            operations=SimpleNamespace(allocate_producer_ids=allocate),
            metadata=SimpleNamespace(wait_for=wait_for, subscribe=lambda callback: lambda: None),
        )
        source: Any = self.source
        guard = ProducerIdGuard(
            context("east", source, target, self.controller, brokers=frozenset(), head=head),
            margin,
            clock=lambda: self.now,
        )
        guard._sidecars = NoSidecars()  # type: ignore[assignment]
        return guard

    async def go_on(self, seconds: float, *guards: ProducerIdGuard) -> None:
        """Each looks when it does by itself, and when it hears of a look."""
        end = self.now + seconds
        while True:
            due = {guard: self._due.setdefault(guard, self.now) for guard in guards}
            guard = min(due, key=lambda one: due[one])
            if due[guard] > end:
                self._go_to(end)
                return
            self._go_to(max(self.now, due[guard]))
            before = self.word
            try:
                await guard._look()
                wait = guard._next_look()
            except LinkerError:
                wait = INTERVAL
            self._due[guard] = self.now + wait
            if self.word != before:
                for other in guards:
                    if other is not guard:
                        self._due[other] = min(self._due[other], self.now + self.hearing)

    def _go_to(self, moment: float) -> None:
        self._handed_out += self.rate * (moment - self.now)
        self.now = moment
        blocks = int(self._handed_out) // BLOCK
        self._handed_out -= blocks * BLOCK
        self.source.hand_out_many(blocks * BLOCK)

    @property
    def word(self) -> ProducerIdFloor | None:
        return self.controller.image.floors.get("east")

    @property
    def taken(self) -> int:
        return self.source.asked.total()


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = await Scene().open()
    monkeypatch.setattr("linker.links.producer_ids.wall_clock_ms", lambda: int(scene.now * 1000))
    return scene


async def test_a_day_of_a_link_costs_its_source_few_ids(scene: Scene) -> None:
    head, other = scene.guard(), scene.guard(head=False)
    await scene.go_on(86_400, head, other)
    assert head.allowed
    assert other.allowed
    # Every 30 s of both it would be 17,280.
    assert scene.taken <= 3 * (86_400 / pause(head.distance or 0) + 2)
    assert scene.taken < 600
    assert other.distance == head.distance


@pytest.mark.parametrize("heads", [True, False], ids=["with", "without"])
@pytest.mark.parametrize("margin", [410_000, DEFAULT_MARGIN, 5_000_000])
async def test_what_the_source_hands_out_is_noticed_by_all_before_it_is_too_late(
    scene: Scene, margin: int, heads: bool
) -> None:
    """Also by those that hear of no look any more."""
    head, other = scene.guard(margin=margin), scene.guard(head=False, margin=margin)
    await scene.go_on(7.0, head, other)
    guards = (head, other) if heads else (other,)
    assert scene.word is not None
    floor = scene.word.floor
    scene.rate = IDS_PER_SECOND
    while any(guard.allowed for guard in guards):
        assert scene.source.next_producer_id <= floor
        await scene.go_on(1.0, *guards)
    for guard in guards:
        assert "too close" in str(guard.reason)
        assert guard.low


async def test_one_that_hears_of_no_look_looks_itself(scene: Scene) -> None:
    head, other = scene.guard(), scene.guard(head=False)
    await scene.go_on(5.0, head, other)
    before = scene.taken
    await scene.go_on(lasts(other.distance or 0) - 60, other)
    assert scene.taken == before
    await scene.go_on(60, other)
    assert scene.taken == before + 3


async def test_of_the_first_word_nobody_knows_how_old_it_is(scene: Scene) -> None:
    await scene.guard()._look()
    scene.source.hand_out_many(DEFAULT_MARGIN)
    other = scene.guard(head=False)
    await other._look()
    assert not other.allowed
    assert "too close" in str(other.reason)


async def test_what_is_known_of_the_source_never_goes_down(scene: Scene) -> None:
    """The broker with the highest block may be away when one looks again, or looks for the first time."""
    head = scene.guard()
    await scene.go_on(1.0, head)
    scene.source.hand_out_many(800_000)
    await scene.go_on(600, head)
    distance = head.distance or 0
    assert distance < 250_000
    del scene.source.nodes[0]
    await scene.go_on(600, head)
    assert head.distance == distance
    heir = scene.guard()
    await scene.go_on(600, heir)
    assert heir.distance == distance


@pytest.mark.parametrize("trouble", ["a broker", "the store"])
async def test_too_close_is_too_close_whatever_else_is_wrong(scene: Scene, trouble: str) -> None:
    head = scene.guard()
    await scene.go_on(1.0, head)
    assert head.allowed
    scene.source.hand_out_many(DEFAULT_MARGIN)
    if trouble == "a broker":
        scene.source.deaf.add(1)
    else:
        scene.store.commit = refuse  # type: ignore[method-assign]
    await scene.go_on(600, head)
    assert not head.allowed
    assert "too close" in str(head.reason)


async def refuse(*_: Any, **__: Any) -> None:
    raise StoreError("the disk is full")


async def test_a_look_that_is_not_written_down_is_none(scene: Scene) -> None:
    head, other = scene.guard(), scene.guard(head=False)
    await scene.go_on(1.0, head, other)
    commit = scene.store.commit
    scene.store.commit = refuse  # type: ignore[method-assign]
    await scene.go_on(600, head)
    scene.store.commit = commit  # type: ignore[method-assign]
    scene.source.hand_out_many(300_000)
    await scene.go_on(60, head, other)
    assert scene.word is not None
    assert scene.word.source_seen > 300_000, "what is written down now was seen now"
    assert other.distance == head.distance


async def test_when_it_is_over_nobody_takes_more(scene: Scene) -> None:
    head, other = scene.guard(), scene.guard(head=False)
    await scene.go_on(1.0, head, other)
    scene.source.hand_out_many(DEFAULT_MARGIN - RESERVE + BLOCK)
    await scene.go_on(2000, head, other)
    assert not head.allowed
    assert not other.allowed
    before = scene.taken
    await scene.go_on(86_400, head, other)
    assert scene.taken == before


async def test_nobody_asks_the_source_before_the_link_controller_has(scene: Scene) -> None:
    with pytest.raises(FloorNotSet):
        await scene.guard(head=False)._look()
    assert scene.taken == 0


async def test_a_new_link_controller_goes_on_where_the_old_one_was(scene: Scene) -> None:
    await scene.guard()._look()
    heir = scene.guard()
    await heir._look()
    assert heir.allowed
    assert heir.distance == DEFAULT_MARGIN


async def test_a_margin_of_the_links_own(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    guard = scene.guard(margin=5_000_000)
    await scene.go_on(1.0, guard)
    assert guard.distance == 5_000_000
    scene.source.hand_out_many(2_490_000)
    await scene.go_on(3600, guard)
    assert not guard.low
    scene.source.hand_out_many(20_000)
    await scene.go_on(3600, guard)
    assert guard.low
    assert guard.allowed
    assert caplog.text.count("promote soon") == 1


async def test_a_word_is_heard_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linker.links.producer_ids.INTERVAL", 120.0)
    head, other = scene.guard(), scene.guard(head=False)
    await head._look()
    running = asyncio.create_task(other.run())
    try:
        await eventually(lambda: other.allowed)
        scene.source.hand_out_many(300_000)
        scene.now += pause(head.distance or 0)
        await head._look()
        await eventually(lambda: other.distance == head.distance, 25)
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert other._on_records not in scene.controller.listeners


async def test_a_source_that_cannot_be_asked_for_long_is_told_of(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("linker.links.producer_ids.INTERVAL", 0.01)
    guard = scene.guard()
    running = asyncio.create_task(guard.run())
    try:
        await eventually(lambda: guard.allowed)
        scene.source.deaf.add(1)
        scene.now += pause(guard.distance or 0)
        before = scene.source.asked[1]
        await eventually(lambda: scene.source.asked[1] > before + 2)
        assert guard.trouble is None
        scene.now += lasts(guard.distance or 0)
        await eventually(lambda: guard.trouble is not None)
        assert "it does not answer" in str(guard.trouble)
        assert guard.allowed
        scene.source.deaf.clear()
        await eventually(lambda: guard.trouble is None)
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_look_comes_when_it_is_due_and_ones_own_word_is_no_news(scene: Scene) -> None:
    head = scene.guard(margin=400_000)
    await head._look()
    scene.source.hand_out_many(200_000)
    scene.now += pause(head.distance or 0)
    await head._look()
    looked = scene.now
    due = looked + pause(head.distance or 0)
    scene.now = due - 5.0
    await head._look()
    assert head.source.known_at == looked
    assert head._next_look() == pytest.approx(5.0)


async def test_a_broker_of_the_target_that_restarts_does_not_end_forwarding(scene: Scene) -> None:
    """The new process registered when the allocator stood at the floor already. It is asked all the same."""
    guard = scene.guard()
    await guard._look()
    assert guard.allowed
    asked = scene.target.asked[1]
    scene.target.left[1] = []
    scene.target.appears(1, 200, b"new")
    guard._on_target_change()
    assert guard.allowed
    assert guard.task.woken
    await guard._look()
    assert guard.allowed
    assert scene.target.asked[1] == asked + 1
    scene.target.deaf.add(0)
    scene.target.appears(0, 201, b"newer")
    guard._on_target_change()
    with pytest.raises(LinkerError):
        await guard._look()
    assert guard.allowed, "it does not answer yet, which says nothing of its ids"


@pytest.mark.parametrize(
    ("epoch", "incarnation"),
    [(90, b"older"), (200, bytes([1]))],
    ids=["registered before", "the same process registered anew"],
)
async def test_a_broker_that_may_have_a_block_from_before_does(
    scene: Scene, epoch: int, incarnation: bytes
) -> None:
    told: list[bool] = []
    guard = scene.guard()
    guard._on_allowed = lambda: told.append(guard.allowed)
    await guard._look()
    assert told == [True]
    scene.target.left[1] = [7]
    scene.target.appears(1, epoch, incarnation)
    guard._on_target_change()
    assert not guard.allowed
    assert guard.ended is None, "for the moment"
    await guard._look()
    assert guard.allowed
    assert told == [True, True]


async def test_one_that_hands_out_old_ids_all_the_same_ends_it(scene: Scene) -> None:
    guard = scene.guard()
    await guard._look()
    scene.target.appears(1, 200, b"new")
    guard._on_target_change()
    scene.target.left[1] = [7] * 5000
    with pytest.raises(LinkerError, match="below"):
        await guard._look()
    assert not guard.allowed


async def test_a_number_out_of_thin_air_moves_nothing(scene: Scene) -> None:
    """A source that says 10^15 would keep the target's controller at work for ever."""
    scene.source.next_producer_id = 10**15
    guard = scene.guard()
    with pytest.raises(
        Refused, match=r"1000000001003 blocks of 1000, more than 1000000\. .* producer_id_blocks"
    ):
        await guard._look()
    assert scene.target.next_producer_id == 0
    assert scene.word is None
    assert not guard.allowed


async def test_the_margin_is_not_of_the_sources_making(scene: Scene) -> None:
    guard = scene.guard(margin=1_000_000_000)
    await guard._look()
    assert guard.allowed
