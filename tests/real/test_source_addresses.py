"""The addresses of a source: another cluster answers at one of them, or its brokers have moved away from all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from linker.admin.models import MirrorState
from linker.demo.kafka_cluster import CONTROLLER, KafkaCluster
from linker.demo.ports import PortReservation
from linker.demo.sidecar_process import SidecarProcess
from linker.demo.source_data import SourceFiller, SourceTopic
from tests.real.harness_promote import LINK, PATIENCE
from tests.real.harness_trouble import TroubleScene, create_topic, in_sync, linked_sidecar, patiently
from wire.cluster import Cluster
from wire.list_offsets import LATEST
from wire.security import ClientSecurity
from wire.types import TopicPartition, parse_bootstrap

StartCluster = Callable[..., Awaitable[KafkaCluster]]


async def link_reason(sidecar: SidecarProcess, wanted: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while True:
        found = (await sidecar.linker("link", "describe", LINK, "-o", "json")).json()
        reason = found["reason"] or ""
        if wanted in reason:
            return reason
        assert time.monotonic() < deadline, f"wanted {wanted!r}: {found}"
        await asyncio.sleep(0.2)


@pytest.mark.timeout(400)
async def test_another_cluster_takes_over_the_address_of_a_dead_broker(
    target_cluster: KafkaCluster,
    start_cluster: StartCluster,
    tmp_path: Path,
    unique_topic: Callable[[str], str],
    _numbers: Iterator[int],
) -> None:
    """It has a topic of the same name, and for a while it alone answers. Nothing fails, nothing goes there."""
    name = unique_topic("t")
    source = await start_cluster(name="own-source", brokers=2)
    async with linked_sidecar(source, target_cluster, 900 + next(_numbers), tmp_path / "s") as sidecar:
        again = ("link", "create", "again", "--bootstrap-servers", source.bootstrap, "--dry-run")
        assert "blocks of 1000" in (await sidecar.linker(*again)).output
        scene = TroubleScene(source, target_cluster, sidecar, [SourceTopic(name, 4, SourceFiller.history)])
        await scene.begin()
        [only] = [node for node in source.brokers if node.is_controller]
        [victim] = [node for node in source.brokers if not node.is_controller]
        await victim.kill()
        with PortReservation() as control:
            taken = {
                "listeners": f"PLAINTEXT://{victim.address()},{CONTROLLER}://127.0.0.1:{control.port}",
                "controller.quorum.voters": f"1@127.0.0.1:{control.port}",
            }
            thief = await start_cluster(name="thief", brokers=1, node_properties=lambda _: taken)
            await asyncio.to_thread(create_topic, victim.address(), name, 4)
            await scene.acked_more(50)
            wrong = f"address {victim.address()} answers for cluster {thief.cluster_id}, expected {source.cluster_id}"
            await only.kill()
            await scene.shown(MirrorState.SOURCE_UNAVAILABLE)
            assert wrong in await link_reason(sidecar, "answers for")
            await asyncio.sleep(12)  # longer than a topic has to be missing to be taken for deleted
            found = await scene.describe()
            assert found.state is MirrorState.SOURCE_UNAVAILABLE, found
            await only.start()
            await scene.shown(MirrorState.ACTIVE)
            await scene.acked_more(50)
            doctor = await sidecar.run("doctor", "--link", LINK, "-o", "json")
            assert "answers for cluster" in doctor.output, doctor
            there = Cluster(
                "thief", parse_bootstrap(victim.address()), ClientSecurity.from_properties({}), "test"
            )
            await there.connect()
            ends = await there.list_offsets({TopicPartition(name, i): LATEST for i in range(4)})
            assert {end.offset for end in ends.values()} == {0}, ends
            await there.close()
            await thief.close()
        await victim.start()
        await patiently("the broker that returned is in sync", lambda: in_sync(source, scene.topics, 2))
        await scene.acked_more(50)
        await scene.promoted()
        await scene.judge()
        await scene.close()
