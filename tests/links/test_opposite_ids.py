"""Producer ids of two clusters that mirror each other: no id is ever in use at both, and both links forward."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.errors import Refused
from controller.plan.producer_ids import BLOCK, DEFAULT_MARGIN, RESERVE, IdsTold, Runs, ceiling, tell, told
from fleet.stored_controller import StoredController
from linker.links.producer_ids import ProducerIdGuard
from tests.controller.memory_store import MemoryStore
from tests.links.link_context import context
from tests.links.test_producer_id_guard import Allocator
from wire.errors import LinkerError


class Side:
    """A cluster with its sidecar and the guard of its link from the other one."""

    def __init__(self, name: str, start: int) -> None:
        self.ids = Allocator(name, 2, start)
        self.given: list[int] = []  # to producers, since the last reset
        self.other: Side
        self.controller: StoredController
        self.guard: ProducerIdGuard
        self.blocks_between = 0  # that brokers fetch while the ids are moved
        self.given_between: list[int] = []

    async def link(self, clock: Callable[[], float]) -> None:
        self.controller = await StoredController.open(MemoryStore(), now=lambda: 7)
        await self.controller.create_link("other", self.other.ids.name, {})
        target: Any = SimpleNamespace(
            image=self.ids,
            cluster=self.ids,
            operations=SimpleNamespace(allocate_producer_ids=self._allocate),
            metadata=SimpleNamespace(wait_for=_met, subscribe=lambda _: lambda: None),
        )
        source: Any = self.other.ids
        self.guard = ProducerIdGuard(
            context("other", source, target, self.controller, brokers=frozenset()), clock=clock
        )
        self.guard._sidecars = self.other  # type: ignore[assignment]

    async def links(self) -> list[IdsTold]:
        """As a sidecar here tells them to the other one."""
        await asyncio.sleep(0)
        if not hasattr(self, "controller"):
            return []
        word = self.controller.image.floors.get("other")
        one = IdsTold(self.other.ids.name, None)
        if word is not None:
            one = IdsTold(self.other.ids.name, word.floor, word.unused)
        return told(tell([one]))

    async def _allocate(self, blocks: int, *, until: int, took: Callable[[int, int], None], **_: Any) -> None:
        for number in range(blocks):
            if self.blocks_between and number % 300 == 299:
                self.blocks_between -= 1
                self.ids.left[0] = []
                self.given_between.append(self.ids.hand_out(0))
            if self.ids.next_producer_id >= until:
                break
            took(self.ids.next_producer_id, BLOCK)
            self.ids.next_producer_id += BLOCK
            if number % 100 == 0:
                await asyncio.sleep(0)

    def give(self, count: int) -> None:
        """Ids to producers, and whole blocks to restarting brokers."""
        for _ in range(count):
            self.given.append(self.ids.hand_out(0))


async def _met(condition: Any, _timeout: float) -> None:
    await asyncio.sleep(0)


class Both:
    def __init__(self, a: int, b: int) -> None:
        self.now = 1000.0
        self.a, self.b = Side("A", a), Side("B", b)
        self.a.other, self.b.other = self.b, self.a

    async def look(self, *sides: Side) -> None:
        """Each side a few times, as it would over ten minutes."""
        for _ in range(12):
            for side in sides:
                try:
                    await side.guard._look()
                except LinkerError as error:
                    side.guard._failed(error)
            self.now += 60

    def check(self) -> None:
        """Of producers that began after both links: no id is another one's at the other cluster."""
        assert not set(self.a.given) & set(self.b.given)


