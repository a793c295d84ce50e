"""A mirror that has another name at the source, where a topic of the mirror's name is, too."""

from __future__ import annotations

import pytest

from fetcher.spec import MirrorSpec
from tests.fakes.cluster import FakeCluster
from tests.fetcher.rig import SESSION_EPOCH, Rig, eventually, fill


@pytest.mark.parametrize("newest", [17, 12], ids=["by id", "by name"])
async def test_the_sources_topic_is_read_and_not_the_one_of_the_mirrors_name(newest: int) -> None:
    async with FakeCluster(api_versions={"fetch": (4, newest)}) as source:
        source.add_topic("t")
        source.add_topic("east.t")
        source.add("east.t", records=3)
        fill(source, 5)
        rig = Rig(source, replicas=(1,), prefix="east.")
        async with rig.running():
            spec = MirrorSpec(
                link="link",
                topic="east.t",
                partition=0,
                topic_id=rig.add_image("east.t", 1),
                source_topic_id=None if newest == 12 else source.topics["t"].topic_id,
                session_epoch=SESSION_EPOCH,
                start_offset=0,
                target_replicas=rig.replicas,
                source_name="t",
            )
            rig.manager.add([spec])
            (log,) = rig.follow(1).logs.values()
            for _ in range(2):
                await eventually(lambda: log.end == source.partition("t").log.log_end_offset, 25, rig.state)
                assert log.data() == rig.expected("t", 0)
                fill(source, 5)
            assert rig.events.failures == {}
