"""What a failover can know of the source, and whom it could not ask for it."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from controller.decide.failovers import KnownEnds
from fleet.progress import CopyReport, FleetProgress, ReportBook
from linker.promote.failover_ports import LastReports
from wire.frames.types import TopicPartition

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
LEADERS = {0: 927, 1: 928}


def report(partition: int, high_watermark: int, heard: bool = True) -> CopyReport:
    return CopyReport(
        link="old",
        topic="orders",
        partition=partition,
        leader_epoch=3,
        loaded=True,
        high_watermark=high_watermark,
        log_start_offset=0,
        heard=heard,
    )


class Fleet:
    """Sidecars 927 and 928 lead a partition each; `answers` are those that do."""

    def __init__(self) -> None:
        self.book = ReportBook()
        self.answers = {927: 560, 928: 70}
        self.unheard: set[int] = set()  # partitions
        self.away: set[int] = set()
        image: Any = SimpleNamespace(
            topics_by_name={
                "orders": SimpleNamespace(
                    partitions={
                        n: SimpleNamespace(leader=leader, leader_epoch=3) for n, leader in LEADERS.items()
                    }
                )
            }
        )
        progress = FleetProgress("old", self.book, self.ask, lambda: image, lambda tp: ())
        self.reports = LastReports(progress, lambda: self.away)

    async def ask(
        self, link: str, tps: Collection[TopicPartition], brokers: Collection[int], timeout: float
    ) -> None:
        for partition, leader in LEADERS.items():
            if leader in brokers and leader in self.answers:
                self.book.note(
                    leader, [report(partition, self.answers[leader], partition not in self.unheard)], 0.0
                )


async def test_who_is_away_may_know_more() -> None:
    fleet = Fleet()
    assert await fleet.reports.known_ends({TP, OTHER}, timeout=1) == {
        TP: KnownEnds(560, None),
        OTHER: KnownEnds(70, None),
    }
    fleet.away |= {926, 925}
    assert await fleet.reports.known_ends({TP}, timeout=1) == {TP: KnownEnds(560, None, (925, 926))}


async def test_who_leads_and_does_not_answer_may_know_more() -> None:
    """It is connected, as far as one can tell: its lease is not over yet."""
    fleet = Fleet()
    await fleet.reports.known_ends({TP, OTHER}, timeout=1)
    del fleet.answers[928]
    assert await fleet.reports.known_ends({TP, OTHER}, timeout=1) == {
        TP: KnownEnds(560, None),
        OTHER: KnownEnds(70, None, (928,)),
    }
    never = Fleet()
    never.answers.clear()
    assert await never.reports.known_ends({TP}, timeout=1) == {TP: KnownEnds(None, None, (927,))}


async def test_a_leader_that_has_not_heard_the_source_does_not_know_its_end() -> None:
    """It holds an end from before it led. Who led then may have passed on more, and have forgotten it in a restart."""
    fleet = Fleet()
    fleet.unheard = {0}
    assert await fleet.reports.known_ends({TP, OTHER}, timeout=1) == {
        TP: KnownEnds(None, None),
        OTHER: KnownEnds(70, None),
    }
