"""Where replicas start, looked at for people and asked before a fence: who does not tell hides nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from controller.judge.late_starts import LateStart
from controller.phases import Phase
from controller.proof import MissingRecords
from controller.state import MirrorPartition
from linker.links import replica_starts
from linker.links.replica_starts import ReplicaStarts
from tests.links.link_context import context
from wire.errors import BrokerError, ConnectionLost
from wire.frames.list_offsets import OffsetResult
from wire.frames.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("u", 0)
_LEADER_NOT_AVAILABLE, _STORAGE = 5, 56


class Rig:
    """Two topics on brokers 1 and 2, mirrored from offset 0; `logs` says where each replica starts, or its error code."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logs: dict[int, dict[TopicPartition, int]] = {1: {T0: 0, T1: 0}, 2: {T0: 0, T1: 0}}
        self.errors: dict[tuple[int, TopicPartition], int] = {}
        self.away: set[int] = set()
        self.source_errors: dict[TopicPartition, int] = {}
        self.source_away = False
        self.patience: dict[str, float] = {}
        self.validations: dict[tuple[str, TopicPartition], Any] = {}
        states = [
            MirrorPartition(
                link="l", topic=tp.topic, partition=0, phase=Phase.ACTIVE, session_epoch=3, start_offset=0
            )
            for tp in (T0, T1)
        ]
        image: Any = SimpleNamespace(
            link_partitions=lambda _: states,
            partitions={("l", state.tp): state for state in states},
            validations=self.validations,
        )
        source: Any = SimpleNamespace(list_offsets=self.list_offsets)
        target: Any = SimpleNamespace(cluster=None)
        controller: Any = SimpleNamespace(image=image)
        monkeypatch.setattr(replica_starts, "list_at", self.list_at)
        self.starts = ReplicaStarts(context("l", source, target, controller), lambda _: (1, 2))

    async def list_at(
        self, _: Any, broker: int, asked: Mapping[TopicPartition, int], *, timeout: float
    ) -> dict[TopicPartition, OffsetResult]:
        self.patience["target"] = timeout
        if broker in self.away:
            raise ConnectionLost(f"broker {broker} is away", sent=False)
        return {tp: self.result(self.logs[broker][tp], self.errors.get((broker, tp), 0)) for tp in asked}

    async def list_offsets(
        self, asked: Mapping[TopicPartition, int], *, timeout: float
    ) -> dict[TopicPartition, OffsetResult]:
        self.patience["source"] = timeout
        if self.source_away:
            raise ConnectionLost("the source is away", sent=False)
        return {tp: self.result(0, self.source_errors.get(tp, 0)) for tp in asked}

    @staticmethod
    def result(offset: int, error: int) -> OffsetResult:
        return OffsetResult(error=error, offset=-1 if error else offset, timestamp=-1, leader_epoch=-1)


async def test_a_broker_that_sleeps_gets_little_patience_before_the_fence_and_the_source_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A source that takes a second for its answers, every time, must not hold a promote up for ever."""
    rig = Rig(monkeypatch)
    rig.logs[2][T0] = 7
    assert await rig.starts.late([T0], timeout=5, every=False) == {T0: [LateStart(2, 0, 7)]}
    assert rig.patience["target"] <= 0.5
    assert rig.patience["source"] >= 4
    await rig.starts.late([T0], timeout=5)
    assert sum(rig.patience.values()) <= 5
    assert rig.patience["target"] > 2


async def test_a_partition_that_a_broker_does_not_tell_of_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.logs[2][T0] = 7
    rig.errors[2, T1] = _STORAGE
    assert await rig.starts.late([T0, T1], timeout=5, every=False) == {T0: [LateStart(2, 0, 7)]}
    with pytest.raises(BrokerError, match="log of u-0"):
        await rig.starts.late([T0, T1], timeout=5)


async def test_a_broker_that_is_down_hides_no_other_and_its_own_late_start_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.away.add(1)
    rig.logs[2][T0] = 7
    await rig.starts.look()
    assert rig.starts.of(T0) == [LateStart(2, 0, 7)]
    rig.away = {2}
    rig.logs[1][T0] = 3
    await rig.starts.look()
    assert rig.starts.of(T0) == [LateStart(1, 0, 3), LateStart(2, 0, 7)]
    rig.away.clear()
    rig.logs[1][T0] = rig.logs[2][T0] = 0
    await rig.starts.look()
    assert rig.starts.of(T0) == []


async def test_what_the_source_does_not_tell_of_now_stays_as_it_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.logs[2] = {T0: 7, T1: 7}
    await rig.starts.look()
    rig.logs[2] = {T0: 8, T1: 8}
    rig.source_errors[T0] = _LEADER_NOT_AVAILABLE
    await rig.starts.look()
    assert (rig.starts.of(T0), rig.starts.of(T1)) == ([LateStart(2, 0, 7)], [LateStart(2, 0, 8)])
    rig.source_away = True
    await rig.starts.look()
    assert (rig.starts.of(T0), rig.starts.of(T1)) == ([LateStart(2, 0, 7)], [LateStart(2, 0, 8)])


async def test_a_late_start_that_lacks_not_one_record_is_no_error_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(monkeypatch)
    rig.logs[2] = {T0: 7, T1: 7}
    none = MissingRecords(start=0, end=7, batches=0, records=0)
    rig.validations["l", T0] = SimpleNamespace(replicas=[SimpleNamespace(broker_id=2, missing=none)])
    await rig.starts.look()
    assert rig.starts.of(T0)
    assert "u-0: a promote would lose records" in caplog.text
    assert "t-0" not in caplog.text


async def test_a_late_start_that_moves_is_told_of_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replica_starts, "_TELL_AGAIN", 0.05)
    rig = Rig(monkeypatch)

    def told() -> list[str]:
        return [one for one in caplog.messages if "would lose records" in one]

    for start in range(1, 20):
        rig.starts._note({T0: [LateStart(1, 0, start)]}, [])
    assert len(told()) == 1
    await asyncio.sleep(0.06)
    rig.starts._note({T0: [LateStart(1, 0, 19)]}, [])
    assert len(told()) == 1, "it does not move"
    rig.starts._note({T0: [LateStart(1, 0, 20)]}, [])
    assert "starts at offset 20" in told()[1]
    rig.starts._note({T0: [LateStart(1, 0, 21), LateStart(2, 0, 1)]}, [])
    assert len(told()) == 3, "another replica"
    rig.starts._note({}, [])
    rig.starts._note({T0: [LateStart(1, 0, 21)]}, [])
    assert len(told()) == 4, "it was well meanwhile"
