"""Two fake clusters that a run compares without Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.cluster import FakeCluster
from tests.validator import logs
from tests.validator.without_spark import Runner
from validator.compare.small_ranges import MOST_ROWS


@pytest.fixture(params=[MOST_ROWS, 0], ids=["in one task", "by Spark"])
async def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Runner]:
    """A source of one node, a target of three whose replicas hold the same. Where sides are not simply alike, their rows are
    sorted in one task, or brought together as Spark does it."""
    async with FakeCluster() as source, FakeCluster(nodes=3) as target:
        for cluster in (source, target):
            cluster.add_topic("t")
        source.partition("t").log = logs.make_log()
        target.partition("t").log = logs.copy_log(source.partition("t").log)
        yield Runner(source, target, monkeypatch, small=request.param)
