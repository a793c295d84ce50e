"""How far each side's records are settled, asked of fake brokers, and that nothing beyond is taken for settled."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.cluster import FakeCluster
from tests.fakes.log import FakeLog
from tests.validator.test_records_planning import LINK_BROKER, TP, found, job
from validator.read.endpoint import ClusterEndpoint
from validator.read.ranges import PartitionBounds, ReplicaBounds
from validator.records.commits import stable_ends
from validator.records.frames import SOURCE
from validator.records.records import _Job


def opened(at: int, *, ended: bool = False) -> FakeLog:
    """Six records, of which those from `at` on are of a transaction; ended: with its marker."""
    log = FakeLog()
    log.add(at)
    log.add(6 - at, producer_id=4, producer_epoch=0, base_sequence=0, transactional=True)
    if ended:
        log.end_transaction(4, 0, commit=False)
    return log


async def test_each_replica_and_the_source_say_themselves_how_far_they_are_settled() -> None:
    async with FakeCluster() as source, FakeCluster(nodes=2) as target:
        for cluster in (source, target):
            cluster.add_topic("t")
        source.partition("t").log = opened(3, ended=True)
        target.partition("t").log = opened(3, ended=True)
        target.partition("t").replica_logs[2] = opened(3)
        replicas = (ReplicaBounds(1, 1, 0, 0, 7), ReplicaBounds(2, 2, 0, 0, 6))
        east, west = (
            ClusterEndpoint(side, side, tuple(f"{host}:{port}" for host, port in cluster.bootstrap))
            for side, cluster in (("source", source), ("target", target))
        )
        ends = await stable_ends(east, west, {TP: PartitionBounds("t", 0, 0, 7, replicas)})
        assert ends == {(TP, SOURCE): 7, (TP, 1): 7, (TP, 2): 3}
        assert await stable_ends(east, west, {}) == {}


def test_settled_records_are_read_read_committed_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(LINK_BROKER, found(log_start=10))
    asked: dict[str, Any] = {}
    monkeypatch.setattr(_Job, "read", lambda self, wanted, more=None: asked.update(wanted=wanted, more=more))
    expected = [made._expected(part, one) for (part, _), one in made.readable.items()]
    ends = {(TP, SOURCE): 50, (TP, 1): 200, (TP, 2): 7}
    made.read_settled(made.stretches(expected), ends)
    assert asked["more"]["kafka.isolation.level"] == "read_committed"
    assert asked["wanted"][SOURCE] == {0: (0, 50)}
    assert asked["wanted"][1] == {0: (10, 98)}
    assert all(start >= end for slot in (2, 3) for start, end in asked["wanted"][slot].values())  # not read
