"""Ranges that are settled where all sides are read at once, beside the slow way by sorted rows; and what is left to that."""

from __future__ import annotations

import asyncio
import importlib
import random
import sys
import zipfile
import zipimport
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.cluster import FakeCluster
from tests.fakes.log import FakeLog
from tests.validator import logs
from tests.validator.test_batch_run import FAULTS
from tests.validator.without_spark import sorted_here
from validator.compare import side_by_side
from validator.compare.columns import HeaderBlock
from validator.compare.matching import FIELDS, RangeMatch, Rows, rows_of
from validator.compare.side_by_side import read_side_by_side
from validator.compare.small_ranges import judge_small
from validator.compare.verdict import RangeSpec, RangeVerdict
from validator.read.endpoint import ClusterEndpoint, SideFailed, SideName
from validator.read.ranges import PartitionBounds, Range, ReplicaBounds, make_joint_tasks, make_ranges
from validator.read.shipping import forget_zip_directories
from validator.read.spans import SOURCE, Span

END = logs.BATCHES * logs.RECORDS


class Stage:
    """A source of one node and a target of three."""

    def __init__(self, source: FakeCluster, target: FakeCluster) -> None:
        self.source, self.target = source, target

    @property
    def clusters(self) -> dict[str, ClusterEndpoint]:
        def endpoint(side: SideName, cluster: FakeCluster) -> ClusterEndpoint:
            return ClusterEndpoint(side, side, tuple(f"{host}:{port}" for host, port in cluster.bootstrap))

        return {"source": endpoint("source", self.source), "target": endpoint("target", self.target)}

    def ranges(self, range_bytes: int = 700, partitions: int = 1, end: int = END) -> list[Range]:
        replicas = tuple(ReplicaBounds(slot, slot, 0, 0, end) for slot in (1, 2, 3))
        bounds = [PartitionBounds("t", index, 0, end, replicas, 40.0) for index in range(partitions)]
        return make_ranges(bounds, range_bytes=range_bytes)

    async def settle(self, ranges: Sequence[Range]) -> dict[int, RangeVerdict | None]:
        def work() -> dict[int, RangeVerdict | None]:
            tasks = make_joint_tasks(ranges, {}, workers=1)
            return dict(found for task in tasks for found in read_side_by_side(self.clusters, task))

        return await asyncio.to_thread(work)

    async def sorted(self, ranges: Sequence[Range]) -> dict[int, RangeVerdict]:
        return await asyncio.to_thread(sorted_here, self.clusters, ranges, {})


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with FakeCluster() as source, FakeCluster(nodes=3) as target:
        for cluster in (source, target):
            cluster.add_topic("t", 3)
        for index in range(3):
            source.partition("t", index).log = logs.make_log()
            target.partition("t", index).log = logs.copy_log(source.partition("t", index).log)
        yield Stage(source, target)


def alike(verdict: RangeVerdict) -> RangeVerdict:
    """Without what is nobody's business: where its first batch lay in the log."""
    first = verdict.source_first
    return replace(verdict, source_first=None if first is None else first._replace(follows=-1))


@pytest.mark.parametrize("range_bytes", [64, 700, 1 << 20])
async def test_what_is_alike_is_settled_with_the_same_sums(stage: Stage, range_bytes: int):
    ranges = stage.ranges(range_bytes, partitions=3)
    settled = await stage.settle(ranges)
    told = await stage.sorted(ranges)
    assert list(settled) == [one.spec.range_id for one in ranges]
    for range_id, verdict in settled.items():
        assert verdict is not None
        if range_id in told:  # rows of a range in which no batch begins are none
            assert alike(verdict) == alike(told[range_id])
        else:
            assert verdict.source_batches == 0
    assert sum(one.source_batches for one in settled.values() if one) == 3 * logs.BATCHES


