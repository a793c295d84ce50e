"""The fast path decides as the step by step path does: the same story, with and without it, is the same byte for byte."""

from __future__ import annotations

import asyncio
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import pytest

from router.produce import fast_path, source_route
from router.produce.batch import Batch
from router.produce.fast_path import FastPath
from router.produce.lane_states import LaneState
from router.produce.lanes import Lane
from router.produce.routes import Routes
from router.produce.session import ProduceSession
from router.produce.source_route import Route
from tests.controller.virtual_loop import run_virtual
from tests.router.two_paths import story
from wire.errors import LocalProtocolError

SEEDS, STEPS = 48, 250


class Difference(AssertionError):
    """The two paths did not do the same."""


def tell(seed: int, *, fast: bool, patch: pytest.MonkeyPatch) -> tuple[list[Any], int, int]:
    """The story; requests that went over the fast path, and step by step."""
    counts = [0, 0]
    send, admit = FastPath.send, ProduceSession._admit

    def sent(one: FastPath, *arguments: Any) -> bool:
        done = fast and send(one, *arguments)
        counts[0] += done
        return done

    def admitted(one: ProduceSession, *arguments: Any) -> None:
        counts[1] += 1
        admit(one, *arguments)

    async def main() -> list[Any]:
        clock = SimpleNamespace(monotonic=asyncio.get_running_loop().time)
        inner.setattr(source_route, "time", clock)
        inner.setattr(fast_path, "time", clock)
        return await story(seed, STEPS)

    with patch.context() as inner:
        inner.setattr(FastPath, "send", sent)
        inner.setattr(ProduceSession, "_admit", admitted)
        for kind in (Lane, ProduceSession, Routes, Route):
            # By default the address: the order of a set of them would be another one in each world.
            inner.setattr(kind, "__hash__", lambda _: 0)
        return run_virtual(main()), counts[0], counts[1]


def first(one: list[Any], other: list[Any]) -> str:
    for a, b in zip_longest(one, other):
        if a != b:
            return f"fast {a}\nstep by step {b}"
    return "the same was sent and told"


def compare(seed: int, patch: pytest.MonkeyPatch) -> tuple[int, int]:
    with_it, fast, slow = tell(seed, fast=True, patch=patch)
    without, none, _ = tell(seed, fast=False, patch=patch)
    assert none == 0
    for number, (one, other) in enumerate(zip(with_it, without, strict=True)):
        if one != other:
            states = [(k, one[3][k], other[3][k]) for k in one[3] if one[3][k] != other[3][k]]
            before = [name for name, *_ in with_it[max(0, number - 8) : number]]
            raise Difference(
                f"seed {seed}, step {number}, {one[0]} after {before}:\n"
                f"{first(one[1] + one[2], other[1] + other[2])}\n"
                + "\n".join(f"{k}: fast {a}\n   step by step {b}" for k, a, b in states)
            )
    return fast, slow


@pytest.mark.parametrize("block", range(3))
def test_both_paths_do_the_same(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = slow = 0
    for seed in range(block * SEEDS // 3, (block + 1) * SEEDS // 3):
        more_fast, more_slow = compare(seed, monkeypatch)
        fast, slow = fast + more_fast, slow + more_slow
    assert fast > 400 and slow > 400, f"the stories are one-sided: {fast} fast, {slow} step by step"


def passes_cold(lane: Lane[Any], batch: Batch[Any], route: object) -> bool:
    """Lane.passes without its rule that a new producer's first batch is proven alone."""
    idle = not lane.queue and not lane.stale and not lane.vanished and lane.state is LaneState.FLOWING
    return idle and (not lane.in_flight or lane.route is route)


def lands_always(lane: Lane[Any], batch: Batch[Any]) -> bool:
    """Lane.lands without its rule that a fence, or the end of the batch's time, is looked at."""
    return bool(lane.in_flight) and lane.in_flight[0] is batch


PLANTED: dict[str, tuple[object, str, object]] = {
    "a transaction is forwarded": (fast_path, "TRANSACTIONAL", 0),
    "a new producer is not proven alone": (Lane, "passes", passes_cold),
    "a success is told whatever became of the batch": (Lane, "lands", lands_always),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_difference_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[planted])
    with pytest.raises((Difference, LocalProtocolError)):  # or a rule of the router's own is broken
        for seed in range(SEEDS):
            compare(seed, monkeypatch)
