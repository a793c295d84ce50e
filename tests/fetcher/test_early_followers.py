"""Followers learn of a new mirror as early as the sidecar does, and ask before it can tell them anything.

An error would cost them `replica.fetch.backoff.ms`, a second as Kafka comes, and the others that long as well: the window
waits for all replicas of a new mirror.
"""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.fakes.cluster import FakeCluster
from tests.fakes.follower import FakeFollower, FollowerLog
from tests.fetcher.rig import SESSION_EPOCH, Rig, eventually, fill
from wire.schema import codec

NOT_LEADER_OR_FOLLOWER = 6


def a_log(rig: Rig, topic: str) -> FollowerLog:
    return FollowerLog(topic, rig.image.topics_by_name[topic].id, 0, SESSION_EPOCH)


def copied(rig: Rig, log: FollowerLog) -> bool:
    return log.end == rig.source.partition(log.topic, log.index).log.high_watermark


def early(rig: Rig, *logs: FollowerLog, **options: object) -> FakeFollower:
    follower = FakeFollower(rig.port, 1, 101, list(logs), **({"backoff": 5.0, "max_wait_ms": 3000} | options))  # type: ignore[arg-type]
    rig.followers[1] = follower
    rig.start(follower)
    return follower


@pytest.mark.parametrize("version", [12, 17], ids=["by_name", "by_id"])
@pytest.mark.parametrize("loaded_late", [False, True])
async def test_a_follower_that_asks_too_early_is_answered_when_the_mirror_is_there(
    loaded_late: bool, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fetcher.followers._PATIENCE", 60.0)
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.add_image("t", 1)
            log = a_log(rig, "t")
            if loaded_late:
                source.inject("list_offsets", delay=0.3)
                rig.manager.add([rig.spec("t", 0)])
            follower = early(rig, log, version=version, max_wait_ms=60_000)
            await eventually(lambda: len(rig.server.sessions) == 1)
            if not loaded_late:
                rig.manager.add([rig.spec("t", 0)])
            await eventually(lambda: log.end > 0)  # before the patience is over
            await rig.settled()
            assert log.errors == []
            assert follower.protocol_errors == []


async def test_a_partition_that_is_coming_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fetcher.followers._PATIENCE", 60.0)
    async with FakeCluster(1) as source:
        for topic in ("t", "u"):
            source.add_topic(topic, 1)
        fill(source, 20)
        source.add("u", 0, records=2, value_size=10)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            rig.add_image("u", 1)
            present, coming = a_log(rig, "t"), a_log(rig, "u")
            follower = early(rig, present, max_wait_ms=60_000)
            await eventually(lambda: copied(rig, present))
            follower.logs[coming.key] = coming
            # Ends the fetch that is under way: only the next one names the new partition.
            source.add("t", 0, records=2, value_size=10)
            await eventually(
                lambda: any(coming.key in session.partitions for session in rig.server.sessions.all())
            )
            source.add("t", 0, records=2, value_size=10)
            await eventually(lambda: copied(rig, present))
            assert coming.errors == []
            rig.manager.add([rig.spec("u", 0)])
            await eventually(lambda: coming.end > 0)
            assert coming.errors == present.errors == []


async def test_a_partition_that_does_not_come_is_refused_when_the_patience_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fetcher.followers._HOLD", 60.0)
    async with FakeCluster(1) as source:
        for topic in ("t", "u"):
            source.add_topic(topic, 1)
        fill(source, 20)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            rig.add_image("u", 1)
            present, missing = a_log(rig, "t"), a_log(rig, "u")
            loop = asyncio.get_running_loop()
            began = loop.time()
            follower = early(rig, present, missing, max_wait_ms=300)
            await eventually(lambda: bool(missing.errors))
            assert loop.time() - began > 0.25
            assert missing.errors == [NOT_LEADER_OR_FOLLOWER]
            await eventually(lambda: copied(rig, present))
            assert follower.protocol_errors == []


async def test_a_follower_that_would_wait_for_long_is_refused_when_the_patience_is_over() -> None:
    async with FakeCluster(1) as source:
        for topic in ("t", "u"):
            source.add_topic(topic, 1)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            rig.add_image("u", 1)
            present, missing = a_log(rig, "t"), a_log(rig, "u")
            loop = asyncio.get_running_loop()
            began = loop.time()
            early(rig, present, missing, max_wait_ms=60_000)
            await eventually(lambda: bool(missing.errors))
            assert loop.time() - began > 0.9
            assert missing.errors == [NOT_LEADER_OR_FOLLOWER]


async def test_it_is_refused_in_time_where_others_have_records_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fetcher.followers._HOLD", 60.0)
    async with FakeCluster(1) as source:
        for topic in ("t", "u"):
            source.add_topic(topic, 1)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            rig.add_image("u", 1)
            present, missing = a_log(rig, "t"), a_log(rig, "u")
            follower = early(rig, present, max_wait_ms=300)
            await eventually(lambda: follower.fetches > 1)
            follower.logs[missing.key] = missing

            async def write() -> None:
                while not missing.errors:
                    source.add("t", 0, records=1, value_size=10)
                    await asyncio.sleep(0.02)

            await asyncio.wait_for(write(), 25)
            assert missing.errors == [NOT_LEADER_OR_FOLLOWER]
            assert follower.fetches > 5


async def test_without_a_session_it_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fetch names every partition then, and would be held up each time."""
    monkeypatch.setattr("fetcher.followers._PATIENCE", 60.0)
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.add_image("t", 1)
            log = a_log(rig, "t")
            early(rig, log, use_session=False, max_wait_ms=60_000)
            await eventually(lambda: bool(log.errors))
            assert log.errors == [NOT_LEADER_OR_FOLLOWER]


async def test_a_follower_that_asks_again_gets_both_answers() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            partition = {
                "partition": 0,
                "current_leader_epoch": SESSION_EPOCH,
                "fetch_offset": 0,
                "last_fetched_epoch": -1,
                "log_start_offset": 0,
                "partition_max_bytes": 1 << 20,
            }
            fields = {
                "max_wait": 600,
                "min_bytes": 1,
                "max_bytes": 10 << 20,
                "isolation_level": 0,
                "session_id": 0,
                "session_epoch": 0,
                "topics": [{"topic_id": rig.add_image("t", 1), "partitions": [partition]}],
                "forgotten_topics_data": [],
                "rack_id": "",
                "replica_state": {"replica_id": 1, "replica_epoch": 101},
            }
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
            try:
                for number in (1, 2):
                    body = codec.encode_request("fetch", 17, fields, correlation_id=number, client_id="f")
                    writer.write(struct.pack(">i", len(body)) + body)
                async with asyncio.timeout(25):
                    for _ in (1, 2):
                        (size,) = struct.unpack(">i", await reader.readexactly(4))
                        answer = codec.decode_response("fetch", 17, await reader.readexactly(size))
                        assert answer.responses[0].partitions[0].error_code == NOT_LEADER_OR_FOLLOWER
            finally:
                writer.close()
                await writer.wait_closed()
