"""A topic in sync whose source has older records in remote storage alone (KIP-405): replicas are refused them, consumers not
(`ReplicaManager.handleOffsetOutOfRangeError`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes import fetch
from tests.fakes.cluster import FakeCluster
from tests.fetcher.rig import eventually
from tests.fetcher.test_in_sync import TP, Scene

MOVED = 109


async def test_records_that_only_consumers_get_are_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in sync again with what comes after them. The sidecar was away for longer than local retention here."""
    local_start, refused = 0, 0
    real = fetch._read

    def read(broker: Any, request: Any, topic: Any, partition: Any, ask: Any, *rest: Any, **more: Any) -> Any:
        nonlocal refused
        log = partition.log_at(broker.id)
        if fetch._replica_id(request) < 0 or not log.log_start_offset <= ask.fetch_offset < local_start:
            return real(broker, request, topic, partition, ask, *rest, **more)
        refused += 1
        return {
            "partition_index": ask.partition,
            "error_code": MOVED,
            "high_watermark": log.high_watermark,
            "last_stable_offset": log.last_stable_offset,
            "log_start_offset": log.log_start_offset,
            "aborted_transactions": None,
            "records": b"",
        }

    monkeypatch.setattr(fetch, "_read", read)
    async with FakeCluster(1) as source:
        scene = Scene(source)
        for _ in range(5):
            scene.part.write(acks_all=False)
        async with scene.running():
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 5, 25, scene.state)
            scene.rig.manager.pause([TP])
            await asyncio.sleep(0.3)
            for _ in range(20):
                scene.part.write(acks_all=False)
            local_start = 20
            scene.rig.manager.resume([TP])
            scene.sync.follow(scene.parts)
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 25, 25, scene.state)
            assert refused
            await eventually(lambda: scene.part.in_sync, 25, scene.state)
