"""Start, restart, cancellation; what is asked besides Fetch; hostile followers."""

from __future__ import annotations

import asyncio
import gc
import random
import struct
import time
from types import SimpleNamespace
from typing import Any

import pytest

from fetcher.directory import MirrorDirectory
from fetcher.epochs import EpochHistory, EpochNoted
from tests.fakes.cluster import FakeCluster
from tests.fetcher.pure import pure_mirror
from tests.fetcher.rig import SESSION_EPOCH, Rig, eventually, fill
from wire.errors import LinkerError
from wire.frames.list_offsets import LATEST
from wire.frames.types import TopicPartition
from wire.schema import codec


async def ask(port: int, api: str, version: int, fields: dict[str, Any]) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = codec.encode_request(api, version, fields, correlation_id=1, client_id="broker-1-fetcher-0")
        writer.write(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return codec.decode_response(api, version, await reader.readexactly(size))
    finally:
        writer.close()
        await writer.wait_closed()


async def test_followers_resume_at_their_own_log_end_after_a_restart() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 2)
        fill(source, 20)
        fill(source, 20, partition=1)
        rig = Rig(source, replicas=(1, 2))
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            rig.follow(2)
            await rig.settled()
            logs = {replica: follower.logs for replica, follower in rig.followers.items()}
        fill(source, 20)
        fill(source, 20, partition=1)
        again = Rig(source, replicas=(1, 2))
        async with again.running():
            mirrors = again.mirror("t", source_epochs=((0, 0),))
            for replica in (1, 2):
                follower = again.follow(replica, start=False)
                follower.logs = logs[replica]
                again.start(follower)
            await again.settled()
            new = sum(len(again.expected("t", p, 40)) for p in range(2))
            assert new <= sum(m.bytes_fetched for m in mirrors) <= 1.05 * new
            assert all(log.truncations == [] for log in logs[1].values())


async def test_until_it_is_loaded_a_partition_is_not_an_empty_log() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)
        source.inject("list_offsets", error=78, times=None)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            (mirror,) = rig.mirror("t")
            follower = rig.follow(1)
            (log,) = follower.logs.values()
            await eventually(lambda: len(log.errors) > 2)
            assert set(log.errors) == {6}
            assert not mirror.loaded
            source.clear_faults()
            await rig.settled()


async def test_one_that_is_to_be_in_sync_does_not_wait_for_an_end_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new leader tells no end before its ISR has all of an earlier epoch: the follower begins with what it has."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)
        rig = Rig(source, replicas=(1,))
        ask = rig.cluster.list_offsets

        async def without_end(targets: Any, **more: Any) -> Any:
            found = await ask(targets, **more)
            latest = LATEST in targets.values()
            return {tp: one._replace(error=78) if latest else one for tp, one in found.items()}

        monkeypatch.setattr(rig.cluster, "list_offsets", without_end)
        async with rig.running():
            (mirror,) = rig.mirror("t")
            await eventually(lambda: mirror.trouble is not None and "OFFSET_NOT_AVAILABLE" in mirror.trouble)
            assert not mirror.loaded
            mirror.feed = SimpleNamespace(replica_moved=lambda _mirror: None)  # type: ignore[assignment]
            await eventually(lambda: mirror.loaded)
            assert mirror.high_watermark == 40
            rig.follow(1)
            await rig.settled()


