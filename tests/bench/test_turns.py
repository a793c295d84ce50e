from __future__ import annotations

import itertools
from typing import Any

import pytest

from lab.bench.results import CaseResult
from lab.bench.turns import take_turns


async def played(warm_up: int, rounds: int) -> tuple[list[str], CaseResult, list[str]]:
    """Which sides had their rounds, in order; the result; what was said."""
    order: list[str] = []
    said: list[str] = []
    result = CaseResult("case", "what")

    def side(name: str) -> Any:
        async def play() -> dict[str, Any]:
            order.append(name)
            return {"mb_per_second": len(order)}

        return play

    await take_turns(
        result,
        {"stock": side("stock"), "link": side("link")},
        said.append,
        warm_up=warm_up,
        rounds=rounds,
        others={"direct": side("direct"), "maker": side("maker")},
    )
    return order, result, said


@pytest.mark.parametrize("warm_up", [0, 1, 2])
async def test_sides_that_are_compared_change_places_and_the_others_do_not(warm_up: int) -> None:
    order, _, _ = await played(warm_up, 2)
    turns = [order[start : start + 4] for start in range(0, len(order), 4)]
    assert [turn[2:] for turn in turns] == [["direct", "maker"]] * (warm_up + 2)
    firsts = [turn[0] for turn in turns]
    assert all(one != other for one, other in itertools.pairwise(firsts))
    assert firsts[warm_up] == "stock"


async def test_what_warms_up_is_kept_apart() -> None:
    _, result, said = await played(1, 2)
    assert {side: len(rounds) for side, rounds in result.rounds.items()} == {
        **dict.fromkeys(("stock", "link", "direct", "maker"), 2),
        **dict.fromkeys(("stock_warm_up", "link_warm_up", "direct_warm_up", "maker_warm_up"), 1),
    }
    assert [one["mb_per_second"] for one in result.rounds["link_warm_up"]] == [1]
    assert [one["mb_per_second"] for one in result.rounds["link"]] == [6, 9]
    assert said[0] == "warm-up link: 1 MB/s"
    assert said[-1] == "round 2 maker: 12 MB/s"
