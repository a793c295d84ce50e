"""Rounds of the sides that are compared, in turn.

Each round finds what the last one left behind, so the sides change places from round to round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from lab.bench.results import CaseResult

Round = Callable[[], Awaitable[dict[str, Any]]]


async def take_turns(
    result: CaseResult,
    sides: Mapping[str, Round],
    say: Callable[[str], None],
    *,
    warm_up: int,
    rounds: int,
    unit: str = "MB/s",
    others: Mapping[str, Round] | None = None,
) -> None:
    """Play every side's rounds into `result.rounds`, those to warm up under a name of their own.

    `others` come after the sides that change places, always in the order given: one needs what the other left.
    """
    others = others or {}
    for side in (*sides, *others):
        result.rounds |= {side: [], f"{side}_warm_up": []}
    for number in range(-warm_up, rounds):
        compared = list(sides.items())
        if number % 2:
            compared.reverse()
        for side, play in (*compared, *others.items()):
            one = await play()
            label = "warm-up" if number < 0 else f"round {number + 1}"
            say(f"{label} {side}: {one['mb_per_second']:.0f} {unit}")
            result.rounds[side if number >= 0 else f"{side}_warm_up"].append(one)