async def test_list_offsets_and_epochs() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 20)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            (mirror,) = rig.mirror("t", start_offset=10)
            await eventually(lambda: mirror.loaded)
            answers = {}
            for timestamp in (-1, -2, -4, -3, 1000):
                answer = await ask(
                    rig.port,
                    "list_offsets",
                    8,
                    {
                        "replica_id": 1,
                        "topics": [
                            {
                                "name": "t",
                                "partitions": [
                                    {
                                        "partition_index": 0,
                                        "current_leader_epoch": SESSION_EPOCH,
                                        "timestamp": timestamp,
                                    }
                                ],
                            }
                        ],
                    },
                )
                part = answer.topics[0].partitions[0]
                answers[timestamp] = (int(part.error_code), part.offset)
            assert answers == {-1: (0, 40), -2: (0, 10), -4: (0, 10), -3: (42, -1), 1000: (42, -1)}
            ends = {}
            for epoch in (SESSION_EPOCH, SESSION_EPOCH - 2, SESSION_EPOCH + 1):
                answer = await ask(
                    rig.port,
                    "offset_for_leader_epoch",
                    4,
                    {
                        "replica_id": 1,
                        "topics": [
                            {
                                "topic": "t",
                                "partitions": [
                                    {
                                        "partition": 0,
                                        "current_leader_epoch": SESSION_EPOCH,
                                        "leader_epoch": epoch,
                                    }
                                ],
                            },
                            {"topic": "other", "partitions": [{"partition": 0, "leader_epoch": 1}]},
                        ],
                    },
                )
                part = answer.topics[0].partitions[0]
                ends[epoch] = (part.leader_epoch, part.end_offset)
                assert int(answer.topics[1].partitions[0].error_code) == 3
            assert ends == {
                SESSION_EPOCH: (SESSION_EPOCH, 40),
                SESSION_EPOCH - 2: (SESSION_EPOCH - 2, 10),
                SESSION_EPOCH + 1: (-1, -1),
            }


async def test_cancelled_at_any_moment_everything_is_given_back() -> None:
    for seed in range(6):
        chance = random.Random(seed)
        async with FakeCluster(1) as source:
            source.add_topic("t", 2)
            fill(source, 50, size=8000)
            fill(source, 50, partition=1, size=8000)
            rig = Rig(source)
            async with rig.running():
                rig.mirror("t")
                rig.follow(1)
                await asyncio.sleep(chance.random() * 0.3)
            rig.manager.remove(list(rig.manager.partitions))
            gc.collect()
            await eventually(lambda rig=rig: rig.budget.used == 0, 25)
            assert rig.fetchers == {}
            assert len(rig.directory) == 0
            assert [t for t in asyncio.all_tasks() if "fetcher" in repr(t.get_coro())] == []


async def test_a_restarted_manager_takes_up_its_partitions() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 10)
        rig = Rig(source)
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            await rig.settled()
        fill(source, 10)
        follower = rig.followers[1]
        rig.tasks.clear()
        rig.cluster = rig.cluster.__class__("source", source.bootstrap, rig.cluster.security, "linker")
        again = Rig(source)
        async with again.running():
            again.add_image("t", 1)
            assert again.manager.add([again.spec("t", 0, source_epochs=((0, 0),))])[0].tp == TopicPartition(
                "t", 0
            )
            with pytest.raises(LinkerError, match="link 'link' cannot have t-0"):
                again.manager.add([again.spec("t", 0)])
            moved = again.follow(1, start=False)
            moved.logs = follower.logs
            again.start(moved)
            await again.settled()


