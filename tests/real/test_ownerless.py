"""All brokers of the cluster that owns a topic are away at once, and come back: no hand is needed, and nothing is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from lab.clusters.kafka_cluster import KafkaCluster
from lab.workload.source_data import SourceTopic
from tests.real.harness_stalls import brokers_back, stopped
from tests.real.test_switch import LINK, Scene, StartCluster, StartSidecar, judged

pytestmark = pytest.mark.timeout(420)
AWAY = 12.0  # longer than broker.session.timeout.ms


_TRIED_IN_EACH_RUN = ("target", "restart")  # the others take as long, and are the same way back
CASES = [(owner, when) for owner in ("target", "source") for when in ("in sync", "switching", "restart")]


@pytest.mark.parametrize(
    ("owner", "when"),
    [pytest.param(*one, marks=[] if one == _TRIED_IN_EACH_RUN else [pytest.mark.slow]) for one in CASES],
)
async def test_the_owner_s_brokers_are_away(
    start_cluster: StartCluster, start_sidecar: StartSidecar, owner: str, when: str
) -> None:
    """A link broker is the last of the ISR then. `restart`: the sidecar is killed while it leads."""
    scene = await scene_of(start_cluster, start_sidecar)
    cluster = scene.target if owner == "target" else scene.source
    await scene.until(state="ACTIVE")
    if owner == "target":
        await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK)
        await scene.until(direction="REVERSED", state="ACTIVE")
    await scene.sidecar.linker("mirror", "sync", "orders", "--link", LINK)
    await scene.until(sync="IN_SYNC")
    await scene.acked_more(20)
    if when == "switching":
        await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK, "--no-wait")
    with brokers_stopped(cluster):
        await asyncio.sleep(AWAY)
        print(f"{owner}, {when}, brokers away: {await said(scene)}")
        if when == "restart":
            await scene.sidecar.kill()
            scene.sidecar.launch()
            await asyncio.sleep(AWAY / 2)
    back = time.monotonic()
    await scene.sidecar.wait_ready()
    await brokers_back(cluster)
    found = await scene.until(state="ACTIVE")
    print(f"ACTIVE {found['direction']} {time.monotonic() - back:.1f} s after they were back")
    owns = scene.source if found["direction"] == "FORWARD" else scene.target
    await scene.owner_leads(owns)
    await scene.acked_more(20)
    await judged(scene, owns)


async def scene_of(start_cluster: StartCluster, start_sidecar: StartSidecar) -> Scene:
    """The controllers are processes of their own: they go on without the brokers."""
    source, target = await asyncio.gather(
        *(start_cluster(name=name, brokers=2, controllers=1) for name in ("source", "target"))
    )
    sidecar = await start_sidecar(
        target.bootstrap, sources={LINK: {"broker.id": 800}}, validation={"policy": "skip"}
    )
    scene = Scene(source, target, sidecar, SourceTopic("orders", 4, lambda _filler, _topic: None))
    await scene.begin()
    return scene


@contextmanager
def brokers_stopped(cluster: KafkaCluster) -> Iterator[None]:
    with ExitStack() as stack:
        for broker in cluster.brokers:
            stack.enter_context(stopped(broker))
        yield


async def said(scene: Scene) -> str:
    found = await scene.sidecar.run("mirror", "list", "--link", LINK, "-o", "json")
    return str([(one["direction"], one["state"], one["sync"], one["reason"]) for one in found.json()])
