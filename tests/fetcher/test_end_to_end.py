"""The whole fetcher between a fake source cluster and fake stock followers, on real sockets."""

from __future__ import annotations

from tests.fakes.cluster import FakeCluster
from tests.fetcher.rig import Rig, eventually


async def test_three_followers_get_the_sources_bytes_and_the_source_is_read_once() -> None:
    async with FakeCluster(3) as source:
        source.add_topic("orders", 3)
        for partition in range(3):
            for n in range(40):
                source.add("orders", partition, records=1 + n % 5, value_size=5000)
        rig = Rig(source)
        async with rig.running():
            mirrors = rig.mirror("orders")
            for replica in rig.replicas:
                rig.follow(replica)
            await rig.settled()
            for n in range(30):
                source.add("orders", n % 3, records=3)
            await rig.settled()
            fetched = sum(m.bytes_fetched for m in mirrors)
            assert fetched <= 1.05 * sum(m.bytes_mirrored for m in mirrors)
            assert all(len(m.cursors) == 1 for m in mirrors)
            await eventually(lambda: all(m.cursors[0].window.bytes == 0 for m in mirrors))
    assert rig.events.failures == {}
