"""Records that come damaged from the source: a follower refuses them, and they are read again instead of served for ever."""

from __future__ import annotations

import asyncio

from fetcher.budget import Charge, MemoryBudget
from fetcher.window import Window, WindowChunk
from tests.fakes.batches import build_batch
from tests.fakes.cluster import FakeCluster
from tests.fetcher.rig import Rig, eventually, fill
from wire.frames.types import TopicPartition

TP = TopicPartition("t", 0)


def flipped(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 0x40]) + data[-2:]


async def test_a_damaged_window_is_read_again() -> None:
    """Only the way was bad: the log at the source is well."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 30)
        stored = source.partition("t").log.batches
        good = stored[20].data
        stored[20].data = flipped(good)
        rig = Rig(source, replicas=(1, 2))
        async with rig.running():
            (mirror,) = rig.mirror("t")
            followers = [rig.follow(replica) for replica in rig.replicas]
            logs = [one.logs[mirror.spec.topic_id, 0] for one in followers]
            await eventually(lambda: bool(rig.events.damages))
            assert "from offset 40 to 41 came damaged" in rig.events.damages[0][1]
            assert "came damaged" in (mirror.trouble or "")
            assert rig.events.availability[-1] == (TP, False)
            # As long as what is read is damaged, that is shown, and no follower appends it.
            reads = len(rig.events.damages)
            await eventually(lambda: len(rig.events.damages) > reads + 1)
            assert mirror.trouble is not None
            assert mirror.failed is None
            assert all(log.end <= 40 and log.failed is None for log in logs)
            stored[20].data = good
            await rig.settled()
            # What a follower has is known when it asks for more.
            await eventually(lambda: mirror.trouble is None)
            assert mirror.failed is None
            await eventually(lambda: rig.events.availability[-1] == (TP, True))
            assert all(log.damaged for log in logs[:1])


async def test_who_asks_again_for_what_is_well_costs_no_other_read() -> None:
    """Its connection was cut with an answer on the way."""
    async with FakeCluster(1) as source:
        source.add_topic("t", 1)
        fill(source, 30)
        rig = Rig(source, replicas=(1,))
        async with rig.running():
            (mirror,) = rig.mirror("t")
            follower = rig.follow(1)
            await rig.settled()
            for _ in range(5):
                fill(source, 5)
                follower.restart()
                await asyncio.sleep(0.02)
            await rig.settled()
            assert rig.events.damages == []
            assert mirror.bytes_fetched == mirror.bytes_mirrored


def test_only_what_was_told_is_looked_at() -> None:
    charge = Charge(MemoryBudget(1 << 20), 1000)
    window = Window(0)
    parts = [bytearray(build_batch(2)) for _ in range(3)]
    for index, part in enumerate(parts):
        part[0:8] = (2 * index).to_bytes(8, "big")
        window.append(WindowChunk(2 * index, 2 * index + 2, memoryview(part), len(part), charge))
    assert window.damaged(0, 6) is None
    parts[1][-1] ^= 1
    assert window.damaged(0, 6) == (2, 3)
    assert window.damaged(0, 2) is None
    assert window.damaged(4, 6) is None
    assert window.damaged(3, 4) == (2, 3)