@pytest.mark.parametrize(("edit", "expected"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
async def test_what_is_wrong_is_left_and_nothing_else(
    stage: Stage, edit: Callable[[FakeLog], object], expected: list[tuple[str, int]]
):
    partition = stage.target.partition("t")
    log = partition.replica_logs[2] = logs.copy_log(stage.source.partition("t").log)
    edit(log)
    end = min(log.log_end_offset, END)
    ranges = stage.ranges(end=end)
    settled = await stage.settle(ranges)
    told = await stage.sorted(ranges)
    odd = [range_id for range_id, verdict in settled.items() if verdict is None]
    wrong = [range_id for range_id, one in told.items() if one.replicas[2].difference_count]
    assert set(wrong) <= set(odd), "a difference is never settled as alike"
    # beside it at most a range whose seam lies in the damage
    assert len(odd) <= len(wrong) + 1 < len(ranges)
    for range_id, verdict in settled.items():
        if verdict is not None and range_id in told:
            assert alike(verdict) == alike(told[range_id])


async def test_the_rest_of_an_odd_range_is_not_read(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    for index in range(3):
        for cluster in (stage.source, stage.target):
            cluster.partition("t", index).log = logs.make_log(200, value_size=1000)
    partition = stage.target.partition("t", 1)
    log = partition.replica_logs[2] = logs.copy_log(stage.source.partition("t", 1).log)
    logs.change(log, 10, logs.flip_bit)
    ranges = stage.ranges(1 << 20, partitions=3, end=1000)
    monkeypatch.setattr(side_by_side, "FETCH_BYTES", 60_000)
    monkeypatch.setattr(side_by_side, "LEAST_FETCH_BYTES", 60_000)
    settled = await stage.settle(ranges)
    assert [verdict is None for verdict in settled.values()] == [False, True, False]
    asked = {
        index: max(
            one.fetch_offset
            for request in stage.source.received("fetch")
            for topic in request.entity.topics
            for one in topic.partitions
            if one.partition == index
        )
        for index in range(3)
    }
    assert asked[1] < 300 < 900 < asked[0]


@pytest.mark.parametrize("slow", ["source", "target"])
async def test_who_is_ahead_waits_for_the_slowest(stage: Stage, monkeypatch: pytest.MonkeyPatch, slow: str):
    monkeypatch.setattr(side_by_side, "AHEAD", 10)
    monkeypatch.setattr(side_by_side, "FETCH_BYTES", 500)
    monkeypatch.setattr(side_by_side, "LEAST_FETCH_BYTES", 500)
    seen: list[int] = []
    real = side_by_side._Work._wait_for_the_others

    async def wait(self: Any, slot: int) -> None:
        await real(self, slot)
        seen.append(self._ahead[slot] - min(self._ahead[one] for one in self._reading))

    monkeypatch.setattr(side_by_side._Work, "_wait_for_the_others", wait)
    getattr(stage, slow).inject("fetch", delay=0.02, node=1)
    async with asyncio.timeout(60):
        settled = await stage.settle(stage.ranges())
    assert None not in settled.values()
    assert max(seen) <= 10


async def test_a_side_that_cannot_be_read_is_named(stage: Stage):
    ranges = stage.ranges()
    address = f"127.0.0.1:{stage.source.brokers[1].port}"
    clusters = stage.clusters
    await stage.source.brokers[1].stop()
    (task,) = make_joint_tasks(ranges, {}, workers=1)
    with pytest.raises(SideFailed) as caught:
        await asyncio.to_thread(read_side_by_side, clusters, task)
    assert (caught.value.side, caught.value.address) == ("source", address)


# --- matching --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "follows", "intact"),
    [(None, -1, True), (None, 50, True), (None, 51, False), (logs.flip_bit, -1, False)],
)
def test_rows_of_a_batch_that_is_damaged_or_lies_too_late_are_none(
    edit: Callable[[bytearray], None] | None, follows: int, intact: bool
):
    log = logs.make_log()
    if edit is not None:
        logs.change(log, 50, edit)
    data = log.batches[logs.index_of(log, 50)].data
    span = Span(0, "t", 0, 1, 1, 0, END, 0)
    rows = rows_of(HeaderBlock(span, data, [0], [follows]))
    assert (rows is not None) == intact
    if rows is not None:
        assert rows[:4, 0].tolist() == [50, 54, 5, len(data)]


def made_rows(batches: int, dice: random.Random) -> Rows:
    """Ascending, with gaps."""
    rows = np.zeros((len(FIELDS), batches), np.int64)
    at = 0
    for number in range(batches):
        at += dice.choice([0, 0, 3])
        size = dice.randint(1, 5)
        rows[0, number], rows[1, number], rows[2, number] = at, at + size - 1, size
        rows[3:, number] = [dice.randint(0, 1000) for _ in FIELDS[3:]]
        at += size
    return rows


def pieces(rows: Rows, dice: random.Random) -> list[Rows]:
    cuts = sorted(dice.sample(range(1, rows.shape[1]), dice.randint(0, 5)))
    return [part for part in np.split(rows, cuts, axis=1) if part.shape[1]]


def test_random_pieces_of_equal_sides_match_and_one_changed_field_does_not():
    for seed in range(200):
        dice = random.Random(seed)
        rows = made_rows(30, dice)
        sides = {slot: [part.copy() for part in pieces(rows, dice)] for slot in (SOURCE, 1, 2)}
        changed = dice.random() < 0.5
        if changed:
            part = dice.choice(sides[dice.choice([SOURCE, 1, 2])])
            part[dice.randrange(len(FIELDS)), dice.randrange(part.shape[1])] += 1
        match = RangeMatch(RangeSpec(0, 0, 1000, (1, 2)))
        order = [slot for slot, held in sides.items() for _ in held]
        dice.shuffle(order)
        for slot in order:
            match.add(slot, sides[slot].pop(0))
        verdict = match.finish()
        assert (verdict is None) == changed, seed
        if verdict is not None:
            assert (verdict.source_batches, verdict.replicas[2].batches) == (30, 30)
            assert verdict.replicas[1].records == rows[2].sum()


@pytest.mark.parametrize(
    ("bases", "odd"), [([0, 5, 10], False), ([0, 5, 5], True), ([0, 10, 5], True), ([0, 4, 10], True)]
)
def test_batches_that_do_not_rise_on_any_side_are_odd(bases: list[int], odd: bool):
    rows = np.zeros((len(FIELDS), 3), np.int64)
    rows[0], rows[1] = bases, [base + 4 for base in bases]
    for cut in (1, 2, 3):
        match = RangeMatch(RangeSpec(0, 0, 100, (1,)))
        for slot in (SOURCE, 1):
            for part in np.split(rows, [cut], axis=1):
                if part.shape[1]:
                    match.add(slot, part)
        assert (match.finish() is None) == odd


def test_what_one_side_alone_has_shown_at_the_end_is_odd():
    rows = made_rows(3, random.Random(1))
    for missing in (SOURCE, 1):
        match = RangeMatch(RangeSpec(0, 0, 100, (1,)))
        for slot in (SOURCE, 1):
            match.add(slot, rows[:, :2] if slot == missing else rows)
        assert match.finish() is None


# --- the way there ---------------------------------------------------------------------------------------------


def test_joint_tasks_lie_on_the_same_brokers_and_are_a_few_for_each_worker():
    def bounds(index: int, size: float) -> PartitionBounds:
        brokers = [(1, 2), (2, 3), (3, 1)][index % 3]
        replicas = tuple(ReplicaBounds(slot, broker, 0, 0, 1000) for slot, broker in enumerate(brokers, 1))
        return PartitionBounds("t", index, 0, 1000, replicas, size)

    many = make_ranges([bounds(index, 1.0) for index in range(1000)])
    tasks = make_joint_tasks(many, {("t", index): index % 2 for index in range(1000)}, workers=2)
    assert len(tasks) == 6  # a leader and two replicas
    assert sum(len(task.ranges) for task in tasks) == 1000
    for task in tasks:
        assert len({tuple(r.broker_id for r in one.bounds.replicas) for one in task.ranges}) == 1
    large = make_ranges([bounds(0, 1e6)])  # 1 GB
    assert [len(make_joint_tasks(large, {}, workers=workers)) for workers in (1, 2, 8)] == [4, 8, 15]


def test_zip_directories_are_not_read_again_for_every_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    archive = tmp_path / "shipped.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("shipped_one.py", "VALUE = 1\n")
        made.writestr("shipped_two.py", "VALUE = 2\n")
    monkeypatch.syspath_prepend(str(archive))
    read: list[str] = []
    real = zipimport._read_directory  # type: ignore[attr-defined]
    monkeypatch.setattr(zipimport, "_read_directory", lambda path: read.append(path) or real(path))
    assert importlib.import_module("shipped_one").VALUE == 1
    assert str(archive) in sys.path_importer_cache
    forget_zip_directories()
    read.clear()
    importlib.invalidate_caches()  # as Spark does before a task
    assert read == []
    assert importlib.import_module("shipped_two").VALUE == 2, "what was not imported yet can still be"
    for name in ("shipped_one", "shipped_two"):
        sys.modules.pop(name, None)


async def test_small_ranges_are_judged_in_one_task_as_by_spark(stage: Stage):
    log = stage.target.partition("t", 1).replica_logs[2] = logs.copy_log(stage.source.partition("t", 1).log)
    logs.drop(log, 50)
    ranges = stage.ranges(partitions=3)
    told = dict(await asyncio.to_thread(judge_small, stage.clusters, ranges))
    assert told == await stage.sorted(ranges)
    assert len(told) == len(ranges) > 3
    assert sum(one is not None and one.replicas[2].difference_count > 0 for one in told.values()) == 1


async def test_more_batches_than_offsets_are_not_sorted_in_memory(stage: Stage):
    """A broker that shows the same batches over and over decides how much it is."""
    log = stage.target.partition("t", 0).replica_logs[3] = logs.copy_log(stage.source.partition("t", 0).log)
    for _ in range(60):
        logs.double(log, 50)
    ranges = stage.ranges()
    assert dict(await asyncio.to_thread(lambda: judge_small(stage.clusters, ranges, most=40))) == {
        one.spec.range_id: None for one in ranges
    }