@pytest.mark.parametrize(("a", "b"), [(0, 0), (50_000, 3000), (3000, 50_000), (0, 7_000_000), (7_000_000, 0)])
@pytest.mark.parametrize("first", ["a", "b", "both"])
@pytest.mark.parametrize("between", [0, 3])
async def test_both_links_forward_and_no_id_is_used_twice(a: int, b: int, first: str, between: int) -> None:
    both = Both(a, b)
    both.a.blocks_between = both.b.blocks_between = between
    order = [both.b, both.a] if first == "b" else [both.a, both.b]
    both.a.give(5)
    both.b.give(5)
    if first == "both":
        for side in order:
            await side.link(lambda: both.now)
        for side in order:
            side.given.clear()
        await asyncio.gather(*(both.look(side) for side in order))
    else:
        for side in order:
            await side.link(lambda: both.now)
            side.given.clear()
            await both.look(side)
    await both.look(*order)
    for side in order:
        side.given.clear()
    if first != "both":
        # Whoever moved last is at work with ids from the very moment.
        order[1].given += order[1].given_between
    assert both.a.guard.allowed, both.a.guard.reason
    assert both.b.guard.allowed, both.b.guard.reason
    for _ in range(40):  # until one of them has used up its distance
        for side in order:
            if side.guard.allowed:
                side.give(20)
                side.ids.hand_out_many(40 * BLOCK)
                side.given.append(side.ids.next_producer_id - 1)
        await both.look(*order)
        both.check()
    assert not (both.a.guard.allowed and both.b.guard.allowed)
    assert "too close" in str(both.a.guard.reason or both.b.guard.reason)


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
async def test_a_ring_of_three_in_all_orders(order: tuple[str, ...]) -> None:
    """a -> b -> c -> a, each with other topics. Made in the direction of the ring all forward; else one may say that it does
    not any more, and no id is used twice."""
    now = [1000.0]
    sides = {name: Side(name.upper(), start) for name, start in (("a", 0), ("b", 80_000), ("c", 9000))}
    for name, source in (("b", "a"), ("c", "b"), ("a", "c")):
        sides[name].other = sides[source]

    async def look() -> None:
        for _ in range(12):
            for side in sides.values():
                if hasattr(side, "guard"):
                    try:
                        await side.guard._look()
                    except LinkerError as error:
                        side.guard._failed(error)
            now[0] += 60

    for name in order:
        await sides[name].link(lambda: now[0])
        await look()
    for side in sides.values():
        assert side.guard.allowed or "".join(order) not in "abcab", (side.ids.name, side.guard.reason)
        side.given.clear()
    for _ in range(30):
        for side in sides.values():
            if side.guard.allowed:
                side.give(20)
                side.ids.hand_out_many(40 * BLOCK)
                side.given.append(side.ids.next_producer_id - 1)
        await look()
        for side in sides.values():
            assert not (side.guard.allowed and set(side.given) & set(side.other.given))


def test_only_ids_that_nobody_has_lie_between_the_target_and_its_source() -> None:
    links = [IdsTold("T", 2_000_000, ((1_000_000, 1_500_000), (1_501_000, 2_000_000))), IdsTold("X", None)]
    assert ceiling(links, 1_200_000, 1_300_000) == 1_500_000
    assert ceiling(links, 900_000, 1_300_000) is None  # the source has some of the target's
    assert ceiling(links, 1_200_000, 1_600_000) is None  # the target has passed a block of the source's
    assert ceiling(links, 1_600_000, 1_700_000) == 2_000_000
    assert ceiling([], 0, 0) is None


async def test_a_link_that_was_moved_past_goes_on_after_a_restart() -> None:
    both = Both(0, 0)
    await both.b.link(lambda: both.now)
    await both.look(both.b)
    await both.a.link(lambda: both.now)
    await both.look(both.a, both.b)
    word = both.b.controller.image.floors["other"]
    assert word.ceiling is not None
    assert word.ceiling >= word.floor + DEFAULT_MARGIN - BLOCK
    again = both.b.guard
    heir = ProducerIdGuard(
        context("other", again._source, again._target, both.b.controller, brokers=frozenset()),
        clock=lambda: both.now,
    )
    await heir._look()
    assert heir.allowed
    assert heir.distance == word.ceiling - both.b.ids.next_producer_id
    both.b.ids.next_producer_id = word.ceiling - RESERVE + 1
    await heir._look()
    assert not heir.allowed
    assert "in the other direction" in str(heir.ended)


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_runs_are_what_was_taken(order: list[int], ours: set[int]) -> None:
    runs = Runs()
    for block in order:
        if block in ours:
            runs.add(block * BLOCK, BLOCK)
    longest = runs.longest()
    taken = {number for first, end in longest for number in range(first // BLOCK, end // BLOCK)}
    assert taken <= ours
    if len(longest) < 4:
        assert taken == ours


ids = st.integers(0, 2**62)


@settings(max_examples=200)
@given(
    st.lists(
        st.builds(
            IdsTold,
            st.text("ABCabc012-_", min_size=1),
            ids | st.none(),
            st.lists(st.tuples(ids, ids), max_size=4).map(tuple),
        ),
        max_size=5,
    )
)
def test_links_are_told_as_they_are(links: list[IdsTold]) -> None:
    assert told(tell(links)) == links


@pytest.mark.parametrize(
    "value", ["A", "A:1", "A:x:", "A:1:5", "A:1:5-x", "A:-1:", "A:1:1-2/" * 9, "A:" + "9" * 30 + ":"]
)
def test_nonsense_is_refused(value: str) -> None:
    with pytest.raises(Refused):
        told(value)
