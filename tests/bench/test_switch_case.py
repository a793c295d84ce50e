"""What the switch's case makes of its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from lab.bench import switch
from lab.bench.cluster import BenchError
from lab.bench.settings import QUICK
from lab.workload.checker import Verdict
from lab.workload.inspection import truncations
from lab.workload.source_data import SourceTopic

VERDICT = Verdict(
    acked=10, failed=0, unknown=0, read=10, reread=0, promote_pause_ms=100.0, pauses_ms={"source-3": 100.0}
)


class _Cluster:
    nodes: ClassVar[Mapping[int, Any]] = {}

    async def create_topic(self, *_: object) -> None: ...


class _Stage:
    source = target = _Cluster()

    async def create_mirrors(self, topics: object, replication_factor: int) -> None: ...

    async def wait_all_active(self, topics: object, timeout: float) -> None: ...


@pytest.mark.parametrize(("lost_by", "problems"), [("there", 1), ("back", 1), ("election", 0), (None, 0)])
async def test_only_what_a_switch_loses_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, lost_by: str | None, problems: int
) -> None:
    pauses = {"there": 300.0, "back": 100.0, "election": 50.0}

    async def under_load(*arguments: Any) -> dict[str, dict[str, Any]]:
        moves: Mapping[str, object] = arguments[-1]
        found = {}
        for side in moves:
            verdict = replace(VERDICT, promote_pause_ms=pauses[side])
            found[side] = switch._round(
                replace(verdict, lost=("record 1",)) if side == lost_by else verdict, None
            )
        return found

    monkeypatch.setattr(switch, "_under_load", under_load)
    on: Any = _Stage()
    case = await switch._switch(on, 4, QUICK, lambda _: None)
    assert len(case.problems) == problems
    assert case.figures["both_pause_ms_median"] == 200.0
    assert case.figures["both_pause_ms_max"] == 300.0
    assert case.ratios == {"election's pause / switch's": 0.25}
    assert case.rounds["back"][0]["pause_ms_by_producer"] == {"source": 100.0}


@pytest.mark.parametrize(
    ("partitions", "most", "names"), [(1, None, 1), (150, None, 2), (1000, None, 10), (1000, 1000, 1)]
)
async def test_a_thousand_partitions_are_those_of_ten_topics(
    monkeypatch: pytest.MonkeyPatch, partitions: int, most: int | None, names: int
) -> None:
    moved: list[Any] = []

    async def under_load(*arguments: Any) -> dict[str, dict[str, Any]]:
        moved.append(arguments[1])
        return {side: switch._round(VERDICT, None) for side in arguments[-1]}

    monkeypatch.setattr(switch, "_under_load", under_load)
    on: Any = _Stage()
    await switch._switch(on, partitions, replace(QUICK, largest_topic=most), lambda _: None)
    assert [len(set(topics.names)) for topics in moved] == [names] * 2
    assert all(len(topics.names) * topics.partitions == partitions for topics in moved)
    assert all(len(topics.written) == names for topics in moved)
    with pytest.raises(BenchError, match="101 partitions cannot be those of 2 topics"):
        await switch._switch(on, 101, QUICK, lambda _: None)


def test_a_broker_that_truncates_what_is_committed_is_named(tmp_path: Path) -> None:
    """The line is as Kafka 4.3.1 writes it."""
    log = tmp_path / "server.log"
    line = "09:45:20.767 [Fetcher] WARN UnifiedLog - [UnifiedLog partition={0}, dir=/d] Truncating {0} to offset 3 below "
    line += "high watermark 9"
    log.write_text("".join(line.format(name) + "\n" for name in ("t-1", "other-1", "t-10")))
    node: Any = SimpleNamespace(name="node-1", log=log)
    found = truncations([node], [SourceTopic("t", 2, lambda *_: None)])
    assert found == ["node-1: Truncating t-1 to offset 3 below high watermark 9"]


def test_what_sync_adds_is_between_neighbours() -> None:
    """A machine that gets slower in the middle of the run adds to both."""
    without = [{"p50_ms": one} for one in (1.0, 10.0, 11.0)]
    in_sync = [{"p50_ms": one} for one in (2.0, 11.0, 12.0)]
    assert switch._median_added(without, in_sync, "p50_ms") == 1.0
