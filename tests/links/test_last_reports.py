"""What is known of a dead source, and who could not be asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from controller.failover import KnownEnds
from linker.links.take_over_ports import LastReports
from wire.types import TopicPartition

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


async def nothing(tps: object, *, timeout: float) -> None:
    """Everybody has reported."""


async def test_who_is_away_may_know_more() -> None:
    copies = {TP: SimpleNamespace(loaded=True, high_watermark=560, acked_end=0)}
    progress: Any = SimpleNamespace(ask=nothing, current=copies.get)
    away: set[int] = set()
    reports = LastReports(progress, lambda: away)
    assert await reports.known_ends({TP, OTHER}, timeout=1) == {TP: KnownEnds(560, None), OTHER: KnownEnds()}
    away |= {929, 927}
    assert await reports.known_ends({TP}, timeout=1) == {TP: KnownEnds(560, None, (927, 929))}