@pytest.mark.parametrize("seed", range(4))
async def test_hostile_bytes_close_the_connection_and_harm_nobody(seed: int) -> None:
    chance = random.Random(seed)
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        rig = Rig(source, replicas=(1, 2))
        async with rig.running():
            rig.mirror("t")
            rig.follow(1)
            body = fetch_body(chance)
            for _ in range(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
                bad = bytearray(body)
                for _ in range(chance.randrange(1, 5)):
                    bad[chance.randrange(8, len(bad))] = chance.randrange(256)
                cut = chance.choice([len(bad), chance.randrange(1, len(bad))])
                writer.write(struct.pack(">i", len(bad)) + bad[:cut])
                await asyncio.sleep(0.01)
                writer.close()
                try:
                    await writer.wait_closed()
                except OSError:
                    pass
                del reader
            fill(source, 10)
            await rig.settled()
            assert len(rig.server.sessions) <= 2


def fetch_body(chance: random.Random) -> bytes:
    return codec.encode_request(
        "fetch",
        17,
        {
            "max_wait": 100,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "session_id": 0,
            "session_epoch": 0,
            "topics": [
                {
                    "topic_id": b"t-t".ljust(16, b"\0"),
                    "partitions": [
                        {
                            "partition": 0,
                            "current_leader_epoch": SESSION_EPOCH,
                            "fetch_offset": chance.randrange(100),
                            "last_fetched_epoch": -1,
                            "log_start_offset": 0,
                            "partition_max_bytes": 1 << 20,
                        }
                    ],
                }
            ],
            "replica_state": {"replica_id": 2, "replica_epoch": 102},
        },
        correlation_id=1,
        client_id="x",
    )


async def test_consumers_read_what_a_window_has_and_hear_of_news() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 10)
        rig = Rig(source, replicas=(1, 2))
        async with rig.running():
            (mirror,) = rig.mirror("t")
            heard: list[int] = []
            mirror.listeners.add(lambda m: heard.append(m.high_watermark))
            stalled = rig.follow(1, partition_bytes=100)
            await eventually(lambda: mirror.cursors != [] and mirror.cursors[0].window.bytes > 0)
            stalled.running.clear()
            end = mirror.cursors[0].position
            read = mirror.read(end - 2, 1 << 20)
            assert read is not None
            assert b"".join(read[0]) == rig.expected("t", 0, end - 2)
            assert mirror.read(end + 100, 100) is None
            assert heard[-1] == 20


async def test_a_woken_fetch_is_woken_once_for_many_partitions() -> None:
    async with FakeCluster(1) as source:
        source.add_topic("t", 50)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            rig.mirror("t")
            follower = rig.follow(1, max_wait_ms=30_000)
            for partition in range(50):
                fill(source, 1, partition=partition)
            await rig.settled()
            await asyncio.sleep(0.2)
            before = follower.fetches
            started = time.monotonic()
            for partition in range(50):
                fill(source, 1, partition=partition)
            await rig.settled()
            assert follower.fetches - before <= 12
            assert time.monotonic() - started < 20


def test_epoch_history() -> None:
    history = EpochHistory([(4, 40), (0, 0), (4, 50)])
    assert history.entries == ((0, 0), (4, 40))
    assert [history.before(o) for o in (0, 1, 40, 41)] == [-1, 0, 0, 4]
    assert history.note(4, 60) is EpochNoted.KNOWN
    assert history.note(6, 60) is EpochNoted.REPLACED
    assert history.end_of(4) == 60
    assert history.end_of(6) is None
    late = EpochHistory([(3, 10)])
    assert late.note(3, 5) is EpochNoted.EARLIER
    assert late.note(1, 0) is EpochNoted.EARLIER
    assert late.entries == ((1, 0), (3, 5))


def test_directory_has_one_mirror_per_partition() -> None:
    directory = MirrorDirectory()
    mirror, _, _ = pure_mirror()
    other, _, _ = pure_mirror(link="m")
    directory.add(mirror)
    with pytest.raises(LinkerError):
        directory.add(other)
    directory.remove(other)
    assert directory("t", 0) is mirror
    assert directory(b"i" * 16, 0) is mirror
    directory.remove(mirror)
    assert len(directory) == 0


def test_offsets_of_source_epochs_always_ascend() -> None:
    """Whatever a source sends: the store refuses a history where they do not."""
    backwards = EpochHistory([(7, 0)])
    assert backwards.note(5, 100) is EpochNoted.REPLACED
    assert backwards.entries == ((7, 0), (5, 100))
    below = EpochHistory([(5, 100)])
    assert below.note(7, 50) is EpochNoted.REPLACED
    assert list(below.entries) == [(7, 50)]
    assert below.note(3, 10) is EpochNoted.EARLIER
    assert list(below.entries) == [(3, 10), (7, 50)]
