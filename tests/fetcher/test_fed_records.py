"""Records that replicas were fed before the source had committed them, once nobody follows the source in sync any more."""

from __future__ import annotations

import asyncio

from fetcher.source_log import MAX_OFFSET
from tests.fakes.cluster import FakeCluster
from tests.fetcher.rig import eventually
from tests.fetcher.test_in_sync import TP, Scene


async def test_replicas_are_told_the_source_s_high_watermark_until_it_is_past_what_they_were_fed() -> None:
    """A consumer at a replica would else read what another leader of the source may truncate."""
    async with FakeCluster(2) as source:
        scene = Scene(source, replicas=(1, 2))
        async with scene.running():
            scene.part.write(acks_all=True)
            other = next(n for n in source.brokers if n != scene.part.partition.leader)
            scene.part.replicate(other)
            await scene.in_sync()
            copy = scene.rig.directory("t", 0)
            assert copy is not None and copy.fed_to == -1
            await eventually(lambda: copy.high_watermark == 1, 25, scene.state)
            for _ in range(3):  # the source's other in-sync replica is slow
                scene.part.write(acks_all=True)
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 4, 25, scene.state)
            scene.part.partition.isr.remove(800)
            scene.part.partition.replicas.remove(800)
            scene.sync.end([TP])
            assert copy.fed_to == 4
            await asyncio.sleep(1.0)  # it is read as consumers read by then
            log = scene.part.leader_log
            for high_watermark in (2, 3, 4):
                log.high_watermark = high_watermark

                def told() -> bool:
                    scene.source.notify()
                    return scene.log(1).high_watermark >= log.high_watermark

                await eventually(told, 25, scene.state)
                await asyncio.sleep(0.2)
                assert scene.log(1).high_watermark == scene.log(2).high_watermark == high_watermark


async def test_what_an_earlier_process_fed_nobody_knows() -> None:
    """As long as this one does not follow in sync, no position of a replica counts as committed."""
    async with FakeCluster(2) as source:
        scene = Scene(source, replicas=(1, 2))
        async with scene.running():
            scene.part.write(acks_all=True)
            copy = scene.rig.directory("t", 0)
            assert copy is not None
            copy.fed_to = MAX_OFFSET
            other = next(n for n in source.brokers if n != scene.part.partition.leader)
            scene.part.replicate(other)
            await scene.in_sync()
            scene.sync.end([TP])
            assert copy.fed_to == copy.log_end_offset == 1
